// label: multiproc
// Language models by name: batches of text, sizes, what saved models say of themselves, and text that is generated.
#include <gtest/gtest.h>
#include <torch/script.h>

#include <filesystem>
#include <fstream>
#include <set>

#include <trireme/data/masks.h>
#include <trireme/models/language.h>
#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using models::Loaded;
using Ints = std::vector<int64_t>;

constexpr const char* kGpt = "gpt:layers=1,width=16,heads=2,context=8";
constexpr const char* kBert = "bert:layers=1,width=16,heads=2,context=8";

/// A file with so many bytes, each another than its neighbours.
class TextFixture : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 805; i++) text += static_cast<char>((i * i + 3 * i) % 256);
    path = (std::filesystem::temp_directory_path() / ("trireme-text-" + std::to_string(getpid()))).string();
    std::ofstream(path, std::ios::binary) << text;
  }
  void TearDown() override { std::filesystem::remove(path); }
  int64_t byte(size_t at) const { return static_cast<unsigned char>(text[at]); }

  std::string path, text;
};

Ints values(const torch::Tensor& row) {
  const torch::Tensor all = row.contiguous();
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

using TextBatches = TextFixture;

TEST_F(TextBatches, TargetsAreTheNextTokensAndEverySampleComesOnce) {
  std::mutex mutex;
  std::multiset<Ints> seen, wanted;
  for (size_t sample = 0; sample < 100; sample++) {  // of 805 tokens
    Ints tokens;
    for (size_t i = 0; i <= 8; i++) tokens.push_back(byte(sample * 8 + i));
    wanted.insert(tokens);
  }
  test::run_ranks(3, [&](World& world) {
    const auto sets = data::open(world.local(), "text:" + path, {.test = 0, .context = 8});
    const data::Loader loader(sets.train, world.rank(), 3, {.batch = 7, .accumulate = 2});
    auto epoch = loader.epoch(1);
    for (auto& batch : epoch)
      for (size_t i = 0; i < batch.samples(); i++) {
        const std::lock_guard lock(mutex);
        const Ints x = values(batch.x[static_cast<int64_t>(i)]), y = values(batch.y[static_cast<int64_t>(i)]);
        ASSERT_EQ(x.size(), 8u);
        EXPECT_EQ(Ints(x.begin() + 1, x.end()), Ints(y.begin(), y.end() - 1));
        Ints both = x;
        both.push_back(y.back());
        seen.insert(both);
      }
  });
  EXPECT_EQ(seen, wanted);
}

/// Masked samples of an epoch by what they were before, each as tokens and then targets.
std::map<Ints, Ints> masked_epoch(const std::string& path, int ranks, uint64_t seed, int64_t number) {
  std::mutex mutex;
  std::map<Ints, Ints> samples;
  test::run_ranks(ranks, [&](World& world) {
    const auto sets = data::open(world.local(), "text:" + path, {.test = 0, .context = 20, .masked = true});
    const data::Loader loader(sets.train, world.rank(), ranks, {.batch = 6, .seed = seed});
    auto epoch = loader.epoch(number);
    for (auto& batch : epoch)
      for (int64_t i = 0; i < static_cast<int64_t>(batch.samples()); i++) {
        const torch::Tensor masked = batch.y[i].ne(data::kNoTarget);
        EXPECT_EQ(masked.sum().item<int64_t>(), 3);  // 15 % of 20
        const std::lock_guard lock(mutex);
        samples[values(torch::where(masked, batch.y[i], batch.x[i]))] = values(torch::cat({batch.x[i], batch.y[i]}));
      }
  });
  return samples;
}

TEST_F(TextBatches, MasksDependOnSeedEpochAndSampleAlone) {
  const auto one = masked_epoch(path, 1, 1, 0);
  EXPECT_EQ(one.size(), 40u);  // whatever is masked, the tokens are those of the text
  EXPECT_EQ(masked_epoch(path, 3, 1, 0), one);
  EXPECT_NE(masked_epoch(path, 1, 1, 1), one);
  EXPECT_NE(masked_epoch(path, 1, 2, 0), one);
}

TEST_F(TextBatches, MasksOfATestSetAreAlwaysTheSame) {
  test::run_ranks(1, [&](World& world) {
    const auto sets = data::open(world.local(), "text:" + path, {.test = 0.5, .context = 20, .masked = true});
    const auto order = data::epoch_order(sets.test.count, 0, 0, false);
    const auto all = data::make_batch(sets.test, order, 0, order.size(), torch::kFloat32);
    const auto some = data::make_batch(sets.test, order, 5, 9, torch::kFloat32);
    EXPECT_TRUE(torch::equal(all.x.slice(0, 5, 9), some.x));
    EXPECT_TRUE(torch::equal(all.y.slice(0, 5, 9), some.y));
    EXPECT_GT(all.x.eq(256).sum().item<int64_t>(), 0);  // the mask token
  });
}

TEST(Make, SizesHaveTheParametersThatTheDocsList) {
  const std::map<std::string, int64_t> documented = {
      {"gpt:tiny", 120576},  {"gpt:small", 3257856},  {"gpt:medium", 25482240},
      {"bert:tiny", 129280}, {"bert:small", 3340864}, {"bert:medium", 25779008},
  };
  for (const auto& [name, parameters] : documented)
    EXPECT_EQ(models::make(name, {models::language_spec(name)->context}, 256).parameters(), parameters) << name;
}

TEST(Make, RefusesSamplesThatDoNotFit) {
  EXPECT_THROW(models::make("gpt:tiny", {1, 28, 28}, 256), InvalidArgument);
  EXPECT_THROW(models::make("gpt:tiny", {32}, 256), InvalidArgument);
}

TEST(Make, NamesOfOtherModelsStayAsTheyWere) {
  const auto net = models::make("lenet", {1, 28, 28}, 10);
  EXPECT_EQ(net.module().named_parameters().keys().front(), "0.weight");
}

Loaded some_model(const std::string& name) {
  torch::manual_seed(3);
  const bool masked = name.starts_with("bert");
  Loaded loaded{.net = models::make(name, {8}, 256),
                .about = {.model = name,
                          .shape = {8},
                          .outputs = 256,
                          .task = masked ? data::Task::masked_token : data::Task::next_token,
                          .tokenizer = data::Tokenizer()}};
  const torch::NoGradGuard no_grad;
  for (auto& parameter : loaded.net.module().parameters()) parameter.normal_(0, 0.5);
  loaded.net.eval();
  return loaded;
}

std::string generated(Loaded& model, const std::string& prompt, const models::GenerateOptions& options) {
  std::string text;
  models::generate(model, prompt, options, [&](const std::string& part) {
    text += part;
    return true;
  });
  return text;
}

TEST(Generate, GreedyTextIsTheLikeliestTokenOfTheLastContextAgainAndAgain) {
  Loaded model = some_model(kGpt);
  const torch::NoGradGuard no_grad;
  Ints tokens = {'a', 'b', 'c'};
  std::string bytes;
  for (int i = 0; i < 20; i++) {
    const auto begin = tokens.size() > 8 ? tokens.end() - 8 : tokens.begin();
    const torch::Tensor seen = torch::tensor(Ints(begin, tokens.end())).view({1, -1});
    tokens.push_back(model.net.forward(seen)[0][-1].argmax().item<int64_t>());
    bytes += static_cast<char>(tokens.back());
  }
  data::Utf8Stream stream;
  std::string expected = stream.add(bytes);
  expected += stream.finish();
  EXPECT_EQ(generated(model, "abc", {.tokens = 20, .temperature = 0}), expected);
  EXPECT_EQ(generated(model, "abc", {.tokens = 20, .temperature = 1, .top = 1}), expected);
  EXPECT_EQ(generated(model, "abc", {.tokens = 20, .temperature = 1e-6}), expected);
}

TEST(Generate, TokensComeAsOftenAsTheModelSays) {
  Loaded model = some_model(kGpt);
  const torch::NoGradGuard no_grad;
  const torch::Tensor logits = model.net.forward(torch::tensor(Ints{'x'}).view({1, 1}))[0][-1];
  const torch::Tensor likely = (logits / 0.7).softmax(0);
  const int64_t favourite = likely.argmax().item<int64_t>();
  const double expected = likely[favourite].item<double>();
  ASSERT_LT(favourite, 128);  // a character of its own
  ASSERT_GT(expected, 0.02);
  constexpr int kDraws = 1000;
  int hits = 0;
  for (int seed = 0; seed < kDraws; seed++)
    hits += generated(model, "x", {.tokens = 1, .temperature = 0.7, .seed = static_cast<uint64_t>(seed)}) ==
            std::string(1, static_cast<char>(favourite));
  EXPECT_NEAR(hits, kDraws * expected, 4 * std::sqrt(kDraws * expected));
}

TEST(Generate, TheSeedDecidesAndOtherKindsAreRefused) {
  Loaded model = some_model(kGpt), bert = some_model(kBert);
  const models::GenerateOptions options{.tokens = 40, .temperature = 1};
  EXPECT_EQ(generated(model, "", options), generated(model, "", options));
  EXPECT_NE(generated(model, "", options), generated(model, "", {.tokens = 40, .temperature = 1, .seed = 2}));
  EXPECT_THROW(generated(bert, "a", options), InvalidArgument);
  EXPECT_THROW(generated(model, "a", {.temperature = -1}), InvalidArgument);
}

TEST(TextAbout, IsReadAsItWasWritten) {
  models::About about = some_model(kBert).about;
  about.split = data::Split{"book.txt", 1000, 100, 7};
  const models::About again = models::about_of(models::metadata_of(about));
  EXPECT_EQ(again.task, data::Task::masked_token);
  EXPECT_EQ(again.shape, about.shape);
  EXPECT_EQ(again.split, about.split);
  ASSERT_TRUE(again.tokenizer);
  EXPECT_TRUE(again.tokenizer->by_bytes());
}

TEST(LanguageTorchscript, ComputesWhatTheModelComputes) {
  for (const char* name : {kGpt, kBert, "gpt:layers=3,width=12,heads=3,context=8"}) {
    Loaded model = some_model(name);
    std::stringstream bytes;
    models::to_torchscript(model).save(bytes);
    torch::jit::Module script = torch::jit::load(bytes);
    const torch::NoGradGuard no_grad;
    for (int64_t time : {8, 5}) {
      const torch::Tensor x = torch::randint(0, 256, {4, time}, torch::kInt64), expected = model.net.forward(x);
      const torch::Tensor got = script.forward({x}).toTensor();
      EXPECT_LT((got - expected).abs().max().item<double>(), 1e-6 * expected.abs().max().item<double>()) << name;
      const torch::Tensor answers = script.get_method("predict")({x}).toTensor();
      EXPECT_LT((answers - expected.narrow(2, 0, 256).to(torch::kFloat64).softmax(2)).abs().max().item<double>(), 1e-6);
    }
    std::set<std::string> ours, theirs;
    for (const auto& item : model.net.module().named_parameters()) {
      std::string key = item.key();
      if (const size_t at = key.find(".in."); at != std::string::npos) key.replace(at, 4, ".in_.");
      ours.insert(key);
    }
    for (const auto& item : script.named_parameters()) theirs.insert(item.name);
    EXPECT_EQ(ours, theirs);
  }
}

}  // namespace
}  // namespace trireme
