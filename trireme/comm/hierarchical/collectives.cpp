#include <trireme/comm/hierarchical/collectives.h>
#include <trireme/comm/network/divide.h>
#include <trireme/comm/shm/collectives.h>
#include <trireme/space/kernels.h>

namespace trireme::comm::hierarchical {
namespace {

using shm::chunk_of;
using shm::chunks_of;
using shm::copy_bytes;
using shm::Posted;
using shm::View;

/// Sums that are formed in two places become means at the end.
Op partial(Op op) { return op == Op::mean ? Op::sum : op; }

shm::Fingerprint about(shm::Kind kind, const Blocks& blocks, int part, DType type, std::string_view name) {
  shm::Fingerprint what = shm::about(kind, blocks.count(), type, name);
  what.counts = blocks.hash();
  what.part = static_cast<uint32_t>(part);
  return what;
}

shm::Fingerprint with(shm::Fingerprint what, Op op) {
  what.op = op;
  return what;
}

shm::Fingerprint with_own_counts(shm::Fingerprint what) {
  what.counts = shm::kOwnCounts;
  return what;
}

shm::Fingerprint with_root(shm::Fingerprint what, int root) {
  what.name += static_cast<uint64_t>(root);  // there are more ranks than `root` has numbers
  what.root = static_cast<uint8_t>(root);
  return what;
}

/// The sizes of a lane's slices, in elements.
std::vector<size_t> counts_of_slices(const Sections& sections, int lane, size_t width) {
  std::vector<size_t> counts;
  for (int m = 0; m < sections.machines(); m++) counts.push_back(sections.slice(m, lane).size() / width);
  return counts;
}

}  // namespace

// ---- allreduce ----

Allreduce::Allreduce(const Junction& junction, void* data, size_t count, DType type, Op op, std::string_view name)
    : Collective(with(shm::about(shm::Kind::allreduce, count, type, name), op), name, data),
      junction_(junction),
      bytes_(count * size_of(type)),
      mine_(junction.lane != nullptr ? junction.slice(junction.local, bytes_) : space::Range{}),
      data_(static_cast<std::byte*>(data)) {}

size_t Allreduce::up_chunks() const { return chunks_of(bytes_, junction_.stage_bytes); }

void Allreduce::work_direct(const View& view) {
  if (mine_.empty() || view.size() == 1) return;
  std::vector<const void*> sources;
  for (int r = 0; r < view.size(); r++) sources.push_back(view.memory(r, mine_));
  void* const out = data_ + mine_.begin;
  space::kernels().reduce(what.dtype, partial(what.op), &out, 1, sources.data(), view.size(),
                          mine_.size() / size_of(what.dtype));
}

void Allreduce::post_up(std::byte* stage, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, junction_.stage_bytes);
  copy_bytes(stage, data_ + part.begin, part.size());
}

void Allreduce::take_up(const View& view, const Posted& posted, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, junction_.stage_bytes), both = intersect(part, mine_);
  if (both.empty()) return;
  std::vector<const void*> sources;
  for (int r = 0; r < view.size(); r++) sources.push_back(posted.by(r) + (both.begin - part.begin));
  void* const out = data_ + both.begin;
  space::kernels().reduce(what.dtype, partial(what.op), &out, 1, sources.data(), view.size(),
                          both.size() / size_of(what.dtype));
}

Started Allreduce::launch() {
  if (junction_.lane == nullptr) return nullptr;
  return junction_.lane->start_allreduce(data_ + mine_.begin, mine_.size() / size_of(what.dtype), what.dtype,
                                         partial(what.op), name);
}

void Allreduce::land(const View& view, bool direct) {
  if (what.op == Op::mean && !mine_.empty())
    network::divide(what.dtype, data_ + mine_.begin, mine_.size() / size_of(what.dtype), junction_.topology.size());
  for (int r = 0; direct && r < view.size(); r++) copy_bytes(view.memory(r, mine_), data_ + mine_.begin, mine_.size());
}

void Allreduce::post_down(std::byte* stage, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, junction_.stage_bytes), both = intersect(part, mine_);
  if (!both.empty()) copy_bytes(stage + (both.begin - part.begin), data_ + both.begin, both.size());
}

void Allreduce::take_down(const View& view, const Posted& posted, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, junction_.stage_bytes);
  for (int lane = 0; lane < junction_.topology.lanes(); lane++) {
    const space::Range both = intersect(part, junction_.slice(lane, bytes_));
    if (lane != view.rank() && !both.empty())
      copy_bytes(data_ + both.begin, posted.by(lane) + (both.begin - part.begin), both.size());
  }
}

// ---- reduce-scatter ----

