// label: multiproc
// Models of all kinds in stages, on one machine and across several, against one process with libtorch's own optimizer:
// skip connections over stages, tied weights, ZeRO, uneven micro-batches, NaN.
#include <array>
#include <cmath>

#include <trireme/stages/check.h>

#include "pipeline_kinds.h"

namespace trireme::tests {
namespace {

/// libtorch takes a Sequential into another one only with a forward() that is no template.
struct InnerImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  torch::Tensor forward(torch::Tensor x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Inner);

/// Nested, with convolutions and a layer that works in place.
Kind nested() {
  return {"nested sequential",
          [] {
            namespace nn = torch::nn;
            const Inner inner(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)), nn::ReLU(nn::ReLUOptions(true)));
            return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)), nn::Tanh(), inner, nn::Flatten(),
                                  nn::Linear(4 * 36, 12), nn::Tanh(), nn::Linear(12, 3))
                .ptr();
          },
          [](torch::nn::Module& net, const torch::Tensor& x) {
            return dynamic_cast<torch::nn::SequentialImpl&>(net).forward(x);
          },
          {1, 6, 6},
          {3}};
}

const std::vector<const char*> kSchedules = {"gpipe", "1f1b", "interleaved:2", "zero-bubble"};

TEST(PipelineModels, SkipConnectionsAndSharedWeightsCrossStages) {
  for (const char* schedule : kSchedules)
    for (const auto& machines : {std::vector{0, 0}, std::vector{0, 1}})
      expect_parity(skipping(), {.machine_of = machines, .schedule = schedule});
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    expect_parity(skipping(), {.machine_of = {0, 0, 0, 0}, .pipeline = 4, .schedule = schedule, .micro = 3});
    expect_parity(skipping(), {.machine_of = {0, 1, 1, 0}, .pipeline = 4, .schedule = schedule, .micro = 5});
  }
}

TEST(PipelineModels, SequentialsOfAnyDepth) {
  for (const char* schedule : kSchedules) expect_parity(nested(), {.machine_of = {0, 0}, .schedule = schedule});
  expect_parity(nested(), {.machine_of = {0, 0, 0, 0}, .data = 2, .schedule = "zero-bubble", .micro = 2});
  expect_parity(nested(), {.machine_of = {0}, .pipeline = 1, .schedule = "1f1b"});
}

TEST(PipelineMachines, EveryStageOfZeroThatFits) {
  for (const int zero : {0, 1, 2})
    for (const auto& machines : {std::vector{0, 0, 1, 1}, std::vector{0, 1, 0, 1}, std::vector{0, 1, 2, 3}}) {
      const char* schedule = kSchedules[static_cast<size_t>(zero) + 1];
      expect_parity(skipping(), {.machine_of = machines, .data = 2, .schedule = schedule, .zero = zero});
    }
}

/// Activations of this rank that autograd keeps.
thread_local int held = 0, most_held = 0;

/// Passes a tensor on, and keeps memory of its own for backward.
struct Hold : torch::autograd::Function<Hold> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    most_held = std::max(most_held, ++held);
    auto memory = std::make_shared<double>(0);
    context->save_for_backward({torch::from_blob(
        memory.get(), {1}, [memory](void*) { held--; }, torch::kFloat64)});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    context->get_saved_variables();
    return gradients;
  }
};

struct Holding : torch::nn::Module, layers::Sectioned {
  explicit Holding(int64_t sections) {
    for (int64_t i = 0; i < sections; i++) all.push_back(register_module(std::to_string(i), torch::nn::Linear(4, 4)));
  }
  std::vector<layers::Section> sections() override {
    std::vector<layers::Section> list;
    for (size_t i = 0; i < all.size(); i++)
      list.push_back(layers::section(std::to_string(i), {std::to_string(i)},
                                     [this, i](const torch::Tensor& x) { return Hold::apply(all[i]->forward(x)); }));
    return list;
  }
  std::vector<torch::nn::Linear> all;
};

