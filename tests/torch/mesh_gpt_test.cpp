// label: multiproc
// Language models of the library's layers on a mesh: they begin and end like the ordinary model in one process with
// libtorch's own optimizer, and what they save is the ordinary model's.
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 20, kBatch = 12, kContext = 8, kVocabulary = 24;
std::mutex random_numbers;  // ranks are threads here, and libtorch's are the process's

template <class Options>
Options small() {
  return {.layers = 2, .width = 48, .heads = 6, .context = kContext, .vocabulary = kVocabulary};
}

struct Kind {
  std::string name;
  std::function<std::shared_ptr<models::LanguageModel>(const layers::TensorGroup&)> make;
  std::shared_ptr<models::LanguageModel> operator()(const layers::TensorGroup& ranks = {}) const {
    const std::lock_guard lock(random_numbers);
    torch::manual_seed(4);
    auto net = make(ranks);
    net->to(torch::kFloat64);
    return net;
  }
};

const std::vector<Kind> kKinds = {
    {"gpt", [](const layers::TensorGroup& ranks) { return models::gpt(ranks, small<models::GptOptions>()); }},
    {"bert", [](const layers::TensorGroup& ranks) { return models::bert(ranks, small<models::BertOptions>()); }}};

std::pair<torch::Tensor, torch::Tensor> batch_of(int64_t step) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(static_cast<uint64_t>(1000 + step));
  const auto tokens = torch::randint(kVocabulary, {kBatch, kContext + 1}, torch::kInt64);
  return {tokens.narrow(1, 0, kContext), tokens.narrow(1, 1, kContext)};
}

/// Adam divides a gradient by its own size, and with libtorch's epsilon of 1e-8 the rounding of sums in another order
/// grows to 2e-9 in 20 steps of this BERT. It is rounding: one process whose samples come in another order is 0.1 to
/// 2.5e-9 from itself (eight orders), one whose initial parameters are an ulp larger 1.4e-9, and ranks 1.3 to 1.8e-9
/// from it, all of them furthest in blocks.0.attention.query.weight. With this epsilon it is 3e-13.
constexpr double kEpsilon = 1e-6;

std::shared_ptr<models::LanguageModel> alone(const Kind& kind) {
  auto net = kind();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1).eps(kEpsilon));
  for (int64_t step = 0; step < kSteps; step++) {
    const auto [x, y] = batch_of(step);
    optimizer.zero_grad();
    net->loss(x, y).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
  }
  return net;
}

TEST(MeshGpt, EndsLikeOneProcessAndSavesItsModel) {
  for (const Kind& kind : kKinds) {
    const auto reference = alone(kind);
    const auto optimizer = adamw({.lr = 0.01, .epsilon = kEpsilon, .weight_decay = 0.1});
    const exchange::Options clipped{.bucket_bytes = 2048, .clip = 0.5};
    for (const auto& [data, tensor] : {std::pair{1, 2}, {2, 2}, {1, 3}, {2, 3}, {1, 6}}) {
      const fs::path folder = fs::temp_directory_path() / fmt::format("trireme-mesh-gpt-{}", getpid());
      test::run_ranks(data * tensor, [&, data = data, tensor = tensor](World& world) {
        const Mesh mesh = world.mesh({{"data", data}, {"tensor", tensor}});
        const Group one = world.split(world.rank());
        const auto net = kind(mesh), ordinary = kind();
        std::string hash, path;
        {
          auto train = parallel(mesh, *net, optimizer, clipped), single = parallel(one, *ordinary, optimizer, clipped);
          EXPECT_EQ(train.sha256(), single.sha256()) << kind.name << " begins with other numbers";
          const int64_t share = kBatch / data, first = share * mesh.coordinate("data");
          for (int64_t step = 0; step < kSteps; step++) {
            const auto [x, y] = batch_of(step);
            train.step([&, x = x, y = y] { return net->loss(x.narrow(0, first, share), y.narrow(0, first, share)); });
          }
          path = train.save_state(folder);
          single.load_state(path);
          EXPECT_EQ(train.sha256(), single.sha256());
        }
        for (const auto& item : reference->named_parameters())
          EXPECT_LT((item.value() - ordinary->named_parameters()[item.key()]).abs().max().item<double>(), 1e-9)
              << kind.name << " " << data << " x " << tensor << " " << item.key();
        world.comm().barrier("end");
      });
      fs::remove_all(folder);
    }
  }
}

}  // namespace
}  // namespace trireme
