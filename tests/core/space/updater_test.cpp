// label: unit
// The fused updates against libtorch's formulas, written down plainly in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <trireme/base/error.h>
#include <trireme/space/schedule.h>
#include <trireme/space/updater.h>

namespace trireme::space::tests {
namespace {

double gradient(int step, size_t i) {
  return std::sin(0.7 * step + 1.3 * static_cast<double>(i)) +
         0.1 * std::cos(static_cast<double>(i * static_cast<size_t>(step + 3)));
}

/// One parameter through one step, as torch/optim/{sgd,adagrad,adam,adamw}.py write it.
struct Reference {
  double p, buffer = 0, m = 0, v = 0, sum = 0;

  void step(const UpdaterOptions& o, double lr, double g, int t) {
    const double eps = o.epsilon.value_or(o.kind == Optimizer::adagrad ? 1e-10 : 1e-8);
    if (o.kind == Optimizer::adamw)
      p = p * (1 - lr * o.weight_decay);
    else
      g = g + o.weight_decay * p;
    switch (o.kind) {
      case Optimizer::sgd:
        p = p - lr * g;
        break;
      case Optimizer::momentum:
        buffer = t == 1 ? g : o.momentum * buffer + g;
        p = p - lr * (o.nesterov ? g + o.momentum * buffer : buffer);
        break;
      case Optimizer::adagrad:
        sum = sum + g * g;
        p = p - lr * (g / (std::sqrt(sum) + eps));
        break;
      case Optimizer::adam:
      case Optimizer::adamw: {
        m = o.beta1 * m + (1 - o.beta1) * g;
        v = o.beta2 * v + (1 - o.beta2) * g * g;
        const double m_hat_rate = lr / (1 - std::pow(o.beta1, t)),
                     denominator = std::sqrt(v) / std::sqrt(1 - std::pow(o.beta2, t)) + eps;
        p = p - m_hat_rate * (m / denominator);
        break;
      }
    }
  }
};

std::vector<UpdaterOptions> all_options() {
  return {sgd({.lr = 0.1}),
          sgd({.lr = 0.1, .weight_decay = 0.03}),
          momentum({.lr = 0.05}),
          momentum({.lr = 0.05, .momentum = 0.7, .weight_decay = 0.02}),
          momentum({.lr = 0.05, .nesterov = true}),
          momentum({.lr = 0.05, .momentum = 0.8, .nesterov = true, .weight_decay = 0.02}),
          adagrad({.lr = 0.1}),
          adagrad({.lr = 0.1, .epsilon = 0.01, .weight_decay = 0.05}),
          adam({.lr = 0.01}),
          adam({.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1}),
          adamw({.lr = 0.01}),
          adamw({.lr = 0.01, .beta1 = 0.85, .beta2 = 0.99, .weight_decay = 0.1})};
}

/// What was done by a guess is as if it had not been; what follows, as if there had been no guess.
TEST(Updater, TakesBackWhatWasAGuess) {
  for (const UpdaterOptions& options : all_options()) {
    const Layout layout({{"a", DType::f64, {40000}}, {"b", DType::f64, {7}}, {"unused", DType::f64, {5}}});
    const Range owned[] = {layout[0].range, {layout[1].range.begin, layout[2].range.end}};
    const size_t first[] = {0, 1}, last[] = {1, 3};
    std::vector<double> gradients(layout.bytes() / sizeof(double));
    struct Run {
      std::vector<double> parameters;
      Updater updater;
    };
    const std::vector<double> initial(gradients.size(), 0.5);
    Run plain{initial, Updater(options, owned)}, guessing{initial, Updater(options, owned)};
    const auto update = [&](Run& run, size_t index) {
      const uint8_t present[] = {1, 1, 0};
      const Source sources[] = {{reinterpret_cast<const std::byte*>(gradients.data()), present + first[index]}};
      update_present(run.updater, index, layout, first[index], last[index], owned[index], DType::f64,
                     reinterpret_cast<std::byte*>(run.parameters.data()), sources);
    };
    const auto state_of = [](Run& run) {
      std::vector<std::byte> bytes;
      for (const auto& view : run.updater.views()) bytes.insert(bytes.end(), view.bytes.begin(), view.bytes.end());
      for (size_t index = 0; index < 2; index++)
        for (const int64_t steps : run.updater.slot_steps(index, index == 0 ? 1 : 2))
          bytes.push_back(static_cast<std::byte>(steps));
      return bytes;
    };
    for (int step = 0; step < 6; step++) {
      for (size_t i = 0; i < gradients.size(); i++) gradients[i] = gradient(step, i);
      plain.updater.begin_step(options.lr);
      guessing.updater.begin_step(options.lr);
      const std::vector<double> before = guessing.parameters;
      const std::vector<std::byte> state_before = state_of(guessing);
      const bool right = step % 3 == 0, left_out = step % 3 == 1;
      guessing.updater.begin_guess(size_t{1} << 30);
      for (size_t index = 0; index < 2; index++) {
        ASSERT_TRUE(guessing.updater.can_guess(index));
        update(guessing, index);
      }
      EXPECT_NE(guessing.parameters, before);
      if (!right) {
        guessing.updater.take_back();
        EXPECT_EQ(guessing.parameters, before);
        EXPECT_EQ(state_of(guessing), state_before);
      }
      guessing.updater.confirm();
      if (left_out) continue;
      for (Run* run : {&plain, &guessing}) run->updater.scale(right ? 1 : 0.25);
      for (size_t index = 0; index < 2; index++) {
        update(plain, index);
        if (!right) update(guessing, index);
      }
      EXPECT_EQ(guessing.parameters, plain.parameters) << name_of(options.kind) << ", step " << step;
      EXPECT_EQ(state_of(guessing), state_of(plain)) << name_of(options.kind) << ", step " << step;
    }
    guessing.updater.begin_step(options.lr);
    guessing.updater.begin_guess(1000);
    EXPECT_FALSE(guessing.updater.can_guess(0));
    EXPECT_TRUE(guessing.updater.can_guess(1));
    guessing.updater.confirm();
  }
}

TEST(Updater, FollowsTorchForAHundredSteps) {
  constexpr size_t kCount = 1501;
  for (const UpdaterOptions& options : all_options()) {
    std::vector<double> parameters(kCount), gradients(kCount);
    std::vector<Reference> reference;
    for (size_t i = 0; i < kCount; i++) reference.push_back({parameters[i] = 2 * std::cos(static_cast<double>(i))});
    // Two owned ranges with a hole in between, which nobody updates.
    const Range owned[] = {{0, 704 * 8}, {768 * 8, kCount * 8}};
    Updater updater(options, owned);
    for (int step = 1; step <= 100; step++) {
      const double lr = options.lr / (1 + 0.01 * step);
      for (size_t i = 0; i < kCount; i++) gradients[i] = gradient(step, i);
      const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(gradients.data())};
      updater.begin_step(lr);
      for (size_t k : {1, 0})
        updater.update(k, owned[k], DType::f64, reinterpret_cast<std::byte*>(parameters.data()), sources);
      for (size_t i = 0; i < kCount; i++)
        if (i < 704 || i >= 768) reference[i].step(options, lr, gradients[i], step);
    }
    EXPECT_EQ(updater.steps(), 100);
    for (size_t i = 0; i < kCount; i++)
      ASSERT_NEAR(parameters[i], reference[i].p, 1e-12 * std::max(1.0, std::abs(reference[i].p)))
          << name_of(options.kind) << " element " << i;
  }
}

TEST(Updater, SumsTheGradientsOfAllRanks) {
  std::vector<double> parameters = {1, 2, 3}, a = {1, 1, 1}, b = {2, 3, 4}, c = {0.5, 0.25, 0.125};
  const Range owned[] = {{0, 24}};
  Updater updater(sgd({.lr = 1}), owned);
  updater.begin_step(0.5);
  const std::byte* const sources[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data()),
                                      reinterpret_cast<std::byte*>(c.data())};
  updater.update(0, {0, 24}, DType::f64, reinterpret_cast<std::byte*>(parameters.data()), sources);
  EXPECT_EQ(parameters, (std::vector<double>{1 - 1.75, 2 - 2.125, 3 - 2.5625}));
}

