// label: unit
// Layers divided among ranks, against torch::nn's and formulas on one rank.
#include <gtest/gtest.h>

#include <trireme/layers/attention.h>
#include <trireme/layers/collectives.h>
#include <trireme/layers/embedding.h>
#include <trireme/layers/layer_norm.h>
#include <trireme/layers/linear.h>

#include "tensor_ranks.h"

namespace trireme::layers {
namespace {

using test::distance;
using test::random;
using test::run_ranks;
using test::seeded;
using torch::Tensor;

constexpr double kClose = 1e-12;

const auto f64 = [](auto holder) {
  holder->to(torch::kFloat64);
  return holder;
};

/// An input that wants a gradient, the same on all ranks.
Tensor leaf(uint64_t seed, torch::IntArrayRef sizes) { return random(seed, sizes).requires_grad_(); }

/// A loss whose gradient is another one for each element.
Tensor loss_of(const Tensor& output) { return (output * torch::sin(output * 3)).sum(); }

class Degrees : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Degrees, testing::Values(1, 2, 3, 4));

TEST_P(Degrees, ColumnAndRowAreTwoLinearLayers) {
  auto first = seeded(1, [] { return f64(torch::nn::Linear(5, 12)); });
  auto second = seeded(2, [] { return f64(torch::nn::Linear(12, 7)); });
  const Tensor x = leaf(3, {2, 6, 5});
  const Tensor y = second->forward(torch::gelu(first->forward(x)));
  loss_of(y).backward();

  run_ranks(GetParam(), [&](World& world) {
    const TensorGroup group(world.group());
    auto column = seeded(1, [&] { return f64(ColumnLinear(5, 12, group)); });
    auto row = seeded(2, [&] { return f64(RowLinear(12, 7, group)); });
    EXPECT_EQ(column->weight.size(0), 12 / world.size());
    EXPECT_EQ(row->weight.size(1), 12 / world.size());
    EXPECT_TRUE(torch::equal(group.all_gather(column->weight.detach(), 0), first->weight)) << "initial parameters";
    EXPECT_TRUE(torch::equal(group.all_gather(column->bias.detach(), 0), first->bias));
    EXPECT_TRUE(torch::equal(group.all_gather(row->weight.detach(), 1), second->weight));
    EXPECT_TRUE(torch::equal(row->bias, second->bias));
    const Tensor input = leaf(3, {2, 6, 5});
    const Tensor output = row->forward(torch::gelu(column->forward(input)));
    EXPECT_LT(distance(output, y), kClose);
    loss_of(output).backward();
    EXPECT_LT(distance(input.grad(), x.grad()), kClose);
    EXPECT_LT(distance(group.all_gather(column->weight.grad(), 0), first->weight.grad()), kClose);
    EXPECT_LT(distance(group.all_gather(column->bias.grad(), 0), first->bias.grad()), kClose);
    EXPECT_LT(distance(group.all_gather(row->weight.grad(), 1), second->weight.grad()), kClose);
    EXPECT_LT(distance(row->bias.grad(), second->bias.grad()), kClose);
    const torch::NoGradGuard no_grad;
    EXPECT_LT(distance(row->forward(torch::gelu(column->forward(input))), y), kClose) << "without a graph";
  });
}

TEST_P(Degrees, AColumnLayerGathersItsOutput) {
  auto plain = seeded(1, [] { return f64(torch::nn::Linear(torch::nn::LinearOptions(5, 12).bias(false))); });
  const Tensor x = leaf(3, {4, 5});
  const Tensor y = plain->forward(x);
  loss_of(y).backward();
  run_ranks(GetParam(), [&](World& world) {
    const TensorGroup group(world.group());
    auto column =
        seeded(1, [&] { return f64(ColumnLinear(5, 12, group, ColumnOptions{.bias = false, .gather_output = true})); });
    const Tensor input = leaf(3, {4, 5});
    const Tensor output = column->forward(input);
    EXPECT_LT(distance(output, y), kClose);
    loss_of(output).backward();
    EXPECT_LT(distance(input.grad(), x.grad()), kClose);
    EXPECT_LT(distance(group.all_gather(column->weight.grad(), 0), plain->weight.grad()), kClose);
  });
}

TEST_P(Degrees, AVocabularyIsDivided) {
  auto plain = seeded(1, [] { return f64(torch::nn::Embedding(24, 5)); });
  const Tensor tokens = test::random_tokens(2, 24, {3, 7});
  const Tensor y = plain->forward(tokens);
  loss_of(y).backward();
  run_ranks(GetParam(), [&](World& world) {
    const TensorGroup group(world.group());
    auto embedding = seeded(1, [&] { return f64(VocabEmbedding(24, 5, group)); });
    EXPECT_TRUE(torch::equal(group.all_gather(embedding->weight.detach(), 0), plain->weight)) << "initial parameters";
    const Tensor output = embedding->forward(tokens);
    EXPECT_TRUE(torch::equal(output, y));
    loss_of(output).backward();
    EXPECT_LT(distance(group.all_gather(embedding->weight.grad(), 0), plain->weight.grad()), kClose);
    EXPECT_THROW(embedding->forward(tokens + 20), InvalidArgument) << "no silent zeros for tokens that nobody has";
    EXPECT_THROW(embedding->forward(tokens - 20), InvalidArgument);
  });
}

TEST_P(Degrees, CrossEntropyOfDividedLogits) {
  const Tensor targets = test::random_tokens(2, 24, {10});
  targets[3] = -100;
  targets[8] = -100;
  const Tensor all = random(1, {10, 24}) * 30;  // exp() of these would not be finite without their maximum
  all[5] += 2000;
  const Tensor logits = all.clone().requires_grad_();
  const Tensor loss = torch::cross_entropy_loss(logits, targets);
  (loss * 5).backward();
  run_ranks(GetParam(), [&](World& world) {
    const TensorGroup group(world.group());
    const Tensor mine = group.part_of(all, 1).clone().requires_grad_();
    const Tensor ours = parallel_cross_entropy(mine, targets, group);
    EXPECT_NEAR(ours.item<double>(), loss.item<double>(), kClose * loss.item<double>());
    (ours * 5).backward();
    EXPECT_LT(distance(group.all_gather(mine.grad(), 1), logits.grad()), kClose);

    const Tensor none = parallel_cross_entropy(mine, torch::full_like(targets, -100), group);
    EXPECT_EQ(none.item<double>(), 0) << "a mean over nothing";
    const Tensor other = torch::full_like(targets, 7);
    other[2] = -1;
    EXPECT_EQ(parallel_cross_entropy(mine, torch::full_like(targets, -1), group, -1).item<double>(), 0);
    EXPECT_THROW(parallel_cross_entropy(mine, other, group), InvalidArgument);
    EXPECT_THROW(parallel_cross_entropy(mine, targets + 50, group), InvalidArgument);
  });
}

/// By the book, one head after another.
Tensor plain_attention(const Tensor& x, std::vector<torch::nn::Linear> nets, int64_t heads, bool causal) {
  const auto heads_of = [&](size_t net) { return nets[net]->forward(x).chunk(heads, 2); };
  const auto queries = heads_of(0), keys = heads_of(1), values = heads_of(2);
  const double root = std::sqrt(static_cast<double>(x.size(2) / heads));
  std::vector<Tensor> seen;
  for (size_t head = 0; head < queries.size(); head++) {
    Tensor scores = torch::matmul(queries[head], keys[head].transpose(1, 2)) / root;
    if (causal) scores = scores.masked_fill(torch::ones_like(scores).triu(1).to(torch::kBool), -INFINITY);
    seen.push_back(torch::matmul(torch::softmax(scores, 2), values[head]));
  }
  return nets[3]->forward(torch::cat(seen, 2));
}

TEST_P(Degrees, AttentionWithDividedHeads) {
  for (const bool causal : {false, true}) {
    std::vector<torch::nn::Linear> nets;
    seeded(1, [&] {
      for (int i = 0; i < 4; i++) nets.push_back(f64(torch::nn::Linear(24, 24)));
      return 0;
    });
    const Tensor x = leaf(2, {2, 5, 24});
    const Tensor y = plain_attention(x, nets, 12, causal);
    loss_of(y).backward();
    run_ranks(GetParam(), [&](World& world) {
      const TensorGroup group(world.group());
      auto attention =
          seeded(1, [&] { return f64(ParallelAttention(24, 12, group, AttentionOptions{.causal = causal})); });
      const Tensor input = leaf(2, {2, 5, 24});
      const Tensor output = attention->forward(input);
      EXPECT_LT(distance(output, y), kClose);
      loss_of(output).backward();
      EXPECT_LT(distance(input.grad(), x.grad()), kClose);
      const test::Tensors ours = test::whole(*attention, group, true);
      const char* const names[] = {"query", "key", "value", "out"};
      for (size_t i = 0; i < 4; i++) {
        EXPECT_LT(distance(ours.at(std::string(names[i]) + ".weight"), nets[i]->weight.grad()), kClose) << names[i];
        EXPECT_LT(distance(ours.at(std::string(names[i]) + ".bias"), nets[i]->bias.grad()), kClose) << names[i];
      }
      const Tensor start = input.detach().narrow(1, 0, 3);
      EXPECT_LT(distance(attention->forward(start), plain_attention(start, nets, 12, causal)), kClose)
          << "a shorter one";
    });
  }
}

TEST_P(Degrees, NormsOfASplitSequence) {
  auto plain = f64(torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
  const Tensor x = leaf(2, {2, 12, 5});
  loss_of(plain->forward(x)).backward();
  run_ranks(GetParam(), [&](World& world) {
    const TensorGroup group(world.group());
    auto norm = f64(LayerNorm(5, group, true));
    const Tensor input = group.part_of(random(2, {2, 12, 5}), 1).clone().requires_grad_();
    loss_of(norm->forward(input)).backward();
    EXPECT_LT(distance(group.all_gather(input.grad(), 1), x.grad()), kClose);
    EXPECT_LT(distance(norm->weight.grad(), plain->weight.grad()), kClose);
    EXPECT_LT(distance(norm->bias.grad(), plain->bias.grad()), kClose);
  });
}

TEST_P(Degrees, LinearLayersOfASplitSequence) {
  auto first = seeded(1, [] { return f64(torch::nn::Linear(5, 12)); });
  auto second = seeded(2, [] { return f64(torch::nn::Linear(12, 7)); });
  const Tensor x = leaf(3, {2, 12, 5});
  const Tensor y = second->forward(torch::gelu(first->forward(x)));
  loss_of(y).backward();
  run_ranks(GetParam(), [&](World& world) {
    const TensorGroup group(world.group());
    auto column = seeded(1, [&] { return f64(ColumnLinear(5, 12, group, ColumnOptions{.sequence = true})); });
    auto row = seeded(2, [&] { return f64(RowLinear(12, 7, group, RowOptions{.sequence = true})); });
    const Tensor input = group.part_of(random(3, {2, 12, 5}), 1).clone().requires_grad_();
    const Tensor output = row->forward(torch::gelu(column->forward(input)));
    EXPECT_LT(distance(group.all_gather(output.detach(), 1), y), kClose);
    loss_of(output).backward();
    EXPECT_LT(distance(group.all_gather(input.grad(), 1), x.grad()), kClose);
    EXPECT_LT(distance(group.all_gather(column->weight.grad(), 0), first->weight.grad()), kClose);
    EXPECT_LT(distance(group.all_gather(row->weight.grad(), 1), second->weight.grad()), kClose);
    EXPECT_LT(distance(row->bias.grad(), second->bias.grad()), kClose);
  });
}

// ---- collectives ----

/// Another tensor on each rank.
Tensor of_rank(int rank, torch::IntArrayRef sizes) { return random(static_cast<uint64_t>(100 + rank), sizes); }

TEST(TensorCollectives, AreConjugatePairs) {
  run_ranks(3, [&](World& world) {
    const TensorGroup group(world.group());
    const auto sum_of = [&](torch::IntArrayRef sizes, int seed) {
      return of_rank(seed, sizes) + of_rank(seed + 1, sizes) + of_rank(seed + 2, sizes);
    };
    const std::vector<int64_t> part{2, 2, 4}, all{2, 6, 4};
    const auto check = [&](const char* name, auto function, const std::vector<int64_t>& in, const Tensor& expected,
                           const std::vector<int64_t>& out, const Tensor& gradient) {
      const Tensor input = of_rank(world.rank(), in).requires_grad_();
      const Tensor output = function(input);
      ASSERT_EQ(output.sizes(), expected.sizes()) << name;
      EXPECT_LT(distance(output, expected), kClose) << name;
      EXPECT_TRUE(torch::equal(input, of_rank(world.rank(), in))) << name << " has changed its input";
      output.backward(of_rank(10 + world.rank(), out));
      EXPECT_LT(distance(input.grad(), gradient), kClose) << name;
    };
    const Tensor parts = torch::cat({of_rank(0, part), of_rank(1, part), of_rank(2, part)}, 1);
    const Tensor part_gradients = torch::cat({of_rank(10, part), of_rank(11, part), of_rank(12, part)}, 1);
    check(
        "copy", [&](const Tensor& x) { return copy(x, group); }, part, of_rank(world.rank(), part), part,
        sum_of(part, 10));
    check(
        "sum", [&](const Tensor& x) { return sum(x, group); }, part, sum_of(part, 0), part,
        of_rank(10 + world.rank(), part));
    check(
        "sum_ of a leaf", [&](const Tensor& x) { return sum_(x, group); }, part, sum_of(part, 0), part,
        of_rank(10 + world.rank(), part));
    check(
        "gather", [&](const Tensor& x) { return gather(x, 1, group); }, part, parts, all,
        group.part_of(of_rank(10 + world.rank(), all), 1));
    check(
        "gather_copy", [&](const Tensor& x) { return gather_copy(x, 1, group); }, part, parts, all,
        group.part_of(sum_of(all, 10), 1));
    check(
        "sum_scatter", [&](const Tensor& x) { return sum_scatter(x, 1, group); }, all, group.part_of(sum_of(all, 0), 1),
        part, part_gradients);
    check(
        "the last dim", [&](const Tensor& x) { return gather(x.transpose(1, 2), -1, group); }, part,
        parts.transpose(1, 2), {2, 4, 6}, group.part_of(of_rank(10 + world.rank(), {2, 4, 6}), 2).transpose(1, 2));
  });
}

/// Autograd hands one tensor to both terms of a sum.
TEST(TensorCollectives, LeaveOthersGradientsAlone) {
  run_ranks(2, [&](World& world) {
    const TensorGroup group(world.group());
    const Tensor x = leaf(1, {4, 4}), other = leaf(2, {4, 4}), gradient = of_rank(world.rank(), {4, 4});
    (copy(x, group) + other).backward(gradient);
    EXPECT_TRUE(torch::equal(other.grad(), of_rank(world.rank(), {4, 4})));
    EXPECT_TRUE(torch::equal(gradient, of_rank(world.rank(), {4, 4})));
    EXPECT_LT(distance(x.grad(), of_rank(0, {4, 4}) + of_rank(1, {4, 4})), kClose);
  });
}

TEST(TensorCollectives, SumNarrowTypesInFull) {
  run_ranks(4, [&](World& world) {
    const TensorGroup group(world.group());
    const Tensor input = torch::full({3}, 1.0 + 1.0 / 128, torch::kBFloat16);  // 2.0156 has no bf16: 4.03125 has
    EXPECT_EQ(sum(input, group)[0].item<double>(), 4.03125);
  });
}

TEST(TensorCollectives, CostNothingAlone) {
  const Tensor x = leaf(1, {2, 3});
  const TensorGroup alone;
  for (const Tensor& same : {copy(x, alone), sum(x, alone), sum_(x, alone), gather(x, 0, alone),
                             gather_copy(x, 0, alone), sum_scatter(x, 0, alone)})
    EXPECT_TRUE(same.is_same(x));
}

// ---- what is refused ----

std::string refusal_of(const std::function<void()>& wrong) {
  try {
    wrong();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(TensorLayers, SayWhatCannotBeDivided) {
  run_ranks(4, [&](World& world) {
    const TensorGroup group(world.group());
    const auto said = [](const std::function<void()>& wrong) { return refusal_of(wrong); };
    EXPECT_EQ(said([&] { ColumnLinear(8, 10, group); }),
              "outputs 10 cannot be divided among 4 tensor ranks: use 8 or 12");
    EXPECT_EQ(said([&] { RowLinear(3, 8, group); }), "inputs 3 cannot be divided among 4 tensor ranks: use 4");
    EXPECT_EQ(said([&] { VocabEmbedding(257, 8, group); }),
              "vocabulary 257 cannot be divided among 4 tensor ranks: use 256 or 260");
    EXPECT_EQ(said([&] { ParallelAttention(24, 6, group); }),
              "heads 6 cannot be divided among 4 tensor ranks: use 4 or 8");
    EXPECT_EQ(said([&] { ParallelAttention(30, 8, group); }), "width 30 cannot be divided among 8 heads: use 24 or 32");
  });
}

TEST(TensorLayers, TakeAMeshsTensorAxis) {
  run_ranks(4, [&](World& world) {
    const Mesh both = world.mesh({{"data", 2}, {"tensor", 2}});
    EXPECT_EQ(TensorGroup(both).size(), 2);
    EXPECT_EQ(TensorGroup(both).rank(), world.rank() % 2);
    EXPECT_TRUE(TensorGroup(world.mesh({{"data", 4}})).alone());
    EXPECT_EQ(ColumnLinear(4, 6, both)->weight.size(0), 3);
    EXPECT_TRUE(ColumnLinear(4, 6)->divisions().empty()) << "an ordinary layer";
  });
}

}  // namespace
}  // namespace trireme::layers