ReduceScatter::ReduceScatter(const Junction& junction, const void* input, void* output, const Blocks& blocks, int part,
                             int parts, DType type, Op op, std::string_view name)
    : Collective(with(about(shm::Kind::reduce_scatter, blocks, part, type, name), op), name, input),
      junction_(junction),
      blocks_(blocks),
      sections_(junction.topology, blocks, part, parts),
      input_(static_cast<const std::byte*>(input)),
      output_(static_cast<std::byte*>(output) + (sections_.in_vector(junction.rank) - blocks.of(junction.rank).begin)) {
  if (!blocks.even()) counts = blocks.list();
}

ReduceScatter::~ReduceScatter() {
  junction_.rooms.put_back(std::move(sums_));
  junction_.rooms.put_back(std::move(result_));
}

size_t ReduceScatter::up_chunks() const { return chunks_of(sections_.bytes(), junction_.stage_bytes); }

/// Of `part`, which is in this lane's `slice` of a machine.
void ReduceScatter::reduce(std::vector<const void*>& sources, space::Range part, space::Range slice, int machine) {
  if (sums_.bytes == 0) sums_ = junction_.rooms.take(sections_.slices_bytes(junction_.local));
  void* const out = sums_.data.get() + sections_.slices_before(junction_.local, machine) + (part.begin - slice.begin);
  space::kernels().reduce(what.dtype, partial(what.op), &out, 1, sources.data(), static_cast<int>(sources.size()),
                          part.size() / size_of(what.dtype));
}

void ReduceScatter::work_direct(const View& view) {
  if (junction_.lane == nullptr) return;
  std::vector<const void*> sources(static_cast<size_t>(view.size()));
  for (int m = 0; m < sections_.machines(); m++) {
    const space::Range slice = sections_.slice(m, junction_.local);
    sections_.each(slice, [&](space::Range part, size_t vector) {
      for (int r = 0; r < view.size(); r++)
        sources[static_cast<size_t>(r)] = view.memory(r, {vector, vector + part.size()});
      reduce(sources, part, slice, m);
    });
  }
}

void ReduceScatter::post_up(std::byte* stage, size_t chunk) {
  const space::Range part = chunk_of({0, sections_.bytes()}, chunk, junction_.stage_bytes);
  sections_.each(part, [&](space::Range range, size_t vector) {
    copy_bytes(stage + (range.begin - part.begin), input_ + vector, range.size());
  });
}

void ReduceScatter::take_up(const View& view, const Posted& posted, size_t chunk) {
  if (junction_.lane == nullptr) return;
  const space::Range part = chunk_of({0, sections_.bytes()}, chunk, junction_.stage_bytes);
  std::vector<const void*> sources(static_cast<size_t>(view.size()));
  for (int m = 0; m < sections_.machines(); m++) {
    const space::Range slice = sections_.slice(m, junction_.local), both = intersect(part, slice);
    if (both.empty()) continue;
    for (int r = 0; r < view.size(); r++) sources[static_cast<size_t>(r)] = posted.by(r) + (both.begin - part.begin);
    reduce(sources, both, slice, m);
  }
}

Started ReduceScatter::launch() {
  if (junction_.lane == nullptr) return nullptr;
  result_ = junction_.rooms.take(sections_.slice(junction_.machine, junction_.local).size());
  return junction_.lane->start_reduce_scatter(sums_.data.get(), result_.data.get(),
                                              counts_of_slices(sections_, junction_.local, size_of(what.dtype)),
                                              blocks_, what.dtype, partial(what.op), name);
}

void ReduceScatter::land(const View& view, bool /*direct*/) {
  if (junction_.lane == nullptr) return;
  const size_t bytes = sections_.slice(junction_.machine, junction_.local).size();
  if (what.op == Op::mean)
    network::divide(what.dtype, result_.data.get(), bytes / size_of(what.dtype), junction_.topology.size());
  if (view.size() == 1) copy_bytes(output_, result_.data.get(), bytes);
}

size_t ReduceScatter::down_chunks(bool /*direct*/) const {
  return junction_.locals() == 1 ? 0 : chunks_of(sections_.of_machine(junction_.machine).size(), junction_.stage_bytes);
}

void ReduceScatter::post_down(std::byte* stage, size_t chunk) {
  if (junction_.lane == nullptr) return;
  const space::Range part = chunk_of(sections_.of_machine(junction_.machine), chunk, junction_.stage_bytes);
  const space::Range slice = sections_.slice(junction_.machine, junction_.local), both = intersect(part, slice);
  if (!both.empty())
    copy_bytes(stage + (both.begin - part.begin), result_.data.get() + (both.begin - slice.begin), both.size());
}

void ReduceScatter::take_down(const View& /*view*/, const Posted& posted, size_t chunk) {
  const space::Range part = chunk_of(sections_.of_machine(junction_.machine), chunk, junction_.stage_bytes);
  const space::Range mine = sections_.of_rank(junction_.rank), wanted = intersect(part, mine);
  for (int lane = 0; lane < junction_.topology.lanes(); lane++) {
    const space::Range both = intersect(wanted, sections_.slice(junction_.machine, lane));
    if (!both.empty())
      copy_bytes(output_ + (both.begin - mine.begin), posted.by(lane) + (both.begin - part.begin), both.size());
  }
}

