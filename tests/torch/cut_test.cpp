// label: unit
// Models in parts: the parts together are the model, bit by bit, and where they are cut is the best place.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include <trireme/base/error.h>
#include <trireme/layers/cut.h>
#include <trireme/models/models.h>
#include <trireme/models/resnet.h>

namespace trireme::layers {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

// ---- the parts are the model ----

/// What a training pass leaves behind.
struct Pass {
  Tensor output;
  std::vector<Tensor> gradients, buffers;
  Tensor next_random = {};
};

Pass finish(const nn::Module& net, const Tensor& output) {
  Pass pass{output.detach(), {}, {}};
  for (const Tensor& parameter : net.parameters()) pass.gradients.push_back(parameter.grad());
  for (const Tensor& buffer : net.buffers()) pass.buffers.push_back(buffer.clone());
  pass.next_random = torch::rand({3});
  return pass;
}

void expect_same(const Pass& ours, const Pass& theirs, const std::string& what) {
  EXPECT_TRUE(torch::equal(ours.output, theirs.output)) << what;
  ASSERT_EQ(ours.gradients.size(), theirs.gradients.size()) << what;
  for (size_t i = 0; i < theirs.gradients.size(); i++) {
    ASSERT_TRUE(ours.gradients[i].defined() && theirs.gradients[i].defined()) << what << ", parameter " << i;
    EXPECT_TRUE(torch::equal(ours.gradients[i], theirs.gradients[i])) << what << ", parameter " << i;
  }
  EXPECT_GT(theirs.gradients[0].abs().max().item<double>(), 0) << what;
  for (size_t i = 0; i < theirs.buffers.size(); i++)
    EXPECT_TRUE(torch::equal(ours.buffers[i], theirs.buffers[i])) << what << ", buffer " << i;
  EXPECT_TRUE(torch::equal(ours.next_random, theirs.next_random)) << what;
}

using Loss = std::function<Tensor(const Tensor&)>;

/// As a pipeline does: nothing but what is carried connects the parts, and each goes backward by itself.
Tensor in_stages(const Cut& cut, const Tensor& x, const Loss& loss) {
  struct Stage {
    std::vector<Tensor> inputs, outputs;
  };
  const auto tensors = [](const Carried& carried) {
    std::vector<Tensor> all{carried.x};
    for (const auto& item : carried.kept) all.push_back(item.second);
    return all;
  };
  std::vector<Stage> stages;
  Carried carried{x};
  for (const Part& part : cut.parts) {
    Carried leaves{carried.x.detach().requires_grad_(carried.x.requires_grad())};
    for (const auto& [name, tensor] : carried.kept)
      leaves.kept[name] = tensor.detach().requires_grad_(tensor.requires_grad());
    carried = part.run(leaves);
    stages.push_back({tensors(leaves), tensors(carried)});
  }
  loss(carried.x).backward();
  for (size_t i = stages.size() - 1; i-- > 0;) {
    std::vector<Tensor> gradients;
    for (const Tensor& input : stages[i + 1].inputs) gradients.push_back(input.grad());
    torch::autograd::backward(stages[i].outputs, gradients);
  }
  return carried.x;
}

/// A model anew each time, with the same parameters.
struct Case {
  std::string name;
  std::function<models::Model()> make;
  Tensor x, y;
  std::vector<int> parts;
  CutOptions options{};
};

void check(const Case& one) {
  const auto fresh = [&] {
    torch::manual_seed(1);
    models::Model net = one.make();
    torch::manual_seed(2);
    return net;
  };
  const Tensor outputs = fresh().forward(one.x);
  const models::Model plain = fresh();
  plain.loss(one.x, one.y).backward();
  const Pass whole = finish(*plain, outputs);
  for (const int parts : one.parts) {
    const std::string what = fmt::format("{} in {} parts", one.name, parts);
    const models::Model net = fresh();
    const Cut cut = models::cut(net, parts, one.options);
    ASSERT_EQ(cut.parts.size(), static_cast<size_t>(parts));
    const Tensor last = in_stages(cut, one.x, [&](const Tensor& x) { return net.loss_from(x, one.y); });
    expect_same(finish(*net, net.outputs_from(last)), whole, what + ": " + cut.reason);

    const models::Model joined = fresh();
    Carried carried{one.x};
    for (const Part& part : models::cut(joined, parts, one.options).parts) carried = part.run(std::move(carried));
    joined.loss_from(carried.x, one.y).backward();
    expect_same(finish(*joined, joined.outputs_from(carried.x)), whole, what + " of one graph");
  }
}

nn::Sequential nested() {
  return nn::Sequential(nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), nn::ReLU(nn::ReLUOptions(true)),
                        Nested(nn::Conv2d(4, 4, 3), Nested(nn::BatchNorm2d(4), nn::Tanh()), nn::Dropout(0.3)),
                        nn::Flatten(), Nested(nn::Linear(64, 8), nn::ReLU(), nn::Dropout(0.2)), nn::Linear(8, 3));
}

