// label: multiproc
// ZeRO 1, 2 and 3 on any module: ranks as threads, on one machine and on several, against one process with libtorch's
// own optimizers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <mutex>

#include <trireme/parallel/parallel.h>

#include "../core/cluster/groups.h"

namespace trireme::tests {
namespace {

constexpr int kSteps = 20, kBatch = 8, kClasses = 5;

/// Convolutions and layers of more than one page, a part of which one can freeze.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(uint64_t seed = 1) {
    static std::mutex one_at_a_time;  // they share a generator
    const std::lock_guard lock(one_at_a_time);
    torch::manual_seed(seed);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    first = register_module("first", torch::nn::Linear(4 * 6 * 6, 96));
    second = register_module("second", torch::nn::Linear(96, 64));
    last = register_module("last", torch::nn::Linear(64, kClasses));
    to(torch::kFloat64);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv->forward(x)).flatten(1);
    x = torch::tanh(first->forward(x));
    return last->forward(torch::tanh(second->forward(x)));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

struct Sample {
  torch::Tensor x, y;
};

Sample batch_of(int step) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + step));
  return {torch::randn({kBatch, 1, 6, 6}, generator, torch::kFloat64),
          torch::randint(0, kClasses, {kBatch}, generator, torch::kInt64)};
}

struct Case {
  std::vector<int> machine_of;
  int zero = 1;
  std::string optimizer = "adam";
  double clip = 0;
  int accumulate = 1;
  bool frozen = false, idle = false, overlap_next = false;  // idle: some ranks have no samples in some steps
  int64_t poisoned = -1;                                    // the step whose gradient has a NaN, on the last rank
  size_t window = 1;                                        // the least
};

bool is_frozen(const Case& c, int step) { return c.frozen && step >= 5 && step < 12; }

std::string name_of(const Case& c) {
  std::string machines;
  for (int machine : c.machine_of) machines += std::to_string(machine);
  return fmt::format("zero {} on machines {}, {}, clip {}, accumulate {}, frozen {}, idle {}, next {}, nan {}", c.zero,
                     machines, c.optimizer, c.clip, c.accumulate, c.frozen, c.idle, c.overlap_next, c.poisoned);
}

std::vector<torch::Tensor> alone(const Case& c) {
  Net net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (c.optimizer == "adam")
    optimizer = std::make_unique<torch::optim::Adam>(net->parameters(), torch::optim::AdamOptions(0.01));
  else
    optimizer = std::make_unique<torch::optim::SGD>(
        net->parameters(), torch::optim::SGDOptions(0.05).momentum(c.optimizer == "momentum" ? 0.9 : 0));
  for (int step = 0; step < kSteps; step++) {
    if (step == c.poisoned) continue;
    for (auto& parameter : net->first->parameters()) parameter.set_requires_grad(!is_frozen(c, step));
    optimizer->zero_grad();
    for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    for (int micro = 0; micro < c.accumulate; micro++) {
      const Sample sample = batch_of(step * c.accumulate + micro);
      (torch::cross_entropy_loss(net->forward(sample.x), sample.y) / c.accumulate).backward();
    }
    if (c.clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), c.clip);
    optimizer->step();
  }
  return net->parameters();
}

space::UpdaterOptions optimizer_of(const std::string& name) {
  if (name == "adam") return space::adam({.lr = 0.01});
  return name == "momentum" ? space::momentum({.lr = 0.05}) : space::sgd({.lr = 0.05});
}

/// In a step in which some are idle, the first rank has the whole batch.
void train(const Case& c, const Group& group, const std::vector<torch::Tensor>& wanted) {
  at::set_num_threads(1);
  Net net(group.first() ? 1 : 77);
  const int rank = group.rank(), ranks = group.size();
  ParallelOptions options{.exchange = {.bucket_bytes = 20000,
                                       .clip = c.clip,
                                       .on_nan = c.poisoned >= 0 ? exchange::OnNan::skip : exchange::OnNan::stop,
                                       .zero = c.zero,
                                       .zero_window = c.window},
                          .accumulate = c.accumulate,
                          .overlap_next = c.overlap_next};
  Parallel train(group, *net, optimizer_of(c.optimizer), options);
  for (int step = 0; step < kSteps; step++) {
    for (auto& parameter : net->first->parameters()) parameter.set_requires_grad(!is_frozen(c, step));
    const bool some_idle = c.idle && step % 4 == 3;
    for (int micro = 0; micro < c.accumulate; micro++) {
      const Sample all = batch_of(step * c.accumulate + micro);
      const int64_t begin = some_idle ? 0 : kBatch * rank / ranks;
      const int64_t end = some_idle ? (rank == 0 ? kBatch : 0) : kBatch * (rank + 1) / ranks;
      const double weight = static_cast<double>(end - begin) / kBatch / c.accumulate;
      const Step done = train.step(weight, [&] {
        torch::Tensor output = net->forward(all.x.slice(0, begin, end));
        if (step == c.poisoned && rank == ranks - 1) output = output * std::nan("");
        return torch::cross_entropy_loss(output, all.y.slice(0, begin, end));
      });
      ASSERT_EQ(done.skipped, step == c.poisoned && micro + 1 == c.accumulate) << name_of(c);
    }
  }
  train.settled([&] {
    const auto got = net->parameters();
    for (size_t i = 0; i < wanted.size(); i++)
      ASSERT_LT((got[i] - wanted[i]).abs().max().item<double>(), 1e-9) << name_of(c) << ", parameter " << i;
  });
}