TEST(PipelineModels, KeepsAsManyActivationsAsPredicted) {
  for (const char* schedule : kSchedules)
    for (const int micro : {2, 8}) {
      const auto spec = stages::parse_schedule(schedule);
      const std::vector<int> predicted = stages::check(stages::make_schedule(spec, 4, micro)).peak;
      expect_well(run_world({0, 0, 0, 0}, [&](Group& all, cluster::Site&) {
        at::set_num_threads(1);
        held = most_held = 0;
        const Mesh mesh(all, {{"pipeline", 4}});
        const auto net = std::make_shared<Holding>(4 * spec.chunks);
        auto pipe = pipeline(mesh, cut(net, 4 * spec.chunks), {.micro = micro, .schedule = spec});
        EXPECT_EQ(stages::check(pipe.schedule()).peak, predicted) << schedule;
        auto train = parallel(mesh, pipe, sgd({.lr = 0.1}));
        for (int step = 0; step < 3; step++)
          train.step(1.0, torch::randn({16, 4}), torch::randn({16, 4}), mean_of_squares);
        EXPECT_EQ(held, 0) << schedule;
        const int expected = predicted[static_cast<size_t>(pipe.stage())];
        if (spec.name == Schedule::zero_bubble)  // the first stage has its whole backward pass in the weight part
          EXPECT_LE(most_held, expected) << schedule << ", stage " << pipe.stage();
        else
          EXPECT_EQ(most_held, expected) << schedule << ", stage " << pipe.stage();
      }));
    }
}

/// Of images in the order N, H, W, C: a section in front of a cut, and one behind it.
struct Imaging : torch::nn::Module, layers::Sectioned {
  Imaging() {
    first = register_module("first", torch::nn::Conv2d(2, 3, 1));
    second = register_module("second", torch::nn::Conv2d(3, 2, 1));
  }
  std::vector<layers::Section> sections() override {
    return {layers::section("first", {"first"},
                            [this](const torch::Tensor& x) {
                              torch::Tensor y = first->forward(x).contiguous(torch::MemoryFormat::ChannelsLast);
                              if (y.requires_grad())
                                y.register_hook([this](const torch::Tensor& gradient) { note(gradient); });
                              return y;
                            }),
            layers::section("second", {"second"}, [this](const torch::Tensor& x) {
              note(x);
              return second->forward(x.contiguous(torch::MemoryFormat::ChannelsLast));
            })};
  }
  /// What came from the other stage.
  void note(const torch::Tensor& tensor) { strides.push_back(tensor.strides().vec()); }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  std::vector<std::vector<int64_t>> strides;
};

/// A copy in another order would be made once to send it, and once to compute with it.
TEST(PipelineModels, ImagesKeepTheirFormatBetweenStages) {
  for (const auto& machines : {std::vector{0, 0}, std::vector{0, 1}})
    expect_well(run_world(machines, [](Group& all, cluster::Site&) {
      at::set_num_threads(1);
      const Mesh mesh(all, {{"pipeline", 2}});
      const auto net = std::make_shared<Imaging>();
      auto pipe = pipeline(mesh, cut(net, 2), {.micro = 2});
      auto train = parallel(mesh, pipe, sgd({.lr = 0.1}));
      train.step(1.0, torch::randn({6, 2, 4, 5}), torch::randn({6, 2, 4, 5}), mean_of_squares);
      pipe.forward(torch::randn({3, 2, 4, 5}));
      EXPECT_EQ(net->strides.size(), pipe.stage() == 0 ? 2u : 3u);
      for (const auto& strides : net->strides) EXPECT_EQ(strides, (std::vector<int64_t>{60, 1, 15, 3}));
    }));
}

