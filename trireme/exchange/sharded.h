#pragma once
// Synchronous, over several machines that divide the model among them: ZeRO 1, 2 and 3.
//
// As in Spread the ranks of a machine share its parameters, and a lane joins one rank of each. But a slice of a bucket
// is not the same work on every machine: a reduce-scatter along the lane brings each machine the sum of its own part
// (shares.h), which its rank alone updates, with optimizer state that nobody else has. Then
//   stages 1, 2  an all-gather brings all new parts to all machines, while backward and the next forward pass go on;
//   stages 2, 3  gradients are given back to the machine, page by page, as soon as they are summed;
//   stage 3      parameters of others are given back too: use() gathers them when an operator needs them (paging.h,
//   window.h).
// With a codec (part_coding.h) what a machine has of another one's part travels as a message, and is added up there.
// Parameters travel as they are.
//
// A gradient and a parameter cross the wire once each, as in an allreduce; in stage 3 parameters do twice, forward and
// backward.
//
// No rank waits for what another does later: whatever a rank waits for, the others start before they come to the same
// point of the program. So none of the waits below can close a circle.
#include <memory>
#include <optional>

#include <trireme/exchange/gatherer.h>
#include <trireme/exchange/part_coding.h>
#include <trireme/exchange/shared.h>
#include <trireme/exchange/window.h>

namespace trireme::exchange {

class Sharded final : public Shared, private Paging {
 public:
  Sharded(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
          const Options& options);
  /// Waits for what still travels: it points into this object.
  ~Sharded() override;

  void publish() override;
  void open() override;
  void ready(size_t bucket) override;
  void close() override;
  void await(space::Range part) override;
  void land() override;
  void settle() override;
  void resume() override;

 private:
  /// What a rank has come to, for the others of its machine: steps.
  struct Milestones {
    std::atomic<uint32_t> told, ended;
  };
  struct Sum {
    size_t bucket;
    std::unique_ptr<comm::Work> flags, work;  // flags: where they are too many to travel along. Both null: no slice
    bool done() const { return (!flags || flags->test()) && (!work || work->test()); }
  };

  void begin_pass(Pass pass) override;
  void use(std::span<const space::Range> parts) override;
  void release() override;
  void replay(const std::function<void()>& open, const std::function<void()>& ready) override;
  void publish_bucket(size_t bucket) override;

  void work(size_t bucket) override;
  void proceed() override;
  bool unused(size_t bucket);
  void depart();
  void start_sum(size_t bucket);
  void land_sum();
  void update_next();
  void relieve(size_t bucket);
  void expect_gradients(size_t bucket);
  void find_limits();
  void begin_coding(const Group& group);
  void give_back_gradients_of(size_t bucket);
  void finish_updates();
  void hear();
  void close_clipped();
  void start_verdict();
  void end();
  void act(const Window::Actions& actions);
  void use_buckets(std::vector<size_t> buckets);
  void forget_gathered() override;
  void restore_elsewhere(state::Source& source) override;
  bool keeps_gradients() const override { return options_.zero < 2; }
  comm::Communicator& norm_group() override { return all_; }
  space::Range summed(size_t bucket) const override { return lane_slices_[bucket]; }
  bool stage3() const { return options_.zero == 3; }
  Told& total() const { return *reinterpret_cast<Told*>(total_.parts[static_cast<size_t>(speaker_)]); }
  Milestones& milestones(int rank) const {
    return *reinterpret_cast<Milestones*>(milestones_.parts[static_cast<size_t>(rank)]);
  }

  comm::Communicator& all_;
  comm::network::Communicator* lane_;                   // for sums; null for ranks without a slice
  comm::network::Communicator* second_lane_ = nullptr;  // for parameters: their order is another one
  Shares shares_;
  int machine_ = 0;
  int speaker_ = 0;  // the machine's first rank that sends something of the last bucket: the numbers that ranks tell
                     // travel with it
  comm::shm::SharedBlock total_, milestones_;
  std::vector<space::Range> lane_slices_;    // by bucket: what this rank sums over its machine. slices_ is what it owns
  std::vector<std::vector<size_t>> counts_;  // of these, by machine
  std::vector<uint8_t> lane_flags_;          // by slot: somebody, on any machine, has a gradient for it
  std::optional<Gatherer> gatherer_;
  std::optional<PartCoding> coding_;  // with a codec, for ranks with a slice

  // Of the step that is under way.
  size_t ready_ = 0, summed_here_ = 0, departed_ = 0, relieved_ = 0;  // buckets
  std::deque<Sum> travelling_;
  std::deque<size_t> waiting_;  // buckets whose sums are here, and that some rank may still use
  std::vector<size_t> limits_;  // by bucket: when it is ready, the gradients of those below must be gone
  int64_t flawed_ = 0;
  std::unique_ptr<comm::Work> verdict_;

  // Stage 3.
  std::optional<Window> window_;
  Pass pass_ = Pass::last;
  std::vector<std::vector<size_t>> uses_;  // that have not ended: buckets
  std::vector<int> pinned_;                // by bucket: in how many of them
  bool settled_ = false;
  std::vector<bool> published_;  // buckets

  Share share_of(int rank, size_t bucket) const override;
  comm::Communicator& group() const override { return all_; }
  int keeper_of(int rank) const override {
    return options_.codes() ? places_[static_cast<size_t>(rank)].machine : kKeepsNothing;
  }
  space::Range kept_of(int rank, size_t bucket) const override;
  compress::ErrorFeedback* feedback() override { return coding_ ? &coding_->feedback() : nullptr; }
  struct Place {
    int32_t lane, machine;
  };
  std::vector<Place> places_;  // by rank of all_
};

}  // namespace trireme::exchange
