// label: multiproc
// GPT and BERT: the ordinary forms against plain torch, the divided ones against the ordinary.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <trireme/checkpoint/safetensors.h>
#include <trireme/layers/dropout.h>
#include <trireme/models/transformer.h>

#include "../core/comm/process.h"
#include "tensor_ranks.h"

namespace trireme::models {
namespace {

using layers::TensorGroup;
using test::expect_close;
using test::run_ranks;
using test::seeded;
using test::Tensors;
using torch::Tensor;
namespace F = torch::nn::functional;

// Two, three and four ranks can divide these.
const GptOptions kGpt{.layers = 2, .width = 24, .heads = 12, .context = 12, .vocabulary = 36};
const BertOptions kBert{.layers = 2, .width = 24, .heads = 12, .context = 12, .vocabulary = 36};

/// f64, and larger than initial parameters are: a gradient that lacks something is far from what it should be.
std::shared_ptr<LanguageModel> wide(const std::shared_ptr<LanguageModel>& net) {
  net->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : net->parameters()) parameter.mul_(4).add_(0.02);
  return net;
}

struct Samples {
  Tensor tokens, targets;
};

/// Some without a target.
Samples samples(int64_t time = 12, int64_t batch = 3) {
  Samples samples{test::random_tokens(5, 36, {batch, time}), test::random_tokens(6, 36, {batch, time})};
  samples.targets.masked_fill_(test::random_tokens(7, 3, {batch, time}).eq(0), -100);
  return samples;
}

/// What one pass of a model gives.
struct Pass {
  Tensor logits, loss;
  Tensors gradients;
};

Pass pass_of(LanguageModel& net, const TensorGroup& group, const Samples& data) {
  Pass pass{net.forward(data.tokens).detach(), net.loss(data.tokens, data.targets), {}};
  (pass.loss * 7).backward();
  pass.gradients = test::whole(net, group, true);
  return pass;
}

/// The same by sections, one after the other.
Pass pass_by_sections(LanguageModel& net, const TensorGroup& group, const Samples& data) {
  const auto features = [&] {
    layers::Carried carried{data.tokens};
    for (const layers::Section& section : net.sections()) carried = section.run(std::move(carried));
    return carried.x;
  };
  Pass pass{net.outputs_from(features()).detach(), net.loss_from(features(), data.targets), {}};
  (pass.loss * 7).backward();
  pass.gradients = test::whole(net, group, true);
  return pass;
}

void expect_equal(const Pass& ours, const Pass& theirs) {
  EXPECT_TRUE(torch::equal(ours.logits, theirs.logits));
  EXPECT_TRUE(torch::equal(ours.loss, theirs.loss));
  for (const auto& [name, gradient] : theirs.gradients)
    EXPECT_TRUE(torch::equal(ours.gradients.at(name), gradient)) << name;
}

void expect_same(const Pass& ours, const Pass& theirs) {
  EXPECT_LT(test::distance(ours.logits, theirs.logits), 1e-12);
  EXPECT_NEAR(ours.loss.item<double>(), theirs.loss.item<double>(), 1e-12);
  expect_close(ours.gradients, theirs.gradients);
}

// ---- against plain torch ----

/// The same models once more, from the names of their parameters and libtorch's functions alone.
class Reference {
 public:
  explicit Reference(const torch::nn::Module& net) {
    for (const auto& item : net.named_parameters())
      parameters[item.key()] = item.value().detach().clone().requires_grad_();
  }

  Tensor gpt(const Tensor& tokens) { return F::linear(stack(tokens, true), parameters.at("tokens.weight")); }

  Tensor bert(const Tensor& tokens) {
    const Tensor features = norm(torch::gelu(linear(stack(tokens, false), "transform")), "transform_norm");
    return F::linear(features, parameters.at("tokens.weight"), parameters.at("bias"));
  }

  Pass pass_of(const Tensor& logits, const Samples& data) {
    Pass pass{logits.detach(), torch::cross_entropy_loss(logits.flatten(0, 1), data.targets.flatten()), {}};
    (pass.loss * 7).backward();
    for (const auto& [name, parameter] : parameters) pass.gradients[name] = parameter.grad();
    return pass;
  }

