#pragma once
// What is behind Parallel: the module's tensors in the flat space (impl.cpp), its state (impl_state.cpp), the step
// (stroke.cpp), that of a pipeline (stroke_pipeline.cpp), and its samples by speed (balancing.cpp). One thread; it owns
// the exchange, and views of the memory that the exchange owns. Not installed.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/cluster/mesh.h>
#include <trireme/exchange/balancer.h>
#include <trireme/parallel/arrivals.h>
#include <trireme/parallel/assembly.h>
#include <trireme/parallel/batch_norm.h>
#include <trireme/parallel/parallel.h>
#include <trireme/parallel/pipeline.h>
#include <trireme/parallel/placement.h>
#include <trireme/parallel/state.h>
#include <trireme/parallel/step_limit.h>
#include <trireme/parallel/step_metrics.h>
#include <trireme/parallel/tensors.h>

namespace trireme {

/// Who trains a model: those who divide its samples, and on a mesh those who divide the model itself.
struct Ranks {
  explicit Ranks(const Group& group) : data(group), whole(group) {}
  /// All of the world. One that comes when the job is under way is alone, and has to enter the crew.
  explicit Ranks(World& world) : joins(world.newcomer()), data(world.group()), whole(data) {}
  /// Samples are divided along the axis "data", if there is one. Collective.
  explicit Ranks(const Mesh& mesh);
  /// The same, of ranks that have stages of the model. Collective.
  Ranks(const Mesh& mesh, const Pipeline& pipeline);

  bool joins = false;            // a crew that trains already: its state is what this rank begins with
  Group data;                    // gradients are summed over these
  Group whole;                   // all: where nothing is divided, the same
  std::optional<Group> model{};  // this rank and those that have the other parts of its replica; nothing: it has all
  std::optional<Group> alike{};  // those of `model` that have the same tensors or parts of them: one stage's
  std::vector<int> stages{};     // of each rank of `model`; empty: there are none
  std::string mesh{};            // "data 2 × tensor 2", where there are several parts
};

class Parallel::Impl {
 public:
  /// `world`: where parameter servers are found; null: these ranks have none. `pipeline`: of which this rank has a
  /// stage; null: it has something of every tensor.
  Impl(const Ranks& ranks, World* world, torch::nn::Module& module,
       const std::optional<space::UpdaterOptions>& optimizer, const ParallelOptions& options,
       const Pipeline* pipeline = nullptr);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Step step(double weight, const std::function<torch::Tensor()>& loss);
  Step step(double weight, const torch::Tensor& x, const torch::Tensor& y, const LossOf& loss);
  /// A step, or, when the crew changes in it, what has become of it.
  Step through_changes(const std::function<Step()>& step);
  bool elastic() const { return options_.exchange.elastic; }
  bool pushes() const { return options_.exchange.sync.pushes(); }
  /// On with the next crew: see Parallel::change_crew().
  Step change_crew();
  /// What the crew has settled, furthest of all: see Parallel::settle_on().
  void settle_on(int64_t number, std::string what) { memo_ = {number, std::move(what)}; }
  const std::pair<int64_t, std::string>& settled_on() const { return memo_; }
  void limited(const std::function<void()>& meet);
  void exclusive(const std::function<void()>& change);
  void settled(const std::function<void()>& look, Looks looks = Looks::freely);
  /// Shows a row-major copy of each tensor that a saved model consists of, in the order of their registration: the
  /// logical ones. Collective.
  void each_tensor(const std::function<void(const Named&)>& look);
  void use_loader(const std::shared_ptr<const std::string>& terms);
  void count_samples(int64_t epoch, double samples, double signs);
  void leave_out(int64_t epoch, double samples, double signs);
  void take_up(const exchange::Ledger& ledger);
  const exchange::Ledger& ledger() const { return ledger_; }
  const exchange::Balance& balance() const;

  state::OwnerMap owners() const;
  void visit(state::Visitor& visitor);
  std::shared_ptr<state::Snapshot> snapshot(const state::OwnerMap& division);
  std::string restore(state::Source& source);

  checkpoint::Contents contents() const;
  checkpoint::CrewNote crew() const;
  int64_t updates() const { return updates_; }

