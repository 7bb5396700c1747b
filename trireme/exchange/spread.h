#pragma once
// Synchronous, over several machines: ranks of one machine share its parameters, lanes carry gradients between
// machines.
#include <optional>

#include <trireme/exchange/chooser.h>
#include <trireme/exchange/coding.h>
#include <trireme/exchange/order.h>
#include <trireme/exchange/shared.h>

namespace trireme::exchange {

/// The slices are those of the lanes: a rank sums its slice of a bucket over its machine into its own gradients, sums
/// that over the machines along its lane, and updates its machine's parameters with the result. Every byte of a
/// gradient crosses the wire once.
///
/// A slice travels in pieces while backward goes on. Their order is planned (order.h) from what the first steps
/// measured, and is the same on all ranks: where the wire is slow, first layers overtake. After close() the rest is
/// still on its way, and lands bucket by bucket in the next forward pass.
///
/// With a codec (coding.h) what travels of a piece is not a sum under way but each machine's part of it, encoded: all
/// machines get all of them, and add them up when they land.
///
/// With virtual workers a machine sums up the roots that lie in it whole. Two machines with one root each exchange them
/// as any gradients; otherwise each machine gets all roots of the others and goes by the tree, in the update itself.
class Spread final : public Shared {
 public:
  Spread(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
         const Options& options);

  /// Waits for what still travels: it points into this object.
  ~Spread() override;

  void publish() override;
  void open() override;
  void ready(size_t bucket) override;
  void close() override;
  void await(space::Range part) override;
  void land() override;

 private:
  void divide(const std::vector<Pieces>& runs) override;
  space::Range summed(size_t bucket) const override {
    return by_root_ && !whole_first() ? space::Range{} : slices_[bucket];
  }
  static constexpr uint32_t kAllPieces = ~uint32_t{0};

  /// Pieces of a bucket's slice, in this step.
  struct Trip {
    bool reduced = false;   // over this machine
    space::Range rest;      // not sent yet
    size_t travelling = 0;  // pieces
    uint32_t landed = 0;
  };
  struct Piece {
    size_t bucket;
    space::Range range;
    std::unique_ptr<comm::Work> sum;
    // With by_root_: this part of each root, of this machine and of all; and what comes along with the first piece.
    std::vector<std::byte> own{}, all{};
    std::unique_ptr<comm::Work> flags{}, told{};
  };
  using Landings = std::atomic<uint64_t>;  // a rank's, by bucket: the last step in which something of its slice has
                                           // landed, and how many pieces of it

  void work(size_t bucket) override;
  void proceed() override;
  void close_whole();
  /// Every sum is here before anything is updated.
  bool sums_first() const { return whole_first() || transaction_; }
  space::Range slice_on(int rank, size_t bucket) const override {
    return rank < lanes_ ? space::part_of(buckets_[bucket].range, rank, lanes_, grain_of(options_)) : space::Range{};
  }
  std::vector<space::Source> sources_on(int rank, size_t bucket) override;
  void bring(bool has, std::span<int64_t> steps) override;
  void divide_machines();
  void sum_roots(size_t bucket);
  void depart_roots(size_t bucket, space::Range range, bool first);
  std::vector<space::Source> land_roots(Piece& piece);
  void depart_coded(size_t bucket, space::Range range);
  void land_coded(const Piece& piece);
  // With Options::candidates they change from step to step, otherwise they do not.
  Coding* coding(size_t bucket) { return chooser_ ? chooser_->coding(bucket) : coding_ ? &*coding_ : nullptr; }
  size_t piece_bytes(size_t bucket) const { return chooser_ ? chooser_->piece_bytes(bucket) : piece_bytes_; }
  bool unused(size_t bucket);
  void depart();
  void depart_piece(size_t bucket);
  void land_first();
  void mark_landed(size_t bucket, uint32_t pieces = kAllPieces);
  bool landed_on(int rank, size_t bucket, space::Range part) const;
  void await(size_t bucket, space::Range part);
  void plan();
  void measure_anew();
  Told& total() const { return *reinterpret_cast<Told*>(total_.parts[static_cast<size_t>(speaker_)]); }
  Landings& landings(int rank, size_t bucket) const {
    return reinterpret_cast<Landings*>(landings_.parts[static_cast<size_t>(rank)])[bucket];
  }

  comm::Communicator& all_;
  comm::network::Communicator* lane_;  // null for ranks without a slice
  int lanes_;
  size_t piece_bytes_;
  int speaker_ = 0;  // the machine's first rank that sends something of the last bucket: the numbers that ranks tell
                     // travel with it
  comm::shm::SharedBlock total_, landings_, flags_of_lanes_;
  std::span<uint8_t> lane_flags_;  // by slot: somebody, on any machine, has a gradient for it
  std::vector<Trip> trips_;        // by bucket
  std::vector<uint32_t> order_;
  size_t ready_ = 0;     // buckets
  size_t departed_ = 0;  // of order_
  std::deque<Piece> travelling_;
  std::optional<Coding> coding_;    // with a codec, for ranks with a slice
  std::optional<Chooser> chooser_;  // with several to choose from

  // What plan() uses: sums since measure_anew().
  Clock::time_point opened_{};
  std::vector<double> ready_seconds_;
  uint32_t measured_ = 0;                        // the step of that
  double carried_bytes_ = 0, busy_seconds_ = 0;  // of the lane, at that step

  Share share_of(int rank, size_t bucket) const override;
  int keeper_of(int rank) const override {
    return options_.codes() ? machine_of_[static_cast<size_t>(rank)] : kKeepsNothing;
  }
  space::Range kept_of(int rank, size_t bucket) const override { return share_of(rank, bucket).updated; }
  compress::ErrorFeedback* feedback() override {
    if (chooser_ && lane_ != nullptr) return &chooser_->feedback();
    return coding_ ? &coding_->feedback() : nullptr;
  }
  void begin_rewriting() override;
  comm::Communicator& group() const override { return all_; }
  std::vector<int32_t> lane_of_;  // by rank of all_; -1: it has none

  std::vector<int32_t> machine_of_;  // by rank of all_, as the lanes count: with virtual workers, or a codec

  // With virtual workers.
  struct MachineRoot {
    Pieces root;
    size_t place;  // among all machines' roots, one machine after another: as they arrive
    uint8_t adds;
  };
  bool by_root_ = false;           // roots travel one by one
  std::vector<MachineRoot> tree_;  // of all machines, in the order of their pieces
  std::vector<size_t> roots_on_;   // by machine: how many it has
  std::vector<Pieces> own_roots_;  // of this machine
  std::vector<std::unique_ptr<std::byte[]>>
      root_sums_;  // of those, each like a flat vector; only this lane's slices are ever touched
  std::vector<std::vector<uint8_t>> own_flags_, all_flags_;  // by bucket: of each root by its slots
  std::vector<double> all_told_;                             // what ranks tell, and each piece's loss
};

}  // namespace trireme::exchange