Tensor classes(int64_t samples, int64_t count) { return torch::arange(samples).remainder(count); }
Tensor tokens(int64_t seed) { return torch::arange(36).mul(7).add(seed).remainder(31).view({3, 12}); }

TEST(Cut, NestedSequential) {
  torch::manual_seed(3);
  const auto make = [] { return models::Model(nested(), data::Task::classify); };
  const Tensor x = torch::randn({6, 1, 8, 8}), y = classes(6, 3);
  check({"nested", make, x, y, {1, 2, 3, 4, 5, 6}});
  check({"nested, by points", make, x, y, {3}, {.points = {"3.1", "6"}}});
  check({"nested, by a container", make, x, y, {3}, {.points = {"5", "3"}}});
}

TEST(Cut, SequentialThatComputesTwice) {
  torch::manual_seed(3);
  const Tensor x = torch::randn({6, 1, 8, 8}), y = classes(6, 3);
  check({"recompute",
         [] { return models::Model(nested(), data::Task::classify); },
         x,
         y,
         {1, 2, 3},
         {.recompute = true}});
}

TEST(Cut, LanguageModels) {
  Tensor masked = tokens(4).clone();
  masked.masked_fill_(torch::arange(36).view({3, 12}).remainder(3).ne(0), -100);
  for (const bool recompute : {false, true}) {
    const models::GptOptions gpt{
        .layers = 3, .width = 16, .heads = 2, .context = 12, .vocabulary = 31, .dropout = 0.2, .recompute = recompute};
    const models::BertOptions bert{
        .layers = 2, .width = 16, .heads = 2, .context = 12, .vocabulary = 31, .dropout = 0.2, .recompute = recompute};
    check({"gpt",
           [=] { return models::Model(models::gpt(gpt), data::Task::next_token); },
           tokens(0),
           tokens(1),
           {1, 2, 3, 5}});
    check({"bert",
           [=] { return models::Model(models::bert(bert), data::Task::masked_token); },
           tokens(0),
           masked,
           {1, 2, 4}});
  }
}

TEST(Cut, ResNet) {
  torch::manual_seed(3);
  const Tensor x = torch::randn({3, 1, 10, 8}), y = classes(3, 4);
  for (const bool recompute : {false, true})
    check({"resnet18",
           [=] {
             return models::Model(models::resnet(18, {.channels = 1, .classes = 4, .recompute = recompute}),
                                  data::Task::classify);
           },
           x,
           y,
           {1, 2, 4, 10}});
}

/// Two skips, over two sections and over four.
struct UNet : nn::Module {
  nn::Linear down1{nullptr}, down2{nullptr}, middle{nullptr}, up2{nullptr}, up1{nullptr};
  UNet() : nn::Module("UNet") {
    down1 = register_module("down1", nn::Linear(6, 8));
    down2 = register_module("down2", nn::Linear(8, 4));
    middle = register_module("middle", nn::Linear(4, 4));
    up2 = register_module("up2", nn::Linear(8, 8));
    up1 = register_module("up1", nn::Linear(16, 3));
  }
  Tensor forward(const Tensor& x) {
    const Tensor wide = torch::tanh(down1(x)), narrow = torch::tanh(down2(wide));
    const Tensor up = torch::tanh(up2(torch::cat({torch::tanh(middle(narrow)), narrow}, 1)));
    return up1(torch::cat({up, wide}, 1));
  }
  std::vector<Section> rows() {
    return {{"down1",
             {"down1"},
             [this](Carried c) {
               c.keep("wide", c.x = torch::tanh(down1(c.x)));
               return c;
             }},
            {"down2",
             {"down2"},
             [this](Carried c) {
               c.keep("narrow", c.x = torch::tanh(down2(c.x)));
               return c;
             }},
            section("middle", {"middle"}, [this](const Tensor& x) { return torch::tanh(middle(x)); }),
            {"up2",
             {"up2"},
             [this](Carried c) {
               c.x = torch::tanh(up2(torch::cat({c.x, c.take("narrow")}, 1)));
               return c;
             }},
            {"up1", {"up1.weight", "up1.bias"}, [this](Carried c) {
               c.x = up1(torch::cat({c.x, c.take("wide")}, 1));
               return c;
             }}};
  }
};