  const Group& group() const { return group_; }
  const Group& whole() const { return whole_; }
  const std::string& mesh() const { return mesh_; }
  const Ties& ties() const { return ties_; }
  exchange::Exchange& exchange() const { return *exchange_; }
  exchange::WorkSource& source() { return work_; }
  double learning_rate() const { return space::rate_at(options_.schedule, lr_, clock_); }
  double equal_weight() const { return 1.0 / static_cast<double>(pieces()); }

  std::atomic<bool> stop{false};  // somebody asked this rank to

 private:
  /// The exchange's source. The piece that is taken is what the next update is about, and sets the clock; what this
  /// rank is asked to stop, the source hears.
  class Work final : public exchange::WorkSource {
   public:
    explicit Work(Impl& impl)
        : WorkSource(exchange::Pieces{}, impl.virtual_workers() > 0 ? impl.virtual_workers() : impl.group_.size(),
                     impl.options_.accumulate),
          impl_(impl) {}
    exchange::Pieces run() const override { return impl_.exchange_->source().run(); }
    void begin(int64_t first_step, int64_t steps) override { impl_.exchange_->source().begin(first_step, steps); }
    ps::Lease take() override;
    void want_stop() override { impl_.stop.store(true); }
    std::optional<uint64_t> generation() const override {
      return impl_.elastic() ? std::optional(impl_.group_.epoch()) : std::nullopt;
    }
    int64_t next_step() const override { return impl_.clock_; }
    std::shared_ptr<const exchange::SampleShares> shares() const override {
      return impl_.balancer_ ? impl_.balancer_->shares() : nullptr;
    }
    void set_batch(size_t samples) override {
      if (impl_.balancer_) impl_.balancer_->set_batch(samples);
    }
    void follow() { set_pieces(impl_.virtual_workers() > 0 ? impl_.virtual_workers() : impl_.group_.size()); }

   private:
    Impl& impl_;
  };

  // ---- the module in the flat space: impl.cpp ----
  StepLimit limit_waits() { return {{&group_, model_ ? &*model_ : nullptr}, *exchange_, options_.step_timeout}; }
  void check_ranks(World* world) const;
  void check_pipeline() const;
  void take_stage();
  void drop_other_stages();
  space::Layout with_counted(const space::Layout& layout) const;
  bool has(int model_rank, const std::string& name) const;
  int first_holder(const std::string& name) const;
  void check_parts(const space::Layout& layout, const std::optional<space::UpdaterOptions>& optimizer) const;
  exchange::Options exchange_options() const;
  exchange::Terms own_terms() const;
  std::vector<size_t> shared_slots() const;
  void share_initial(const space::Layout& layout);
  void adopt_parameters();
  void adopt_buffers();
  void listen();
  void listen_to(size_t slot);
  void follow_freezing();
  void sync_buffers();
  void average(const std::string& name, torch::Tensor& buffer);
  BufferState::Named buffers() const;
  state::OwnerMap with_buffers(state::OwnerMap map) const;
  /// Ranks' buffers may differ between settled() and settled(): each goes on with its own.
  bool own_buffers() const { return group_.size() > 1 && !statistics_ && virtual_workers() == 0; }
  BufferState averaged();
  std::string own_scalar(const std::string& name) const;
  state::Extras extras(const BufferState* common, const BufferState& own);
  void note_position();
  void land_between_updates();
  /// Parameters come and go: with ZeRO 3 across machines.
  bool gathers() const { return exchange_->paging() != nullptr; }
  /// What an operator gets of the parameters may be used.
  void use(std::span<const space::Range> parts) {
    const Away away(*this);
    if (gathers()) return exchange_->paging()->use(parts);
    for (const space::Range& part : parts) exchange_->await(part);
  }
  exchange::Told tell() const;
  void compare_signs(const exchange::Told& sums);
  void compare_here();

  // ---- samples by speed: balancing.cpp ----
  void check_balance() const;
  void meet_balanced();
  void count_effort(Step& done);
  /// While one lives, this rank does not compute: it exchanges, or waits for others.
  struct Away {
    explicit Away(Impl& impl) : impl(impl) {}
    ~Away() { impl.away_ += seconds_since(start); }
    Away(const Away&) = delete;
    Away& operator=(const Away&) = delete;
    Impl& impl;
    Clock::time_point start = Clock::now();
  };

