#pragma once
// A model of the zoo, whatever its class: what trains, evaluates, predicts or exports one need not know more.
//
//   models::Model net = models::make("lenet", shape, 10);     // or "gpt:small", with the number of tokens
//   parallel(world, *net, …);                                 // the module
//   net->loss(batch.x, batch.y).backward();
#include <torch/nn/modules/container/sequential.h>

#include <concepts>
#include <functional>
#include <memory>

#include <trireme/data/schema.h>
#include <trireme/layers/cut.h>
#include <trireme/models/transformer.h>

namespace trireme::models {

/// A value; copies share the module, and `->` is as that of torch's module holders. Names of parameters are those of
/// the module. One thread at a time.
class Model {
 public:
  /// None.
  Model() = default;
  /// With `recompute`, forward passes for training keep only some activations (layers/recompute.h).
  Model(torch::nn::Sequential net, data::Task task, bool recompute = false);  // NOLINT(google-explicit-constructor)
  Model(std::shared_ptr<LanguageModel> net, data::Task task);
  /// Any module with a forward() of a tensor.
  template <std::derived_from<torch::nn::Module> Net>
  requires(!std::derived_from<Net, LanguageModel>) Model(const std::shared_ptr<Net>& net, data::Task task)
      : module_(net), forward_([net](const torch::Tensor& x) { return net->forward(x); }), task_(task) {}

  torch::nn::Module& module() const { return *module_; }
  torch::nn::Module& operator*() const { return *module_; }
  const Model* operator->() const { return this; }

  /// What its outputs are: classes, a number, or tokens.
  data::Task task() const { return task_; }
  bool is_language() const { return language_ != nullptr; }
  /// Null unless it is one.
  const std::shared_ptr<LanguageModel>& language() const { return language_; }
  /// Null unless it is one.
  const torch::nn::Sequential& sequential() const { return sequential_; }

  /// What the last layer gives: [samples, outputs]; of a language model [samples, time, vocabulary].
  torch::Tensor forward(const torch::Tensor& x) const;
  /// Mean over all targets: cross entropy, or squared error. Of a language model without computing all outputs.
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) const;
  /// The same from what forward() gave.
  torch::Tensor loss_of(const torch::Tensor& outputs, const torch::Tensor& y) const;

  /// What it is cut between (layers/sections.h). Throws InvalidArgument for a module that does not say.
  std::vector<layers::Section> sections() const { return layers::sections_of(*module_); }
  /// forward() and loss() from what the last section gave: of a language model these are features (transformer.h), of
  /// others the outputs themselves.
  torch::Tensor outputs_from(const torch::Tensor& last) const;
  torch::Tensor loss_from(const torch::Tensor& last, const torch::Tensor& y) const;

  int64_t parameters() const;  // how many numbers
  void train() const { module_->train(); }
  void eval() const { module_->eval(); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  torch::nn::Sequential sequential_{nullptr};
  std::shared_ptr<LanguageModel> language_;
  std::function<torch::Tensor(const torch::Tensor&)> forward_;  // of what is neither
  data::Task task_ = data::Task::classify;
  bool recompute_ = false;

  layers::CutOptions with_end(layers::CutOptions options) const;
  friend layers::Cut cut(const Model& net, int parts, layers::CutOptions options);
  friend layers::Cut cut(const Mesh& mesh, const Model& net, int parts, layers::CutOptions options);
};

/// layers::cut() of its module; outputs count as the last section's, and parts recompute what the model does. Measured
/// with options.example, if it is given.
layers::Cut cut(const Model& net, int parts, layers::CutOptions options = {});
/// On all ranks of a mesh alike, as layers::cut() is.
layers::Cut cut(const Mesh& mesh, const Model& net, int parts, layers::CutOptions options = {});

}  // namespace trireme::models