TEST(Cut, SkipsAreCarriedAlong) {
  torch::manual_seed(3);
  const auto net = std::make_shared<UNet>();
  const Tensor x = torch::randn({5, 6});
  const auto loss = [](const Tensor& y) { return y.pow(2).sum(); };
  loss(net->forward(x)).backward();
  const Pass whole = finish(*net, net->forward(x));
  for (const int parts : {1, 2, 3, 4, 5}) {
    net->zero_grad();
    const Cut pieces = cut(net, net->rows(), parts, {.example = x});
    torch::manual_seed(1);
    const Pass ours = finish(*net, in_stages(pieces, x, loss));
    torch::manual_seed(1);
    expect_same(ours, {whole.output, whole.gradients, whole.buffers, torch::rand({3})}, pieces.reason);
  }
  const Cut two = cut(net, net->rows(), 2, {.points = {"up2"}});
  Carried crossing = two.parts[0].run({x});
  EXPECT_EQ(crossing.kept.size(), 2u);
}

// ---- what a cut says ----

TEST(Cut, TellsWhatEachPartHas) {
  const Cut two = cut(nested(), 2, {.points = {"5"}});
  EXPECT_EQ(two.parts[0].sections, (std::vector<std::string>{"0", "1", "3.0", "3.1.0", "3.1.1", "3.2", "4"}))
      << "a ReLU in place is a part of the batch norm before it";
  EXPECT_EQ(two.parts[1].name, "5.0");
  EXPECT_EQ(two.parts[1].parameters, (std::vector<std::string>{"5.0.weight", "5.0.bias", "6.weight", "6.bias"}));
  EXPECT_EQ(two.parts[0].buffers,
            (std::vector<std::string>{"1.running_mean", "1.running_var", "1.num_batches_tracked", "3.1.0.running_mean",
                                      "3.1.0.running_var", "3.1.0.num_batches_tracked"}));
  EXPECT_TRUE(two.shared.empty());
  EXPECT_EQ(two.reason,
            "Sequential is cut into 2 parts before 5.0, as asked: by number of parameters they are 28%, 72%");
}

TEST(Cut, SharedParametersGoByTheirFirstName) {
  const auto gpt = models::gpt({.layers = 2, .width = 8, .heads = 2, .context = 4, .vocabulary = 16});
  const Cut two = cut(gpt, 2);
  EXPECT_EQ(two.shared, (std::map<std::string, std::vector<size_t>>{{"tokens.weight", {0, 1}}}));
  EXPECT_TRUE(cut(gpt, 1).shared.empty());
  const nn::Linear twice(3, 3);
  const Cut tied = cut(nn::Sequential(twice, nn::ReLU(), nn::Linear(3, 3), twice), 3);
  EXPECT_EQ(tied.shared, (std::map<std::string, std::vector<size_t>>{{"0.bias", {0, 2}}, {"0.weight", {0, 2}}}));
  EXPECT_EQ(tied.parts[2].parameters, (std::vector<std::string>{"0.weight", "0.bias"}));
}

TEST(Cut, CostsDecide) {
  const nn::Sequential net(nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2));
  const auto begins = [&](int parts, std::vector<double> costs) {
    std::vector<std::string> names;
    for (const Part& part : cut(net, parts, {.costs = std::move(costs)}).parts) names.push_back(part.name);
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(begins(2, {9, 1, 1, 1, 1}), (Names{"0", "1"}));
  EXPECT_EQ(begins(2, {1, 1, 1, 1, 9}), (Names{"0", "4"}));
  EXPECT_EQ(begins(3, {1, 1, 1, 1, 1}), (Names{"0", "1", "3"}));
  EXPECT_EQ(begins(3, {1, 9, 1, 1, 1}), (Names{"0", "1", "3"})) << "each part has a parameter";
  EXPECT_EQ(cut(net, 2, {.costs = {1, 1, 1, 1, 9}}).cost, (std::vector<double>{4, 9}));
}