TEST(Updater, PiecesOfARangeKeepTheirState) {
  const auto run = [](size_t piece) {
    std::vector<float> parameters(640), gradients(640);
    const Range owned[] = {{0, 640 * 4}};
    Updater updater(adam({.lr = 0.1}), owned);
    const std::byte* const sources[] = {reinterpret_cast<std::byte*>(gradients.data())};
    for (int step = 1; step <= 5; step++) {
      for (size_t i = 0; i < 640; i++) gradients[i] = static_cast<float>(gradient(step, i));
      updater.begin_step(0.1);
      for (size_t begin = 0; begin < 640 * 4; begin += piece)
        updater.update(0, {begin, std::min<size_t>(begin + piece, 640 * 4)}, DType::f32,
                       reinterpret_cast<std::byte*>(parameters.data()), sources);
    }
    return parameters;
  };
  EXPECT_EQ(run(640 * 4), run(64));
  EXPECT_EQ(run(640 * 4), run(4 * 37));
}

TEST(Updater, AScaleHoldsForOneStep) {
  double parameter = 0, gradient = 1;
  const Range owned[] = {{0, sizeof parameter}};
  Updater updater(sgd(), owned);
  const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(&gradient)};
  const auto update = [&] {
    return updater.update(0, owned[0], DType::f64, reinterpret_cast<std::byte*>(&parameter), sources);
  };
  updater.begin_step(1);
  updater.scale(0.25);
  EXPECT_TRUE(update());
  EXPECT_EQ(parameter, -0.25);
  updater.begin_step(1);
  EXPECT_TRUE(update());
  EXPECT_EQ(parameter, -1.25);
  updater.watch(true);
  gradient = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(update());
  EXPECT_EQ(parameter, -1.25);
}