  // ---- a crew that changes: crew_change.cpp ----
  void make_exchange_for(const space::Layout& layout);
  void agree_with_newcomers(const space::Layout& layout) const;
  void enter(World& world);
  void move_in();
  struct Attempt;
  void enter_crew(Attempt& before, const space::Layout& layout);
  void join_anew(const space::Layout& layout);
  void join_crew(exchange::Exchange* before, const exchange::Reached& reached);
  void share_buffers(bool fresh);
  void share_memo();
  // ---- virtual workers: stroke_virtual.cpp ----
  int virtual_workers() const { return options_.exchange.virtual_workers; }
  /// Micro-batches of an update, over all ranks; and of this rank.
  int pieces() const { return virtual_workers() > 0 ? virtual_workers() : group_.size() * options_.accumulate; }
  int calls() const { return turns_.empty() ? options_.accumulate : static_cast<int>(turns_.size()); }
  int piece() const { return run_.begin + call_; }
  const exchange::Turn& turn() const { return turns_[static_cast<size_t>(call_)]; }
  void check_virtual() const;
  void take_turns();
  void begin_piece();
  void check_buffers() const;
  void end_piece();
  size_t seat_of(size_t slot) const;
  void keep(size_t slot, const torch::Tensor& gradient);
  void fold(size_t slot);

  // ---- a step: stroke.cpp ----
  void run_schedule(double weight, const torch::Tensor& x, const torch::Tensor& y, const LossOf& loss);
  void chunk_done(int chunk);
  void sum_shared();
  double begin_share(double first_weight);
  bool begin(double first_weight);
  void land();
  void open();
  void without_samples(bool last);
  torch::Tensor forward(const std::function<torch::Tensor()>& loss);
  void backward(double weight, const std::function<torch::Tensor()>& loss, bool last, metrics::Laps& laps);
  bool places_gradients() const;
  void expect_gradients();
  void arrived(size_t slot);
  void add_up(size_t slot);
  void discard(size_t slot);
  void passed(size_t slot);
  void ready_next();
  void defer(size_t slot, torch::Tensor gradient);
  void store_deferred();
  Step update();
  void count_update();
  void hear(Step& done);
  void hear_model();
  bool sound() const { return exchange_->outcome().sound && parts_sound_; }
  void check_time(const Step& done) const;
  bool watches() const { return options_.exchange.on_nan != exchange::OnNan::ignore; }
  bool skips() const { return options_.exchange.on_nan == exchange::OnNan::skip; }
  void keep_buffers();
  void return_buffers();
  void spoil_bucket();
  Step skip(Step done);
  void lose(double number);
  void check_finite(double loss);
  [[noreturn]] void complain(double loss);
  std::string explanation(double loss);

  /// While a backward pass of step() runs: gradients of other ones are not ours.
  struct Collecting {
    explicit Collecting(Impl& impl) : impl(impl) { impl.collecting_ = true; }
    ~Collecting() { impl.collecting_ = false; }
    Impl& impl;
  };

  /// While one lives, operators gather what they use: with ZeRO 3. Errors of theirs: arrivals_->check().
  struct Gathering {
    Gathering(Impl& impl, exchange::Pass pass) : impl(impl), gathers(impl.gathers()) {
      if (!gathers) return;
      impl.exchange_->paging()->begin_pass(pass);
      impl.arrivals_->expect();
    }
    ~Gathering() {
      if (gathers) impl.arrivals_->forsake();
    }
    Gathering(const Gathering&) = delete;
    Gathering& operator=(const Gathering&) = delete;
    Impl& impl;
    bool gathers;
  };

