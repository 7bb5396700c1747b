#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

#include <trireme/base/error.h>
#include <trireme/layers/attention.h>
#include <trireme/layers/collectives.h>
#include <trireme/layers/dropout.h>
#include <trireme/layers/embedding.h>
#include <trireme/layers/layer_norm.h>
#include <trireme/layers/linear.h>
#include <trireme/layers/recompute.h>
#include <trireme/models/transformer.h>

namespace trireme::models {
namespace {

using layers::TensorGroup;
using torch::Tensor;

constexpr double kDeviation = 0.02;  // of initial weights, as GPT-2's and BERT's
constexpr int64_t kIgnored = -100;

/// What the two models have in common.
struct Shape {
  int64_t layers, width, heads, context, vocabulary;
  double dropout;
  bool recompute, sequence, causal;

  template <class Options>
  Shape(const Options& o, bool causal)
      : layers(o.layers),
        width(o.width),
        heads(o.heads),
        context(o.context),
        vocabulary(o.vocabulary),
        dropout(o.dropout),
        recompute(o.recompute),
        sequence(o.sequence),
        causal(causal) {}

  /// What 2 · layers additions leave of a stream of unit size.
  double residual_deviation() const { return kDeviation / std::sqrt(2.0 * static_cast<double>(layers)); }
};

void check(const Shape& shape, const TensorGroup& ranks) {
  const auto positive = [](const char* what, int64_t value) {
    if (value < 1) fail<InvalidArgument>("a transformer needs at least 1 of {}, not {}", what, value);
  };
  positive("layers", shape.layers);
  positive("width", shape.width);
  positive("heads", shape.heads);
  positive("context", shape.context);
  positive("vocabulary", shape.vocabulary);
  ranks.share_of("heads", shape.heads);
  ranks.share_of("vocabulary", shape.vocabulary);
}

struct MlpImpl : torch::nn::Module {
  MlpImpl(const Shape& shape, const TensorGroup& ranks) : torch::nn::Module("Mlp") {
    const int64_t hidden = 4 * shape.width;
    in = register_module(
        "in", layers::ColumnLinear(shape.width, hidden, ranks,
                                   layers::ColumnOptions{.deviation = kDeviation, .sequence = shape.sequence}));
    out = register_module("out", layers::RowLinear(hidden, shape.width, ranks,
                                                   layers::RowOptions{.deviation = shape.residual_deviation(),
                                                                      .sequence = shape.sequence}));
  }
  Tensor forward(const Tensor& input) { return out->forward(torch::gelu(in->forward(input))); }

  layers::ColumnLinear in{nullptr};
  layers::RowLinear out{nullptr};
};
TORCH_MODULE(Mlp);

struct BlockImpl : torch::nn::Module {
  BlockImpl(const Shape& shape, const TensorGroup& ranks)
      : torch::nn::Module("Block"), drop(shape.dropout), split(shape.sequence ? ranks : TensorGroup()) {
    attention_norm = register_module("attention_norm", layers::LayerNorm(shape.width, ranks, shape.sequence));
    attention = register_module(
        "attention", layers::ParallelAttention(shape.width, shape.heads, ranks,
                                               layers::AttentionOptions{.causal = shape.causal,
                                                                        .dropout = shape.dropout,
                                                                        .deviation = kDeviation,
                                                                        .out_deviation = shape.residual_deviation(),
                                                                        .sequence = shape.sequence}));
    mlp_norm = register_module("mlp_norm", layers::LayerNorm(shape.width, ranks, shape.sequence));
    mlp = register_module("mlp", Mlp(shape, ranks));
  }
  Tensor forward(const Tensor& input) {
    const Tensor seen = input + dropped(attention->forward(attention_norm->forward(input)));
    return seen + dropped(mlp->forward(mlp_norm->forward(seen)));
  }
  Tensor dropped(const Tensor& input) const {
    return layers::dropout(input, drop, is_training(), split, layers::kTime);
  }

  double drop;
  TensorGroup split;  // who has the other parts of the sequence
  layers::LayerNorm attention_norm{nullptr}, mlp_norm{nullptr};
  layers::ParallelAttention attention{nullptr};
  Mlp mlp{nullptr};
};
TORCH_MODULE(Block);

class Transformer : public LanguageModel {
 public:
  Transformer(const char* name, const Shape& shape, const TensorGroup& ranks)
      : LanguageModel(name), shape_(shape), ranks_(ranks), split_(shape.sequence ? ranks : TensorGroup()) {
    check(shape, ranks);
    tokens_ = register_module("tokens", layers::VocabEmbedding(shape.vocabulary, shape.width, ranks,
                                                               layers::EmbeddingOptions{.deviation = kDeviation,
                                                                                        .sequence = shape.sequence}));
    positions_ =
        register_module("positions", layers::VocabEmbedding(shape.context, shape.width, TensorGroup(),
                                                            layers::EmbeddingOptions{.deviation = kDeviation}));
    for (int64_t i = 0; i < shape.layers; i++) blocks_->push_back(Block(shape, ranks));
    register_module("blocks", blocks_);
    norm_ = register_module("norm", layers::LayerNorm(shape.width, ranks, shape.sequence));
  }

  Tensor forward(Tensor tokens) override { return outputs_from(features(tokens)); }
  Tensor loss(Tensor tokens, Tensor targets) override { return loss_from(features(tokens), targets); }

  std::vector<layers::Section> sections() override {
    std::vector<layers::Section> all;
    all.push_back(
        layers::section("embedding", {"tokens", "positions"}, [this](const Tensor& tokens) { return embed(tokens); }));
    for (size_t i = 0; i < blocks_->size(); i++) {
      const std::string name = fmt::format("blocks.{}", i);
      all.push_back(layers::section(name, {name}, [this, i](const Tensor& stream) { return through(i, stream); }));
    }
    all.push_back(layers::section("head", head_uses(), [this](const Tensor& stream) { return head(stream); }));
    return all;
  }

