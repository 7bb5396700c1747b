#pragma once
// Models in stages against one process with libtorch's own optimizer: what tests of pipelines share. Ranks are threads.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <trireme/trireme.h>

#include "../core/cluster/groups.h"

namespace trireme::tests {

constexpr int64_t kSteps = 20, kWidth = 8;
constexpr double kTolerance = 1e-9;
inline std::mutex random_numbers;  // libtorch's are the process's

inline torch::Tensor mean_of_squares(const torch::Tensor& output, const torch::Tensor& y) {
  return torch::mse_loss(output, y);
}

/// Down and up again, with two skip connections, of which one passes over two sections, and a weight that the first and
/// the last section share.
struct Skipping : torch::nn::Module, layers::Sectioned {
  Skipping() {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
    third = register_module("third", torch::nn::Linear(kWidth, kWidth));
    fourth = register_module("fourth", torch::nn::Linear(kWidth, kWidth));
    scale = register_parameter("scale", torch::ones({kWidth}) * 1.5);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor a = torch::tanh(first->forward(x)) * scale, b = torch::tanh(second->forward(a));
    const torch::Tensor c = torch::tanh(third->forward(b) + a);
    return fourth->forward(c + b) * scale + a;
  }
  std::vector<layers::Section> sections() override {
    using layers::Carried;
    return {{"first",
             {"first", "scale"},
             [this](Carried c) {
               c.x = torch::tanh(first->forward(c.x)) * scale;
               c.keep("a", c.x), c.keep("a again", c.x);
               return c;
             }},
            {"second",
             {"second"},
             [this](Carried c) {
               c.x = torch::tanh(second->forward(c.x));
               c.keep("b", c.x);
               return c;
             }},
            {"third",
             {"third"},
             [this](Carried c) {
               c.x = torch::tanh(third->forward(c.x) + c.take("a"));
               return c;
             }},
            {"fourth", {"fourth", "scale"}, [this](Carried c) {
               c.x = fourth->forward(c.x + c.take("b")) * scale + c.take("a again");
               return c;
             }}};
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, fourth{nullptr};
  torch::Tensor scale;
};

/// A model, and what it is trained with.
struct Kind {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<torch::Tensor(torch::nn::Module&, const torch::Tensor&)> forward;
  std::vector<int64_t> shape;   // of a sample
  std::vector<int64_t> target;  // of what is to come out
  int64_t batch = 10;
  double rate = 0.02;

  std::shared_ptr<torch::nn::Module> operator()() const {
    const std::lock_guard lock(random_numbers);
    torch::manual_seed(5);
    auto net = make();
    net->to(torch::kFloat64);
    return net;
  }
  std::pair<torch::Tensor, torch::Tensor> batch_of(int64_t step, int64_t samples = 0) const {
    if (samples == 0) samples = batch;
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step));
    std::vector<int64_t> x = shape, y = target;
    x.insert(x.begin(), samples), y.insert(y.begin(), samples);
    const torch::Tensor input = torch::randn(x, generator, torch::kFloat64);
    return {input, torch::randn(y, generator, torch::kFloat64)};
  }
};

inline Kind skipping() {
  return {"skip connections",
          [] { return std::make_shared<Skipping>(); },
          [](torch::nn::Module& net, const torch::Tensor& x) { return dynamic_cast<Skipping&>(net).forward(x); },
          {kWidth},
          {kWidth}};
}

struct Reference {
  std::map<std::string, torch::Tensor> parameters;
  std::vector<double> losses;
};

/// libtorch alone, on whole batches.
inline Reference alone(const Kind& kind, int64_t steps) {
  Reference result;
  const auto net = kind();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(kind.rate).momentum(0.9));
  for (int64_t step = 0; step < steps; step++) {
    const auto [x, y] = kind.batch_of(step);
    optimizer.zero_grad();
    const torch::Tensor loss = mean_of_squares(kind.forward(*net, x), y);
    loss.backward();
    result.losses.push_back(loss.item<double>());
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) result.parameters[item.key()] = item.value().detach().clone();
  return result;
}

inline const Reference& reference(const Kind& kind, int64_t steps) {
  static std::map<std::pair<std::string, int64_t>, Reference> kept;
  const std::pair key(kind.name, steps);
  const auto found = kept.find(key);
  return found != kept.end() ? found->second : kept.emplace(key, alone(kind, steps)).first->second;
}

struct Case {
  std::vector<int> machine_of;
  int data = 1, pipeline = 2;
  std::string schedule = "1f1b";
  int micro = 4, zero = 0;
  double seconds = 20;  // that a rank waits for another
  std::string name() const {
    return fmt::format("{} x {} on machines {}, {}, zero {}", data, pipeline, fmt::join(machine_of, ""), schedule,
                       zero);
  }
};

inline void expect_well(const Outcomes& outcomes) {
  for (const auto& error : outcomes)
    if (error) std::rethrow_exception(error);
}

inline void expect_parity(const Kind& kind, const Case& c, int64_t steps = kSteps) {
  const Reference& wanted = reference(kind, steps);
  expect_well(run_world(
      c.machine_of,
      [&](Group& all, cluster::Site&) {
        at::set_num_threads(1);
        const Mesh mesh(all, {{"data", c.data}, {"pipeline", c.pipeline}});
        const auto net = kind();
        const auto spec = stages::parse_schedule(c.schedule);
        auto pipe = pipeline(mesh, cut(net, c.pipeline * spec.chunks), {.micro = c.micro, .schedule = spec});
        auto train = parallel(mesh, pipe, momentum({.lr = kind.rate, .momentum = 0.9}),
                              {.exchange = {.bucket_bytes = 512, .zero = c.zero}});
        for (int64_t step = 0; step < steps; step++) {
          const auto [x, y] = kind.batch_of(step);
          const int64_t share = kind.batch / c.data, first = share * mesh.coordinate("data");
          const Step done =
              train.step(1.0 / c.data, x.narrow(0, first, share), y.narrow(0, first, share), mean_of_squares);
          ASSERT_NEAR(done.loss, wanted.losses[static_cast<size_t>(step)], kTolerance) << kind.name << ", " << c.name();
        }
        train.settled([&] {
          size_t own = 0;
          for (const auto& item : net->named_parameters()) {
            if (!pipe.uses(pipe.stage(), item.key())) {
              EXPECT_EQ(item.value().numel(), 0) << item.key() << " is another stage's";
              continue;
            }
            own++;
            const double off = (item.value() - wanted.parameters.at(item.key())).abs().max().item<double>();
            EXPECT_LT(off, kTolerance) << kind.name << ", " << c.name() << ", " << item.key();
          }
          EXPECT_GT(own, 0u);
        });
      },
      Seconds(c.seconds)));
}

/// What runs one rank of a pipeline of two, with settings of its own.
using Body = std::function<void(const Mesh& mesh, int stage)>;
inline Outcomes on_two(const Body& body) {
  return run_world({0, 0}, [&](Group& all, cluster::Site&) {
    at::set_num_threads(1);
    const Mesh mesh(all, {{"data", 1}, {"pipeline", 2}});
    body(mesh, mesh.coordinate("pipeline"));
  });
}

inline std::string said(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing";
}

inline void expect_said(const Outcomes& outcomes, const std::string& words) {
  for (const auto& error : outcomes) EXPECT_NE(said(error).find(words), std::string::npos) << said(error);
}

}  // namespace trireme::tests
