#pragma once
// Sums of gradients over all ranks with a codec, where each rank has gradients and parameters of its own.
//
// Of each bucket a machine sums up its ranks' gradients as they are, a slice with each rank that has a lane. Lanes
// carry the slices' messages (coding.h). Then each machine gathers the slices. The order of what is started inside a
// machine is the same on all of its ranks: all sums, and in the end all that is gathered.
#include <deque>
#include <vector>

#include <trireme/exchange/coding.h>
#include <trireme/exchange/group.h>

namespace trireme::exchange {

/// One thread. Each step: start() of all buckets in their order, and finish().
class LaneSum {
 public:
  /// Collective. Views `layout` and `buckets`. `gradients` and `flags` are this rank's.
  LaneSum(const Group& group, const space::Layout& layout, const std::vector<space::Bucket>& buckets,
          const Options& options, std::byte* gradients, uint8_t* flags);
  /// Waits for what still travels: it points into this object.
  ~LaneSum();
  LaneSum(const LaneSum&) = delete;
  LaneSum& operator=(const LaneSum&) = delete;

  /// A bucket's gradients are there, zero where this rank has none. `step`: of the run, for codecs that go by chance.
  void start(size_t bucket, int64_t step);
  /// Does what can be done without waiting.
  void proceed();
  /// Blocks until gradients have all sums, and flags of this rank say where its lane has found some.
  void finish();
  /// The step was applied or not.
  void settle(bool applied);

  /// By rank of the group: its machine.
  int machine_of(int rank) const { return machines_[static_cast<size_t>(rank)]; }
  space::Range slice_of(int rank, size_t bucket) const;
  compress::ErrorFeedback* feedback() { return coding_ ? &coding_->feedback() : nullptr; }

 private:
  struct Trip {
    size_t bucket;
    int64_t step;
    comm::Started sum, flags;  // of this machine
    bool departed = false;
    std::vector<comm::Started> pieces;
  };
  void depart(Trip& trip);
  void land(Trip& trip);
  space::Range slice(int lane, size_t bucket) const;
  std::vector<size_t> counts(size_t bucket) const;
  std::span<uint8_t> flags_of(size_t bucket) const;

  comm::shm::Communicator& local_;
  const std::vector<space::Bucket>& buckets_;
  std::byte* const gradients_;
  uint8_t* const flags_;
  int lanes_;
  size_t piece_bytes_;
  std::vector<int32_t> machines_, lane_of_;  // by rank of the group; -1: it has no lane
  std::optional<Coding> coding_;             // for ranks with a lane
  std::deque<Trip> trips_;                   // of this step
};

}  // namespace trireme::exchange
