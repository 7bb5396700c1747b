#include <array>
#include <cstring>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/comm/shm/collectives.h>
#include <trireme/space/kernels.h>
#include <trireme/space/layout.h>

namespace trireme::comm::shm {
namespace {

using Pointers = std::array<void*, kMaxRanks>;

const void* const* as_sources(const Pointers& pointers) { return const_cast<const void* const*>(pointers.data()); }

Fingerprint about(Kind kind, const Blocks& blocks, DType type, std::string_view name) {
  Fingerprint what = about(kind, blocks.count(), type, name);
  what.counts = blocks.hash();
  return what;
}

Fingerprint with(Fingerprint what, Op op) {
  what.op = op;
  return what;
}

Fingerprint with_root(Fingerprint what, int root) {
  what.root = static_cast<uint8_t>(root);
  return what;
}

Fingerprint with_own_counts(Fingerprint what) {
  what.count = 0;
  what.counts = kOwnCounts;
  return what;
}

/// Of a stage that has room for a part of every rank's block.
size_t most_per_rank(size_t stage_bytes, int ranks) {
  return stage_bytes / static_cast<size_t>(ranks) / space::kLine * space::kLine;
}

}  // namespace

Fingerprint about(Kind kind, size_t count, DType type, std::string_view name) {
  return {.kind = kind, .dtype = type, .count = count, .name = space::hash_text(name)};
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// ---- allreduce ----

Allreduce::Allreduce(size_t stage_bytes, void* data, size_t count, DType type, Op op, std::string_view name)
    : Collective(with(about(Kind::allreduce, count, type, name), op), name, data),
      stage_bytes_(stage_bytes),
      bytes_(count * size_of(type)),
      data_(static_cast<std::byte*>(data)) {}

void Allreduce::work_direct(const View& view) {
  const space::Range slice = space::part_of({0, bytes_}, view.rank(), view.size());
  if (slice.empty() || view.size() == 1) return;
  Pointers data;
  for (int r = 0; r < view.size(); r++) data[static_cast<size_t>(r)] = view.memory(r, slice);
  space::kernels().reduce(what.dtype, what.op, data.data(), view.size(), as_sources(data), view.size(),
                          slice.size() / size_of(what.dtype));
}

void Allreduce::post_up(std::byte* stage, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, stage_bytes_);
  copy_bytes(stage, data_ + part.begin, part.size());
}

void Allreduce::take_up(const View& view, const Posted& posted, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, stage_bytes_);
  void* const out = data_ + part.begin;
  Pointers sources;
  for (int r = 0; r < view.size(); r++) sources[static_cast<size_t>(r)] = r == view.rank() ? out : posted.by(r);
  space::kernels().reduce(what.dtype, what.op, &out, 1, as_sources(sources), view.size(),
                          part.size() / size_of(what.dtype));
}

// ---- reduce-scatter: a part for each rank in every stage ----

ReduceScatter::ReduceScatter(size_t stage_bytes, const void* input, void* output, const Blocks& blocks, int rank,
                             DType type, Op op, std::string_view name)
    : Collective(with(about(Kind::reduce_scatter, blocks, type, name), op), name, input),
      blocks_(blocks),
      most_(most_per_rank(stage_bytes, blocks.ranks())),
      mine_(blocks.of(rank)),
      input_(static_cast<const std::byte*>(input)),
      output_(static_cast<std::byte*>(output)) {
  if (!blocks_.even()) counts = blocks_.list();
}

void ReduceScatter::reduce(const void* const* sources, int ranks, space::Range part) {
  if (part.empty()) return;
  void* const out = output_ + (part.begin - mine_.begin);
  space::kernels().reduce(what.dtype, what.op, &out, 1, sources, ranks, part.size() / size_of(what.dtype));
}

void ReduceScatter::work_direct(const View& view) {
  Pointers sources;
  for (int r = 0; r < view.size(); r++) sources[static_cast<size_t>(r)] = view.memory(r, mine_);
  reduce(as_sources(sources), view.size(), mine_);
}

void ReduceScatter::post_up(std::byte* stage, size_t chunk) {
  for (int r = 0; r < blocks_.ranks(); r++) {
    const space::Range part = chunk_of(blocks_.of(r), chunk, most_);
    copy_bytes(stage + static_cast<size_t>(r) * most_, input_ + part.begin, part.size());
  }
}

void ReduceScatter::take_up(const View& view, const Posted& posted, size_t chunk) {
  Pointers sources;
  for (int r = 0; r < view.size(); r++)
    sources[static_cast<size_t>(r)] = posted.by(r) + static_cast<size_t>(view.rank()) * most_;
  reduce(as_sources(sources), view.size(), chunk_of(mine_, chunk, most_));
}

// ---- all-gather ----

