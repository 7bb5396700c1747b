#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/cluster/agreement.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/world.h>
#include <trireme/exchange/options.h>
#include <trireme/exchange/terms.h>

namespace trireme::exchange {
namespace {

constexpr std::string_view kParameter = "parameter ";
constexpr std::string_view kMany = "all of many parameters";
constexpr size_t kMostKept = 500'000;  // bytes; of longer texts a coordinator keeps the hash

/// As a line of terms is read back.
struct Line {
  std::string name, value;
};

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t tab = std::min(line.find('\t'), line.size());
    lines.push_back({line.substr(0, tab), line.substr(std::min(tab + 1, line.size()))});
  }
  return lines;
}

bool has(const std::vector<Line>& lines, const std::string& name) {
  return std::any_of(lines.begin(), lines.end(), [&](const Line& line) { return line.name == name; });
}

std::string quoted(const Line* line) { return line == nullptr ? "none" : fmt::format("'{}'", line->value); }

std::string describe(const ps::SparseTable::Options& table) {
  std::string optimizer = terms_of(table.optimizer).text();
  std::replace(optimizer.begin(), optimizer.end(), '\t', ' ');
  std::replace(optimizer.begin(), optimizer.end(), '\n', ',');
  return fmt::format("rows of {}, {} fill {} of scale {}, seed {}, evicted after {}, at most {}", table.width,
                     optimizer, static_cast<int>(table.fill), table.scale, table.seed, table.evict_after,
                     table.most_rows);
}

}  // namespace

Terms terms_of(const space::Layout& layout) {
  Terms terms;
  for (size_t slot = 0; slot < layout.size(); slot++)
    terms.add(fmt::format("{}{}", kParameter, slot), layout[slot].describe());
  return terms;
}

Terms terms_of(const std::optional<space::UpdaterOptions>& optimizer) {
  using space::Optimizer;
  Terms terms;
  if (!optimizer) return std::move(terms.add("optimizer", "one of the user's own"));
  const space::UpdaterOptions& o = *optimizer;
  const bool adam = o.kind == Optimizer::adam || o.kind == Optimizer::adamw;
  terms.add("optimizer", space::name_of(o.kind)).add("learning rate", o.lr).add("weight decay", o.weight_decay);
  if (o.kind == Optimizer::momentum) terms.add("momentum", o.momentum).add("nesterov", o.nesterov);
  if (adam) terms.add("beta1", o.beta1).add("beta2", o.beta2);
  if (adam || o.kind == Optimizer::adagrad) terms.add("epsilon", space::epsilon_of(o));
  return terms;
}

Terms terms_of(const space::ScheduleOptions& schedule) {
  using space::RateSchedule;
  Terms terms;
  terms.add("schedule", space::schedule_names()[static_cast<size_t>(schedule.kind)]).add("warmup", schedule.warmup);
  if (schedule.kind == RateSchedule::step)
    terms.add("steps between drops", schedule.step_size).add("gamma", schedule.gamma);
  if (schedule.kind == RateSchedule::cosine) terms.add("total steps", schedule.total).add("floor", schedule.floor);
  return terms;
}

Terms terms_of(const Options& options) {
  Terms terms;
  terms.add("sync", name_of(options.sync)).add("bucket_bytes", options.bucket_bytes).add("clip", options.clip);
  terms.add("on_nan", name_of(options.on_nan)).add("rate", name_of(options.rate));
  if (options.sync.kind == Sync::diloco)
    terms.add("outer_rate", options.sync.outer_rate).add("outer_momentum", options.sync.outer_momentum);
  if (options.virtual_workers > 0) terms.add("virtual_workers", options.virtual_workers);
  if (options.codes()) {
    terms.add("compress", options.own_codec ? fmt::format("the program's codec '{}'", options.own_codec_name)
                                            : codec_name(options));
    for (const std::string& pattern : options.codec_excludes) terms.add("not compressed", pattern);
  }
  if (options.zero > 0) terms.add("zero", options.zero).add("zero_window", options.zero_window);
  if (options.sync.takes_servers()) {
    terms.add("chunk_bytes", options.chunk_bytes).add("stale", ps::name_of(options.stale));
    if (options.stale == ps::Stale::compensated) terms.add("lambda", options.lambda);
  }
  for (const auto& table : options.tables) terms.add(fmt::format("table '{}'", table.name), describe(table));
  return std::move(terms.add(options.terms));
}