 private:
  Tensor linear(const Tensor& x, const std::string& name) {
    return F::linear(x, parameters.at(name + ".weight"), parameters.at(name + ".bias"));
  }
  Tensor norm(const Tensor& x, const std::string& name) {
    const Tensor mean = x.mean(-1, true), variance = x.var(-1, false, true);
    return (x - mean) / torch::sqrt(variance + 1e-5) * parameters.at(name + ".weight") + parameters.at(name + ".bias");
  }
  Tensor attention(const Tensor& x, const std::string& name, bool causal) {
    std::vector<Tensor> seen;
    const auto q = linear(x, name + ".query").chunk(12, 2), k = linear(x, name + ".key").chunk(12, 2),
               v = linear(x, name + ".value").chunk(12, 2);
    for (size_t head = 0; head < 12; head++) {
      Tensor scores = torch::matmul(q[head], k[head].transpose(1, 2)) / std::sqrt(2.0);
      if (causal) scores = scores.masked_fill(torch::ones_like(scores).triu(1).to(torch::kBool), -INFINITY);
      seen.push_back(torch::matmul(torch::softmax(scores, 2), v[head]));
    }
    return linear(torch::cat(seen, 2), name + ".out");
  }
  Tensor stack(const Tensor& tokens, bool causal) {
    const Tensor positions = torch::arange(tokens.size(1));
    Tensor x = F::embedding(tokens, parameters.at("tokens.weight")) +
               F::embedding(positions, parameters.at("positions.weight"));
    for (const std::string block : {"blocks.0", "blocks.1"}) {
      x = x + attention(norm(x, block + ".attention_norm"), block + ".attention", causal);
      x = x + linear(torch::gelu(linear(norm(x, block + ".mlp_norm"), block + ".mlp.in")), block + ".mlp.out");
    }
    return norm(x, "norm");
  }

  std::map<std::string, Tensor> parameters;
};

TEST(Transformer, GptIsThatOfPlainTorch) {
  const auto net = seeded(1, [] { return wide(gpt(kGpt)); });
  for (const int64_t time : {12, 7}) {
    net->zero_grad();
    Reference reference(*net);
    expect_same(pass_of(*net, {}, samples(time)),
                reference.pass_of(reference.gpt(samples(time).tokens), samples(time)));
  }
}

TEST(Transformer, BertIsThatOfPlainTorch) {
  const auto net = seeded(1, [] { return wide(bert(kBert)); });
  Reference reference(*net);
  expect_same(pass_of(*net, {}, samples()), reference.pass_of(reference.bert(samples().tokens), samples()));
}

TEST(Transformer, GptSeesNothingOfTheFuture) {
  const auto net = seeded(1, [] { return wide(gpt(kGpt)); });
  const auto two = seeded(1, [] { return wide(bert(kBert)); });
  const Tensor tokens = samples().tokens, other = tokens.clone();
  other.select(1, 8).add_(1).remainder_(36);
  const auto early = [](const Tensor& logits) { return logits.narrow(1, 0, 8); };
  EXPECT_TRUE(torch::equal(early(net->forward(tokens)), early(net->forward(other))));
  EXPECT_GT(test::distance(net->forward(tokens), net->forward(other)), 1e-3);
  EXPECT_GT(test::distance(early(two->forward(tokens)), early(two->forward(other))), 1e-3);
}

TEST(Transformer, BeginsLikeGpt2) {
  const auto net = seeded(1, [] { return gpt({.layers = 8, .width = 128}); });
  for (const auto& item : net->named_parameters()) {
    const bool residual = item.key().ends_with("out.weight"), norm = item.key().find("norm") != std::string::npos;
    const double deviation = residual ? 0.02 / 4 : 0.02;
    if (item.key().ends_with("bias"))
      EXPECT_EQ(item.value().abs().max().item<double>(), 0) << item.key();
    else if (norm)
      EXPECT_TRUE(torch::equal(item.value(), torch::ones_like(item.value()))) << item.key();
    else
      EXPECT_NEAR(item.value().std().item<double>(), deviation, deviation / 20) << item.key();
  }
  EXPECT_NEAR(net->loss(samples().tokens, samples().targets).item<double>(), std::log(256), 0.1);
}

// ---- divided ----

struct Layout {
  int ranks;
  bool sequence, recompute;
};

class Divided : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Divided,
                         testing::Values(Layout{1, true, true}, Layout{2, false, false}, Layout{2, true, false},
                                         Layout{3, false, true}, Layout{3, true, true}, Layout{4, false, false},
                                         Layout{4, true, true}),
                         [](const auto& info) {
                           const Layout& one = info.param;
                           return fmt::format("{}{}{}", one.ranks, one.sequence ? "Sequence" : "",
                                              one.recompute ? "Recompute" : "");
                         });

template <class Options>
Options with(Options options, const Layout& layout) {
  options.sequence = layout.sequence;
  options.recompute = layout.recompute;
  return options;
}