/// Batches smaller than the micro-batches, uneven ones, and evaluation.
TEST(PipelineModels, BatchesOfAnySize) {
  const Kind kind = skipping();
  const auto plain = kind();
  torch::optim::SGD optimizer(plain->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  std::vector<double> losses;
  const std::vector<int64_t> sizes = {7, 1, 2, 10, 3};
  for (size_t step = 0; step < sizes.size(); step++) {
    const auto [x, y] = kind.batch_of(static_cast<int64_t>(step), sizes[step]);
    optimizer.zero_grad();
    const torch::Tensor loss = mean_of_squares(kind.forward(*plain, x), y);
    loss.backward();
    losses.push_back(loss.item<double>());
    optimizer.step();
  }
  const torch::Tensor seen = kind.batch_of(99).first, wanted = kind.forward(*plain, seen).detach();
  for (const char* schedule : kSchedules)
    expect_well(on_two([&](const Mesh& mesh, int stage) {
      const auto net = kind();
      const auto spec = stages::parse_schedule(schedule);
      auto pipe = pipeline(mesh, cut(net, 2 * spec.chunks), {.micro = 4, .schedule = spec});
      auto train = parallel(mesh, pipe, momentum({.lr = 0.02, .momentum = 0.9}));
      for (size_t step = 0; step < sizes.size(); step++) {
        const auto [x, y] = kind.batch_of(static_cast<int64_t>(step), sizes[step]);
        EXPECT_NEAR(train.step(1.0, x, y, mean_of_squares).loss, losses[step], 1e-10) << schedule;
      }
      train.settled([&] {
        for (int times = 0; times < 9; times++) {
          const torch::Tensor output = pipe.forward(seen);
          ASSERT_EQ(output.defined(), stage == 1);
          if (stage == 1) {
            EXPECT_LT((output - wanted).abs().max().item<double>(), 1e-9) << schedule;
          }
        }
      });
    }));
}

TEST(PipelineModels, ALossThatIsNoNumberIsNamedOnAllStages) {
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    const auto train_on = [&](const ParallelOptions& options, bool* skipped) {
      return on_two([&](const Mesh& mesh, int) {
        const Kind kind = skipping();
        const auto net = kind();
        auto pipe = pipeline(mesh, cut(net, 2), {.micro = 2, .schedule = stages::parse_schedule(schedule)});
        auto train = parallel(mesh, pipe, sgd({.lr = 0.1}), options);
        const std::string before = train.sha256();
        auto [x, y] = kind.batch_of(0);
        y[kind.batch - 1][0] = std::nan("");
        try {
          const Step done = train.step(1.0, x, y, mean_of_squares);
          if (skipped != nullptr) *skipped = done.skipped;
        } catch (const NotFinite&) {
          EXPECT_EQ(skipped, nullptr);
          train.settled([&] {  // updated by what was sound, if there was something
            for (const auto& item : net->named_parameters())
              EXPECT_TRUE(torch::isfinite(item.value()).all().item<bool>()) << item.key();
          });
          throw;
        }
        EXPECT_EQ(train.sha256(), before);
      });
    };
    expect_said(train_on({}, nullptr), "the loss became NaN on rank 1 at update 1");
    bool skipped = false;
    expect_well(train_on({.exchange = {.on_nan = OnNan::skip}}, &skipped));
    EXPECT_TRUE(skipped);
  }
}

/// Of this rank: the micro-batch's backward pass gives no numbers, though its loss is one.
thread_local bool spoiling = false;

struct Spoil : torch::autograd::Function<Spoil> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {spoiling ? gradients[0] * std::nan("") : gradients[0]};
  }
};

struct Spoilt : torch::nn::Module, layers::Sectioned {
  Spoilt() {
    for (int64_t i = 0; i < 4; i++)
      all.push_back(register_module(std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
  }
  torch::Tensor run(size_t i, const torch::Tensor& x) { return Spoil::apply(torch::tanh(all[i]->forward(x))); }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < all.size(); i++) x = run(i, x);
    return x;
  }
  std::vector<layers::Section> sections() override {
    std::vector<layers::Section> list;
    for (size_t i = 0; i < all.size(); i++)
      list.push_back(layers::section(std::to_string(i), {std::to_string(i)},
                                     [this, i](const torch::Tensor& x) { return run(i, x); }));
    return list;
  }
  std::vector<torch::nn::Linear> all;
};

Kind spoilt() {
  return {"linear layers",
          [] { return std::make_shared<Spoilt>(); },
          [](torch::nn::Module& net, const torch::Tensor& x) { return dynamic_cast<Spoilt&>(net).forward(x); },
          {kWidth},
          {kWidth}};
}

/// AdamW, which counts steps, as if there had been no batch number `bad`.
Reference without(const Kind& kind, int64_t bad, double clip) {
  Reference result;
  const auto net = kind();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0).eps(1e-6));
  for (int64_t step = 0; step < kSteps; step++) {
    if (step == bad) continue;
    const auto [x, y] = kind.batch_of(step);
    optimizer.zero_grad();
    mean_of_squares(kind.forward(*net, x), y).backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), clip);
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) result.parameters[item.key()] = item.value().detach().clone();
  return result;
}

