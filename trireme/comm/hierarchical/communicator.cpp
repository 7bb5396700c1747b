#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/comm/hierarchical/communicator.h>

namespace trireme::comm::hierarchical {
namespace {

constexpr size_t kPart = 2 << 20;  // bytes of a vector: a part goes up while another is on the wire

}  // namespace

Communicator::Communicator(Topology topology, int rank, shm::Communicator& local, network::Communicator* lane,
                           network::Communicator& flat)
    : topology_(std::move(topology)),
      rank_(rank),
      machine_(topology_.place(rank).machine),
      local_(local),
      lane_(lane),
      flat_(flat),
      rooms_(2 * shm::Sequence::kMostParts),
      junction_{topology_, rank, machine_, topology_.place(rank).local,
                lane,      flat, rooms_,   local.sequence().stage_bytes()} {
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
  if (lane_ != nullptr) {
    expect("lane", lane_->rank(), machine_);
    expect("lane", lane_->size(), topology_.machines());
  }
  if (local_.size() > 1) local_.allow_down();
  const auto nudge = [this] { local_.rounds().nudge(local_.rank()); };
  flat_.notify(nudge);
  if (lane_ != nullptr) lane_->notify(nudge);
}

/// After an error collectives are still under way. They refer to this object, and threads of the networks use memory
/// of theirs: none of them may outlive it.
Communicator::~Communicator() {
  flat_.notify({});
  if (lane_ != nullptr) lane_->notify({});
  if (local_.sequence().between()) {
    const auto cause =
        std::make_exception_ptr(Error(fmt::format("rank {} left the group before a collective was complete", rank_)));
    flat_.interrupt(cause);
    if (lane_ != nullptr) lane_->interrupt(cause);
  }
  local_.sequence().abandon();
}

// ---- collectives ----

/// The same on all ranks. One is enough where nothing travels.
int Communicator::parts_for(const Blocks& blocks) const {
  if (topology_.machines() == 1) return 1;
  return static_cast<int>(std::clamp<size_t>(blocks.bytes() / kPart, 1, shm::Sequence::kMostParts));
}

template <class What, class... Arguments>
Started Communicator::start(const Arguments&... arguments) {
  return local_.sequence().start(std::make_unique<What>(junction_, arguments...));
}

Started Communicator::start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
  return start<Allreduce>(data, count, type, op, name);
}

Started Communicator::start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                                           std::string_view name) {
  const Blocks blocks(counts.checked(size(), "reduce-scatter", name), size(), size_of(type));
  std::vector<std::unique_ptr<shm::Collective>> parts;
  for (int k = 0, all = parts_for(blocks); k < all; k++)
    parts.push_back(std::make_unique<ReduceScatter>(junction_, input, output, blocks, k, all, type, op, name));
  return local_.sequence().start(std::move(parts));
}

Started Communicator::start_all_gather(const void* input, void* output, const Counts& counts, DType type,
                                       std::string_view name) {
  const Blocks blocks(counts.checked(size(), "all-gather", name), size(), size_of(type));
  std::vector<std::unique_ptr<shm::Collective>> parts;
  for (int k = 0, all = parts_for(blocks); k < all; k++)
    parts.push_back(std::make_unique<AllGather>(junction_, input, output, blocks, k, all, type, name));
  return local_.sequence().start(std::move(parts));
}

Started Communicator::start_broadcast(void* data, size_t count, DType type, int root, std::string_view name) {
  if (root < 0 || root >= size())
    fail<InvalidArgument>("broadcast '{}' from rank {}, but there are ranks 0 to {}", name, root, size() - 1);
  return start<Broadcast>(data, count, type, root, name);
}

Started Communicator::start_all_to_all(const void* input, void* output, const Counts& sends, const Counts& receives,
                                       DType type, std::string_view name) {
  check_all_to_all(sends, receives, size(), name);
  return start<AllToAll>(input, output, sends, receives, type, name);
}

Started Communicator::start_barrier(std::string_view name) { return start<Barrier>(name); }

// ---- point to point ----

void Communicator::check_peer(int peer, std::string_view verb, std::string_view name) const {
  if (peer < 0 || peer >= size() || peer == rank_)
    fail<InvalidArgument>("rank {} cannot {} rank {} ('{}')", rank_, verb, peer, name);
}

/// Something on the network, waited for in a way that leaves no rank of this machine waiting for this one.
class Communicator::Remote final : public Work {
 public:
  Remote(shm::Rounds& rounds, Started work) : rounds_(rounds), work_(std::move(work)) {}
  bool test() override { return work_->test(); }
  void wait() override {
    rounds_.await_threads([&] { return work_->test(); });
  }

 private:
  shm::Rounds& rounds_;
  Started work_;
};

Started Communicator::start_send(const void* data, size_t count, DType type, int to, std::string_view name) {
  check_peer(to, "send to", name);
  if (here(to)) return local_.start_send(data, count, type, topology_.place(to).local, name);
  return std::make_unique<Remote>(local_.rounds(), flat_.start_send(data, count, type, to, name));
}

Started Communicator::start_receive(void* data, size_t count, DType type, int from, std::string_view name) {
  check_peer(from, "receive from", name);
  if (here(from)) return local_.start_receive(data, count, type, topology_.place(from).local, name);
  return std::make_unique<Remote>(local_.rounds(), flat_.start_receive(data, count, type, from, name));
}

void Communicator::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  check_peer(to, "send to", name);
  here(to) ? local_.send(data, count, type, topology_.place(to).local, name) : flat_.send(data, count, type, to, name);
}

void Communicator::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  check_peer(from, "receive from", name);
  if (here(from)) return local_.receive(data, count, type, topology_.place(from).local, name);
  if (local_.size() == 1 && !local_.sequence().attend()) return flat_.receive(data, count, type, from, name);
  start_receive(data, count, type, from, name)->wait();
}

}  // namespace trireme::comm::hierarchical