  Group group_, whole_;                               // see Ranks
  const std::optional<Group> model_;                  //
  const std::optional<Group> alike_;                  //
  const std::vector<int> stages_;                     //
  const std::string mesh_;                            //
  comm::shm::Communicator* local_ = &group_.local();  // as long as there is the group, whose epoch may have ended
  World* const world_;                                // null: these are the ranks of a group, and not of the world
  const std::optional<space::UpdaterOptions> optimizer_;
  StepMetrics count_;
  const int exceptions_ = std::uncaught_exceptions();  // on their way when this was made
  ParallelOptions options_;
  double lr_;
  std::vector<Named> all_, all_buffers_;     // of the model
  std::vector<Named> parameters_, buffers_;  // what this rank has of them
  std::vector<bool> here_;                   // by parameter of the model: this rank has it, or a part of it
  std::vector<size_t> model_slot_;           // by slot: which parameter of the model it is
  Ties ties_;
  std::optional<Pipeline> pipeline_;
  std::vector<std::vector<size_t>> slots_of_chunk_;  // of this rank's, in a pipeline
  std::unique_ptr<exchange::Exchange> exchange_;
  std::optional<Assembly> assembly_;      // of the whole model, where ranks have parts of it
  std::vector<torch::Tensor> gradients_;  // views of the flat space, by slot; then those of other seats, if there are
  std::optional<Placement> placement_;
  std::optional<Arrivals> arrivals_;
  std::optional<BatchStatistics> statistics_;                  // of batch norms over all ranks, if they are wanted
  std::vector<size_t> bucket_of_;                              // by slot
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;  // by slot; null until it has wanted gradients
  std::vector<bool> trained_;                                  // by slot: it wants gradients now
  std::shared_ptr<int> alive_ = std::make_shared<int>();       // hooks may outlive us inside a graph

  // With virtual workers.
  exchange::Pieces run_;                  // of every step, this rank's
  std::vector<exchange::Turn> turns_;     // what becomes of its gradients, piece by piece
  std::vector<bool> folded_;              // by slot: in this piece
  int call_ = 0;                          // of step(), within the update
  std::vector<int64_t> buffer_versions_;  // before a forward pass

  // Of the step that is under way.
  int micro_ = 0;
  std::vector<int> backwards_left_;  // by slot, in a pipeline: backward passes that it still gets gradients from
  bool collecting_ = false, last_ = false;
  std::vector<size_t> missing_;  // gradients that a bucket still waits for
  std::vector<bool> filled_;     // slots with a gradient from an earlier micro-batch; like gradients_
  size_t next_bucket_ = 0;
  std::vector<std::pair<size_t, torch::Tensor>>
      deferred_;                             // gradients whose place is taken until the backward pass ends
  Clock::time_point began_{};                // with a time limit of steps
  double computing_ = 0, away_ = 0;          // seconds of this rank's passes, and in them of other things
  Clock::time_point computed_{};             // the end of its last pass
  std::vector<torch::Tensor> kept_buffers_;  // with OnNan::skip: as they were before the step
  double loss_ = 0;
  double loss_at_update_ = 0;                             // this rank's, of the update before
  bool unchecked_ = false;                                // an update is to land, and may not be sound
  bool lost_ = false;                                     // one of its losses was no number
  bool parts_sound_ = true;                               // of the update, on ranks with other parts of the model
  double seed_ = 1;                                       // of the gradient, per weight: see begin_share()
  exchange::Told told_{};                                 // this rank's, then everybody's
  static constexpr ptrdiff_t kFreezing = 2, kLoader = 5;  // in what ranks tell, after the loss and the wish to stop
  static constexpr size_t kChange = 8;                    // and: this one has heard of another crew
  exchange::Sign freezing_sign_{}, loader_sign_{};
  std::shared_ptr<const std::string> loader_terms_;  // of the last batch that came from a loader

  Work work_;
  int64_t updates_ = 0;
  int64_t clock_ = 0;  // the step that the next update belongs to: of the piece that was taken for it, or the one after
                       // the last
  std::optional<int64_t> leased_;  // where work is given: the step of the piece that was taken and not done yet
  bool stopped_ = false;           // the ranks have agreed to stop
  std::optional<exchange::Balancer> balancer_;  // with ParallelOptions::balance
  exchange::Ledger ledger_;                     // of the crew, in the epoch that is under way
  exchange::Ledger own_;                        // of this rank, in the step that is under way
  bool change_ = false;                         // they have agreed to go on as another crew
  std::pair<int64_t, std::string> memo_{-1, ""};
};

/// The models that this rank trains.
struct Trained final : World::Attachment {
  std::vector<exchange::Exchange*> exchanges;
};

}  // namespace trireme