TEST(Cut, MeasuringLeavesTheModelAsItIs) {
  torch::manual_seed(3);
  nn::Sequential net = nested();
  const Tensor x = torch::randn({4, 1, 8, 8});
  net->forward(x).sum().backward();
  torch::manual_seed(5);
  const Pass before = finish(*net, x);
  std::vector<Tensor> gradients;
  for (const Tensor& gradient : before.gradients) gradients.push_back(gradient.clone());
  torch::manual_seed(5);
  int ends = 0;
  const auto times = measure(*net, sections_of(*net), x, [&](const Tensor& y) {
    ends++;
    return y.sum();
  });
  EXPECT_EQ(times.size(), 11u);
  for (const double seconds : times) EXPECT_GT(seconds, 0);
  EXPECT_GE(ends, 3);
  expect_same(finish(*net, x), {before.output, gradients, before.buffers, before.next_random}, "measured");
}

// ---- places ----

/// All divisions, one by one.
void best_by_hand(const std::vector<double>& costs, const std::vector<bool>& counts, size_t parts, double& most,
                  double& squares, std::vector<size_t> begins = {0}) {
  if (begins.size() < parts) {
    for (size_t next = begins.back() + 1; next < costs.size(); next++) {
      begins.push_back(next);
      best_by_hand(costs, counts, parts, most, squares, begins);
      begins.pop_back();
    }
    return;
  }
  double here = 0, sum = 0;
  for (size_t i = 0; i < parts; i++) {
    double cost = 0;
    bool counted = false;
    for (size_t j = begins[i]; j < (i + 1 < parts ? begins[i + 1] : costs.size()); j++)
      cost += costs[j], counted = counted || counts[j];
    if (!counted) return;
    here = std::max(here, cost), sum += cost * cost;
  }
  if (here < most || (here == most && sum < squares)) most = here, squares = sum;
}

TEST(Balance, NoOtherPlaceIsBetter) {
  std::mt19937 random(7);
  int impossible = 0;
  for (int round = 0; round < 3000; round++) {
    const size_t n = 1 + random() % 9, parts = 1 + random() % n;
    std::vector<double> costs(n);
    std::vector<bool> counts(n);
    for (double& cost : costs) cost = random() % 4 == 0 ? 0 : random() % 50;  // whole numbers: sums are exact
    for (size_t i = 0; i < n; i++) counts[i] = random() % 3 > 0;
    double most = 1e9, squares = 1e9;
    best_by_hand(costs, counts, parts, most, squares);
    const auto begins = balance(costs, parts, counts);
    if (most == 1e9) {
      EXPECT_TRUE(begins.empty());
      impossible++;
      continue;
    }
    ASSERT_EQ(begins.size(), parts);
    EXPECT_EQ(begins[0], 0u);
    double ours = 0, sum = 0;
    for (size_t i = 0; i < parts; i++) {
      const size_t end = i + 1 < parts ? begins[i + 1] : n;
      ASSERT_LT(begins[i], end);
      double cost = 0;
      bool counted = false;
      for (size_t j = begins[i]; j < end; j++) cost += costs[j], counted = counted || counts[j];
      EXPECT_TRUE(counted);
      ours = std::max(ours, cost), sum += cost * cost;
    }
    EXPECT_EQ(ours, most);
    EXPECT_EQ(sum, squares);
    EXPECT_EQ(balance(costs, parts, counts), begins) << "the same again";
  }
  EXPECT_GT(impossible, 50);
}

// ---- what is refused ----

