// label: multiproc
// A user's module, divided by a table and trained on a mesh with every stage of ZeRO: it ends where the undivided one
// does in one process with libtorch's own optimizer, and what it saves is the undivided one's.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include <trireme/trireme.h>

#include "../core/cluster/groups.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 20, kBatch = 8, kTime = 5, kVocabulary = 96, kWidth = 64, kHidden = 160;

/// Layers of several pages of memory each, so that machines have something to divide: typed members, a Sequential, a
/// layer without a bias, one that every rank gets the outputs of, one that nobody divides.
struct NetImpl : torch::nn::Module {
  struct MlpImpl : torch::nn::Module {
    MlpImpl() {
      in = register_module("in", torch::nn::Linear(kWidth, kHidden));
      gate = register_module("gate", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kHidden).bias(false)));
      out = register_module("out", torch::nn::Linear(kHidden, kWidth));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return out->forward(torch::gelu(in->forward(x)) * gate->forward(x));
    }
    torch::nn::Linear in{nullptr}, gate{nullptr}, out{nullptr};
  };

  NetImpl() {
    static std::mutex random_numbers;  // ranks are threads, and libtorch's are the process's
    const std::lock_guard lock(random_numbers);
    torch::manual_seed(6);
    embed = register_module("embed", torch::nn::Embedding(kVocabulary, kWidth));
    mlp = register_module("mlp", std::make_shared<MlpImpl>());
    tail = register_module("tail", torch::nn::Sequential(torch::nn::Linear(kWidth, kHidden), torch::nn::Tanh(),
                                                         torch::nn::Linear(kHidden, kWidth)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module("head", torch::nn::Linear(kWidth, kVocabulary));
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embed->forward(tokens);
    x = x + mlp->forward(x);
    return head->forward(norm->forward(x + tail->forward(x)));
  }
  torch::Tensor loss(int64_t step, int64_t first, int64_t count) {
    const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(500 + step));
    const auto tokens = torch::randint(0, kVocabulary, {kBatch, kTime + 1}, generator, torch::kInt64);
    const auto mine = tokens.narrow(0, first, count);
    return torch::cross_entropy_loss(forward(mine.narrow(1, 0, kTime)).flatten(0, 1),
                                     mine.narrow(1, 1, kTime).flatten());
  }

  torch::nn::Embedding embed{nullptr};
  std::shared_ptr<MlpImpl> mlp;
  torch::nn::Sequential tail{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

const std::vector<layers::Rule> kTable{{"embed", Vocab},   {"*.mlp.in", Column}, {"*.gate", Column}, {"*.mlp.out", Row},
                                       {"tail.0", Column}, {"tail.2", Row},      {"head", Gathered}};

space::UpdaterOptions optimizer() { return adamw({.lr = 0.01, .weight_decay = 0.1}); }

Net alone() {
  Net net;
  torch::optim::AdamW libtorchs(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  for (int64_t step = 0; step < kSteps; step++) {
    libtorchs.zero_grad();
    net->loss(step, 0, kBatch).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    libtorchs.step();
  }
  return net;
}

double furthest(Net& ours, Net& theirs) {
  double most = 0;
  const auto wanted = theirs->named_parameters();
  for (const auto& item : ours->named_parameters())
    most = std::max(most, (item.value() - wanted[item.key()]).abs().max().item<double>());
  return most;
}

struct Way {
  std::vector<int> machine_of;
  int zero = 0;
};

/// The mesh is 2 × 2; tensor groups are inside machines, or cross them.
void expect_like(Net& reference, const Way& way) {
  const std::string name = fmt::format("zero {} on machines {}", way.zero, fmt::join(way.machine_of, ""));
  const fs::path folder = fs::temp_directory_path() / fmt::format("trireme-shard-training-{}", getpid());
  fs::remove_all(folder);
  expect_all_well(run_world(way.machine_of, [&](Group& group, cluster::Site&) {
    at::set_num_threads(1);
    const Mesh mesh(group, {{"data", 2}, {"tensor", 2}});
    const Group one = group.split(group.rank());
    Net net, ordinary;
    shard(*net, mesh, kTable);
    ASSERT_EQ(net->mlp->in->weight.size(0), kHidden / 2);
    const exchange::Options options{.bucket_bytes = 20000, .clip = 0.5, .zero = way.zero, .zero_window = 1};
    auto train = parallel(mesh, *net, optimizer(), options);
    auto single = parallel(one, *ordinary, optimizer(), exchange::Options{});
    EXPECT_EQ(train.sha256(), single.sha256()) << name << " begins with other numbers";
    const int64_t share = kBatch / 2, first = share * mesh.coordinate("data");
    for (int64_t step = 0; step < kSteps / 2; step++) train.step([&] { return net->loss(step, first, share); });
    const std::string half = train.save_state(folder);
    for (int64_t step = kSteps / 2; step < kSteps; step++) train.step([&] { return net->loss(step, first, share); });
    const std::string hash = train.sha256();
    const std::string full = train.save_state(folder);

    single.load_state(full);  // into the ordinary module
    EXPECT_EQ(single.sha256(), hash) << name;
    single.settled([&] { EXPECT_LT(furthest(ordinary, reference), 1e-9) << name; });

    train.load_state(half);  // and back
    for (int64_t step = kSteps / 2; step < kSteps; step++) train.step([&] { return net->loss(step, first, share); });
    EXPECT_EQ(train.sha256(), hash) << name << ", from its own checkpoint";
  }));
  fs::remove_all(folder);
}

TEST(ShardTraining, EndsLikeTheUndividedModuleWithEveryStageOfZero) {
  Net reference = alone();
  for (int zero = 0; zero <= 3; zero++)
    for (const std::vector<int>& machine_of : {std::vector{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 0}, {0, 1, 2, 3}})
      expect_like(reference, {machine_of, zero});
}

}  // namespace
}  // namespace trireme::tests
