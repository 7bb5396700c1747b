#pragma once
// One machine, synchronous: all ranks map the same parameters.
#include <deque>

#include <trireme/exchange/exchange.h>

namespace trireme::exchange {

/// Each bucket is a round. When all ranks have arrived at it, rank r reads everybody's gradients in slice r of the bucket and updates that slice of the
/// shared parameters, all in one pass. Optimizer state exists once per machine, with the owner of the slice. Nothing is sent, nothing is copied.
///
/// A slice may be updated while a peer still runs its backward pass, but only after that peer has marked the bucket ready: its backward has by then
/// used these parameters for the last time. Parameters never change while a rank is outside a step.
class Shared final : public Exchange {
 public:
  Shared(comm::shm::Communicator& group, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options);

  std::byte* parameters() const override { return parameters_.parts[0]; }
  std::byte* gradients() const override { return gradients_.parts[static_cast<size_t>(group_.rank())]; }
  bool parameters_are_shared() const override { return true; }
  void publish_parameters() override;
  void ready(size_t bucket) override;
  void finish() override;

 private:
  struct Open {
    size_t bucket;
    uint32_t round;
  };
  uint8_t* flags() const override { return flags_of(group_.rank()); }
  uint8_t* flags_of(int rank) const { return reinterpret_cast<uint8_t*>(flags_.parts[static_cast<size_t>(rank)]); }
  void update_slice(size_t bucket);
  void complete_first();

  comm::shm::Communicator& group_;
  comm::shm::SharedBlock parameters_, gradients_, flags_;
  std::vector<space::Range> slices_;   // this rank's, by bucket
  std::vector<uint64_t> name_hashes_;  // by bucket
  std::deque<Open> open_;              // rounds at which this rank has arrived and that it has not finished
  uint32_t last_round_ = 0;
};

}  // namespace trireme::exchange