TEST(Updater, SquaresAreOfTheGradientsThatAreThere) {
  const Layout layout({{"a", DType::f64, {3}}, {"b", DType::f64, {2}}, {"c", DType::f64, {4}}});
  std::vector<std::byte> first(layout.bytes()), second(layout.bytes());
  const auto fill = [&](std::vector<std::byte>& flat, size_t slot, double value) {
    for (size_t i = 0; i < layout[slot].elements(); i++)
      reinterpret_cast<double*>(flat.data() + layout[slot].range.begin)[i] = value;
  };
  for (size_t slot = 0; slot < 3; slot++) fill(first, slot, 2), fill(second, slot, 3);
  const Range all{0, layout.bytes()};
  const uint8_t whole[] = {1, 1, 1}, part[] = {1, 0, 0};
  const Source both[] = {{first.data(), whole}, {second.data(), whole}},
               some[] = {{first.data(), part}, {second.data(), whole}},
               few[] = {{first.data(), part}, {second.data(), part}};
  EXPECT_EQ(squares_present(layout, 0, 3, all, DType::f64, nullptr, both), 9 * 25);
  EXPECT_EQ(squares_present(layout, 0, 3, all, DType::f64, nullptr, some), 3 * 25 + 6 * 9);
  EXPECT_EQ(squares_present(layout, 0, 3, all, DType::f64, first.data(), few), 3 * 25);
  EXPECT_EQ(reinterpret_cast<const double*>(first.data())[2], 5);                        // the sum
  EXPECT_EQ(*reinterpret_cast<const double*>(first.data() + layout[1].range.begin), 2);  // nobody has this one
}