std::string first_difference(const std::string& mine, int my_rank, const std::string& theirs, int their_rank) {
  return first_difference(mine, fmt::format("rank {}", my_rank), theirs, fmt::format("rank {}", their_rank));
}

std::string first_difference(const std::string& left_text, const std::string& left_name, const std::string& right_text,
                             const std::string& right_name) {
  const std::vector<Line> a = lines_of(left_text), b = lines_of(right_text);
  for (size_t i = 0; i < std::max(a.size(), b.size()); i++) {
    const Line *left = i < a.size() ? &a[i] : nullptr, *right = i < b.size() ? &b[i] : nullptr;
    if (left != nullptr && right != nullptr && left->name != right->name) (has(b, left->name) ? left : right) = nullptr;
    if (left != nullptr && right != nullptr && left->value == right->value) continue;
    return fmt::format("{}: {} has {}, {} has {}", (left != nullptr ? left : right)->name, left_name, quoted(left),
                       right_name, quoted(right));
  }
  return "";
}

void agree(comm::Communicator& group, std::string_view what, const std::string& text) {
  const uint64_t mine = text.empty() ? 0 : space::hash_text(text);
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  group.all_gather(&mine, all.data(), 1, DType::i64, "fingerprints of what ranks agree on");
  const auto first = std::find_if(all.begin(), all.end(), [](uint64_t theirs) { return theirs != 0; });
  const auto other = std::find_if(first, all.end(), [&](uint64_t theirs) { return theirs != 0 && theirs != *first; });
  if (other == all.end()) return;

  const auto share = [&](int root) {
    std::string shared = text;
    auto size = static_cast<int64_t>(shared.size());
    group.broadcast(&size, 1, DType::i64, root, "size of what ranks agree on");
    shared.resize(static_cast<size_t>(size));
    group.broadcast(shared.data(), shared.size(), DType::u8, root, "what ranks agree on");
    return shared;
  };
  const int left = static_cast<int>(first - all.begin()), right = static_cast<int>(other - all.begin());
  const std::string theirs[] = {share(left), share(right)}, where = first_difference(theirs[0], left, theirs[1], right);
  const bool model = where.compare(0, kParameter.size(), kParameter) == 0;
  fail<Mismatch>("the ranks' {} differ. {}. Every rank must have the same", model ? "models" : what, where);
}

void agree(World& world, std::string_view what, const std::string& text) {
  if (!world.newcomer()) agree(world.comm(), what, text);
  agree_with_newcomers(world, what, text);
}

void agree_with_newcomers(World& world, std::string_view what, const std::string& text) {
  const std::string ours = text.size() <= kMostKept ? text : Terms().add(kMany, space::hash_text(text)).text();
  if (!world.newcomer()) return world.tell_newcomers(std::string(what), ours);
  const std::string theirs = world.told_newcomers(std::string(what));
  if (theirs == ours) return;
  const std::string where = first_difference(theirs, "the job", ours, fmt::format("rank {}", world.rank()));
  const bool model = where.starts_with(kParameter) || where.starts_with(kMany);
  fail<cluster::CannotJoin>(
      "rank {} on host {} cannot join the job, which goes on without it: it has {}{}. {}. Start it with the same "
      "command, "
      "data and version",
      world.rank(), cluster::own_host_name(), model ? "another model" : "other ", model ? "" : what, where);
}

Sign sign_of(std::string_view text) {
  if (text.empty()) return {};
  uint64_t mixed = space::hash_text(text);  // a text's last letters have not reached its upper bits
  for (int i = 0; i < 2; i++) mixed = (mixed ^ (mixed >> 32)) * 0x9e3779b97f4a7c15;
  const auto hash = static_cast<double>(mixed >> 42);  // 22 bits: 256 squares of it add up exactly
  return {1, hash, hash * hash};
}

/// n Σh² = (Σh)² when all h are the same, and is more otherwise.
bool all_same(std::span<const double, 3> sums) {
  const auto n = static_cast<unsigned __int128>(sums[0]), hashes = static_cast<unsigned __int128>(sums[1]);
  return n * static_cast<unsigned __int128>(sums[2]) == hashes * hashes;
}

}  // namespace trireme::exchange
