#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include <trireme/base/error.h>

#include "idle_flags.h"

namespace trireme::tools {
namespace {

using Settings = TrainSettings;

/// A flag that works with some values of another, its decider.
struct Rule {
  const char* flag;
  const char* decider;
  const char* purpose;  // "it is for …"
  bool (*works)(const Settings&);
};

bool is_one_of(const std::string& text, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}
/// "stale" of "stale:3", "mlp" of "mlp:512"
std::string stem(const std::string& text) { return text.substr(0, text.find(':')); }

bool is_images(const std::string& data) {
  const std::filesystem::path folder(data);
  return is_one_of(stem(data), {"fashion-mnist", "mnist", "synthetic"}) || exists(folder / "train-images-idx3-ubyte") ||
         exists(folder / "train-images-idx3-ubyte.gz");
}

bool momentum(const Settings& s) { return s.optimizer == "momentum"; }
bool adam(const Settings& s) { return is_one_of(s.optimizer, {"adam", "adamw"}); }
bool adaptive(const Settings& s) { return adam(s) || s.optimizer == "adagrad"; }
bool drops(const Settings& s) { return s.lr_schedule == "step"; }
bool cosine(const Settings& s) { return s.lr_schedule == "cosine"; }
bool table(const Settings& s) { return !is_images(s.options.data); }
bool grows_stale(const Settings& s) { return is_one_of(stem(s.sync), {"async", "stale", "trylock", "round-robin"}); }
bool compensated(const Settings& s) { return grows_stale(s) && s.stale == "compensated"; }
bool on_servers(const Settings& s) {
  return is_one_of(stem(s.sync), {"server", "async", "stale", "trylock", "round-robin", "local", "elastic"});
}
bool has_servers(const Settings& s) { return stem(s.sync) != "local" || s.servers > 0; }
bool one_by_one(const Settings& s) {  // of `full` is said what to do instead (exchange::check_rate)
  return s.rate != "share" || exchange::sync_named(s.sync).one_by_one();
}
bool lands_later(const Settings& s) { return is_one_of(stem(s.sync), {"shared", "server", "async", "round-robin"}); }
bool lands_nowhere_or_on_hosts(const Settings& s) { return stem(s.sync) != "shared" || s.hosts.given(); }
bool lands_unseen(const Settings& s) { return s.on_nan != "skip"; }
bool in_one_part(const Settings& s) { return s.options.tensor * s.options.pipeline == 1; }
bool overlaps(const Settings& s) { return s.options.parallel.exchange.overlap; }
bool in_buckets(const Settings& s) {
  return is_one_of(stem(s.sync), {"shared", "allreduce", "server", "async", "stale", "round-robin"});
}
bool convolutions(const Settings& s) {  // those without have the default, and may say so
  return s.memory_format != "channels-last" || !is_one_of(stem(s.options.model), {"linear", "mlp", "gpt", "bert"});
}
bool gives_back(const Settings& s) { return s.options.parallel.exchange.zero >= 2; }
bool balances(const Settings& s) { return s.balance != "even"; }
bool in_stages(const Settings& s) { return s.options.pipeline > 1; }
bool on_hosts(const Settings& s) { return s.hosts.given(); }
bool hears_of_silence(const Settings& s) { return on_hosts(s) || asks_for_elasticity(s.elastic, s.workers_given); }
bool codes(const Settings& s) { return s.compress != "none"; }
bool codes_nothing_or_on_hosts(const Settings& s) { return !codes(s) || stem(s.compress) == "auto" || on_hosts(s); }
bool keeps(const Settings& s) { return !s.options.keeping.dir.empty(); }

constexpr Rule kRules[] = {
    {"--momentum", "--optimizer", "momentum", momentum},
    {"--nesterov", "--optimizer", "momentum", momentum},
    {"--beta1", "--optimizer", "adam and adamw", adam},
    {"--beta2", "--optimizer", "adam and adamw", adam},
    {"--epsilon", "--optimizer", "adagrad, adam and adamw", adaptive},
    {"--step-epochs", "--lr-schedule", "step", drops},
    {"--gamma", "--lr-schedule", "step", drops},
    {"--floor", "--lr-schedule", "cosine", cosine},
    {"--label", "--data", "CSV files, whose columns have names", table},
    {"--stale-gradients", "--sync", "async, stale:S, trylock:P and round-robin", grows_stale},
    {"--lambda", "--stale-gradients", "compensated", compensated},
    {"--chunk-bytes", "--sync", "modes with parameter servers", on_servers},
    {"--replicas", "--sync", "modes with parameter servers", on_servers},
    {"--chunk-bytes", "--servers", "", has_servers},
    {"--replicas", "--servers", "", has_servers},
    {"--rate", "--sync", "modes that apply gradients one by one", one_by_one},
    {"--overlap-next", "--sync", "shared on several hosts, server, async and round-robin", lands_later},
    {"--overlap-next", "--hosts", "", lands_nowhere_or_on_hosts},
    {"--overlap-next", "--on-nan", "the other ways, which look at gradients later", lands_unseen},
    {"--overlap-next", "--tensor or --pipeline", "", in_one_part},
    {"--overlap-next", "--no-overlap", "", overlaps},
    {"--overlap", "--sync", "shared, allreduce, server, async, stale:S and round-robin", in_buckets},
    {"--memory-format", "MODEL", "models with convolutions", convolutions},
    {"--zero-window", "--zero", "stages 2 and 3", gives_back},
    {"--micro", "--pipeline", ": use --accumulate, which goes through micro-batches on each worker alone", in_stages},
    {"--schedule", "--pipeline", ": it says what the stages of one do when", in_stages},
    {"--record-schedule", "--pipeline", ": it is of what the stages of one do", in_stages},
    {"--ahead", "--pipeline", ": elsewhere no rank has to wait for a norm alone", in_stages},
    {"--ahead-bytes", "--pipeline", ": elsewhere no rank has to wait for a norm alone", in_stages},
    {"--balance-stint", "--balance", "auto and watch", balances},
    {"--checkpoint-every", "--checkpoint", "", keeps},
    {"--keep", "--checkpoint", "", keeps},
    {"--keep-best", "--checkpoint", "", keeps},
    {"--grace", "--checkpoint", "", keeps},
    {"--remote", "--hosts", "", on_hosts},
    {"--address", "--hosts", "", on_hosts},
    {"--port", "--hosts", "", on_hosts},
    {"--engine", "--hosts", "", on_hosts},
    {"--compress", "--hosts", "", codes_nothing_or_on_hosts},
    {"--compress-layers", "--compress", "codecs", codes},
    {"--tls", "--hosts", "", on_hosts},
    {"--heartbeat-limit", "--hosts", "", hears_of_silence},
};

std::string value_of(const std::string& decider, const Settings& s) {
  if (decider == "--optimizer") return s.optimizer;
  if (decider == "--lr-schedule") return s.lr_schedule;
  if (decider == "--data") return s.options.data;
  if (decider == "--stale-gradients") return s.stale;
  if (decider == "--sync") return s.sync;
  if (decider == "--compress") return s.compress;
  if (decider == "--on-nan") return s.on_nan;
  if (decider == "--balance") return s.balance;
  if (decider == "--zero") return fmt::format("{}", s.options.parallel.exchange.zero);
  return s.options.model;
}

std::string reason(const Rule& rule, const std::string& flag, const Settings& s) {
  const std::string decider = rule.decider;
  if (decider == "--hosts")
    return fmt::format("{} has no effect without --hosts or --hostfile: all workers are on this machine", flag);
  if (decider == "--servers") return fmt::format("{} has no effect with --sync {} without --servers", flag, s.sync);
  if (decider == "--no-overlap" || decider == "--tensor or --pipeline")
    return fmt::format("{} has no effect with {}", flag, decider);
  if (decider == "--checkpoint") return fmt::format("{} has no effect without --checkpoint DIR", flag);
  if (decider == "--pipeline") return fmt::format("{} has no effect without --pipeline P{}", flag, rule.purpose);
  const std::string with = decider == "MODEL" ? "the model" : decider;
  return fmt::format("{} has no effect with {} {}: it is for {}", flag, with, value_of(decider, s), rule.purpose);
}

bool given(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

/// As it was typed: --no-overlap is another name of --overlap, and so is that of --overlap-next.
std::string typed(const CLI::App& command, const std::string& flag) {
  const bool negated = flag.starts_with("--overlap") && command.get_option(flag)->results().back() == "false";
  return negated ? "--no-" + flag.substr(2) : flag;
}

}  // namespace

std::vector<Idle> idle_flags(const CLI::App& command, const Settings& settings, bool alone) {
  std::vector<Idle> idle;
  for (const Rule& rule : kRules) {
    if (!given(command, rule.flag) || rule.works(settings)) continue;
    if (is_one_of(rule.decider, {"--hosts", "--servers"}) && !alone) continue;  // a launcher may have some
    idle.push_back({rule.flag, rule.decider, reason(rule, typed(command, rule.flag), settings)});
  }
  return idle;
}

bool overruled(const Idle& idle, const CLI::App& command, const Invocation& invocation) {
  const auto in_recipe = [&](const std::string& flag) { return invocation.origins.contains(flag); };
  return in_recipe(idle.flag) && given(command, idle.decider) && !in_recipe(idle.decider) && idle.decider != "MODEL";
}

void refuse_idle_flags(const CLI::App& command, const Settings& settings, bool alone, const Invocation& invocation) {
  for (const Idle& idle : idle_flags(command, settings, alone))
    if (!overruled(idle, command, invocation))
      fail<InvalidArgument>("{}{}", place_of(idle.flag, invocation), idle.reason);
}

}  // namespace trireme::tools