TEST(Updater, ClipsWithLibtorchsFormula) {
  EXPECT_EQ(clip_factor(100, 0), 1);
  EXPECT_EQ(clip_factor(100, 10.1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(100, 5), 5 / (10 + 1e-6));
  EXPECT_EQ(clip_factor(0, 1), 1);
  for (double wrong : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    EXPECT_EQ(clip_factor(wrong, 1), 1);
}

TEST(Updater, KeepsStateForItsOwnRangesAlone) {
  const Range owned[] = {{0, 640}, {6400, 7040}};
  EXPECT_EQ(Updater(sgd(), owned).state_bytes(), 0u);
  EXPECT_EQ(Updater(momentum(), owned).state_bytes(), 1280u);
  EXPECT_EQ(Updater(adagrad(), owned).state_bytes(), 1280u);
  EXPECT_EQ(Updater(adam(), owned).state_bytes(), 2560u);
  EXPECT_EQ(Updater(adamw(), owned).state_bytes(), 2560u);
}

TEST(Updater, RefusesImpossibleSettings) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  const auto refused = [](const UpdaterOptions& options) { EXPECT_THROW(Updater(options, {}), InvalidArgument); };
  for (double lr : {-0.1, nan, infinite}) refused(sgd({.lr = lr}));
  for (double m : {-0.1, 1.0, 1.5, nan}) refused(momentum({.momentum = m}));
  for (double beta : {-0.1, 1.0, nan}) refused(adam({.beta1 = beta})), refused(adamw({.beta2 = beta}));
  for (double epsilon : {-1e-8, nan}) refused(adagrad({.epsilon = epsilon}));
  for (double decay : {-0.1, nan}) refused(sgd({.weight_decay = decay}));
  EXPECT_NO_THROW(Updater(sgd({.lr = 0}), {}));
}

TEST(Updater, RefusesTypesItCannotUpdate) {
  const Range owned[] = {{0, 64}};
  Updater updater(sgd(), owned);
  std::vector<std::byte> memory(64);
  const std::byte* const sources[] = {memory.data()};
  updater.begin_step(0.1);
  EXPECT_THROW(updater.update(0, owned[0], DType::i32, memory.data(), sources), InvalidArgument);
}

TEST(Updater, NamesGoBothWays) {
  for (const std::string& name : optimizer_names()) EXPECT_EQ(name_of(optimizer_named(name)), name);
  try {
    optimizer_named("adamm");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'adam"), std::string::npos) << error.what();
  }
}

// ---- schedules ----

TEST(Schedule, Constant) {
  EXPECT_EQ(rate_at({}, 0.1, 0), 0.1);
  EXPECT_EQ(rate_at({}, 0.1, 1000000), 0.1);
}

TEST(Schedule, WarmUpRisesInALine) {
  const ScheduleOptions options{.warmup = 4};
  EXPECT_DOUBLE_EQ(rate_at(options, 0.8, 0), 0.2);
  EXPECT_DOUBLE_EQ(rate_at(options, 0.8, 1), 0.4);
  EXPECT_DOUBLE_EQ(rate_at(options, 0.8, 3), 0.8);
  EXPECT_DOUBLE_EQ(rate_at(options, 0.8, 4), 0.8);
}

TEST(Schedule, StepFallsEveryFewSteps) {
  const ScheduleOptions options{.kind = RateSchedule::step, .step_size = 10, .gamma = 0.5};
  EXPECT_DOUBLE_EQ(rate_at(options, 1, 0), 1);
  EXPECT_DOUBLE_EQ(rate_at(options, 1, 9), 1);
  EXPECT_DOUBLE_EQ(rate_at(options, 1, 10), 0.5);
  EXPECT_DOUBLE_EQ(rate_at(options, 1, 39), 0.125);
  const ScheduleOptions warm{.kind = RateSchedule::step, .warmup = 5, .step_size = 10, .gamma = 0.5};
  EXPECT_DOUBLE_EQ(rate_at(warm, 1, 14), 1);
  EXPECT_DOUBLE_EQ(rate_at(warm, 1, 15), 0.5);
}

TEST(Schedule, CosineFallsToItsFloor) {
  const ScheduleOptions options{.kind = RateSchedule::cosine, .total = 100, .floor = 0.1};
  EXPECT_DOUBLE_EQ(rate_at(options, 2, 0), 2);
  EXPECT_NEAR(rate_at(options, 2, 50), 2 * 0.55, 1e-12);
  EXPECT_NEAR(rate_at(options, 2, 25), 2 * (0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5))), 1e-12);
  EXPECT_NEAR(rate_at(options, 2, 100), 0.2, 1e-12);
  EXPECT_NEAR(rate_at(options, 2, 5000), 0.2, 1e-12);
  const ScheduleOptions warm{.kind = RateSchedule::cosine, .warmup = 20, .total = 100};
  EXPECT_DOUBLE_EQ(rate_at(warm, 2, 20), 2);
  EXPECT_NEAR(rate_at(warm, 2, 60), 1, 1e-12);
  EXPECT_NEAR(rate_at(warm, 2, 100), 0, 1e-12);
}

TEST(Schedule, NamesGoBothWays) {
  EXPECT_EQ(schedule_named("cosine"), RateSchedule::cosine);
  EXPECT_EQ(schedule_names().size(), 3u);
  EXPECT_THROW(schedule_named("cosin"), InvalidArgument);
}

// ---- state ----

Layout three_slots() { return Layout({{"a", DType::f64, {13}}, {"b", DType::f64, {5, 7}}, {"c", DType::f64, {4}}}); }