void expect_parity(const Case& c) {
  const std::vector<torch::Tensor> wanted = alone(c);
  expect_all_well(run_world(c.machine_of, [&](Group& group, cluster::Site&) { train(c, group, wanted); }));
}

const std::vector<std::vector<int>> kShapes = {{0}, {0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 0, 1}, {0, 1, 2, 3}};

TEST(Zero, EveryStageOnEveryShapeIsOneProcess) {
  for (int zero : {1, 2, 3})
    for (const auto& machine_of : kShapes) expect_parity({.machine_of = machine_of, .zero = zero});
}

TEST(Zero, WithEveryOptimizer) {
  for (int zero : {1, 2, 3})
    for (const char* optimizer : {"sgd", "momentum"})
      expect_parity({.machine_of = {0, 1, 1}, .zero = zero, .optimizer = optimizer});
}

TEST(Zero, WithClippingAccumulationFrozenLayersAndIdleRanks) {
  for (int zero : {1, 2, 3})
    for (const auto& machine_of : {std::vector{0, 1}, std::vector{0, 1, 0, 1}, std::vector{0, 0}}) {
      expect_parity({.machine_of = machine_of, .zero = zero, .clip = 0.5});
      expect_parity({.machine_of = machine_of, .zero = zero, .accumulate = 3});
      expect_parity({.machine_of = machine_of, .zero = zero, .frozen = true});
      expect_parity({.machine_of = machine_of, .zero = zero, .idle = true});
      expect_parity({.machine_of = machine_of, .zero = zero, .overlap_next = true});
      expect_parity({.machine_of = machine_of, .zero = zero, .optimizer = "momentum", .poisoned = 7});
      expect_parity({.machine_of = machine_of, .zero = zero, .clip = 0.5, .accumulate = 2, .idle = true, .window = 0});
    }
}

TEST(Zero, ANanStopsAllRanksAfterTheSameUpdate) {
  for (int zero : {1, 2, 3})
    for (const bool next : {false, true}) {
      std::atomic<int> told{0};
      expect_all_well(run_world({0, 1, 1}, [&](Group& group, cluster::Site&) {
        at::set_num_threads(1);
        Net net;
        Parallel train(group, *net, space::adam(),
                       ParallelOptions{.exchange = {.bucket_bytes = 20000, .zero = zero}, .overlap_next = next});
        const Sample all = batch_of(0);
        int64_t done = 0;
        try {
          for (int step = 0; step < 5; step++) {
            train.step([&] {
              torch::Tensor loss = torch::cross_entropy_loss(net->forward(all.x), all.y);
              if (step == 2 && group.rank() == 1)  // the loss is a number, its gradient is not
                loss = loss + torch::sqrt(net->second->bias.abs().sum() * 0);
              return loss;
            });
            done++;
          }
        } catch (const NotFinite& error) {
          EXPECT_EQ(done, next ? 3 : 2) << error.what();
          EXPECT_NE(std::string(error.what()).find("second.bias"), std::string::npos) << error.what();
          told++;
        }
      }));
      EXPECT_EQ(told, 3) << "zero " << zero;
    }
}

/// In the very first step nobody knows yet which parameters are used when.
TEST(Zero, AFirstStepWithoutSamplesIsRefused) {
  const auto outcomes = run_world({0, 1}, [&](Group& group, cluster::Site&) {
    Net net;
    Parallel train(group, *net, space::sgd(), ParallelOptions{.exchange = {.zero = 3}});
    const Sample all = batch_of(0);
    train.step(group.rank() == 0 ? 1 : 0, [&] { return torch::cross_entropy_loss(net->forward(all.x), all.y); });
  });
  ASSERT_TRUE(outcomes[1]);
  expect_error<InvalidArgument>(outcomes[1], {"no samples in the first step"});
  EXPECT_TRUE(outcomes[0]) << "the other one hears that it is gone";
}

