#pragma once
// Other machines' parts of the parameters, brought to this one, and given up again.
//
// The ranks of a machine have one copy: each gathers its own slice of a bucket along its lane, and a bucket may be used
// when all of them have. Who gives one up says so; its memory goes back to the machine when all of them have. Ranks of
// a machine start and give up the same buckets in the same order, each at its own pace, so that a number says which
// time is meant.
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/exchange/berth.h>
#include <trireme/exchange/shares.h>
#include <trireme/space/layout.h>

namespace trireme::exchange {

/// One thread. Waits have the deadlines of the communicators.
class Gatherer {
 public:
  /// Collective among the ranks of this machine. `lane`: null for a rank without a slice. `sparse`: `parameters` have
  /// holes, and buckets are given up. Everything outlives this.
  Gatherer(Berth& berth, comm::shm::Communicator& local, comm::network::Communicator* lane, const Shares& shares,
           int machine, const std::vector<space::Bucket>& buckets, std::byte* parameters, bool sparse);
  /// Waits for what is under way.
  ~Gatherer();
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  /// This rank's part of the bucket is in place: all ranks of the lane start the same. Does not wait, unless more than
  /// `kMostLeaving` are still used by other ranks of the machine.
  void start(size_t bucket);
  /// Blocks until all of the bucket is here, as of the last start().
  void await(size_t bucket);
  /// What has arrived is told to the machine. Does not wait.
  void poll();
  /// Blocks until all that this rank has started is here.
  void land();
  /// This rank does not use it any more.
  void give_up(size_t bucket);
  /// At once: nobody uses it, and nobody has started it.
  void give_back(size_t bucket, int lane) const;

 private:
  static constexpr size_t kMostLeaving = 8;  // buckets
  using Stamp = std::atomic<uint64_t>;
  struct Travelling {
    size_t bucket;
    uint64_t number;
    std::unique_ptr<comm::Work> work;
  };
  struct Leaving {
    size_t bucket;
    uint64_t number;
  };

  Stamp& landed(int rank, size_t bucket) const {
    return reinterpret_cast<Stamp*>(landed_.parts[static_cast<size_t>(rank)])[bucket];
  }
  Stamp& given_up(int rank) const { return landed(rank, buckets_.size()); }
  void mark(size_t bucket, uint64_t number);
  void land_first();
  bool under_way(size_t bucket) const;
  void sweep();
  void await_leaving(const Leaving& leaving);

  comm::shm::Communicator& local_;
  comm::network::Communicator* lane_;
  const Shares shares_;
  const int machine_;
  const std::vector<space::Bucket>& buckets_;
  std::byte* const parameters_;
  const bool sparse_;
  comm::shm::SharedBlock landed_;            // by rank: of each bucket the number of its last gather; then given_up()
  std::vector<std::vector<size_t>> counts_;  // by bucket
  std::vector<uint64_t> numbers_, seen_;     // by bucket: of its last start(); found to be here by await()
  uint64_t starts_ = 0, leaves_ = 0;
  std::deque<Travelling> travelling_;
  std::deque<Leaving> leaving_;
};

}  // namespace trireme::exchange