 protected:
  /// What comes of the stream behind the last block, [batch, time, width]; of a split sequence, this rank's part.
  virtual Tensor head(const Tensor& stream) = 0;
  virtual std::vector<std::string> head_uses() const { return {"norm", "tokens"}; }

  Tensor normed(const Tensor& stream) { return norm_->forward(stream); }
  /// This rank's logits, of inputs behind enter() or copy().
  Tensor output(const Tensor& features, const Tensor& bias = {}) {
    return torch::linear(features, tokens_->weight, bias);
  }

  const Shape shape_;
  const TensorGroup ranks_, split_;

 private:
  Tensor features(const Tensor& tokens) {
    Tensor stream = embed(tokens);
    for (size_t i = 0; i < blocks_->size(); i++) stream = through(i, stream);
    return head(stream);
  }

  Tensor embed(const Tensor& tokens) {
    check_tokens(tokens);
    const Tensor stream = tokens_->forward(tokens) + positions(tokens.size(1));
    return layers::dropout(stream, shape_.dropout, is_training(), split_, layers::kTime);
  }

  void check_tokens(const Tensor& tokens) const {
    if (tokens.dim() != 2 || tokens.scalar_type() != torch::kInt64)
      fail<InvalidArgument>("a language model takes tokens [batch, time] of type i64, not {} of type {}",
                            c10::str(tokens.sizes()), c10::toString(tokens.scalar_type()));
    const int64_t time = tokens.size(1);
    if (time < 1 || time > shape_.context)
      fail<InvalidArgument>("{} tokens in a row, but the model's context is {}: 1 to {}", time, shape_.context,
                            shape_.context);
    split_.share_of("with `sequence`, a time of", time);
  }

  Tensor positions(int64_t time) const {
    const Tensor all = layers::used_on_part(positions_->weight, ranks_, shape_.sequence);
    return split_.part_of(time == shape_.context ? all : all.narrow(0, 0, time), 0);
  }

  Tensor through(size_t number, const Tensor& stream) const {
    const auto block = blocks_->ptr<BlockImpl>(number);
    if (!shape_.recompute || !is_training()) return block->forward(stream);
    return recompute([block](const Tensor& input) { return block->forward(input); }, stream);
  }

  layers::VocabEmbedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::ModuleList blocks_;
  layers::LayerNorm norm_{nullptr};
};

class Gpt : public Transformer {
 public:
  Gpt(const GptOptions& options, const TensorGroup& ranks) : Transformer("Gpt", Shape(options, true), ranks) {}

  Tensor outputs_from(const Tensor& features) override { return layers::gather(features, -1, ranks_); }

  Tensor loss_from(const Tensor& features, const Tensor& targets) override {
    return layers::parallel_cross_entropy(features.flatten(0, 1), targets.flatten(), ranks_, kIgnored);
  }

 protected:
  Tensor head(const Tensor& stream) override { return output(layers::enter(normed(stream), ranks_, shape_.sequence)); }
};

/// Before its output a linear layer, GELU and a norm, on every rank alike; the output has a bias.
class Bert : public Transformer, public layers::Divided {
 public:
  Bert(const BertOptions& options, const TensorGroup& ranks) : Transformer("Bert", Shape(options, false), ranks) {
    transform_ = register_module("transform", layers::ColumnLinear(options.width, options.width, TensorGroup(),
                                                                   layers::ColumnOptions{.deviation = kDeviation}));
    transform_norm_ = register_module("transform_norm", layers::LayerNorm(options.width));
    bias_ = register_parameter("bias", torch::zeros({ranks.share_of("vocabulary", options.vocabulary)}));
  }

  Tensor outputs_from(const Tensor& features) override { return layers::gather(local_logits(features), -1, ranks_); }

  /// Only positions with a target need logits.
  Tensor loss_from(const Tensor& features, const Tensor& targets) override {
    const Tensor flat = targets.flatten(), which = flat.ne(kIgnored).nonzero().flatten();
    const Tensor logits = local_logits(features.flatten(0, 1).index_select(0, which));
    return layers::parallel_cross_entropy(logits, flat.index_select(0, which), ranks_, kIgnored);
  }

  std::vector<layers::Division> divisions() const override {
    if (ranks_.alone()) return {};
    return {{"bias", 0, ranks_.rank(), ranks_.size()}};
  }

 protected:
  Tensor head(const Tensor& stream) override { return layers::gather(normed(stream), layers::kTime, split_); }
  std::vector<std::string> head_uses() const override {
    return {"norm", "tokens", "transform", "transform_norm", "bias"};
  }

 private:
  Tensor local_logits(const Tensor& features) {
    const Tensor transformed = transform_norm_->forward(torch::gelu(transform_->forward(features)));
    return output(layers::copy(transformed, ranks_), bias_);
  }

  layers::ColumnLinear transform_{nullptr};
  layers::LayerNorm transform_norm_{nullptr};
  Tensor bias_;
};

}  // namespace

std::shared_ptr<LanguageModel> gpt(const GptOptions& options) { return gpt(TensorGroup(), options); }
std::shared_ptr<LanguageModel> gpt(const TensorGroup& ranks, const GptOptions& options) {
  return std::make_shared<Gpt>(options, ranks);
}
std::shared_ptr<LanguageModel> bert(const BertOptions& options) { return bert(TensorGroup(), options); }
std::shared_ptr<LanguageModel> bert(const TensorGroup& ranks, const BertOptions& options) {
  return std::make_shared<Bert>(options, ranks);
}

}  // namespace trireme::models
