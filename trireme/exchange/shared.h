#pragma once
// Synchronous: all ranks of a machine map the same parameters.
#include <deque>

#include <trireme/exchange/exchange.h>

namespace trireme::exchange {

/// Each bucket is a round. When all ranks have arrived at it, rank r reads everybody's gradients in slice r of the bucket and updates that slice of the
/// shared parameters, all in one pass. Optimizer state exists once per machine, with the owner of the slice. Nothing is sent, nothing is copied.
///
/// A slice may be updated while a peer still runs its backward pass, but only after that peer has marked the bucket ready: its backward has by then
/// used these parameters for the last time. Parameters never change while a rank is outside a step.
///
/// With several machines, the slices are those of the lanes: the rank sums its slice over its machine into its own gradients, sums that over the machines
/// along its lane while backward goes on, and updates its machine's parameters with the result. Every byte of a gradient crosses the wire once.
class Shared final : public Exchange {
 public:
  Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options);

  std::byte* parameters() const override { return parameters_.parts[0]; }
  std::byte* gradients() const override { return gradients_.parts[static_cast<size_t>(local_.rank())]; }
  bool parameters_are_shared() const override { return true; }
  void publish_parameters() override;
  void ready(size_t bucket) override;
  void finish() override;
  const Told* told() const override { return &told_; }

 private:
  struct Open {
    size_t bucket;
    uint32_t round;
    // Between machines, once the machine's own part is done: the slice, in pieces. The first carries the flags.
    std::deque<std::pair<space::Range, std::unique_ptr<comm::Work>>> pieces{};
  };
  /// What a rank tells its machine, and what its machine has heard from the others. Each is read by all between the rounds that guard it.
  struct Board {
    alignas(64) Told mine;   // written before the rank arrives at the last bucket, read by all before they finish it
    alignas(64) Told total;  // the speaker's: written before it finishes the last bucket, read by all when everybody has
  };
  Board& board_of(int rank) const { return *reinterpret_cast<Board*>(boards_.parts[static_cast<size_t>(rank)]); }
  bool last(size_t bucket) const { return bucket + 1 == buckets_.size(); }
  uint8_t* flags() const override { return flags_of(local_.rank()); }
  uint8_t* flags_of(int rank) const { return reinterpret_cast<uint8_t*>(flags_.parts[static_cast<size_t>(rank)]); }
  bool sources_of(size_t slot, std::vector<const std::byte*>& sources) const;
  void update_from_local(size_t bucket);
  void reduce_local(size_t bucket);
  void update_from_lane(size_t bucket, space::Range piece);
  void begin_lane(Open& open);
  void hear_machine();
  void proceed();
  void begin_first_waiting();
  void complete_next();

  comm::shm::Communicator& local_;
  comm::network::Communicator* lane_;  // null with one machine, and for ranks without a slice
  bool one_machine_;
  std::vector<uint8_t> lane_flags_;  // by slot: somebody, on any machine, has a gradient for it
  comm::shm::SharedBlock parameters_, gradients_, flags_, boards_;
  int speaker_ = 0;  // the machine's first rank that sends something of the last bucket: the numbers travel with it
  Told told_{};
  std::vector<space::Range> slices_;   // this rank's, by bucket
  std::vector<uint64_t> name_hashes_;  // by bucket
  std::deque<Open> open_;              // rounds at which this rank has arrived and that it has not finished
  size_t under_way_ = 0;               // of these, the first ones: summed in this machine, on their way between machines
  uint32_t last_round_ = 0;
};

}  // namespace trireme::exchange
