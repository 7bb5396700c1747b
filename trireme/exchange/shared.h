#pragma once
// Synchronous: all ranks of a machine map the same parameters.
#include <deque>
#include <optional>

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
///
/// With virtual workers a rank has more than one gradient: sums over some of its pieces, each in a seat. Whoever sums a
/// slice over ranks goes by the tree over all seats that are roots.
class Shared : public Exchange, protected VirtualWorkers, private Succession {
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
  void divide(const std::vector<Pieces>& runs) override;
  /// Of this rank: `slices` by bucket, empty where it has nothing to do.
  Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
         const Options& options, const std::function<space::Range(space::Range)>& slice_of);

  bool last(size_t bucket) const { return bucket + 1 == buckets_.size(); }
  std::byte* gradients_of(int rank, int seat = 0) const {
    if (seat == 0) return gradients_.parts[static_cast<size_t>(rank)];
    return seats_.parts[static_cast<size_t>(rank)] + static_cast<size_t>(seat - 1) * seat_bytes();
  }
  uint8_t* flags_of(int rank, int seat = 0) const {
    return reinterpret_cast<uint8_t*>(flags_.parts[static_cast<size_t>(rank)]) +
           static_cast<size_t>(seat) * layout_.size();
  }
  /// A gradient of this machine's that sums over ranks are made of: of a rank or, with virtual workers, of a root.
  struct Seated {
    int rank, seat;
    Pieces root{};
    uint8_t adds = 1;  // see space::Source
  };
  std::vector<space::Source> sources_of(size_t bucket, std::span<const Seated> seated) const;
  /// Of this machine, in the order of their pieces; without virtual workers in that of ranks.
  const std::vector<Seated>& seated() const { return seated_; }
  /// Slices are cut on multiples of this.
  static size_t grain_of(const Options& options);
  /// With virtual workers and clipping: the norm does not depend on how buckets are cut into slices.
  bool squares_by_block() const { return options_.virtual_workers > 0 && options_.clip > 0; }
  /// Counts the squares of a part of a slice that gradients() has the sum of; `present`, by slot of the layout: there
  /// is one.
  void count_squares(size_t bucket, space::Range part, const uint8_t* present);
  /// What ranks of this machine tell of each piece's loss, zero for others': in place of outcome_.told[0].
  std::vector<double> piece_losses() const;
  /// This rank's slice of a bucket, or a part of it. If something is left out, the machine will hear.
  void update_slice(size_t bucket, space::Range range, std::span<const space::Source> sources);
  /// Of the ranks of this machine, by its rank.
  bool sound_here() const;
  /// The machine will hear that something was left out in this step.
  void note_flaw() { note_of(local_.rank()).flawed = step_; }
  /// Of the summed gradient, from all ranks' squares_ or blocks_, in a round of its own: for clip_by() and
  /// clip_and_update().
  double squares_together();
  /// Those among whom squares_ are divided.
  virtual comm::Communicator& norm_group() { return local_; }
  /// The sum of a slice over this machine, into this rank's own gradients, where nobody else reads it. `any`, by slot:
  /// somebody here has a gradient.
  void sum_here(size_t bucket, space::Range slice, uint8_t* any);
  /// Of this rank's gradients, the whole pages inside.
  void give_back_gradients(space::Range range);
  /// The first one, with what was published.
  void begin_crew();
  void begin_rewriting() override;
  /// With Options::elastic, when all gradients of the step are in this machine's memory: decides it, and makes this
  /// rank's part of it. `applies`: false where nothing is to change.
  void update_whole(bool applies = true);
  /// The slice of a bucket that a rank of this machine updates.
  virtual space::Range slice_on(int rank, size_t bucket) const {
    return space::part_of(buckets_[bucket].range, rank, local_.size(), grain_of(options_));
  }
  /// What a rank of this machine updates its slice with.
  virtual std::vector<space::Source> sources_on(int rank, size_t bucket);
  /// With whole_first(), when the sum of this rank's slice is known.
  void update_gathered(size_t bucket) { update(bucket, slices_[bucket], sources_on(local_.rank(), bucket)); }
  /// Brings the state to machines that lack it, from those who have it. Collective.
  virtual void bring(bool /*has*/, std::span<int64_t> /*steps*/) {}
  /// This rank's part of a bucket at which all ranks of the machine have arrived.
  virtual void work(size_t bucket);
  /// The next bucket's. Of the last one, outcome_.told has the machine's sums then.
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
  std::vector<double> squares_;             // with clip: of this rank's slices of the summed gradient, by bucket
  space::StateMemory state_;                // the machine's
  std::optional<Transaction> transaction_;  // with Options::elastic
  bool began_ = false;                      // this crew, with Options::elastic

 private:
  /// What a rank leaves for the others of its machine.
  struct Note {
    Told told;
    uint32_t flawed;  // the last step in which it left something out
  };
  Note& note_of(int rank) const { return *reinterpret_cast<Note*>(notes_.parts[static_cast<size_t>(rank)]); }
  bool begin_step(std::optional<int64_t> leased) override;
  void rewritten(const Reached& now) override;
  Reached reached() const override { return transaction_->last().reached; }
  Reached give_up() override;
  Reached take_over(Exchange* before, const Reached& reached) override;
  std::vector<space::Source> sources_of(size_t bucket) const { return sources_of(bucket, seated_); }
  bool sources_of(size_t slot, std::vector<const std::byte*>& sources) const;
  bool can_give_back(size_t bucket) const;
  void gather(size_t bucket);
  void hear_machine();
  int64_t* steps_of(int rank) const;
  void copy_slice(const Shared& before, int rank, size_t bucket);
  void take_slices(Shared& before, int rank, const Decided& last, std::span<int64_t> steps);
  void take_seats(const Group& group);

  // What a rank tells is written before it arrives at the last bucket, and read by all before they finish it; that it
  // left something out before it finishes that bucket, and read before the next step.
  comm::shm::SharedBlock gradients_, flags_, notes_;
  comm::shm::SharedBlock seats_, piece_losses_;  // with virtual workers: after seat 0, if there are some; by piece
  std::vector<int32_t> here_;                    // ranks of the group, by rank of this machine
  std::vector<Seated> seated_;
  std::span<double> blocks_;            // with squares_by_block(): of this machine, by block of kGrain bytes
  std::vector<size_t> first_block_;     // by bucket
  size_t worked_ = 0, given_back_ = 0;  // buckets, in this step
  std::vector<uint8_t> any_;            // with clip, by slot: some rank has a gradient
  std::vector<uint64_t> name_hashes_;   // by bucket
  std::vector<uint8_t> any_of_rank_;    // as any_, of a rank that others make whole
  std::byte* handed_ = nullptr;         // with Options::elastic: the steps of slots that a crew goes on with

 protected:
  Share share_of(int rank, size_t bucket) const override;
  comm::Communicator& group() const override { return local_; }
  std::optional<Compression> uncompressed_;  // with Options::candidates, on one machine
};

}  // namespace trireme::exchange