/// Ranks that use parameters in different orders are told which, and do not wait for each other.
TEST(Zero, DifferentOrdersAreAMismatch) {
  const auto outcomes = run_world({0, 1}, [&](Group& group, cluster::Site&) {
    Net net;
    Parallel train(group, *net, space::sgd(), ParallelOptions{.exchange = {.bucket_bytes = 1, .zero = 3}});
    const Sample all = batch_of(0);
    train.step([&] {
      if (group.rank() == 1) net->last->weight.sum();
      return torch::cross_entropy_loss(net->forward(all.x), all.y);
    });
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    try {
      std::rethrow_exception(outcome);
    } catch (const Mismatch& error) {
      EXPECT_NE(std::string(error.what()).find("last.weight"), std::string::npos) << error.what();
    } catch (const PeerLost&) {  // the other one was told first
    }
  }
}

TEST(Zero, LooksAlikeWithinTheWindowAndChangesByHand) {
  expect_all_well(run_world({0, 1}, [&](Group& group, cluster::Site&) {
    at::set_num_threads(1);
    Net net(group.first() ? 1 : 2), reference;
    Parallel train(group, *net, space::sgd(), ParallelOptions{.exchange = {.bucket_bytes = 20000, .zero = 3}});
    const Sample all = batch_of(0);
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; i++)
      train.settled([&] { EXPECT_TRUE(net->forward(all.x).equal(reference->forward(all.x))); }, Parallel::Looks::alike);
    train.exclusive([&] { net->second->weight.mul_(2); });
    reference->second->weight.mul_(2);
    for (int i = 0; i < 2; i++)
      train.settled([&] { EXPECT_TRUE(net->forward(all.x).equal(reference->forward(all.x))); });
  }));
}

/// A checkpoint of any stage and crew is the ordinary one.
TEST(Zero, CheckpointsMoveBetweenStages) {
  const std::string dir = std::filesystem::temp_directory_path() / fmt::format("zero-test-{}", getpid());
  std::vector<std::string> hashes;
  const auto job = [&](int zero, const std::vector<int>& machine_of, bool resumes) {
    std::string hash;
    expect_all_well(run_world(machine_of, [&](Group& group, cluster::Site&) {
      at::set_num_threads(1);
      Net net;
      Parallel train(group, *net, space::adam(), ParallelOptions{.exchange = {.bucket_bytes = 20000, .zero = zero}});
      if (resumes) train.load_state(dir);
      const Sample all = batch_of(0);
      if (!resumes)
        for (int step = 0; step < 3; step++)
          train.step([&] { return torch::cross_entropy_loss(net->forward(all.x), all.y); });
      if (!resumes) train.save_state(dir);
      const std::string mine = train.sha256();
      if (group.first()) hash = mine;
    }));
    return hash;
  };
  const std::string saved = job(3, {0, 1, 1}, false);
  for (int zero : {0, 1, 2, 3})
    for (const auto& machine_of : {std::vector{0}, std::vector{0, 1}, std::vector{0, 1, 2}})
      EXPECT_EQ(job(zero, machine_of, true), saved) << "zero " << zero << " on " << machine_of.size();
  std::filesystem::remove_all(dir);
}

/// Any model, trained with SGD by one process and by ranks, on random inputs; in every fourth step the first rank has
/// the whole batch, and the others none.
template <class Make, class Loss>
void expect_same(const std::vector<int>& machine_of, const Make& make, const Loss& loss, double limit,
                 const exchange::Options& options = {.zero = 3}) {
  constexpr double kRate = 0.05;
  constexpr int kFew = 8;
  const auto made = [&] {
    static std::mutex one_at_a_time;  // they share a generator
    const std::lock_guard lock(one_at_a_time);
    torch::manual_seed(3);
    return make();
  };
  auto whole = made();
  torch::optim::SGD optimizer(whole->parameters(), torch::optim::SGDOptions(kRate));
  for (int step = 0; step < kFew; step++) {
    optimizer.zero_grad();
    loss(whole, step, 0, kBatch).backward();
    optimizer.step();
  }
  expect_all_well(run_world(machine_of, [&](Group& group, cluster::Site&) {
    at::set_num_threads(1);
    auto net = made();
    Parallel train(group, *net, space::sgd({.lr = kRate}), ParallelOptions{.exchange = options, .overlap_next = true});
    for (int step = 0; step < kFew; step++) {
      const bool some_idle = step % 4 == 3;
      const int64_t begin = some_idle ? 0 : kBatch * group.rank() / group.size();
      const int64_t end = some_idle ? (group.first() ? kBatch : 0) : kBatch * (group.rank() + 1) / group.size();
      train.step(static_cast<double>(end - begin) / kBatch, [&] { return loss(net, step, begin, end); });
    }
    train.settled([&] {
      for (size_t i = 0; i < whole->parameters().size(); i++)
        ASSERT_LT((net->parameters()[i] - whole->parameters()[i]).abs().max().template item<double>(), limit) << i;
    });
  }));
}

