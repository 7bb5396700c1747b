#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/comm/hierarchical/communicator.h>
#include <trireme/comm/network/divide.h>
#include <trireme/space/kernels.h>
#include <trireme/space/layout.h>

namespace trireme::comm::hierarchical {
namespace {

/// Sums that are formed in two places become means at the end.
Op partial(Op op) { return op == Op::mean ? Op::sum : op; }

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

// ---- where the ranks are ----

Topology::Topology(const std::vector<int>& machine_of) {
  for (size_t rank = 0; rank < machine_of.size(); rank++) {
    const int machine = machine_of[rank];
    if (machine < 0 || static_cast<size_t>(machine) >= machine_of.size())
      fail<InvalidArgument>("rank {} is on machine {} of a job of {} ranks", rank, machine, machine_of.size());
    if (static_cast<size_t>(machine) >= ranks_.size()) ranks_.resize(static_cast<size_t>(machine) + 1);
    auto& there = ranks_[static_cast<size_t>(machine)];
    places_.push_back({machine, static_cast<int>(there.size())});
    there.push_back(static_cast<int>(rank));
  }
  const auto [least, most] = std::minmax_element(ranks_.begin(), ranks_.end(),
                                                 [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (ranks_.empty() || least->empty()) fail<InvalidArgument>("machine {} has no ranks", least - ranks_.begin());
  lanes_ = static_cast<int>(least->size());
  largest_ = static_cast<int>(most->size());
}

Communicator::Communicator(Topology topology, int rank, shm::Communicator& local, network::Communicator* lane,
                           network::Communicator& flat)
    : topology_(std::move(topology)),
      rank_(rank),
      machine_(topology_.place(rank).machine),
      local_(local),
      lane_(lane),
      flat_(flat) {
  const auto expect = [&](const char* group, int got, int wanted) {
    if (got != wanted)
      fail<InvalidArgument>("rank {}: the {} group does not fit the topology ({} instead of {})", rank, group, got,
                            wanted);
  };
  expect("local", local_.rank(), topology_.place(rank).local);
  expect("local", local_.size(), static_cast<int>(topology_.ranks_on(machine_).size()));
  expect("flat", flat_.rank(), rank);
  expect("flat", flat_.size(), topology_.size());
  expect("lane", lane_ != nullptr ? 1 : 0, local_.rank() < topology_.lanes() ? 1 : 0);
  if (lane_ == nullptr) return;
  expect("lane", lane_->rank(), machine_);
  expect("lane", lane_->size(), topology_.machines());
}

shm::SharedBlock Communicator::allocate(size_t bytes, const char* purpose) {
  complete_open();
  return local_.allocate(bytes, purpose);
}

// ---- allreduce in place: one round of the local group, in which the lanes cross the network ----

Communicator::Open Communicator::arrive(void* data, size_t count, DType type, Op op, uint32_t part,
                                        std::string_view name) {
  const shm::Fingerprint what{.kind = shm::Kind::allreduce,
                              .dtype = type,
                              .op = op,
                              .part = part,
                              .count = count,
                              .name = space::hash_text(name)};
  const uint32_t round = local_.rounds().arrive(what, local_.segment().offset_of(data).value_or(shm::kPrivate), name);
  return {.round = round,
          .data = static_cast<std::byte*>(data),
          .count = count,
          .type = type,
          .op = op,
          .name = std::string(name),
          .between = nullptr};
}

/// Everybody's `slice`, on this machine.
std::vector<std::byte*> Communicator::parts(const Open& open, space::Range slice) {
  std::vector<std::byte*> all;
  all.reserve(static_cast<size_t>(local_.size()));
  for (int r = 0; r < local_.size(); r++)
    all.push_back((r == local_.rank() ? open.data : local_.segment().at(local_.rounds().offset_of(r, open.round))) +
                  slice.begin);
  return all;
}

/// When all have arrived: reduces this lane's slice and sends it on its way.
void Communicator::reduce_here(Open& open) {
  if (lane_ == nullptr) return;
  const space::Range mine = slice(local_.rank(), open.count * size_of(open.type));
  const size_t count = mine.size() / size_of(open.type);
  const std::vector<std::byte*> sources = parts(open, mine);
  void* const out = open.data + mine.begin;
  if (local_.size() > 1)
    space::kernels().reduce(open.type, partial(open.op), &out, 1, reinterpret_cast<const void* const*>(sources.data()),
                            local_.size(), count);
  open.between = lane_->start_allreduce(out, count, open.type, partial(open.op), open.name);
}

/// When the slice has come back.
void Communicator::hand_out(Open& open) {
  if (lane_ == nullptr) return;
  const space::Range mine = slice(local_.rank(), open.count * size_of(open.type));
  if (open.op == Op::mean) network::divide(open.type, open.data + mine.begin, mine.size() / size_of(open.type), size());
  for (std::byte* part : parts(open, mine)) copy_bytes(part, open.data + mine.begin, mine.size());
}

/// Moves one allreduce as far as it goes. True when nothing is left for this rank to do.
bool Communicator::advance(Open& open, bool block) {
  if (open.state == Open::arrived) {
    if (block) local_.rounds().await_arrivals(open.round);
    if (!local_.rounds().all_arrived(open.round)) return false;
    reduce_here(open);
    open.state = Open::sent;
  }
  if (open.state == Open::sent) {
    if (block && open.between) open.between->wait();
    if (open.between && !open.between->test()) return false;
    hand_out(open);
    local_.rounds().finish(open.round);
    open.state = Open::finished;
  }
  return true;
}

/// Moves the open allreduces as far as they go now; with `block`, until the oldest is complete.
void Communicator::advance(bool block) {
  // Slices leave as soon as everybody has arrived, but rounds are finished in order.
  bool in_order = true;
  for (Open& open : open_) {
    if (open.state == Open::arrived && !local_.rounds().all_arrived(open.round)) break;
    if (open.state == Open::arrived && !in_order) {
      reduce_here(open);
      open.state = Open::sent;
    }
    in_order = in_order && advance(open, false);
  }
  if (block && !open_.empty()) {
    advance(open_.front(), true);
    local_.rounds().await_finished(open_.front().round);
  }
  while (!open_.empty() && open_.front().state == Open::finished && local_.rounds().all_finished(open_.front().round))
    open_.pop_front();
}

void Communicator::complete_open() {
  while (!open_.empty()) advance(true);
}

class Communicator::Handle final : public Work {
 public:
  Handle(Communicator& group, uint32_t round) : group_(group), round_(round) {}
  bool test() override {
    group_.advance(false);
    return done();
  }
  void wait() override {
    while (!done()) group_.advance(true);
  }

 private:
  bool done() const { return group_.open_.empty() || static_cast<int32_t>(group_.open_.front().round - round_) > 0; }
  Communicator& group_;
  uint32_t round_;
};

std::unique_ptr<Work> Communicator::start_allreduce(void* data, size_t count, DType type, Op op,
                                                    std::string_view name) {
  if (local_.size() > 1 && !local_.segment().offset_of(data))
    fail<InvalidArgument>("start_allreduce '{}' needs memory from allocate(); use allreduce for private memory", name);
  if (open_.size() >= shm::kAhead / 2) complete_open();
  open_.push_back(arrive(data, count, type, op, shm::kStarted, name));
  return std::make_unique<Handle>(*this, open_.back().round);
}

void Communicator::allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
  complete_open();
  Open open = arrive(data, count, type, op, 0, name);
  local_.rounds().await_arrivals(open.round);
  bool in_place = true;
  for (int r = 0; r < local_.size() && local_.size() > 1; r++)
    in_place = in_place && local_.rounds().offset_of(r, open.round) != shm::kPrivate;
  if (in_place) {
    advance(open, true);
    return local_.rounds().await_finished(open.round);
  }
  local_.rounds().finish(open.round);  // it only served to find that out
  allreduce_private(open.data, count, type, op, name);
}

/// Each lane sends the same slices as in place, so machines need not agree on where their data is.
void Communicator::allreduce_private(std::byte* data, size_t count, DType type, Op op, std::string_view name) {
  const size_t width = size_of(type);
  local_.allreduce(data, count, type, partial(op), name);
  if (lane_ != nullptr) {
    const space::Range mine = slice(local_.rank(), count * width);
    lane_->allreduce(data + mine.begin, mine.size() / width, type, partial(op), name);
    if (op == Op::mean) network::divide(type, data + mine.begin, mine.size() / width, size());
  }
  for (int lane = 0; lane < topology_.lanes(); lane++) {
    const space::Range part = slice(lane, count * width);
    local_.broadcast(data + part.begin, part.size() / width, type, lane, name);
  }
}

// ---- the other collectives, through the leaders ----

void Communicator::reduce_scatter(const void* input, void* output, size_t count, DType type, Op op,
                                  std::string_view name) {
  const size_t block = count * size_of(type), blocks = static_cast<size_t>(size());
  std::vector<std::byte> all(block * blocks);
  copy_bytes(all.data(), static_cast<const std::byte*>(input), all.size());
  allreduce(all.data(), count * blocks, type, op, name);
  copy_bytes(static_cast<std::byte*>(output), all.data() + static_cast<size_t>(rank_) * block, block);
}

void Communicator::all_gather(const void* input, void* output, size_t count, DType type, std::string_view name) {
  complete_open();
  const size_t block = count * size_of(type),
               room = static_cast<size_t>(topology_.largest_machine());  // blocks per machine
  auto* const out = static_cast<std::byte*>(output);
  std::vector<std::byte> here(block * room);
  local_.all_gather(input, here.data(), count, type, name);
  if (leads()) {
    std::vector<std::byte> all(here.size() * static_cast<size_t>(topology_.machines()));
    lane_->all_gather(here.data(), all.data(), count * room, type, name);
    for (int r = 0; r < size(); r++) {
      const auto [machine, local] = topology_.place(r);
      copy_bytes(out + static_cast<size_t>(r) * block,
                 all.data() + static_cast<size_t>(machine) * here.size() + static_cast<size_t>(local) * block, block);
    }
  }
  local_.broadcast(output, count * static_cast<size_t>(size()), type, 0, name);
}

void Communicator::broadcast(void* data, size_t count, DType type, int root, std::string_view name) {
  if (root < 0 || root >= size())
    fail<InvalidArgument>("broadcast '{}' from rank {}, but there are ranks 0 to {}", name, root, size() - 1);
  complete_open();
  const auto [machine, local] = topology_.place(root);
  if (machine == machine_) local_.broadcast(data, count, type, local, name);
  if (leads()) lane_->broadcast(data, count, type, machine, name);
  if (machine != machine_) local_.broadcast(data, count, type, 0, name);
}

void Communicator::all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) {
  complete_open();
  flat_.all_to_all(input, output, count, type, name);
}

void Communicator::barrier(std::string_view name) {
  complete_open();
  local_.barrier(name);
  if (leads()) lane_->barrier(name);
  local_.barrier(name);
}

// ---- point to point ----

void Communicator::check_peer(int peer, std::string_view verb, std::string_view name) const {
  if (peer < 0 || peer >= size() || peer == rank_)
    fail<InvalidArgument>("rank {} cannot {} rank {} ('{}')", rank_, verb, peer, name);
}

void Communicator::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  check_peer(to, "send to", name);
  here(to) ? local_.send(data, count, type, topology_.place(to).local, name) : flat_.send(data, count, type, to, name);
}

void Communicator::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  check_peer(from, "receive from", name);
  here(from) ? local_.receive(data, count, type, topology_.place(from).local, name)
             : flat_.receive(data, count, type, from, name);
}

}  // namespace trireme::comm::hierarchical