// ---- all-gather ----

AllGather::AllGather(const Junction& junction, const void* input, void* output, const Blocks& blocks, int part,
                     int parts, DType type, std::string_view name)
    : Collective(about(shm::Kind::all_gather, blocks, part, type, name), name, input),
      junction_(junction),
      blocks_(blocks),
      sections_(junction.topology, blocks, part, parts),
      here_(sections_.of_machine(junction.machine)),
      input_(static_cast<const std::byte*>(input)),
      output_(static_cast<std::byte*>(output)) {
  if (!blocks.even()) counts = blocks.list();
}

AllGather::~AllGather() {
  junction_.rooms.put_back(std::move(mine_));
  junction_.rooms.put_back(std::move(all_));
}

size_t AllGather::up_chunks() const { return chunks_of(here_.size(), junction_.stage_bytes); }

void AllGather::work_direct(const View& view) {
  for (int r = 0; r < view.size(); r++) {
    const int rank = junction_.topology.ranks_on(junction_.machine)[static_cast<size_t>(r)];
    const size_t bytes = sections_.of_rank(rank).size();
    const size_t begin = in_input(rank);
    if (bytes > 0) copy_bytes(output_ + sections_.in_vector(rank), view.memory(r, {begin, begin + bytes}), bytes);
  }
}

void AllGather::post_up(std::byte* stage, size_t chunk) {
  const space::Range part = chunk_of(here_, chunk, junction_.stage_bytes);
  const space::Range mine = sections_.of_rank(junction_.rank), both = intersect(part, mine);
  if (both.empty()) return;
  copy_bytes(stage + (both.begin - part.begin), input_ + in_input(junction_.rank) + (both.begin - mine.begin),
             both.size());
}

void AllGather::take_up(const View& view, const Posted& posted, size_t chunk) {
  const space::Range part = chunk_of(here_, chunk, junction_.stage_bytes);
  for (int r = 0; r < view.size(); r++) {
    const int rank = junction_.topology.ranks_on(junction_.machine)[static_cast<size_t>(r)];
    const space::Range theirs = sections_.of_rank(rank), both = intersect(part, theirs);
    if (both.empty()) continue;
    const std::byte* const from = r == view.rank() ? input_ + in_input(rank) + (both.begin - theirs.begin)
                                                   : posted.by(r) + (both.begin - part.begin);
    copy_bytes(output_ + sections_.in_vector(rank) + (both.begin - theirs.begin), from, both.size());
  }
}

Started AllGather::launch() {
  if (junction_.lane == nullptr) return nullptr;
  const space::Range slice = sections_.slice(junction_.machine, junction_.local);
  mine_ = junction_.rooms.take(slice.size());
  all_ = junction_.rooms.take(sections_.slices_bytes(junction_.local));
  sections_.each(slice, [&](space::Range range, size_t vector) {
    copy_bytes(mine_.data.get() + (range.begin - slice.begin), output_ + vector, range.size());
  });
  return junction_.lane->start_all_gather(mine_.data.get(), all_.data.get(),
                                          counts_of_slices(sections_, junction_.local, size_of(what.dtype)), blocks_,
                                          what.dtype, name);
}

void AllGather::land(const View& view, bool /*direct*/) {
  if (junction_.lane == nullptr || view.size() > 1) return;
  for (int m = 0; m < sections_.machines(); m++) {
    const space::Range slice = sections_.slice(m, junction_.local);
    const std::byte* const from = all_.data.get() + sections_.slices_before(junction_.local, m);
    if (m == junction_.machine) continue;
    sections_.each(slice, [&](space::Range range, size_t vector) {
      copy_bytes(output_ + vector, from + (range.begin - slice.begin), range.size());
    });
  }
}

size_t AllGather::down_chunks(bool /*direct*/) const {
  return junction_.locals() == 1 ? 0 : chunks_of(sections_.bytes() - here_.size(), junction_.stage_bytes);
}

/// Calls visit(machine, slice, range, stage) for what a chunk holds of the lane's slices of the other machines: `range`
/// of `slice` is at `stage` in the chunk. Chunks pass over this machine's section.
template <class Visit>
void AllGather::each_remote(int lane, size_t chunk, const Visit& visit) const {
  const space::Range part = chunk_of({0, sections_.bytes() - here_.size()}, chunk, junction_.stage_bytes);
  for (int m = 0; m < sections_.machines(); m++) {
    if (m == junction_.machine) continue;
    const size_t passed_over = m > junction_.machine ? here_.size() : 0;
    const space::Range slice = sections_.slice(m, lane);
    const space::Range both = intersect({part.begin + passed_over, part.end + passed_over}, slice);
    if (!both.empty()) visit(m, slice, both, both.begin - passed_over - part.begin);
  }
}