torch::Tensor rows_of(int step, int64_t begin, int64_t end, std::vector<int64_t> shape, torch::Dtype type) {
  shape.insert(shape.begin(), kBatch);
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(50 + step));
  return torch::randn(shape, generator, type).slice(0, begin, end);
}

/// Machines own a page more or less of a bucket, and still have to gather the same ones in the same order.
TEST(Zero, LayersWhosePagesCannotBeDividedEvenly) {
  const auto make = [] {
    torch::nn::Sequential net;
    for (int i = 0; i < 6; i++) {
      net->push_back(torch::nn::Linear(600, 600));
      net->push_back(torch::nn::Tanh());
    }
    return net;
  };
  const auto loss = [](auto& net, int step, int64_t begin, int64_t end) {
    return net->forward(rows_of(step, begin, end, {600}, torch::kFloat32)).square().mean();
  };
  for (const std::vector<int>& machine_of : {std::vector{0, 1}, {0, 1, 2}}) expect_same(machine_of, make, loss, 1e-5);
}

/// A rank without samples repeats what the others do, also where an operator uses many parameters at a time.
TEST(Zero, OperatorsThatUseMoreThanTheWindow) {
  const auto make = [] {
    torch::nn::LSTM net(torch::nn::LSTMOptions(96, 96).num_layers(4).batch_first(true));
    net->to(torch::kFloat64);
    return net;
  };
  const auto loss = [](auto& net, int step, int64_t begin, int64_t end) {
    return std::get<0>(net->forward(rows_of(step, begin, end, {5, 96}, torch::kFloat64))).square().mean();
  };
  const exchange::Options least{.bucket_bytes = 20000, .zero = 3, .zero_window = 1};
  for (const std::vector<int>& machine_of : {std::vector{0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}})
    expect_same(machine_of, make, loss, 1e-9, least);
  expect_same({0, 0, 1, 1}, make, loss, 1e-9);
}

/// What was gathered to look at the model is of no more use when another state is loaded.
TEST(Zero, LoadsAStateAfterItWasLookedAt) {
  const std::filesystem::path dir = std::filesystem::temp_directory_path() / fmt::format("zero-look-{}", getpid());
  std::filesystem::remove_all(dir);
  std::vector<std::string> hashes(2);
  expect_all_well(run_world({0, 1}, [&](Group& group, cluster::Site&) {
    at::set_num_threads(1);
    Net net;
    Parallel train(group, *net, space::momentum({.lr = 0.05}), ParallelOptions{.exchange = {.zero = 3}});
    const auto step = [&](int number) {
      const Sample all = batch_of(number);
      const int64_t begin = kBatch * group.rank() / 2, end = kBatch * (group.rank() + 1) / 2;
      train.step(0.5, [&] {
        return torch::cross_entropy_loss(net->forward(all.x.slice(0, begin, end)), all.y.slice(0, begin, end));
      });
    };
    for (int i = 0; i < 3; i++) step(i);
    train.save_state(dir);
    step(3);
    const std::string once = train.sha256();
    step(4);
    train.settled([&] { net->forward(batch_of(9).x); }, Parallel::Looks::alike);
    train.load_state(dir);
    step(3);
    const std::string again = train.sha256();
    if (group.first()) hashes = {once, again};
  }));
  EXPECT_FALSE(hashes[0].empty());
  EXPECT_EQ(hashes[0], hashes[1]);
  std::filesystem::remove_all(dir);
}

/// As on systems that make no holes in memory files. For the thread that calls it, until it ends. False: not here.
bool forbid_holes() {
  constexpr auto at = [](size_t field) { return static_cast<uint32_t>(field); };
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at(offsetof(seccomp_data, nr))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at(offsetof(seccomp_data, args[1]))),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, FALLOC_FL_PUNCH_HOLE, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Zero, IsRefusedWhereMemoryCannotBeGivenBack) {
  std::atomic<bool> permitted{true};
  for (int zero : {1, 2, 3}) {
    const auto outcomes = run_world({0, 1}, [&](Group& group, cluster::Site&) {
      if (!forbid_holes()) return void(permitted.store(false));
      Net net;
      const Parallel train(group, *net, space::sgd(), ParallelOptions{.exchange = {.zero = zero}});
    });
    if (!permitted.load()) GTEST_SKIP() << "no filters of system calls here";
    for (const auto& outcome : outcomes) {
      ASSERT_EQ(outcome != nullptr, zero > 1) << zero;
      if (outcome) expect_error<IoError>(outcome, {"no holes in memory files", "use zero 1"});
    }
  }
}

}  // namespace
}  // namespace trireme::tests
