// label: unit
// A user's module, divided by a table, against itself undivided.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <trireme/layers/embedding.h>
#include <trireme/layers/shard.h>

#include "tensor_ranks.h"

namespace trireme::layers {
namespace {

using test::distance;
using test::run_ranks;
using test::seeded;
using torch::Tensor;
using torch::nn::Embedding;
using torch::nn::Linear;
using torch::nn::LinearOptions;

constexpr double kClose = 1e-12;

/// Typed members, as users write them; a Sequential; a layer that nobody divides.
struct NetImpl : torch::nn::Module {
  struct MlpImpl : torch::nn::Module {
    MlpImpl() {
      in = register_module("in", Linear(8, 24));
      gate = register_module("gate", Linear(LinearOptions(8, 24).bias(false)));
      out = register_module("out", Linear(24, 8));
    }
    Tensor forward(const Tensor& x) { return out->forward(torch::gelu(in->forward(x)) * gate->forward(x)); }
    Linear in{nullptr}, gate{nullptr}, out{nullptr};
  };

  NetImpl() {
    embed = register_module("embed", Embedding(12, 8));
    mlp = register_module("mlp", std::make_shared<MlpImpl>());
    tail = register_module("tail", torch::nn::Sequential(Linear(8, 12), torch::nn::ReLU(), Linear(12, 8)));
    head = register_module("head", Linear(8, 12));
    last = register_module("last", Linear(12, 3));
  }
  Tensor forward(const Tensor& tokens) {
    const Tensor x = embed->forward(tokens);
    return last->forward(head->forward(tail->forward(x + mlp->forward(x))));
  }

