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
class Shared : public Exchange {
 public:
  Shared(comm::shm::Communicator& local, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options);

  std::byte* parameters() const override { return parameters_.parts[0]; }
  std::byte* gradients() const override { return gradients_of(local_.rank()); }
  bool parameters_are_shared() const override { return true; }
  void publish_parameters() override;
  void ready(size_t bucket) override;
  void close() override;
  const Told* told() const override { return &told_; }

 protected:
  /// Of this rank: `slices` by bucket, empty where it has nothing to do.
  Shared(comm::shm::Communicator& local, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options,
         const std::function<space::Range(space::Range)>& slice_of);

  bool last(size_t bucket) const { return bucket + 1 == buckets_.size(); }
  std::byte* gradients_of(int rank) const { return gradients_.parts[static_cast<size_t>(rank)]; }
  uint8_t* flags() const override { return flags_of(local_.rank()); }
  uint8_t* flags_of(int rank) const { return reinterpret_cast<uint8_t*>(flags_.parts[static_cast<size_t>(rank)]); }
  /// This rank's part of a bucket at which all ranks of the machine have arrived.
  virtual void work(size_t bucket);
  /// The next bucket's.
  void work_next();
  /// What can be done without waiting.
  virtual void proceed();

  struct Open {
    size_t bucket;
    uint32_t round;
  };
  comm::shm::Communicator& local_;
  std::vector<space::Range> slices_;  // this rank's, by bucket
  Told told_{};                       // once work_next() has seen the last bucket: the machine's sums
  std::deque<Open> open_;             // rounds at which this rank has arrived and that it has not finished
  uint32_t last_round_ = 0;           // at which this rank has arrived

 private:
  Told& told_by(int rank) const { return *reinterpret_cast<Told*>(told_board_.parts[static_cast<size_t>(rank)]); }
  void hear_machine();

  // A rank's numbers are written before it arrives at the last bucket, and read by all before they finish it.
  comm::shm::SharedBlock parameters_, gradients_, flags_, told_board_;
  std::vector<uint64_t> name_hashes_;  // by bucket
};

}  // namespace trireme::exchange
