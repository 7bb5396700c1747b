#pragma once
// Batch norm over the samples of all ranks, for any module that calls libtorch's.
//
// torch::nn::BatchNorm1d to 3d, torch::batch_norm and TorchScript all end in one operator, aten::batch_norm. The first
// BatchStatistics of a process puts a kernel in front of it, which passes everything on unless a BatchStatistics::Use
// lives in its thread. Then the mean and variance are those of the samples of all ranks, in the forward pass (each rank
// gives count, mean and squared distance from it) and in the backward pass (the sums of dy and of dy·x̂), and so is what
// the running statistics become: as with one process on the whole batch. Instance norm, which libtorch computes with
// the same operator, is left alone.
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <trireme/cluster/group.h>
#include <trireme/comm/gathering.h>

namespace trireme {

/// One pass, forward and backward, is: begin() on all ranks; those with samples compute within a Use, and call share()
/// after the forward pass; those without call follow(). All block until the ranks whom they need have come. One thread.
class BatchStatistics {
 public:
  using Buffers = std::vector<std::pair<std::string, torch::Tensor>>;

  /// `buffers`: the module's, in the same order on all ranks. Not collective.
  BatchStatistics(const Group& group, Buffers buffers);

  /// Collective. `present`: this rank has samples, and will compute.
  void begin(bool present);

  /// While one lives, batch norms of this thread in training mode, and their backward passes, are those of all ranks.
  class Use {
   public:
    explicit Use(BatchStatistics* statistics);  // null: does nothing
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    BatchStatistics* before_;
  };

  /// Ranks without samples get the running statistics of this pass, and the counts beside them: those with samples have
  /// them already.
  void share();
  void follow();

 private:
  friend struct BatchNormKernel;
  friend struct BatchNormFunction;
  /// Of one channel each, over all ranks present.
  struct Moments {
    double count;                        // values per channel
    std::vector<double> mean, distance;  // squared, from the mean, summed
  };
  Moments gather(const torch::Tensor& input);
  void run(const std::optional<torch::Tensor>& mean, const std::optional<torch::Tensor>& variance,
           const Moments& moments, double momentum);

  const Group group_;
  Buffers buffers_;
  comm::Gathering gathering_;
  int64_t pass_ = 0;                    // unlike any other of this process
  int64_t layers_ = 0;                  // normalised in this pass
  std::vector<torch::Tensor> running_;  // changed in this pass
};

}  // namespace trireme
