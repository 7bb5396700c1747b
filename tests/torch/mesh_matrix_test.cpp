// label: multiproc
// Every way to divide 1, 2, 4, 6 and 8 ranks into data × tensor, with every stage of ZeRO: GPT, BERT and LeNet end
// where one process with libtorch's own optimizer does.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include <trireme/trireme.h>

#include "../core/cluster/groups.h"

namespace trireme::tests {
namespace {

constexpr int64_t kSteps = 20, kBatch = 24, kContext = 8, kVocabulary = 24;
std::mutex random_numbers;  // ranks are threads here, and libtorch's are the process's

/// A model, and its loss for a part of a step's samples.
struct Learner {
  std::shared_ptr<torch::nn::Module> net;
  std::function<torch::Tensor(int64_t step, const torch::Tensor& samples)> loss;
};

/// Heads, vocabulary, width and batch can be divided by 2, 3, 4, 6 and 8.
template <class Options>
Options small() {
  return {.layers = 2, .width = 48, .heads = 24, .context = kContext, .vocabulary = kVocabulary};
}

Learner language(std::shared_ptr<models::LanguageModel> net) {
  const auto loss = [net](int64_t step, const torch::Tensor& samples) {
    const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + step));
    const auto tokens = torch::randint(0, kVocabulary, {kBatch, kContext + 1}, generator, torch::kInt64);
    const auto mine = tokens.index_select(0, samples);
    return net->loss(mine.narrow(1, 0, kContext), mine.narrow(1, 1, kContext));
  };
  return {net, loss};
}

Learner lenet() {
  const std::shared_ptr<torch::nn::SequentialImpl> net = models::lenet().ptr();
  const auto loss = [net](int64_t step, const torch::Tensor& samples) {
    const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + step));
    const auto images = torch::randn({kBatch, 1, 28, 28}, generator, torch::kFloat64);
    const auto classes = torch::randint(0, 10, {kBatch}, generator, torch::kInt64);
    return torch::cross_entropy_loss(net->forward(images.index_select(0, samples)), classes.index_select(0, samples));
  };
  return {net, loss};
}

Learner make(const std::string& kind, const layers::TensorGroup& ranks = {}) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(4);
  Learner learner = kind == "gpt"    ? language(models::gpt(ranks, small<models::GptOptions>()))
                    : kind == "bert" ? language(models::bert(ranks, small<models::BertOptions>()))
                                     : lenet();
  learner.net->to(torch::kFloat64);
  return learner;
}

using Parameters = std::map<std::string, torch::Tensor>;

/// Of Adam: see mesh_gpt_test for what libtorch's does to BERT's rounding.
double epsilon_of(const std::string& kind) { return kind == "bert" ? 1e-6 : 1e-8; }

Parameters alone(const std::string& kind) {
  const Learner learner = make(kind);
  const auto parameters = learner.net->parameters();
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1).eps(epsilon_of(kind)));
  for (int64_t step = 0; step < kSteps; step++) {
    optimizer.zero_grad();
    learner.loss(step, torch::arange(kBatch)).backward();
    torch::nn::utils::clip_grad_norm_(parameters, 0.5);
    optimizer.step();
  }
  Parameters result;
  for (const auto& item : learner.net->named_parameters()) result[item.key()] = item.value().detach();
  return result;
}

/// Once for all cases.
const Parameters& reference(const std::string& kind) {
  static std::map<std::string, Parameters> known;
  auto& found = known[kind];
  if (found.empty()) found = alone(kind);
  return found;
}

/// Of the reference's tensors, what this rank has.
Parameters parts_of(Parameters whole, const torch::nn::Module& net) {
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

struct Case {
  std::string kind;
  int data = 1, tensor = 1, zero = 0;
};

std::string name_of(const Case& c) {
  return fmt::format("{}_data{}_tensor{}_zero{}", c.kind, c.data, c.tensor, c.zero);
}

/// ZeRO divides among machines: there is one for each copy of the model. Without it all ranks are on one.
std::vector<int> machines_of(const Case& c) {
  std::vector<int> machine_of;
  for (int rank = 0; rank < c.data * c.tensor; rank++) machine_of.push_back(c.zero > 0 ? rank / c.tensor : 0);
  return machine_of;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* kind : {"gpt", "bert", "lenet"})
    for (int ranks : {1, 2, 4, 6, 8})
      for (int tensor = 1; tensor <= ranks; tensor++) {
        if (ranks % tensor != 0 || (tensor > 1 && kind == std::string("lenet"))) continue;
        const int data = ranks / tensor;
        for (int zero = 0; zero <= (data > 1 ? 3 : 0); zero++) cases.push_back({kind, data, tensor, zero});
      }
  return cases;
}

class MeshMatrix : public testing::TestWithParam<Case> {};

TEST_P(MeshMatrix, EndsLikeOneProcess) {
  const Case& c = GetParam();
  const Parameters& whole = reference(c.kind);
  expect_all_well(run_world(machines_of(c), [&](Group& group, cluster::Site&) {
    at::set_num_threads(1);
    const Mesh mesh(group, {{"data", c.data}, {"tensor", c.tensor}});
    const Learner learner = make(c.kind, mesh);
    auto train = parallel(mesh, *learner.net, adamw({.lr = 0.01, .epsilon = epsilon_of(c.kind), .weight_decay = 0.1}),
                          exchange::Options{.bucket_bytes = 20000, .clip = 0.5, .zero = c.zero});
    const int64_t share = kBatch / c.data, first = share * mesh.coordinate("data");
    const torch::Tensor samples = torch::arange(first, first + share);
    for (int64_t step = 0; step < kSteps; step++) train.step([&] { return learner.loss(step, samples); });
    train.settled([&] {
      const Parameters wanted = parts_of(whole, *learner.net);
      for (const auto& item : learner.net->named_parameters())
        EXPECT_LT((item.value() - wanted.at(item.key())).abs().max().item<double>(), 1e-9)
            << name_of(c) << ", rank " << group.rank() << ", " << item.key();
    });
  }));
}

INSTANTIATE_TEST_SUITE_P(All, MeshMatrix, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace trireme::tests
