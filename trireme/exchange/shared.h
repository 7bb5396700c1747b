#pragma once
// Synchronous: all ranks of a machine map the same parameters.
#include <deque>

#include <trireme/exchange/exchange.h>
#include <trireme/exchange/shares.h>

namespace trireme::exchange {

/// Each bucket is a round. When all ranks have arrived at it, rank r reads everybody's gradients in slice r of the
/// bucket and updates that slice of the shared parameters, all in one pass. Optimizer state exists once per machine,
/// with the owner of the slice. Nothing is sent, nothing is copied.
///
/// A slice may be updated while a peer still runs its backward pass, but only after that peer has marked the bucket
/// ready: its backward has by then used these parameters for the last time. Parameters never change while a rank is
/// outside a step.
class Shared : public Exchange {
 public:
  Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
         const Options& options);
  ~Shared() override;

  void publish() override;
  void open() override;
  void ready(size_t bucket) override;
  void close() override;
  void go_ahead(const std::function<bool()>& enough) override;

 protected:
  /// Of this rank: `slices` by bucket, empty where it has nothing to do.
  Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
         const Options& options, const std::function<space::Range(space::Range)>& slice_of);

  bool last(size_t bucket) const { return bucket + 1 == buckets_.size(); }
  std::byte* gradients_of(int rank) const { return gradients_.parts[static_cast<size_t>(rank)]; }
  uint8_t* flags_of(int rank) const { return reinterpret_cast<uint8_t*>(flags_.parts[static_cast<size_t>(rank)]); }
  /// This rank's slice of a bucket, or a part of it. If something is left out, the machine will hear.
  void update_slice(size_t bucket, space::Range range, std::span<const space::Source> sources);
  /// Of the ranks of this machine, by its rank.
  bool sound_here() const;
  /// The machine will hear that something was left out in this step.
  void note_flaw() { note_of(local_.rank()).flawed = step_; }
  /// The factor of clipping, from all ranks' squares_, in a round of its own; then clip_and_update().
  void clip_together(const OfBucket& update, const OfBucket& settled);
  /// Those among whom squares_ are divided.
  virtual comm::Communicator& norm_group() { return local_; }
  /// The sum of a slice over this machine, into this rank's own gradients, where nobody else reads it. `any`, by slot:
  /// somebody here has a gradient.
  void sum_here(size_t bucket, space::Range slice, uint8_t* any);
  /// Of this rank's gradients, the whole pages inside.
  void give_back_gradients(space::Range range);
  /// This rank's part of a bucket at which all ranks of the machine have arrived.
  virtual void work(size_t bucket);
  /// The next bucket's. Of the last one, told_ has the machine's sums then.
  void work_next();
  /// All buckets at which everybody has arrived.
  void work_arrived();
  /// What can be done without waiting.
  virtual void proceed();

  struct Open {
    size_t bucket;
    uint32_t round;
  };
  comm::shm::Communicator& local_;
  std::vector<space::Range> slices_;  // this rank's, by bucket
  std::deque<Open> open_;             // rounds at which this rank has arrived and that it has not finished
  uint32_t last_round_ = 0;           // at which this rank has arrived
  std::vector<uint32_t> rounds_of_;   // the buckets', in this step
  uint32_t step_ = 0;
  std::vector<double> squares_;  // with clip: of this rank's slices of the summed gradient, by bucket

 private:
  /// What a rank leaves for the others of its machine.
  struct Note {
    Told told;
    uint32_t flawed;  // the last step in which it left something out
  };
  Note& note_of(int rank) const { return *reinterpret_cast<Note*>(notes_.parts[static_cast<size_t>(rank)]); }
  std::vector<space::Source> sources_of(size_t bucket) const;
  bool sources_of(size_t slot, std::vector<const std::byte*>& sources) const;
  bool can_give_back(size_t bucket) const;
  void gather(size_t bucket);
  void update_gathered(size_t bucket);
  void hear_machine();

  // What a rank tells is written before it arrives at the last bucket, and read by all before they finish it; that it
  // left something out before it finishes that bucket, and read before the next step.
  comm::shm::SharedBlock gradients_, flags_, notes_;
  size_t worked_ = 0, given_back_ = 0;  // buckets, in this step
  std::vector<uint8_t> any_;            // with clip, by slot: some rank has a gradient
  std::vector<uint64_t> name_hashes_;   // by bucket

 protected:
  Share share_of(int rank, size_t bucket) const override;
  comm::Communicator& group() const override { return local_; }
};

}  // namespace trireme::exchange