void AllGather::post_down(std::byte* stage, size_t chunk) {
  if (junction_.lane == nullptr) return;
  each_remote(junction_.local, chunk, [&](int machine, space::Range slice, space::Range range, size_t at) {
    const std::byte* const from = all_.data.get() + sections_.slices_before(junction_.local, machine);
    copy_bytes(stage + at, from + (range.begin - slice.begin), range.size());
  });
}

void AllGather::take_down(const View& /*view*/, const Posted& posted, size_t chunk) {
  for (int lane = 0; lane < junction_.topology.lanes(); lane++)
    each_remote(lane, chunk, [&](int /*machine*/, space::Range /*slice*/, space::Range range, size_t at) {
      sections_.each(range, [&](space::Range stretch, size_t vector) {
        copy_bytes(output_ + vector, posted.by(lane) + at + (stretch.begin - range.begin), stretch.size());
      });
    });
}

// ---- broadcast: up on the root's machine, down on the others ----

Broadcast::Broadcast(const Junction& junction, void* data, size_t count, DType type, int root, std::string_view name)
    : Collective(with_root(shm::about(shm::Kind::broadcast, count, type, name), root), name, data),
      junction_(junction),
      root_(junction.topology.place(root)),
      bytes_(count * size_of(type)),
      data_(static_cast<std::byte*>(data)) {}

size_t Broadcast::up_chunks() const {
  return root_.machine == junction_.machine ? chunks_of(bytes_, junction_.stage_bytes) : 0;
}

void Broadcast::post_up(std::byte* stage, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, junction_.stage_bytes);
  if (root_.local == junction_.local) copy_bytes(stage, data_ + part.begin, part.size());
}

void Broadcast::take_up(const View& /*view*/, const Posted& posted, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, junction_.stage_bytes);
  if (root_.local != junction_.local) copy_bytes(data_ + part.begin, posted.by(root_.local), part.size());
}

Started Broadcast::launch() {
  if (junction_.lane == nullptr) return nullptr;
  const space::Range slice = junction_.slice(junction_.local, bytes_);
  return junction_.lane->start_broadcast(data_ + slice.begin, slice.size() / size_of(what.dtype), what.dtype,
                                         root_.machine, name);
}

size_t Broadcast::down_chunks(bool /*direct*/) const {
  return root_.machine == junction_.machine || junction_.locals() == 1 ? 0 : chunks_of(bytes_, junction_.stage_bytes);
}

void Broadcast::post_down(std::byte* stage, size_t chunk) {
  if (junction_.lane == nullptr) return;
  const space::Range part = chunk_of({0, bytes_}, chunk, junction_.stage_bytes);
  const space::Range both = intersect(part, junction_.slice(junction_.local, bytes_));
  if (!both.empty()) copy_bytes(stage + (both.begin - part.begin), data_ + both.begin, both.size());
}

void Broadcast::take_down(const View& view, const Posted& posted, size_t chunk) {
  const space::Range part = chunk_of({0, bytes_}, chunk, junction_.stage_bytes);
  for (int lane = 0; lane < junction_.topology.lanes(); lane++) {
    const space::Range both = intersect(part, junction_.slice(lane, bytes_));
    if (lane != view.rank() && !both.empty())
      copy_bytes(data_ + both.begin, posted.by(lane) + (both.begin - part.begin), both.size());
  }
}

// ---- without the machine's help ----

AllToAll::AllToAll(const Junction& junction, const void* input, void* output, const Counts& sends,
                   const Counts& receives, DType type, std::string_view name)
    : Collective(sends.is_list() ? with_own_counts(shm::about(shm::Kind::all_to_all, 0, type, name))
                                 : shm::about(shm::Kind::all_to_all, sends.of(0), type, name),
                 name, nullptr),
      junction_(junction),
      input_(input),
      output_(output) {
  for (int r = 0; sends.is_list() && r < junction.topology.size(); r++) {
    sends_.push_back(sends.of(r));
    receives_.push_back(receives.of(r));
  }
}

Started AllToAll::launch() {
  if (sends_.empty()) return junction_.flat.start_all_to_all(input_, output_, what.count, what.count, what.dtype, name);
  return junction_.flat.start_all_to_all(input_, output_, sends_, receives_, what.dtype, name);
}

Barrier::Barrier(const Junction& junction, std::string_view name)
    : Collective(shm::about(shm::Kind::barrier, 0, DType::u8, name), name, nullptr), junction_(junction) {}

Started Barrier::launch() { return junction_.local == 0 ? junction_.lane->start_barrier(name) : nullptr; }

}  // namespace trireme::comm::hierarchical
