#pragma once
// What tests train on meshes of every kind: small models by name, in parts or whole, their samples, and what becomes of
// them in one process with libtorch's own optimizer.
#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numbers>
#include <string>
#include <vector>

#include <trireme/layers/divided.h>
#include <trireme/models/models.h>
#include <trireme/models/transformer.h>

namespace trireme::tests {

/// Heads, vocabulary, width and batch can be divided by 2, 3, 4, 6 and 8.
constexpr int64_t kBatch = 24, kContext = 8, kVocabulary = 24, kWidth = 48, kHeads = 24;

struct Samples {
  torch::Tensor x, y;
  Samples rows(int64_t first, int64_t count) const { return {x.narrow(0, first, count), y.narrow(0, first, count)}; }
};

inline Samples samples_of(const std::string& kind, int64_t number, torch::Dtype type = torch::kFloat64) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + number));
  if (kind == "lenet") {
    const auto images = torch::randn({kBatch, 1, 28, 28}, generator, torch::kFloat64).to(type);
    return {images, torch::randint(0, 10, {kBatch}, generator, torch::kInt64)};
  }
  const auto tokens = torch::randint(0, kVocabulary, {kBatch, kContext + 1}, generator, torch::kInt64);
  return {tokens.narrow(1, 0, kContext), tokens.narrow(1, 1, kContext)};
}

/// A model, and its loss for some samples.
struct Learner {
  std::shared_ptr<torch::nn::Module> net;
  std::function<torch::Tensor(const Samples&)> loss;
};

struct LearnerOptions {
  torch::Dtype type = torch::kFloat64;
  bool sequence = false;  // see models::GptOptions
  double dropout = 0;
};

/// "gpt", "bert" or "lenet", with the same numbers each time; the first two in parts where there are ranks.
inline Learner make_learner(const std::string& kind, const layers::TensorGroup& ranks = {},
                            const LearnerOptions& options = {}) {
  static std::mutex random_numbers;  // ranks are threads here, and libtorch's are the process's
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(4);
  const auto small = [&](auto shape) {
    shape.layers = 2, shape.width = kWidth, shape.heads = kHeads, shape.context = kContext;
    shape.vocabulary = kVocabulary, shape.sequence = options.sequence, shape.dropout = options.dropout;
    return shape;
  };
  Learner learner;
  if (kind == "lenet") {
    const std::shared_ptr<torch::nn::SequentialImpl> net = models::lenet().ptr();
    learner = {net, [net](const Samples& some) { return torch::cross_entropy_loss(net->forward(some.x), some.y); }};
  } else {
    const auto net = kind == "gpt" ? models::gpt(ranks, small(models::GptOptions()))
                                   : models::bert(ranks, small(models::BertOptions()));
    learner = {net, [net](const Samples& some) { return net->loss(some.x, some.y); }};
  }
  learner.net->to(options.type);
  return learner;
}

using Parameters = std::map<std::string, torch::Tensor>;

/// How one process trains, with libtorch's AdamW.
struct Course {
  int64_t steps = 20;
  double lr = 0.01, weight_decay = 0.1;
  double epsilon = 1e-8;  // of Adam: mesh_gpt_test says what libtorch's does to BERT's rounding
  double clip = 0.5;
  int accumulate = 1;
  bool cosine = false;  // the rate falls to nothing in so many steps
};

inline Course course_of(const std::string& kind) { return {.epsilon = kind == "bert" ? 1e-6 : 1e-8}; }

inline Parameters alone(const std::string& kind, const Course& course) {
  const Learner learner = make_learner(kind);
  const auto parameters = learner.net->parameters();
  torch::optim::AdamW optimizer(
      parameters, torch::optim::AdamWOptions(course.lr).weight_decay(course.weight_decay).eps(course.epsilon));
  for (int64_t step = 0; step < course.steps; step++) {
    optimizer.zero_grad();
    for (int64_t micro = 0; micro < course.accumulate; micro++)
      (learner.loss(samples_of(kind, step * course.accumulate + micro)) / course.accumulate).backward();
    torch::nn::utils::clip_grad_norm_(parameters, course.clip);
    const double way = static_cast<double>(step) / static_cast<double>(course.steps);
    if (course.cosine)
      static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options())
          .lr(course.lr * (1 + std::cos(std::numbers::pi * way)) / 2);
    optimizer.step();
  }
  Parameters result;
  for (const auto& item : learner.net->named_parameters()) result[item.key()] = item.value().detach();
  return result;
}

/// Of whole tensors, what this rank has.
inline Parameters parts_of(Parameters whole, const torch::nn::Module& net) {
  for (const auto& module : net.named_modules()) {
    const auto* divided = dynamic_cast<const layers::Divided*>(module.value().get());
    if (divided == nullptr) continue;
    for (const layers::Division& one : divided->divisions()) {
      const std::string& in = module.key();
      torch::Tensor& tensor = whole.at(in.empty() ? one.parameter : in + "." + one.parameter);
      tensor = tensor.chunk(one.count, one.dim).at(static_cast<size_t>(one.index));
    }
  }
  return whole;
}

/// data × tensor ranks, and a stage of ZeRO.
struct Division {
  int data = 1, tensor = 1, zero = 0;

  int ranks() const { return data * tensor; }
  std::string name() const { return fmt::format("data{}_tensor{}_zero{}", data, tensor, zero); }
  /// ZeRO divides among machines: there is one for each copy of the model. Without it all ranks are on one.
  std::vector<int> machines() const {
    std::vector<int> machine_of;
    for (int rank = 0; rank < ranks(); rank++) machine_of.push_back(zero > 0 ? rank / tensor : 0);
    return machine_of;
  }
};

}  // namespace trireme::tests