AllGather::AllGather(size_t stage_bytes, const void* input, void* output, const Blocks& blocks, int rank, DType type,
                     std::string_view name)
    : Collective(about(Kind::all_gather, blocks, type, name), name, input),
      blocks_(blocks),
      most_(stage_bytes),
      mine_(blocks.of(rank)),
      input_(static_cast<const std::byte*>(input)),
      output_(static_cast<std::byte*>(output)) {
  if (!blocks_.even()) counts = blocks_.list();
}

void AllGather::work_direct(const View& view) {
  for (int r = 0; r < view.size(); r++) {
    const space::Range block = blocks_.of(r);
    copy_bytes(output_ + block.begin, view.memory(r, {0, block.size()}), block.size());
  }
}

void AllGather::post_up(std::byte* stage, size_t chunk) {
  const space::Range part = chunk_of(mine_, chunk, most_);
  copy_bytes(stage, input_ + (part.begin - mine_.begin), part.size());
}

void AllGather::take_up(const View& view, const Posted& posted, size_t chunk) {
  for (int r = 0; r < view.size(); r++) {
    const space::Range part = chunk_of(blocks_.of(r), chunk, most_);
    const std::byte* const from = r == view.rank() ? input_ + (part.begin - mine_.begin) : posted.by(r);
    copy_bytes(output_ + part.begin, from, part.size());
  }
}

// ---- broadcast ----

Broadcast::Broadcast(size_t stage_bytes, void* data, size_t count, DType type, int root, int rank,
                     std::string_view name)
    : Collective(with_root(about(Kind::broadcast, count, type, name), root), name, data),
      stage_bytes_(stage_bytes),
      bytes_(count * size_of(type)),
      data_(static_cast<std::byte*>(data)),
      root_(root),
      is_root_(root == rank) {}

void Broadcast::post_up(std::byte* stage, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, stage_bytes_);
  if (is_root_) copy_bytes(stage, data_ + part.begin, part.size());
}

void Broadcast::take_up(const View& /*view*/, const Posted& posted, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, stage_bytes_);
  if (!is_root_) copy_bytes(data_ + part.begin, posted.by(root_), part.size());
}

// ---- all-to-all ----
// With lists, ranks bring theirs to the round, sends before receives, and so everybody knows how much is whose.

AllToAll::AllToAll(size_t stage_bytes, const void* input, void* output, const Counts& sends, const Counts& receives,
                   int ranks, DType type, std::string_view name)
    : Collective(sends.is_list() ? with_own_counts(about(Kind::all_to_all, 0, type, name))
                                 : about(Kind::all_to_all, sends.of(0), type, name),
                 name, input),
      sends_(sends, ranks, size_of(type)),
      receives_(receives, ranks, size_of(type)),
      most_(most_per_rank(stage_bytes, ranks)),
      largest_(sends_.largest()),
      input_(static_cast<const std::byte*>(input)),
      output_(static_cast<std::byte*>(output)) {
  if (!sends.is_list()) return;
  counts = sends_.list();
  const std::vector<uint64_t> more = receives_.list();
  counts.insert(counts.end(), more.begin(), more.end());
}

void AllToAll::plan(const View& view) {
  if (what.counts != kOwnCounts) return;
  const auto n = static_cast<size_t>(view.size());
  for (int from = 0; from < view.size(); from++)
    for (int to = 0; to < view.size(); to++) {
      const uint64_t sent = view.counts_of(from)[static_cast<size_t>(to)];
      const uint64_t expected = view.counts_of(to)[n + static_cast<size_t>(from)];
      if (sent != expected)
        fail<Mismatch>("ranks disagree in all-to-all '{}': {}", name,
                       sends_and_expects(view.name_of(from), sent, view.name_of(to), expected));
      largest_ = std::max<size_t>(largest_, sent * size_of(what.dtype));
    }
}

void AllToAll::work_direct(const View& view) {
  for (int from = 0; from < view.size(); from++) {
    size_t before = sends_.of(view.rank()).begin;  // the same on all ranks where blocks are even
    if (what.counts == kOwnCounts) {
      const auto theirs = view.counts_of(from);
      before = std::accumulate(theirs.begin(), theirs.begin() + view.rank(), size_t{0}) * size_of(what.dtype);
    }
    const space::Range block = receives_.of(from);
    copy_bytes(output_ + block.begin, view.memory(from, {before, before + block.size()}), block.size());
  }
}

void AllToAll::post_up(std::byte* stage, size_t chunk) {
  for (int to = 0; to < sends_.ranks(); to++) {
    const space::Range part = chunk_of(sends_.of(to), chunk, most_);
    copy_bytes(stage + static_cast<size_t>(to) * most_, input_ + part.begin, part.size());
  }
}

void AllToAll::take_up(const View& view, const Posted& posted, size_t chunk) {
  for (int from = 0; from < view.size(); from++) {
    const space::Range part = chunk_of(receives_.of(from), chunk, most_);
    copy_bytes(output_ + part.begin, posted.by(from) + static_cast<size_t>(view.rank()) * most_, part.size());
  }
}

}  // namespace trireme::comm::shm