/// Stages that have updated by then have no NaN of their own, and take it back.
void expect_skipped(const Case& c, int bad_stage, double clip) {
  constexpr int64_t kBad = 7;
  const Kind kind = spoilt();
  const Reference wanted = without(kind, kBad, clip);
  expect_well(run_world(c.machine_of, [&](Group& all, cluster::Site&) {
    at::set_num_threads(1);
    spoiling = false;
    const Mesh mesh(all, {{"data", c.data}, {"pipeline", c.pipeline}});
    const auto net = kind();
    auto pipe =
        pipeline(mesh, cut(net, c.pipeline), {.micro = c.micro, .schedule = stages::parse_schedule(c.schedule)});
    auto train = parallel(mesh, pipe, adamw({.lr = 0.01, .epsilon = 1e-6}),
                          {.exchange = {.bucket_bytes = 128,
                                        .clip = clip,
                                        .on_nan = OnNan::skip,
                                        .zero = c.zero,
                                        .ahead = exchange::Ahead::always}});
    int64_t updates = 0;
    for (int64_t step = 0; step < kSteps; step++) {
      const auto [x, y] = kind.batch_of(step);
      const int64_t share = kind.batch / c.data, first = share * mesh.coordinate("data");
      spoiling = step == kBad && pipe.stage() == bad_stage;
      const Step done = train.step(1.0 / c.data, x.narrow(0, first, share), y.narrow(0, first, share), mean_of_squares);
      EXPECT_EQ(done.skipped, step == kBad) << c.name() << ", step " << step;
      EXPECT_EQ(done.number, updates += done.skipped ? 0 : 1);
    }
    const metrics::Snapshot counted = all.registry().snapshot();
    if (clip == 0) {  // behind the bad stage gradients are sound
      EXPECT_EQ(counted.total("updates_taken_back").value, pipe.stage() > bad_stage ? 1 : 0) << c.name();
      EXPECT_EQ(counted.total("updates_ahead").value, kSteps - (pipe.stage() > bad_stage ? 0 : 1)) << c.name();
    }
    train.settled([&] {
      for (const auto& item : net->named_parameters()) {
        if (!pipe.uses(pipe.stage(), item.key())) continue;
        const double off = (item.value() - wanted.parameters.at(item.key())).abs().max().item<double>();
        EXPECT_LT(off, 1e-9) << c.name() << ", " << item.key();
      }
    });
  }));
}

TEST(PipelineModels, AGradientThatIsNoNumberInOneStageIsTakenBackInTheOthers) {
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    for (const int bad : {0, 1, 2})
      expect_skipped({.machine_of = {0, 0, 0, 0}, .pipeline = 4, .schedule = schedule}, bad, 0);
    expect_skipped({.machine_of = {0, 1}, .schedule = schedule}, 0, 0);
    expect_skipped({.machine_of = {0, 0, 0, 0}, .data = 2, .schedule = schedule}, 0, 0);
    for (const int zero : {0, 1, 2})  // data ranks on two machines
      expect_skipped({.machine_of = {0, 0, 1, 1}, .data = 2, .schedule = schedule, .zero = zero}, 0, 0.2);
  }
}

/// With what is done about it by default, all ranks end alike, and no NaN reaches a parameter of any stage; with a norm
/// to clip by, nothing of the update does.
TEST(PipelineModels, AGradientThatIsNoNumberLeavesParametersClean) {
  for (const char* schedule : {"1f1b", "zero-bubble"})
    for (const double clip : {0.0, 0.2})
      for (const int bad : {0, 2}) {
        std::array<bool, 4> thrown{};
        expect_well(run_world({0, 0, 0, 0}, [&](Group& all, cluster::Site&) {
          at::set_num_threads(1);
          spoiling = false;
          const Kind kind = spoilt();
          const Mesh mesh(all, {{"pipeline", 4}});
          const auto net = kind();
          auto pipe = pipeline(mesh, cut(net, 4), {.micro = 4, .schedule = stages::parse_schedule(schedule)});
          auto train = parallel(mesh, pipe, adamw({.lr = 0.01}),
                                {.exchange = {.bucket_bytes = 128, .clip = clip, .ahead = exchange::Ahead::always}});
          const auto step = [&](int64_t number) {
            const auto [x, y] = kind.batch_of(number);
            return train.step(1.0, x, y, mean_of_squares);
          };
          step(0);
          const std::string before = train.sha256();
          spoiling = pipe.stage() == bad;
          try {
            step(1);
          } catch (const NotFinite& error) {
            thrown[static_cast<size_t>(all.rank())] = true;
            EXPECT_NE(std::string(error.what()).find("NaN"), std::string::npos) << error.what();
          }
          if (clip > 0) {
            EXPECT_EQ(train.sha256(), before) << schedule << ", stage " << bad;
          }
          spoiling = false;
          EXPECT_TRUE(std::isfinite(step(2).loss)) << "and it may go on";
          train.settled([&] {
            for (const auto& item : net->named_parameters())
              EXPECT_TRUE(torch::isfinite(item.value()).all().item<bool>()) << item.key();
          });
        }));
        EXPECT_EQ(thrown, (std::array{true, true, true, true})) << schedule << ", stage " << bad;
      }
}

}  // namespace
}  // namespace trireme::tests