/// More than its layers.
struct SkippingImpl : nn::SequentialImpl {
  using nn::SequentialImpl::SequentialImpl;
  Tensor forward(const Tensor& x) { return x + nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Skipping);

void refused(const std::function<void()>& wrong, const std::vector<std::string>& says) {
  try {
    wrong();
    ADD_FAILURE() << "not refused: " << says[0];
  } catch (const InvalidArgument& error) {
    for (const std::string& part : says)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << "\n" << error.what();
  }
}

TEST(CutRefuses, WhatCannotBeCut) {
  const nn::Sequential net(nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2));
  const auto gpt = models::gpt({.layers = 3, .width = 8, .heads = 2, .context = 4, .vocabulary = 16});
  refused([&] { cut(gpt, 6); }, {"Gpt cannot be cut into 6 parts", "5 sections", "blocks.0", "use at most 5 stages"});
  refused([&] { cut(net, 4); }, {"3 of its 5 sections have parameters", "use at most 3 stages"});
  refused([&] { cut(net, 0); }, {"0 parts", "at least 1"});
  refused([&] { cut(net, 3, {.points = {"1", "2"}}); }, {"part 1 of 3 has no parameters", "section is 1"});
  refused([&] { cut(gpt, 2, {.points = {"block.1"}}); }, {"no section 'block.1'", "did you mean 'blocks.1'?", "head"});
  refused([&] { cut(gpt, 2, {.points = {"embedding"}}); }, {"'embedding' is the first section"});
  refused([&] { cut(gpt, 3, {.points = {"head"}}); }, {"3 parts have 2 places", "1 was given"});
  refused([&] { cut(gpt, 3, {.points = {"head", "head"}}); }, {"'head' was given twice"});
  refused([&] { cut(gpt, 2, {.costs = {1, 2}}); }, {"2 costs", "5 sections"});
  refused([&] { cut(net, 2, {.costs = {1, 2, -1, 1, 1}}); }, {"cost of -1"});
  refused([&] { cut(nn::Sequential(nn::Linear(2, 2), Skipping(nn::Linear(2, 2), nn::Linear(2, 2))), 3); },
          {"it has 2 sections (0, 1)"});
  refused([&] { cut(std::make_shared<UNet>(), 2); }, {"UNet is neither a Sequential nor Sectioned", "say where"});
}

TEST(CutRefuses, SectionsThatAreWrong) {
  const auto net = std::make_shared<UNet>();
  const Tensor x = torch::randn({5, 6});
  const auto with = [&](size_t i, const Section& section) {
    auto rows = net->rows();
    rows[i] = section;
    return rows;
  };
  const auto plain = [](Carried c) { return c; };
  refused(
      [&] {
        cut(net, with(2, {"middle", {"midle"}, plain}), 2);
      },
      {"section 'middle' uses 'midle'", "did you mean 'middle'?"});
  refused(
      [&] {
        cut(net, with(2, {"middle", {}, plain}), 2);
      },
      {"no section of UNet uses its parameter 'middle.weight'"});
  refused([&] { cut(net, with(2, {"up1", {"middle"}, plain}), 2); }, {"two sections", "'up1'"});
  refused([&] { cut(net, with(2, {"middle", {"middle"}, nullptr}), 2); }, {"section 2", "no function"});

  const Cut left = cut(net, with(3, section("up2", {"up2"}, [](const Tensor& t) { return torch::cat({t, t}, 1); })), 1);
  refused([&] { left.parts[0].run({x}); }, {"'narrow' is kept at the end"});
  const Cut gone = cut(net, with(1, section("down2", {"down2"}, [&](const Tensor& t) { return net->down2(t); })), 2);
  refused([&] { gone.parts[1].run(gone.parts[0].run({x})); },
          {"section 'up2' takes 'narrow', which no section before it has kept", "There is wide"});
  refused(
      [&] {
        Carried c{x, {}, "here"};
        c.keep("a", x);
        c.keep("a", x);
      },
      {"section 'here' keeps 'a'"});

  Tensor secret;
  auto rows = net->rows();
  rows[0].run = [&, run = rows[0].run](Carried c) {
    c = run(std::move(c));
    secret = c.x;
    return c;
  };
  rows[2] = section("middle", {"middle"}, [&](const Tensor& t) { return net->middle(t) + secret.narrow(1, 0, 4); });
  refused([&] { cut(net, rows, 2, {.example = x}); },
          {"UNet cannot be cut before section 'middle'", "a tensor of section 'down1' (TanhBackward", "keep()"});
  refused(
      [&] {
        cut(net,
            with(2, section("middle", {"middle"}, [&](const Tensor& t) { return net->middle(t) * net->up1->bias[0]; })),
            2, {.example = x});
      },
      {"section 'middle' of UNet computes with 'up1.bias'", "`uses`"});
  const Tensor loose = torch::ones({4}, torch::requires_grad());
  refused(
      [&] {
        cut(net, with(2, section("middle", {"middle"}, [&](const Tensor& t) { return net->middle(t) * loose; })), 2,
            {.example = x});
      },
      {"no parameter of the module"});
  refused([&] { cut(net, net->rows(), 1, {.recompute = true}).parts[0].run({x.clone().requires_grad_()}); },
          {"'narrow' is kept", "'down1'", "CutOptions::recompute"});
}

}  // namespace
}  // namespace trireme::layers