/// Initial parameters, forward pass and gradients of all ranks together.
template <class Options, class Make>
void compare(const Layout& layout, const Options& options, const Make& make) {
  const auto net = seeded(1, [&] { return make(TensorGroup(), options); });
  const Tensors parameters = test::whole(*net, {}, false);
  const Pass plain = pass_of(*wide(net), {}, samples());
  run_ranks(layout.ranks, [&](World& world) {
    const TensorGroup group(world.group());
    const auto part = seeded(1, [&] { return make(group, with(options, layout)); });
    int64_t elements = 0, all = 0;
    for (const Tensor& parameter : part->parameters()) elements += parameter.numel();
    for (const auto& [name, parameter] : parameters) all += parameter.numel();
    if (world.size() > 1) {
      EXPECT_LT(elements, all * 0.7) << "each rank keeps its part alone";
    }
    for (const auto& [name, parameter] : test::whole(*part, group, false))
      EXPECT_TRUE(torch::equal(parameter, parameters.at(name))) << "initial " << name;
    const Pass pass = pass_of(*wide(part), group, samples());
    expect_same(pass, plain);
    part->zero_grad();
    expect_equal(pass_by_sections(*part, group, samples()), pass);
    const torch::NoGradGuard no_grad;
    part->eval();
    EXPECT_LT(test::distance(part->forward(samples().tokens), plain.logits), 1e-12) << "in evaluation";
  });
}

TEST_P(Divided, GptIsTheOrdinaryOne) {
  compare(GetParam(), kGpt, [](const TensorGroup& ranks, const GptOptions& options) { return gpt(ranks, options); });
}

TEST_P(Divided, BertIsTheOrdinaryOne) {
  compare(GetParam(), kBert, [](const TensorGroup& ranks, const BertOptions& options) { return bert(ranks, options); });
}

// ---- against PyTorch ----

constexpr int kSteps = 8;

checkpoint::NamedTensor named(const std::string& name, const Tensor& tensor) {
  return {name, tensor.scalar_type() == torch::kInt64 ? "I64" : "F32", tensor.sizes().vec(), tensor.data_ptr(),
          tensor.nbytes()};
}

/// What a program of its own, without a line of ours, makes of these parameters and batches.
std::vector<double> losses_of_pytorch(const LanguageModel& net, const Samples& data) {
  const std::string stem = testing::TempDir() + test::job_name();
  const std::string parameters = stem + "-parameters", batches = stem + "-batches";
  std::vector<checkpoint::NamedTensor> list;
  for (const auto& item : net.named_parameters()) list.push_back(named(item.key(), item.value()));
  checkpoint::write_safetensors(parameters, list, {});
  checkpoint::write_safetensors(batches, {named("x", data.tokens), named("y", data.targets)}, {});
  FILE* const program = popen(
      ("/usr/bin/python3 " LOSS_REFERENCE " " + parameters + " " + batches +
       " --heads 12 --lr 0.003 --weight-decay 0.1")
          .c_str(),
      "r");
  std::string said(1 << 12, 0);
  said.resize(fread(said.data(), 1, said.size(), program));
  EXPECT_EQ(pclose(program), 0);
  std::remove(parameters.c_str());
  std::remove(batches.c_str());
  std::vector<double> losses;
  for (size_t at = said.find('['); at != said.npos && losses.size() < kSteps; at = said.find(',', at + 1))
    losses.push_back(std::strtod(said.c_str() + at + 1, nullptr));
  return losses;
}

TEST(Transformer, LearnsAsInPyTorch) {
  if (access("/usr/bin/python3", X_OK) != 0 || std::system("/usr/bin/python3 -c 'import torch' 2> /dev/null") != 0)
    GTEST_SKIP() << "Debian's Python has no torch";
  const Samples one = samples();
  const Samples data{one.tokens.repeat({kSteps, 1, 1}), one.targets.repeat({kSteps, 1, 1})};
  const auto make = [](const TensorGroup& group, bool sequence) {
    GptOptions options = kGpt;
    options.sequence = sequence;
    return seeded(1, [&] { return gpt(group, options); });
  };
  const std::vector<double> expected = losses_of_pytorch(*make({}, false), data);
  ASSERT_EQ(expected.size(), kSteps);
  EXPECT_LT(expected.back(), expected.front()) << "it learns";
  for (const auto& [ranks, sequence] : {std::pair{1, false}, {2, false}, {3, true}})
    run_ranks(ranks, [&](World& world) {
      const auto net = make(world.group(), sequence);
      torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.003).weight_decay(0.1));
      for (int step = 0; step < kSteps; step++) {
        optimizer.zero_grad();
        const Tensor loss = net->loss(data.tokens[step], data.targets[step]);
        loss.backward();
        optimizer.step();
        EXPECT_NEAR(loss.item<double>(), expected[static_cast<size_t>(step)], 1e-5) << "step " << step;
      }
    });
}

// ---- dropout ----

