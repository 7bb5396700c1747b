#pragma once
// Batches as tensors, prepared in the background: of one worker's share (Loader), or of whatever work a mode gives
// (Feed).
#include <torch/types.h>

#include <algorithm>
#include <concepts>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <trireme/base/lock.h>
#include <trireme/data/dataset.h>
#include <trireme/data/sampler.h>
#include <trireme/exchange/work_source.h>

namespace trireme::data {

struct LoaderOptions {
  size_t batch = 64;   // samples per step, over all workers
  int accumulate = 0;  // micro-batches per step and worker; 0: as many as the Parallel of a feed has, otherwise one
  uint64_t seed = 1;   // of the shuffling
  bool shuffle = true;
  size_t ahead = 8;                      // batches that wait ready, at most
  torch::Dtype dtype = torch::kFloat32;  // of the inputs
};

/// One micro-batch of this worker. `weight` is its part of the step's samples; a step's weights add up to 1 over all
/// workers and micro-batches.
struct Batch {
  torch::Tensor x, y;
  double weight = 0;
  size_t step = 0;    // within the epoch
  int64_t piece = 0;  // within the epoch: step · workers + whose share it was cut for; with
                      // virtual workers, which of them
  int micro = 0;      // within the step
  int64_t epoch = 0;
  double signs = 0;                            // of its samples: the sum of sign_of()
  std::shared_ptr<const std::string> terms{};  // what the loaders of all ranks must agree on; null: not from a loader
  size_t samples() const { return x.defined() ? static_cast<size_t>(x.size(0)) : 0; }
};

/// Makes the tensors of samples order[begin, end); of a set without labels the inputs alone. Of a text x and y are i64,
/// samples × context. `masks`: a masked text's masks depend on it and on the number of the sample; those of a test set
/// are always the same.
Batch make_batch(const Dataset& set, const std::vector<uint32_t>& order, size_t begin, size_t end, torch::Dtype dtype,
                 uint64_t masks = 0);

/// Samples of a batch to test with, without gradients: 500; of a text as many as have 4096 tokens, and at least one.
size_t batch_to_test(const Dataset& set);

/// A data set, and how its epochs become batches.
struct Stock {
  /// Throws InvalidArgument when batch, workers and samples do not fit together. `ranks`: pieces of a step. `changes`:
  /// ranks come and go, so that they need not agree on how many there are.
  Stock(Dataset set, int ranks, const LoaderOptions& options, bool changes = false);

  Dataset set;
  LoaderOptions options;
  Cut cut;
  std::shared_ptr<const std::string> terms;

  std::vector<uint32_t> order(int64_t epoch) const {
    return epoch_order(set.count, options.seed, epoch, options.shuffle);
  }
  /// A micro-batch of a piece of an epoch, with its weight, where a step is cut into pieces for so many `ranks`; with
  /// `shares`, as they say.
  Batch batch(const std::vector<uint32_t>& order, int64_t epoch, int64_t piece, int micro, int ranks,
              const std::shared_ptr<const exchange::SampleShares>& shares = nullptr) const;
};

/// Steps of an epoch, all of them unless said otherwise.
struct Stretch {
  size_t first = 0;                                 // the first one
  size_t end = std::numeric_limits<size_t>::max();  // behind the last one
};

/// Where all ranks come together in the middle of an epoch, between two updates: to save, to decide. In every mode all
/// pieces of the steps before are done then, and none of the steps behind.
class Meetings {
 public:
  virtual ~Meetings() = default;
  /// A stretch begins after so many steps of the run: how many until they meet, on all ranks alike; 0: they do not, as
  /// long as this epoch lasts. Collective.
  virtual int64_t until_next(int64_t done) = 0;
  /// They meet. Collective.
  virtual void meet(int64_t done) = 0;
};

/// One pass over a data set: the batches of the pieces that a source of work gives, one after another. What is
/// determined in advance is prepared in advance, by a thread of its own: all of a rank's own share; of pieces that
/// ranks take, those that it will probably get. A wrong guess is made up for by the caller, and the next one is more
/// careful.
///
/// The next piece is taken when the caller asks for the next batch, so that it has done the one before. Breaking off in
/// the middle is fine. Use from the thread that trains.
class Epoch {
 public:
  /// The stock, the source and the meetings, if there are any, outlive it.
  Epoch(const Stock& stock, exchange::WorkSource& source, int64_t number, Stretch stretch = {},
        Meetings* meetings = nullptr);
  /// The share of one rank, without anybody to ask.
  Epoch(const Stock& stock, int rank, int64_t number);
  ~Epoch();
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  int64_t number() const { return number_; }
  /// Of all ranks together; the epoch ends behind this one.
  size_t steps() const { return steps_; }
  /// Behind the last step that this rank has had a piece of.
  size_t reached() const { return reached_; }

