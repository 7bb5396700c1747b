#pragma once
// Language models: GPT, which says what comes next, and BERT, which says what is missing.
//
//   auto net = models::gpt({.layers = 8, .width = 512, .heads = 8});          // ordinary
//   auto net = models::gpt(mesh, {.layers = 8, .width = 512, .heads = 8});    // divided along the mesh's axis "tensor"
//   net->loss(batch.x, batch.y).backward();
//
// Both are one stack of blocks, each norm → attention → add, norm → MLP → add, on the sum of a token's and a position's
// vector, with a last norm behind. The output layer is the token embedding. Written once on the layers of layers/:
// without a tensor group it is an ordinary model, and its parameters, seed for seed, are the divided model's.
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include <trireme/layers/sections.h>
#include <trireme/layers/tensor_group.h>

namespace trireme::models {

/// Tokens are [batch, time] i64, time at most the model's context. Throws InvalidArgument for others.
///
/// Its sections (layers/sections.h) are "embedding", "blocks.0" and on, and "head". They take tokens, and the last ends
/// in features: what one needs to know of a batch for both logits and loss, which cost less than all logits where only
/// some are needed. GPT's features are this rank's part of the logits (for a rank alone, the logits), BERT's are what
/// the last norm gives. The token embedding is used by "embedding" and "head".
class LanguageModel : public torch::nn::Module, public layers::Sectioned {
 public:
  using torch::nn::Module::Module;
  /// Logits of the whole vocabulary, [batch, time, vocabulary]; the same on all tensor ranks.
  virtual torch::Tensor forward(torch::Tensor tokens) = 0;
  /// Mean cross entropy over the targets, [batch, time], that are not -100; 0 where there are none. No rank computes
  /// more than its part of the logits.
  virtual torch::Tensor loss(torch::Tensor tokens, torch::Tensor targets) = 0;
  /// forward() and loss() from where the last section has come to. Tensor ranks call them together.
  virtual torch::Tensor outputs_from(const torch::Tensor& features) = 0;
  virtual torch::Tensor loss_from(const torch::Tensor& features, const torch::Tensor& targets) = 0;
};

struct GptOptions {
  int64_t layers = 4, width = 256, heads = 4;
  int64_t context = 128;     // tokens that the model sees at most
  int64_t vocabulary = 256;  // 256: bytes
  double dropout = 0;        // of embeddings, attention and what each block adds
  bool recompute = false;    // blocks compute their activations again in the backward pass, and keep none
  bool sequence = false;  // tensor ranks split norms and what lies between blocks along time, which must be divisible
};

struct BertOptions {
  int64_t layers = 4, width = 256, heads = 4, context = 128, vocabulary = 256;
  double dropout = 0;
  bool recompute = false;
  bool sequence = false;
};

/// Throw InvalidArgument where width, heads or vocabulary cannot be divided, with the nearest that can.
std::shared_ptr<LanguageModel> gpt(const GptOptions& options = {});
std::shared_ptr<LanguageModel> gpt(const layers::TensorGroup& ranks, const GptOptions& options);
std::shared_ptr<LanguageModel> bert(const BertOptions& options = {});
std::shared_ptr<LanguageModel> bert(const layers::TensorGroup& ranks, const BertOptions& options);

}  // namespace trireme::models