/// Steps [first, last) of two owned ranges, which cut slot b; slot c has a gradient every second time.
void steps(Updater& updater, const Layout& layout, std::span<const Range> owned, std::vector<double>& parameters,
           int first, int last) {
  for (int step = first; step < last; step++) {
    std::vector<double> gradients(parameters.size());
    for (size_t i = 0; i < gradients.size(); i++) gradients[i] = gradient(step, i);
    const uint8_t present[] = {1, 1, static_cast<uint8_t>(step % 2)};
    const Source source[] = {{reinterpret_cast<const std::byte*>(gradients.data()), present}};
    updater.begin_step(0.1);
    for (size_t index = 0; index < owned.size(); index++)
      update_present(updater, index, layout, 0, 3, owned[index], DType::f64,
                     reinterpret_cast<std::byte*>(parameters.data()), source);
  }
}

TEST(UpdaterState, GoesOnInAnotherUpdater) {
  const Layout layout = three_slots();
  const std::vector<Range> owned = {{0, 192}, {192, layout.bytes()}};
  for (const UpdaterOptions& options : all_options()) {
    std::vector<double> whole(layout.bytes() / sizeof(double), 0.5), parts = whole;
    Updater all(options, owned), before(options, owned), after(options, owned);
    steps(all, layout, owned, whole, 0, 9);
    steps(before, layout, owned, parts, 0, 4);
    const std::vector<Updater::View> from = before.views(), to = after.views();
    ASSERT_EQ(from.size(), to.size());
    EXPECT_EQ(from.size(), 2 * state_names(options.kind).size());
    size_t bytes = 0;
    for (size_t i = 0; i < from.size(); i++) {
      EXPECT_EQ(from[i].vector, state_names(options.kind)[i / 2]);
      EXPECT_EQ(from[i].range, owned[i % 2]);
      ASSERT_EQ(from[i].bytes.size(), from[i].range.size());
      std::copy(from[i].bytes.begin(), from[i].bytes.end(), to[i].bytes.begin());
      bytes += from[i].bytes.size();
    }
    EXPECT_LE(bytes, before.state_bytes());
    for (size_t index = 0; index < 2; index++) {
      const auto counted = before.slot_steps(index, 3), taken = after.slot_steps(index, 3);
      ASSERT_EQ(counted.size(), counts_steps(options.kind) ? 3u : 0u);
      std::copy(counted.begin(), counted.end(), taken.begin());
      if (index == 0 || counted.empty()) continue;
      EXPECT_EQ(counted[2], 2) << "c had a gradient twice";
      EXPECT_EQ(counted[0], 0) << "a is not in it";
    }
    after.restart(before.steps());
    EXPECT_EQ(after.steps(), 4);
    steps(after, layout, owned, parts, 4, 9);
    EXPECT_EQ(parts, whole) << name_of(options.kind);
  }
}

/// An updater that has gone further goes back: a step that it counted before is counted again.
TEST(UpdaterState, GoesBack) {
  const Layout layout = three_slots();
  const std::vector<Range> owned = {{0, layout.bytes()}};
  std::vector<double> parameters(layout.bytes() / sizeof(double), 0.5);
  Updater updater(adam({.lr = 0.1}), owned);
  steps(updater, layout, owned, parameters, 0, 6);
  const std::span<int64_t> counts = updater.slot_steps(0, 3);
  std::fill(counts.begin(), counts.end(), 5);
  updater.restart(5);
  steps(updater, layout, owned, parameters, 5, 6);
  EXPECT_EQ(std::vector<int64_t>(counts.begin(), counts.end()), (std::vector<int64_t>{6, 6, 6}));
}

TEST(UpdaterState, NamesAreThoseOfFiles) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(state_names(Optimizer::sgd), Names{});
  EXPECT_EQ(state_names(Optimizer::momentum), Names{"optimizer/momentum"});
  EXPECT_EQ(state_names(Optimizer::adagrad), Names{"optimizer/sum"});
  EXPECT_EQ(state_names(Optimizer::adam), (Names{"optimizer/first_moment", "optimizer/second_moment"}));
  EXPECT_EQ(state_names(Optimizer::adamw), (Names{"optimizer/first_moment", "optimizer/second_moment"}));
}

}  // namespace
}  // namespace trireme::space::tests
