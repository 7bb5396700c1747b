#include <fmt/format.h>
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <thread>

#include <trireme/base/clock.h>
#include <trireme/layers/sections.h>
#include <trireme/models/resnet.h>
#include <trireme/models/transformer.h>

#include "pipeline_subject.h"

namespace trireme::tools {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The identity, which takes its time: forward, for its input's gradient, and for its weight's, of which it has one so
/// that a backward pass can be split. The model's first layer, whose input wants no gradient, sleeps as long as others.
struct Sleep : torch::autograd::Function<Sleep> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& /*weight*/, double seconds,
                        bool first) {
    context->saved_data["seconds"] = seconds;
    context->saved_data["first"] = first;
    std::this_thread::sleep_for(Seconds(seconds));
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const bool input = context->needs_input_grad(0) || context->saved_data["first"].toBool();
    const bool weight = context->needs_input_grad(1);
    std::this_thread::sleep_for(Seconds(context->saved_data["seconds"].toDouble() * (int{input} + int{weight})));
    return {gradients[0], weight ? torch::zeros({1, 1}) : Tensor(), Tensor(), Tensor()};
  }
};

PipelineSubject sleeping(const PipelineMeasure& what, int64_t samples, int stages, int parts) {
  auto net = std::make_shared<torch::nn::Module>("Sleeping");
  PipelineSubject subject{net, {}, torch::zeros({samples, 4}), torch::zeros({samples}), {}};
  const double seconds = what.sleep_ms / 1e3 * stages / parts;  // chunks of a stage share its time
  for (int i = 0; i < parts; i++) {
    const std::string name = fmt::format("weight{}", i);
    net->register_parameter(name, torch::zeros({1, 1}));
    subject.sections.push_back(layers::section(name, {name}, [net = net.get(), name, seconds](const Tensor& x) {
      return Sleep::apply(x, net->named_parameters()[name], seconds, !x.requires_grad());
    }));
  }
  subject.loss = [](const Tensor& output, const Tensor&) { return output.mean(); };
  return subject;
}

/// Layers of the same cost, so that stages have the same to compute. A scale in front of them has the first layer give
/// its input's gradient, as the others do.
PipelineSubject even(int64_t samples) {
  constexpr int kLayers = 8;
  constexpr int64_t kWidth = 512, kRows = 128;  // of a sample
  auto net = std::make_shared<torch::nn::Module>("Even");
  net->register_parameter("scale", torch::ones({kWidth}));
  PipelineSubject subject{net, {}, torch::randn({samples * kRows, kWidth}), torch::zeros({samples * kRows}), {}};
  for (int i = 0; i < kLayers; i++) {
    const std::string name = fmt::format("layer{}", i);
    const auto layer = net->register_module(name, torch::nn::Linear(kWidth, kWidth));
    const auto run = [net = net.get(), layer, first = i == 0](const Tensor& x) {
      return torch::tanh(layer->forward(first ? x * net->named_parameters(false)["scale"] : x));
    };
    subject.sections.push_back(
        layers::section(name, i == 0 ? std::vector<std::string>{name, "scale"} : std::vector{name}, run));
  }
  subject.loss = [](const Tensor& output, const Tensor&) { return output.mean(); };
  return subject;
}

PipelineSubject language_model(const ModelMeasure& m, int64_t samples) {
  const auto net = models::gpt(
      {.layers = m.layers, .width = m.width, .heads = m.heads, .context = m.context, .vocabulary = m.vocabulary});
  const auto tokens = torch::randint(m.vocabulary, {samples, m.context + 1}, torch::kInt64);
  PipelineSubject subject{net,
                          net->sections(),
                          tokens.narrow(1, 0, m.context).contiguous(),
                          tokens.narrow(1, 1, m.context).contiguous(),
                          {}};
  subject.loss = [net](const Tensor& output, const Tensor& y) { return net->loss_from(output, y); };
  subject.whole_loss = [net, x = subject.x, y = subject.y] { return net->loss(x, y); };
  return subject;
}

PipelineSubject images(int64_t samples) {
  const auto net = models::resnet(18);
  PipelineSubject subject{
      net, net->sections(), torch::randn({samples, 3, 32, 32}), torch::randint(10, {samples}, torch::kInt64), {}};
  subject.loss = [](const Tensor& output, const Tensor& y) { return torch::nn::functional::cross_entropy(output, y); };
  subject.whole_loss = [net, x = subject.x, y = subject.y] {
    return torch::nn::functional::cross_entropy(net->forward(x), y);
  };
  return subject;
}

/// Few samples: the update takes as long as the passes.
PipelineSubject wide(const ModelMeasure& m, int64_t samples) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < m.layers; i++) net->push_back(torch::nn::Linear(m.width, m.width));
  PipelineSubject subject{
      net.ptr(), layers::sections_of(*net), torch::randn({samples, m.width}), torch::zeros({samples, m.width}), {}};
  subject.loss = [](const Tensor& output, const Tensor& y) { return torch::nn::functional::mse_loss(output, y); };
  return subject;
}

}  // namespace

PipelineSubject make_subject(const PipelineMeasure& what, int64_t samples, int stages, int parts) {
  torch::manual_seed(0);
  if (what.subject == "sleep") return sleeping(what, samples, stages, parts);
  if (what.subject == "even") return even(samples);
  if (what.subject == "wide") return wide(what.model, samples);
  return what.subject == "gpt" ? language_model(what.model, samples) : images(samples);
}

}  // namespace trireme::tools
