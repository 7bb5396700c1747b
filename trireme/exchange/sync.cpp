#include <fmt/format.h>

#include <array>
#include <charconv>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/exchange/sync.h>

namespace trireme::exchange {
namespace {

struct Name {
  const char* kind;
  const char* settings;  // "" when there are none
};
constexpr std::array<Name, 12> kNames = {{{"shared", ""},
                                          {"allreduce", ""},
                                          {"central", ""},
                                          {"server", ""},
                                          {"async", ""},
                                          {"stale", ":S"},
                                          {"trylock", ":P"},
                                          {"round-robin", ""},
                                          {"hogwild", ""},
                                          {"local", ":K"},
                                          {"elastic", ":K,RHO"},
                                          {"diloco", ":K"}}};

constexpr std::array kRates = {"share", "full"};

template <class T>
T number(const std::string& text, const std::string& mode, const char* what, T least, T most) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size() || !(value >= least && value <= most))
    fail<InvalidArgument>("'{}': {} must be a number from {} to {}, not '{}'", mode, what, least, most, text);
  return value;
}

Sync with_settings(Sync::Kind kind, const std::string& settings, const std::string& text) {
  switch (kind) {
    case Sync::stale:
      return Sync::stale_by(number<int64_t>(settings, text, "the steps that a worker may be ahead", 0, 1'000'000));
    case Sync::trylock:
      return Sync::trylock_with(number<double>(settings, text, "the probability of trying", 0, 1));
    case Sync::local:
      return Sync::local_for(number<int>(settings, text, "the steps between averages", 1, 1'000'000));
    case Sync::elastic: {
      const size_t comma = settings.find(',');
      if (comma == std::string::npos) fail<InvalidArgument>("'{}': give steps and rho, as in elastic:10,0.3", text);
      return Sync::elastic_with(
          number<int>(settings.substr(0, comma), text, "the steps between meetings", 1, 1'000'000),
          number<double>(settings.substr(comma + 1), text, "rho", 0, 1));
    }
    case Sync::diloco:
      return Sync::diloco_for(number<int>(settings, text, "the steps between outer steps", 1, 1'000'000));
    default:
      fail<InvalidArgument>("'{}': {} has no settings", text, kNames[kind].kind);
  }
}

}  // namespace

Sync Sync::stale_by(int64_t bound) {
  Sync sync(stale);
  sync.bound = bound;
  return sync;
}

Sync Sync::trylock_with(double probability) {
  Sync sync(trylock);
  sync.probability = probability;
  return sync;
}

Sync Sync::local_for(int period) {
  Sync sync(local);
  sync.period = period;
  return sync;
}

Sync Sync::elastic_with(int period, double rho) {
  Sync sync(elastic);
  sync.period = period;
  sync.rho = rho;
  return sync;
}

Sync Sync::diloco_for(int period) {
  Sync sync(diloco);
  sync.period = period;
  return sync;
}

Sync sync_named(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  std::vector<std::string> kinds;
  for (size_t i = 0; i < kNames.size(); i++) {
    kinds.emplace_back(kNames[i].kind);
    if (kind != kNames[i].kind) continue;
    if (colon != std::string::npos) return with_settings(static_cast<Sync::Kind>(i), text.substr(colon + 1), text);
    if (*kNames[i].settings != 0)
      fail<InvalidArgument>("sync mode '{}' needs settings: {}{}", text, kind, kNames[i].settings);
    return static_cast<Sync::Kind>(i);
  }
  fail<InvalidArgument>("unknown sync mode '{}'{}", text, did_you_mean(kind, kinds));
}

std::string name_of(const Sync& sync) {
  const std::string kind = kNames[sync.kind].kind;
  switch (sync.kind) {
    case Sync::stale:
      return fmt::format("{}:{}", kind, sync.bound);
    case Sync::trylock:
      return fmt::format("{}:{:g}", kind, sync.probability);
    case Sync::local:
    case Sync::diloco:
      return fmt::format("{}:{}", kind, sync.period);
    case Sync::elastic:
      return fmt::format("{}:{},{:g}", kind, sync.period, sync.rho);
    default:
      return kind;
  }
}

std::vector<std::string> sync_names() {
  std::vector<std::string> names;
  for (const Name& name : kNames) names.push_back(fmt::format("{}{}", name.kind, name.settings));
  return names;
}

std::vector<std::string> rate_names() { return {kRates.begin(), kRates.end()}; }
std::string name_of(Rate rate) { return kRates[static_cast<size_t>(rate)]; }

Rate rate_named(const std::string& name) {
  for (size_t i = 0; i < kRates.size(); i++)
    if (name == kRates[i]) return static_cast<Rate>(i);
  fail<InvalidArgument>("unknown rate '{}'{}: share or full", name, did_you_mean(name, rate_names()));
}

bool in_shares(const Sync& sync, Rate rate, int workers) {
  return sync.one_by_one() && rate == Rate::share && workers > 1;
}

void check_rate(const Sync& sync, Rate rate) {
  if (rate == Rate::full && !sync.one_by_one())
    fail<InvalidArgument>(
        "rate 'full' is for modes that apply gradients one by one (async, stale:S with S of at least 1, trylock:P, "
        "round-robin, hogwild); in sync '{}' "
        "there is no share that it could replace. Leave it out, or use a higher learning rate",
        name_of(sync));
}

}  // namespace trireme::exchange