  /// The next batch; false at the end, or when somebody has stopped. Blocks where the source does, and until the batch
  /// is there. With their own shares all ranks get the same number of batches, some of them empty when samples run
  /// short.
  bool next(Batch& batch);
  /// After the last batch: it was the last because somebody has stopped.
  bool stopped() const { return stopped_; }
  /// Pieces so far that nobody had prepared.
  size_t unforeseen() const { return unforeseen_; }

  struct End {};
  class Iterator {
   public:
    explicit Iterator(Epoch& epoch) : epoch_(epoch) { ++*this; }
    Batch& operator*() { return batch_; }
    Iterator& operator++() {
      more_ = epoch_.next(batch_);
      return *this;
    }
    bool operator!=(End) const { return more_; }

   private:
    Epoch& epoch_;
    Batch batch_;
    bool more_ = false;
  };
  Iterator begin() { return Iterator(*this); }
  static End end() { return {}; }

 private:
  Epoch(const Stock& stock, exchange::WorkSource* source, std::unique_ptr<exchange::WorkSource> own, int64_t number,
        Stretch stretch, Meetings* meetings);
  void begin_course(size_t first);
  bool meet();
  bool follow_crew();
  void produce();
  void produce_piece(Lock& lock) TRIREME_REQUIRES(mutex_);
  template <class Until>
  void rest(Lock& lock, const Until& until) TRIREME_REQUIRES(mutex_);
  bool take_piece();
  int64_t after(int64_t piece) const TRIREME_REQUIRES(mutex_);
  bool foreseen() const TRIREME_REQUIRES(mutex_);
  void guess_anew() TRIREME_REQUIRES(mutex_);
  template <class Until>
  void await(Lock& lock, const Until& until) TRIREME_REQUIRES(mutex_);

  static constexpr int64_t kNone = -1;
  const Stock& stock_;
  std::unique_ptr<exchange::WorkSource> own_;
  exchange::WorkSource& source_;
  Meetings* meetings_;
  int64_t number_;
  size_t steps_;
  std::optional<uint64_t> generation_;  // of the crew
  size_t course_ = 0, course_end_ = 0;  // the steps that the source knows of: until ranks meet, or the epoch ends
  size_t reached_;
  std::vector<uint32_t> order_;  // by the producer, before it is ordered_

  // Of the piece that is under way.
  int micro_ = 0;           // the next one
  bool made_here_ = false;  // nobody had foreseen it
  bool stopped_ = false;
  size_t unforeseen_ = 0;