  Embedding embed{nullptr};
  std::shared_ptr<MlpImpl> mlp;
  torch::nn::Sequential tail{nullptr};
  Linear head{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

const std::vector<Rule> kTable{{"embed", Vocab},   {"*.mlp.in", Column}, {"*.gate", Column}, {"*.mlp.out", Row},
                               {"tail.0", Column}, {"tail.2", Row},      {"head", Gathered}};

Net make_net() {
  return seeded(1, [] {
    Net net;
    net->to(torch::kFloat64);
    return net;
  });
}

Tensor tokens() { return test::random_tokens(2, 12, {3, 5}); }

TEST(Shard, AUsersModuleGivesTheSame) {
  Net plain = make_net();
  const Tensor y = plain->forward(tokens());
  (y * torch::sin(y)).sum().backward();
  const test::Tensors gradients = test::whole(*plain, {}, true);
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [&](World& world) {
      const TensorGroup group(world.group());
      Net net = make_net();
      shard(*net, group, kTable);
      EXPECT_EQ(net->mlp->in->weight.size(0), 24 / ranks) << "what a member holds has changed";
      EXPECT_EQ(net->mlp->out->weight.size(1), 24 / ranks);
      EXPECT_EQ(net->embed->weight.size(0), 12 / ranks);
      EXPECT_EQ(net->last->weight.numel(), 36) << "nobody has asked for that";
      const Tensor output = net->forward(tokens());
      EXPECT_LT(distance(output, y), kClose);
      (output * torch::sin(output)).sum().backward();
      test::expect_close(test::whole(*net, group, true), gradients);
      {
        const torch::NoGradGuard no_grad;
        EXPECT_LT(distance(net->forward(tokens()), y), kClose);
      }
      const c10::InferenceMode inference;
      EXPECT_LT(distance(net->forward(tokens()), y), kClose) << "in inference mode";
    });
}

/// Casts come between a layer and the operator.
TEST(Shard, WorksUnderAutocast) {
  const auto run = [](Net net) {
    net->to(torch::kFloat32);
    at::autocast::set_cpu_enabled(true);
    const Tensor y = net->forward(tokens()).to(torch::kFloat32);
    at::autocast::set_cpu_enabled(false);
    at::autocast::clear_cache();
    y.square().sum().backward();
    return y.detach();
  };
  Net plain = make_net();
  const Tensor y = run(plain);
  EXPECT_GT(distance(y, make_net()->forward(tokens()).to(torch::kFloat32)), 1e-6) << "nothing was cast";
  run_ranks(2, [&](World& world) {
    const TensorGroup group(world.group());
    Net net = make_net();
    shard(*net, group, kTable);
    EXPECT_LT(distance(run(net), y), 0.03);
    test::expect_close(test::whole(*net, group, true), test::whole(*plain, {}, true), 0.05);
  });
}

TEST(Shard, LeavesOtherModulesAlone) {
  run_ranks(2, [&](World& world) {
    Net net = make_net(), other = make_net();
    shard(*net, world.group(), kTable);
    const Tensor y = other->forward(tokens());
    y.sum().backward();
    EXPECT_LT(distance(net->forward(tokens()), y), kClose);
    Embedding padded(torch::nn::EmbeddingOptions(12, 8).padding_idx(5));
    padded->forward(torch::tensor({4, 5, 5})).sum().backward();
    EXPECT_EQ(padded->weight.grad().sum().item<double>(), 8) << "libtorch's own, gradient included";
  });
  Net later = make_net();  // weights of before are forgotten: an address may be another tensor's
  EXPECT_EQ(later->forward(tokens()).size(2), 3);
}

std::string refusal_of(const std::vector<Rule>& table, int ranks = 2) {
  std::string said;
  std::mutex mutex;
  run_ranks(ranks, [&](World& world) {
    Net net = make_net();
    try {
      shard(*net, world.group(), table);
    } catch (const InvalidArgument& error) {
      const std::lock_guard lock(mutex);
      said = error.what();
    }
    EXPECT_EQ(net->mlp->in->weight.size(0), 24) << "half done";
  });
  return said;
}

TEST(Shard, RefusesTablesThatCannotBe) {
  EXPECT_EQ(refusal_of({{"*.mlp.inn", Column}, {"*.mlp.out", Row}}).substr(0, 53),
            "shard(): no layer is left for the pattern '*.mlp.inn'");
  EXPECT_EQ(refusal_of({{"mlp.in", Column}}),
            "shard(): the Column 'mlp.in' has no Row behind it in 'mlp' that would put its parts together: add one to "
            "the table, or make it Gathered");
  EXPECT_EQ(refusal_of({{"mlp.out", Row}}),
            "shard(): the Row 'mlp.out' has no Column before it in 'mlp' that would give it parts");
  EXPECT_EQ(refusal_of({{"embed", Column}}),
            "shard(): 'embed' is a torch::nn::EmbeddingImpl; Column (pattern 'embed') is for torch::nn::Linear itself");
  EXPECT_EQ(refusal_of({{"mlp.in", Column}, {"mlp.out", Row}}, 5),
            "shard(): 'mlp.in': outputs 24 cannot be divided among 5 tensor ranks: use 20 or 25");
  EXPECT_EQ(refusal_of({{"embed", Vocab}, {"mlp.in", Column}}, 1).substr(0, 32), "shard(): the Column 'mlp.in' has")
      << "also where a rank is alone";
}

TEST(Shard, RefusesWhatWouldBeWrong) {
  torch::nn::Sequential padded(Embedding(torch::nn::EmbeddingOptions(12, 8).padding_idx(5)));
  EXPECT_THROW(shard(*padded, {}, {{"0", Vocab}}), InvalidArgument);
  run_ranks(2, [&](World& world) {
    Net net = make_net();
    shard(*net, world.group(), {{"mlp.in", Column}, {"mlp.gate", Column}, {"mlp.out", Row}});
    EXPECT_THROW(shard(*net, world.group(), {{"mlp.in", Column}, {"mlp.out", Row}}), InvalidArgument) << "twice";
    EXPECT_THROW(net->mlp->out->forward(torch::zeros({2, 24}, torch::kFloat64)), InvalidArgument) << "a whole input";
    EXPECT_THROW(net->named_modules()["mlp.in"]->clone(), InvalidArgument);
  });
}

TEST(Shard, AnEmbeddingMayBeTheOutputLayerToo) {
  struct Tied : torch::nn::Module {
    Tied() {
      embed = register_module("embed", Embedding(12, 8));
      to(torch::kFloat64);
    }
    Tensor forward(const Tensor& tokens) { return torch::linear(torch::tanh(embed->forward(tokens)), embed->weight); }
    Embedding embed{nullptr};
  };
  const auto make = [] { return seeded(3, [] { return std::make_shared<Tied>(); }); };
  const Tensor targets = test::random_tokens(4, 12, {15});
  const auto plain = make();
  const Tensor loss = torch::cross_entropy_loss(plain->forward(tokens()).flatten(0, 1), targets);
  loss.backward();
  run_ranks(3, [&](World& world) {
    const TensorGroup group(world.group());
    const auto net = make();
    shard(*net, group, {{"embed", Vocab}});
    const Tensor ours = parallel_cross_entropy(net->forward(tokens()).flatten(0, 1), targets, group);
    EXPECT_NEAR(ours.item<double>(), loss.item<double>(), kClose);
    ours.backward();
    EXPECT_LT(distance(group.all_gather(net->embed->weight.grad(), 0), plain->embed->weight.grad()), kClose);
  });
}

}  // namespace
}  // namespace trireme::layers