/// Ranks are processes here: threads share libtorch's random numbers.
std::string loss_with_dropout(int ranks, bool sequence, bool recompute) {
  GptOptions options = kGpt;
  options.dropout = 0.3;
  options.sequence = sequence;
  options.recompute = recompute;
  const std::string job = test::job_name();
  std::vector<std::unique_ptr<tests::Process>> processes;
  for (int rank = 0; rank < ranks; rank++)
    processes.push_back(std::make_unique<tests::Process>([=](const tests::Process::Say& say) {
      at::set_num_threads(1);
      World world({.rank = rank, .size = ranks, .job = job, .launcher = "test"}, {});
      const TensorGroup group(world.group());
      torch::manual_seed(1);
      const auto net = wide(gpt(group, options));
      const Tensor loss = net->loss(samples().tokens, samples().targets);
      loss.backward();
      double norm = 0;
      for (const auto& [name, gradient] : test::whole(*net, group, true)) norm += gradient.norm().item<double>();
      net->eval();
      const Tensor sober = net->loss(samples().tokens, samples().targets);
      say(fmt::format("{:.11f} {:.9f} {:.11f}", loss.item<double>(), norm, sober.item<double>()));
    }));
  std::string first;
  for (const auto& process : processes) {
    const std::string said = process->next_line();
    EXPECT_EQ(process->next_line(), "ok");
    if (first.empty()) first = said;
    EXPECT_EQ(said, first) << "ranks differ";
  }
  return first;
}

TEST(TransformerDropout, DoesNotDependOnTheDegree) {
  const std::string alone = loss_with_dropout(1, false, false);
  const size_t space = alone.find(' ');
  EXPECT_NE(alone.substr(0, space), alone.substr(alone.rfind(' ') + 1)) << "nothing was dropped";
  EXPECT_EQ(loss_with_dropout(2, false, false), alone);
  EXPECT_EQ(loss_with_dropout(2, true, false), alone);
  EXPECT_EQ(loss_with_dropout(4, false, true), alone);
  EXPECT_EQ(loss_with_dropout(3, true, true), alone);
}

TEST(TransformerDropout, IsTorchs) {
  const Tensor x = test::random(1, {5, 6, 7});
  const Tensor torchs = seeded(2, [&] { return torch::dropout(x, 0.4, true); });
  EXPECT_LT(test::distance(seeded(2, [&] { return layers::dropout(x, 0.4, true); }), torchs), 1e-15);
  EXPECT_TRUE(layers::dropout(x, 0.4, false).is_same(x));
  EXPECT_THROW(layers::dropout(x, 1, true), InvalidArgument);
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

TEST(Transformer, RefusesWhatCannotBeDivided) {
  run_ranks(4, [&](World& world) {
    const auto with = [&](GptOptions options) { return refusal_of([&] { gpt(world.group(), options); }); };
    EXPECT_EQ(with({.heads = 6}), "heads 6 cannot be divided among 4 tensor ranks: use 4 or 8");
    EXPECT_EQ(with({.vocabulary = 255}), "vocabulary 255 cannot be divided among 4 tensor ranks: use 252 or 256");
    EXPECT_EQ(with({.width = 100, .heads = 8}), "width 100 cannot be divided among 8 heads: use 96 or 104");
    const auto net = seeded(1, [&] { return gpt(world.group(), {.layers = 1, .width = 8, .sequence = true}); });
    EXPECT_EQ(refusal_of([&] {
                net->forward(torch::zeros({1, 7}, torch::kInt64));
              }),
              "with `sequence`, a time of 7 cannot be divided among 4 tensor ranks: use 4 or 8");
  });
}

TEST(Transformer, RefusesWhatIsNotText) {
  const auto net = gpt({.layers = 1, .width = 8, .context = 4, .vocabulary = 10});
  const auto said = [&](const Tensor& tokens) { return refusal_of([&] { net->forward(tokens); }); };
  EXPECT_EQ(said(torch::zeros({1, 5}, torch::kInt64)), "5 tokens in a row, but the model's context is 4: 1 to 4");
  EXPECT_EQ(said(torch::full({1, 3}, 10, torch::kInt64)), "token 10 is not in a vocabulary of 10: tokens are 0 to 9");
  EXPECT_EQ(said(torch::zeros({3})), "a language model takes tokens [batch, time] of type i64, not [3] of type Float");
  EXPECT_EQ(refusal_of([] { gpt({.layers = 0}); }), "a transformer needs at least 1 of layers, not 0");
  EXPECT_EQ(refusal_of([&] {
              net->loss(torch::zeros({1, 2}, torch::kInt64), torch::full({1, 2}, 10));
            }),
            "target 10 is not in a vocabulary of 10: targets are 0 to 9, or -100 where there is none");
}

}  // namespace
}  // namespace trireme::models
