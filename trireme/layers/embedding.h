#pragma once
// An embedding whose vocabulary is divided among tensor ranks, and the cross entropy of logits that are.
//
// Rank r has the vectors of a stretch of tokens. It looks up those that it has, the others count as zero, and the sum
// over ranks is the embedding. With the same stretch as output layer, a rank has the logits of its tokens, and
// parallel_cross_entropy() needs no more than three numbers per sample of all ranks: nobody ever has all logits.
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <trireme/layers/divided.h>
#include <trireme/layers/tensor_group.h>

namespace trireme::layers {

struct EmbeddingOptions {
  /// Of the normal distribution that vectors are drawn from; 1 is torch::nn::Embedding's.
  double deviation = 1;
  /// Each rank gets its part of the output along time, dim 1.
  bool sequence = false;
};

/// `vocabulary` must be divisible by the number of ranks (InvalidArgument). Tokens that are not in it are refused.
class VocabEmbeddingImpl : public torch::nn::Module, public Divided {
 public:
  VocabEmbeddingImpl(int64_t vocabulary, int64_t width, const TensorGroup& group = {},
                     const EmbeddingOptions& options = {});
  torch::Tensor forward(const torch::Tensor& tokens);
  std::vector<Division> divisions() const override;

  torch::Tensor weight;  // [vocabulary / ranks, width]

 private:
  TensorGroup group_;
  EmbeddingOptions options_;
  int64_t vocabulary_;
};
TORCH_MODULE(VocabEmbedding);

/// The mean cross entropy over all targets but `ignore`; 0 where there are none. `logits`: [samples, vocabulary /
/// ranks], this rank's; `targets`: [samples], the same on all ranks, in the whole vocabulary. Computed in f32 at least.
torch::Tensor parallel_cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets,
                                     const TensorGroup& group = {}, int64_t ignore = -100);

}  // namespace trireme::layers
