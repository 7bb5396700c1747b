#pragma once
// Batches as tensors, prepared in the background.
#include <torch/types.h>

#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include <trireme/base/lock.h>
#include <trireme/data/dataset.h>
#include <trireme/data/sampler.h>

namespace trireme::data {

struct LoaderOptions {
  size_t batch = 64;   // samples per step, over all workers
  int accumulate = 1;  // micro-batches per step and worker
  uint64_t seed = 1;   // of the shuffling
  bool shuffle = true;
  size_t ahead = 8;                      // batches that wait ready
  torch::Dtype dtype = torch::kFloat32;  // of the inputs
};

/// One micro-batch of this worker. `weight` is its part of the step's samples; a step's weights add up to 1 over all
/// workers and micro-batches.
struct Batch {
  torch::Tensor x, y;
  double weight = 0;
  size_t step = 0;                             // within the epoch
  int micro = 0;                               // within the step
  std::shared_ptr<const std::string> terms{};  // what the loaders of all ranks must agree on; null: not from a loader
  size_t samples() const { return x.defined() ? static_cast<size_t>(x.size(0)) : 0; }
};

/// Makes the tensors of samples order[begin, end).
Batch make_batch(const Dataset& set, const std::vector<uint32_t>& order, size_t begin, size_t end, torch::Dtype dtype);

/// The micro-batch that `rank` has in a step, with its weight.
Batch cut_batch(const Dataset& set, const Cut& cut, const std::vector<uint32_t>& order, size_t step, int rank,
                int micro, torch::Dtype dtype);

/// One pass over a data set. A thread of its own gathers the next batches; breaking off in the middle is fine. Use from
/// one thread.
class Epoch {
 public:
  Epoch(const Dataset& set, const Cut& cut, int rank, int64_t number, const LoaderOptions& options,
        std::shared_ptr<const std::string> terms = {});
  ~Epoch();
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  int64_t number() const { return number_; }
  size_t steps() const { return cut_.steps(); }

  /// The next batch in order; false at the end. Every worker gets the same number of batches, some of them empty when
  /// samples run short.
  bool next(Batch& batch);

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
  void produce();

  const Dataset& set_;
  Cut cut_;
  int rank_;
  int64_t number_;
  LoaderOptions options_;
  std::shared_ptr<const std::string> terms_;

  Mutex mutex_;
  Condition changed_;
  std::deque<Batch> ready_ TRIREME_GUARDED_BY(mutex_);
  TRIREME_GUARDED_BY(mutex_) bool finished_ = false, stop_ = false, consumer_waits_ = false, producer_waits_ = false;
  std::exception_ptr error_ TRIREME_GUARDED_BY(mutex_);
  std::thread producer_;
};

/// The batches of one worker, epoch after epoch.
class Loader {
 public:
  /// Throws InvalidArgument when batch, workers and samples do not fit together.
  Loader(Dataset set, int rank, int ranks, LoaderOptions options);

  const Dataset& dataset() const { return set_; }
  size_t steps_per_epoch() const { return cut_.steps(); }
  Epoch epoch(int64_t number) const { return Epoch(set_, cut_, rank_, number, options_, terms_); }

  /// For workers that ask for their work: the order of an epoch, and one micro-batch of the piece that share `share`
  /// has of a step, made now.
  std::vector<uint32_t> order(int64_t epoch) const {
    return epoch_order(set_.count, options_.seed, epoch, options_.shuffle);
  }
  Batch batch(const std::vector<uint32_t>& order, size_t step, int share, int micro) const {
    Batch batch = cut_batch(set_, cut_, order, step, share, micro, options_.dtype);
    batch.terms = terms_;
    return batch;
  }
  const Cut& cut() const { return cut_; }

 private:
  Dataset set_;
  Cut cut_;
  int rank_;
  LoaderOptions options_;
  std::shared_ptr<const std::string> terms_;
};

}  // namespace trireme::data