  Mutex mutex_;
  Condition changed_;
  // Of the pieces that were guessed, in their order.
  std::deque<Batch> ready_ TRIREME_GUARDED_BY(mutex_);
  // That a step is cut for, and how; changed by the consumer alone.
  int ranks_ TRIREME_GUARDED_BY(mutex_);
  std::shared_ptr<const exchange::SampleShares> shares_ TRIREME_GUARDED_BY(mutex_);
  int64_t taken_ = kNone;                              // the piece that was taken last; of the consumer
  int64_t making_ TRIREME_GUARDED_BY(mutex_) = kNone;  // the piece that the producer is at
  int64_t aim_ TRIREME_GUARDED_BY(mutex_);             // the piece that it makes next
  int64_t stride_ TRIREME_GUARDED_BY(mutex_);          // between the pieces that this rank gets, as far as one can tell
  exchange::Pieces run_ TRIREME_GUARDED_BY(mutex_);    // of every step, where it gets several: then all of these
  size_t guess_ TRIREME_GUARDED_BY(mutex_) = 0;        // counts when guesses begin anew: what was begun is of no use
  size_t limit_ TRIREME_GUARDED_BY(mutex_);            // batches that may wait: while guesses are right, `ahead`
  TRIREME_GUARDED_BY(mutex_) bool ordered_ = false, stop_ = false, consumer_waits_ = false, producer_waits_ = false;
  std::exception_ptr error_ TRIREME_GUARDED_BY(mutex_);
  std::thread producer_;
};

/// The batches of one worker of `ranks`, epoch after epoch: its share of every step. For loops without a Parallel, or
/// with one; a Feed serves modes better in which workers take their work.
class Loader {
 public:
  /// Throws InvalidArgument when batch, workers and samples do not fit together.
  Loader(Dataset set, int rank, int ranks, const LoaderOptions& options)
      : stock_(std::move(set), ranks, options), rank_(rank) {}

  const Dataset& dataset() const { return stock_.set; }
  size_t steps_per_epoch() const { return stock_.cut.steps(); }
  Epoch epoch(int64_t number) const { return Epoch(stock_, rank_, number); }

 private:
  Stock stock_;
  int rank_;
};

/// Batches for a Parallel in every mode: `for (auto& batch : feed.epoch(e)) train.step(batch, …)`. This rank's share of
/// every step, or the pieces that it takes where the mode gives work; the learning rate's schedule follows, and an
/// epoch ends when somebody has stopped. One epoch at a time; all ranks begin the same ones.
class Feed {
 public:
  /// The source, or the Parallel whose it is, outlives the feed. Throws InvalidArgument when batch, workers and samples
  /// do not fit together, or `accumulate` is another than the Parallel's.
  Feed(exchange::WorkSource& source, Dataset set, const LoaderOptions& options);
  template <class Trainer>
  requires requires(Trainer& train) {
    { train.source() } -> std::same_as<exchange::WorkSource&>;
  }
  Feed(Trainer& train, Dataset set, const LoaderOptions& options) : Feed(train.source(), std::move(set), options) {}

  const Dataset& dataset() const { return stock_.set; }
  const LoaderOptions& options() const { return stock_.options; }
  size_t steps_per_epoch() const { return stock_.cut.steps(); }
  /// Epoch `number` is steps number · steps_per_epoch() and following of the run.
  Epoch epoch(int64_t number, Stretch stretch = {}) {
    if (number == resumed_ && stretch.first == 0) stretch.first = std::exchange(resumed_step_, 0);
    if (source_.generation()) {  // a crew may have come further before this rank was in it
      const int64_t done = source_.next_step() - number * static_cast<int64_t>(steps_per_epoch());
      stretch.first = std::max(stretch.first, static_cast<size_t>(std::max<int64_t>(done, 0)));
    }
    return Epoch(stock_, source_, number, stretch, meetings_);
  }
  /// So many steps of this epoch were done in an earlier run: when it begins, it begins behind them.
  void go_on(int64_t epoch, size_t step) { resumed_ = epoch, resumed_step_ = step; }
  /// From the next epoch on, ranks meet as it says; null: they do not. It outlives the epochs.
  void meet_at(Meetings* meetings) { meetings_ = meetings; }

 private:
  exchange::WorkSource& source_;
  Stock stock_;
  Meetings* meetings_ = nullptr;
  int64_t resumed_ = -1;  // an epoch
  size_t resumed_step_ = 0;
};

}  // namespace trireme::data
