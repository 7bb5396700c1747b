// label: unit
// Gradients that travel between machines as messages of codecs.
#include <gtest/gtest.h>

#include <array>

#include <trireme/base/error.h>
#include <trireme/exchange/coding.h>
#include <trireme/state/image.h>

#include "../compress/gradients.h"
#include "crews.h"

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using trireme::tests::expect_all_well;
using trireme::tests::expect_error;
using trireme::tests::OnMachine;
using trireme::tests::run_machines;
using Parameters = std::vector<float>;

const std::vector<std::string> kEach =
    compress::tests::each_codec({{"topk", {"0.05"}}, {"randomk", {"0.2"}}, {"sketch", {"0.3"}}});
constexpr float kRate = 0.05f;

/// Several buckets; one slot of several pieces, in strips that do not divide it; two that are never encoded.
Layout model() {
  return Layout({{"large", DType::f32, {700, 601}},
                 {"large.bias", DType::f32, {601}},
                 {"middle", DType::f32, {40, 37}},
                 {"never", DType::f32, {30, 11}},
                 {"last", DType::f32, {7, 3}}});
}

float noise(int rank, int step, size_t slot, size_t i) {
  const size_t seed = static_cast<size_t>(rank) * 7919 + static_cast<size_t>(step) * 104729 + slot * 1299709 + i;
  const uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15;
  return static_cast<float>((mixed ^ (mixed >> 31)) >> 40) * 0x1p-23f - 1;
}

bool has(int rank, int step, size_t slot) {
  if (slot == 2 && step % 4 == 1) return rank == 0;
  return slot != 3 || step % 3 != 2;  // nobody
}

float* values(std::byte* flat, const space::Slot& slot) { return reinterpret_cast<float*>(flat + slot.range.begin); }

Options coded(const std::string& codec, const Sync& sync = Sync::shared) {
  Options options{.sync = sync, .bucket_bytes = 20000};
  options.codec = compress::spec_named(codec);
  options.seed = 11;
  return options;
}

/// `bad`: in this step rank 0 has a NaN.
void one_step(Exchange& exchange, int rank, int step, int bad = -1) {
  const Layout& layout = exchange.flat().layout();
  exchange.begin(static_cast<double>(kRate));
  if (exchange.paging() != nullptr) use_in_order(exchange);
  exchange.open();
  for (size_t b = 0; b < exchange.flat().buckets().size(); b++) {
    for (size_t slot = exchange.flat().buckets()[b].first; slot < exchange.flat().buckets()[b].last; slot++) {
      float* const gradient = values(exchange.flat().gradients(), layout[slot]);
      for (size_t i = 0; i < layout[slot].elements(); i++) gradient[i] = noise(rank, step, slot, i);
      if (step == bad && rank == 0 && slot == 0) gradient[5] = std::nanf("");
      if (has(rank, step, slot)) exchange.flat().present(slot);
    }
    exchange.tell({1.0 * rank + step});
    exchange.ready(b);
  }
  exchange.close();
  exchange.land();
  EXPECT_EQ(exchange.outcome().sound, step != bad);
}

Parameters parameters_of(Exchange& exchange) {
  const Reading reading(exchange);
  Parameters all;
  for (const space::Slot& slot : exchange.flat().layout().slots()) {
    const float* const at = values(exchange.flat().parameters(), slot);
    all.insert(all.end(), at, at + slot.elements());
  }
  return all;
}

struct Job {
  std::vector<int> machine_of = {0, 0, 1, 1};
  Options options{};
  std::vector<int> steps = {0, 1, 2, 3};
  int bad = -1;
};

/// By rank, what it has in the end.
std::vector<Parameters> trained(const Job& job) {
  std::vector<Parameters> ended(job.machine_of.size());
  expect_all_well(run_machines(job.machine_of, [&](const OnMachine& rank) {
    const auto exchange = make_exchange(group_of(rank), model(), space::momentum(), job.options);
    const int ranks = rank.all.size(), me = rank.all.rank();
    for (const int step : job.steps) {
      one_step(*exchange, me, step, job.bad);
      if (exchange->traits().tells) {
        EXPECT_EQ(exchange->outcome().told[0], ranks * step + ranks * (ranks - 1) / 2);
      }
    }
    ended[static_cast<size_t>(me)] = parameters_of(*exchange);
    rank.all.barrier("read");
  }));
  return ended;
}

double squares(const Parameters& all) { return compress::tests::squares(all); }

/// Each codec, and some in each other mode that takes one.
struct Case {
  std::string codec;
  Sync sync;
  int zero = 0;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& codec : kEach) all.push_back({codec, Sync::shared});
  for (const char* const codec : {"int8", "topk:0.05", "powersgd:2"}) all.push_back({codec, Sync::allreduce});
  for (const int zero : {1, 2, 3})
    for (const char* const codec : {"bf16", "topk:0.05", "powersgd:2"}) all.push_back({codec, Sync::shared, zero});
  return all;
}

class Coded : public testing::TestWithParam<Case> {
 protected:
  static const std::string& codec() { return GetParam().codec; }
  static Options options() {
    Options options = coded(codec(), GetParam().sync);
    options.zero = GetParam().zero;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Codecs, Coded, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = name_of(info.param.sync) + "_" + info.param.codec;
  if (info.param.zero > 0) name += fmt::format("_zero_{}", info.param.zero);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

/// Whatever is left out: each machine has what all have, and the next run has it too.
TEST_P(Coded, AllMachinesHaveTheSameBits) {
  for (const auto& machine_of : {std::vector{0, 1}, std::vector{0, 0, 1, 1}, std::vector{0, 1, 1, 2}}) {
    Options options = this->options();
    const std::vector<Parameters> first = trained({machine_of, options});
    for (const Parameters& other : first) EXPECT_EQ(other, first[0]);
    options.overlap = false;
    EXPECT_EQ(trained({machine_of, options})[0], first[0]);
    if (options.zero > 0) continue;
    options.sync = Sync::shared;  // the same sums, in the same slices
    EXPECT_EQ(trained({machine_of, options})[0], first[0]);
  }
}

/// A program that keeps an optimizer of its own finds the sums of all ranks, and they are the same bits everywhere.
TEST(Coding, LeavesSumsToAnOptimizerOfTheProgram) {
  std::vector<Parameters> sums(3);
  expect_all_well(run_machines({0, 0, 1}, [&](const OnMachine& rank) {
    const int me = rank.all.rank();
    const auto exchange = make_exchange(group_of(rank), model(), {}, coded("bf16", Sync::allreduce));
    for (int step = 0; step < 3; step++) one_step(*exchange, me, step);
    const Layout& layout = exchange->flat().layout();
    EXPECT_FALSE(exchange->flat().was_present(3));
    for (const size_t slot : {size_t{0}, size_t{1}, size_t{2}, size_t{4}}) {
      EXPECT_TRUE(exchange->flat().was_present(slot));
      const float* const sum = values(exchange->flat().gradients(), layout[slot]);
      for (size_t i = 0; i < layout[slot].elements(); i++) {
        const float wanted = noise(0, 2, slot, i) + noise(1, 2, slot, i) + noise(2, 2, slot, i);
        ASSERT_NEAR(sum[i], wanted, 3 * 0x1p-6f) << layout[slot].name;
      }
      sums[static_cast<size_t>(me)].insert(sums[static_cast<size_t>(me)].end(), sum, sum + layout[slot].elements());
    }
    rank.all.barrier("read");
  }));
  for (const Parameters& other : sums) EXPECT_EQ(other, sums[0]);
}

/// Biases travel as they are, and so does what was excluded.
TEST_P(Coded, LeavesBiasesAndWhatIsExcludedAlone) {
  Options options = this->options();
  options.codec_excludes = {"lar*", "n?ver"};
  const Parameters got = trained({{0, 1}, options})[0], wanted = trained({{0, 1}, {.bucket_bytes = 20000}})[0];
  const Layout layout = model();
  size_t at = 0;
  double left_out = 0;
  for (size_t slot = 0; slot < layout.size(); slot++)
    for (size_t i = 0; i < layout[slot].elements(); i++, at++)
      if (slot == 0 || slot == 1 || slot == 3) {
        ASSERT_FLOAT_EQ(got[at], wanted[at]) << layout[slot].name;
      } else {
        left_out += std::abs(got[at] - wanted[at]);
      }
  EXPECT_GT(left_out, 0) << "nothing was encoded";
}

/// "As if its batch had not been there": nor is anything remembered of it.
TEST_P(Coded, ASkippedStepLeavesNothing) {
  if (codec() == "int8" || codec().starts_with("randomk") || codec().starts_with("sketch")) return;  // by chance
  if (codec().starts_with("powersgd")) return;  // it has turned its factors
  Options options = this->options();
  options.on_nan = OnNan::skip;
  const Parameters got = trained({{0, 1}, options, {0, 1, 2, 3, 4}, 2})[0];
  const Parameters wanted = trained({{0, 1}, options, {0, 1, 3, 4}})[0];
  EXPECT_EQ(got, wanted);
}

/// The same after a checkpoint as without one: what is kept for later is in it. powersgd begins with other factors.
TEST_P(Coded, GoesOnFromACheckpoint) {
  if (codec().starts_with("powersgd")) return;
  const std::vector<int> machine_of = {0, 0, 1, 1};
  const Parameters wanted = trained({machine_of, options()})[0];
  std::vector<state::Image> kept(machine_of.size());
  for (const bool again : {false, true}) {
    std::vector<Parameters> ended(machine_of.size());
    expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
      const int me = rank.all.rank();
      state::Image& mine = kept[static_cast<size_t>(me)];
      const auto exchange = make_exchange(group_of(rank), model(), space::momentum(), options());
      if (again) exchange->state().restore(mine);
      for (int step = again ? 2 : 0; step < (again ? 4 : 2); step++) one_step(*exchange, me, step);
      if (!again) exchange->state().visit(mine);
      ended[static_cast<size_t>(me)] = parameters_of(*exchange);
      rank.all.barrier("read");
    }));
    for (const Parameters& other : ended) {
      EXPECT_EQ(other, ended[0]);
      EXPECT_EQ(other, again ? wanted : ended[0]);
    }
  }
}

/// A rank's loss is Σ (x − its own point)² / 2: together they have their minimum at the mean of the points, where no
/// rank's gradient is zero. What is left out must come in the end. A sketch of
/// 0.3 sends one value of forty, and takes longer.
TEST_P(Coded, ConvergesToTheSameOptimum) {
  const Layout layout({{"a", DType::f32, {31, 21}}, {"b", DType::f32, {5, 3}}});
  const int steps = codec().starts_with("sketch") ? 2000 : 500;
  expect_all_well(run_machines({0, 1}, [&](const OnMachine& rank) {
    const int me = rank.all.rank();
    const auto exchange = make_exchange(group_of(rank), layout, space::sgd(), options());
    for (int step = 0; step < steps; step++) {
      const Parameters x = parameters_of(*exchange);
      exchange->begin(0.2 / (1 + step / 25.0));
      if (exchange->paging() != nullptr) use_in_order(*exchange);
      exchange->open();
      size_t at = 0;
      for (size_t slot = 0; slot < layout.size(); slot++) {
        float* const gradient = values(exchange->flat().gradients(), layout[slot]);
        for (size_t i = 0; i < layout[slot].elements(); i++, at++) gradient[i] = (x[at] - noise(me, 0, slot, i)) / 2;
        exchange->flat().present(slot);
      }
      for (size_t b = 0; b < exchange->flat().buckets().size(); b++) exchange->ready(b);
      exchange->close();
      exchange->land();
    }
    double distance = 0, before = 0;
    const Parameters ended = parameters_of(*exchange);
    size_t at = 0;
    for (size_t slot = 0; slot < layout.size(); slot++)
      for (size_t i = 0; i < layout[slot].elements(); i++, at++) {
        const double optimum = 0.5 * (noise(0, 0, slot, i) + noise(1, 0, slot, i));
        distance += (ended[at] - optimum) * (ended[at] - optimum);
        before += optimum * optimum;
      }
    EXPECT_LT(std::sqrt(distance / before), 0.05) << "rank " << me;
    rank.all.barrier("read");
  }));
}

/// What was rounded away is less than one residual: the sum of all steps is as near to the true one as a single step.
TEST(Coding, SixteenBitsAreWithinRounding) {
  Options plain{.bucket_bytes = 20000};
  const auto run = [&](const Options& options) {
    std::vector<Parameters> ended(2);
    expect_all_well(run_machines({0, 1}, [&](const OnMachine& rank) {
      const auto exchange = make_exchange(group_of(rank), model(), space::sgd(), options);
      for (int step = 0; step < 10; step++) one_step(*exchange, rank.all.rank(), step);
      ended[static_cast<size_t>(rank.all.rank())] = parameters_of(*exchange);
      rank.all.barrier("read");
    }));
    return ended[0];
  };
  const Parameters wanted = run(plain), half = run(coded("fp16")), brain = run(coded("bf16"));
  for (size_t i = 0; i < wanted.size(); i++) {
    ASSERT_NEAR(half[i], wanted[i], 2 * kRate * 0x1p-10f);
    ASSERT_NEAR(brain[i], wanted[i], 2 * kRate * 0x1p-7f);
  }
}

TEST(Coding, ClipsWhatArrives) {
  Options options = coded("topk:0.05");
  options.clip = 0.5;
  const std::vector<Parameters> all = trained({{0, 0, 1}, options});
  for (const Parameters& other : all) EXPECT_EQ(other, all[0]);
  EXPECT_LT(squares(all[0]), squares(trained({{0, 0, 1}, coded("topk:0.05")})[0]));
}

TEST(Coding, FewerBytesTravel) {
  const auto carried = [](const Options& options) {
    std::atomic<double> bytes{0};
    expect_all_well(run_machines({0, 1}, [&](const OnMachine& rank) {
      const auto exchange = make_exchange(group_of(rank), model(), space::sgd(), options);
      const double before = rank.lane->carried_bytes();
      for (int step = 0; step < 3; step++) one_step(*exchange, rank.all.rank(), step);
      if (rank.all.rank() == 0) bytes = (rank.lane->carried_bytes() - before) / 3;
    }));
    return bytes.load();
  };
  const double all = carried({.bucket_bytes = 20000});
  const auto less = [&](const char* codec) { return 2 * all / carried(coded(codec)); };  // both machines' messages
  EXPECT_GT(less("fp16"), 1.95);
  EXPECT_GT(less("int8"), 3.8);
  EXPECT_GT(less("sign"), 20);
  EXPECT_GT(less("topk:0.01"), 30);
  EXPECT_GT(less("powersgd:1"), 60);
}

/// Σ of what machines gave = what was applied + what they keep, as their metrics say it.
TEST(Coding, MetricsBalance) {
  for (const std::string& name : kEach) {
    const Layout layout({{"a", DType::f32, {90, 70}}, {"b", DType::f32, {50, 11}}});
    const std::vector<space::Bucket> buckets = space::plan_buckets(layout, 1 << 20);
    const std::vector<space::Range> slices = {buckets[0].range};
    std::array<double, 2> given{}, applied{}, residual{}, sent{};
    expect_all_well(run_machines({0, 1}, [&](const OnMachine& rank) {
      const auto me = static_cast<size_t>(rank.all.rank());
      metrics::Registry registry;
      Coding coding(layout, buckets, slices, coded(name), 1 << 20, *rank.lane, &registry);
      std::vector<float> flat(layout.bytes() / sizeof(float));
      const std::span<std::byte> bytes = std::as_writable_bytes(std::span(flat));
      std::vector<uint8_t> flags(2, 1);
      std::vector<double> told;
      for (int step = 0; step < 8; step++) {
        for (size_t slot = 0; slot < layout.size(); slot++)
          for (size_t i = 0; i < layout[slot].elements(); i++) {
            const float value = noise(static_cast<int>(me), step, slot, i) + 0.3f;
            values(bytes.data(), layout[slot])[i] = value;
            given[me] += static_cast<double>(value);
          }
        coding.depart(0, 0, bytes.data(), flags, {}, step)->wait();
        coding.land(0, 0, bytes.data(), flags, {});
        coding.settle(true);
        for (const space::Slot& slot : layout.slots())
          for (size_t i = 0; i < slot.elements(); i++)
            applied[me] += static_cast<double>(values(bytes.data(), slot)[i]);
      }
      const metrics::Snapshot counted = registry.snapshot();
      const auto value = [&](const char* metric) { return counted.total(metric).value; };
      EXPECT_NEAR(value("codec_given"), given[me], 1e-3) << name;
      EXPECT_NEAR(value("codec_given"), value("codec_sent") + value("codec_residual"), 0.05) << name;
      EXPECT_EQ(value("codec_before_bytes"), 8.0 * static_cast<double>((90 * 70 + 50 * 11) * sizeof(float)));
      EXPECT_LT(value("codec_after_bytes"), 0.6 * value("codec_before_bytes"));
      sent[me] = value("codec_sent"), residual[me] = value("codec_residual");
    }));
    EXPECT_EQ(applied[0], applied[1]) << "all machines apply the same";
    EXPECT_NEAR(applied[0], sent[0] + sent[1], 0.05) << name;
    EXPECT_NEAR(given[0] + given[1], applied[0] + residual[0] + residual[1], 0.1) << name;
  }
}

/// Where a run is: who is on which machine, what travels how.
struct Home {
  std::vector<int> machine_of;
  std::string codec = "topk:0.05";
  Sync sync = Sync::shared;
  int zero = 0;
  std::vector<std::string> excludes{};
  Options options() const {
    Options options = coded(codec, sync);
    options.zero = zero;
    options.codec_excludes = excludes;
    return options;
  }
};

/// Element by element, of all machines.
std::vector<double> residuals_of(const state::Image& image, const Layout& layout) {
  std::vector<double> sum;
  for (const space::Slot& slot : layout.slots()) sum.resize(sum.size() + slot.elements());
  for (const std::string& vector : image.contents().vectors()) {
    if (!vector.ends_with(state::kResidual)) continue;
    size_t at = 0;
    for (const space::Slot& slot : layout.slots()) {
      const space::Range range{slot.range.begin, slot.range.begin + slot.elements() * sizeof(float)};
      const std::vector<std::byte> bytes = image.bytes_of(vector, range);
      const auto* const values = reinterpret_cast<const float*>(bytes.data());
      for (size_t i = 0; i < slot.elements(); i++) sum[at++] += static_cast<double>(values[i]);
    }
  }
  return sum;
}

struct Stay {
  state::Image image;  // of all ranks
  Parameters parameters;
  std::string remark;
};

/// Steps `first` to `last` at home, from there on; their gradients are added to `given`.
Stay stay(const Home& home, const state::Image* before, int first, int last, std::vector<double>& given) {
  const Layout layout = model();
  const int ranks = static_cast<int>(home.machine_of.size());
  std::vector<Stay> ended(home.machine_of.size());
  expect_all_well(run_machines(home.machine_of, [&](const OnMachine& rank) {
    const int me = rank.all.rank();
    Stay& mine = ended[static_cast<size_t>(me)];
    const auto exchange = make_exchange(group_of(rank), layout, space::sgd(), home.options());
    if (before != nullptr) {
      state::Image kept = *before;
      mine.remark = exchange->state().restore(kept);
    }
    for (int step = first; step < last; step++) one_step(*exchange, me, step);
    exchange->state().visit(mine.image);
    mine.parameters = parameters_of(*exchange);
    rank.all.barrier("read");
  }));
  for (size_t rank = 1; rank < ended.size(); rank++) ended[0].image.add(ended[rank].image);
  size_t at = 0;
  for (size_t slot = 0; slot < layout.size(); slot++)
    for (size_t i = 0; i < layout[slot].elements(); i++, at++)
      for (int step = first; step < last; step++)
        for (int rank = 0; rank < ranks; rank++)
          if (has(rank, step, slot)) given[at] += static_cast<double>(noise(rank, step, slot, i));
  return std::move(ended[0]);
}

/// Σ gradients = applied + Σ of what is kept, of each element, wherever a run goes on: on more machines or fewer, in
/// another mode, with another codec, or where a tensor travels as it is from then on.
TEST(Coding, NothingIsLostWhereverARunGoesOn) {
  const std::vector<Home> homes = {{{0, 1}},
                                   {{0, 0, 1, 1}, "powersgd:2"},
                                   {{0, 1, 1, 2}, "int8"},
                                   {{0, 1, 2}, "topk:0.05", Sync::allreduce},
                                   {{0, 1, 0, 1}, "sign", Sync::shared, 2},
                                   {{0, 1}, "topk:0.05", Sync::shared, 0, {"large*"}}};
  const Layout layout = model();
  for (const Home& from : homes)
    for (const Home& to : homes) {
      std::vector<double> given(residuals_of({}, layout).size());
      const Stay first = stay(from, nullptr, 0, 4, given);
      const auto expect_all_there = [&](const Stay& now) {
        const std::vector<double> kept = residuals_of(now.image, layout);
        double off = 0, left = 0;
        for (size_t i = 0; i < given.size(); i++) {
          off = std::max(off, std::abs(given[i] + static_cast<double>(now.parameters[i] / kRate) - kept[i]));
          left += std::abs(kept[i]);
        }
        EXPECT_LT(off, 1e-3) << from.codec << " on " << from.machine_of.size() << ", then " << to.codec << " on "
                             << to.machine_of.size();
        return left;
      };
      EXPECT_GT(expect_all_there(first), 1) << "nothing was kept";
      const Stay moved = stay(to, &first.image, 4, 4, given);
      expect_all_there(moved);
      const std::vector<double> was = residuals_of(first.image, layout), is = residuals_of(moved.image, layout);
      for (size_t i = 0; i < was.size(); i++) ASSERT_NEAR(was[i], is[i], 1e-5);
      expect_all_there(stay(to, &moved.image, 4, 9, given));
      const auto machines = [](const Home& home) {
        return *std::max_element(home.machine_of.begin(), home.machine_of.end());
      };
      EXPECT_EQ(moved.remark.find("added up") != std::string::npos, machines(from) > machines(to)) << moved.remark;
    }
}

/// Nothing is compressed any more: it is said that something is left out.
TEST(Coding, SaysThatWhatWasKeptIsLeftOut) {
  std::vector<double> given(residuals_of({}, model()).size());
  const Stay first = stay({{0, 1}}, nullptr, 0, 2, given);
  const Stay plain = stay({{0, 1}, "none"}, &first.image, 2, 3, given);
  EXPECT_NE(plain.remark.find("is left out"), std::string::npos) << plain.remark;
}

/// A codec of a program's own: what is below a threshold waits.
class Threshold final : public compress::Codec {
  uint8_t kind() const override { return 200; }
  size_t body_bytes(const compress::Strip& strip) const override { return strip.count() * sizeof(float); }
  bool encode_body(const compress::Strip& strip, const float* values, std::span<std::byte> body) override {
    for (size_t i = 0; i < strip.count(); i++) {
      const float sent = std::abs(values[i]) < 0.5f ? 0 : values[i];
      std::memcpy(body.data() + i * sizeof sent, &sent, sizeof sent);
    }
    return true;
  }
  void add_body(const compress::Strip& strip, std::span<const std::byte> body, float* into) override {
    for (size_t i = 0; i < strip.count(); i++) {
      float sent = 0;
      std::memcpy(&sent, body.data() + i * sizeof sent, sizeof sent);
      into[i] += sent;
    }
  }
};

TEST(Coding, TakesACodecOfAProgramsOwn) {
  Options options{.bucket_bytes = 20000};
  options.own_codec = [] { return std::make_unique<Threshold>(); };
  const std::vector<Parameters> all = trained({{0, 1}, options});
  EXPECT_EQ(all[0], all[1]);
  EXPECT_NE(all[0], trained({{0, 1}, {.bucket_bytes = 20000}})[0]);
}

/// As Threshold, but what one of the ranks sends is wrong from a step on.
class Spoiling final : public compress::Codec {
 public:
  enum class What { nothing, kind, body };
  Spoiling(What what, int calls) : what_(what), left_(calls) {}

 protected:
  uint8_t kind() const override { return what_ == What::kind && left_ <= 0 ? 78 : 77; }
  size_t body_bytes(const compress::Strip& strip) const override { return (strip.count() + 1) * sizeof(float); }
  bool encode_body(const compress::Strip& strip, const float* values, std::span<std::byte> body) override {
    const float mark = what_ == What::body && left_ <= 0 ? 8.f : 7.f;
    std::memcpy(body.data(), &mark, sizeof mark);
    std::memcpy(body.data() + sizeof mark, values, strip.count() * sizeof(float));
    left_--;
    return true;
  }
  void add_body(const compress::Strip& strip, std::span<const std::byte> body, float* into) override {
    float mark = 0;
    std::memcpy(&mark, body.data(), sizeof mark);
    if (mark != 7.f) fail<Corruption>("a message without its mark");
    for (size_t i = 0; i < strip.count(); i++) {
      float sent = 0;
      std::memcpy(&sent, body.data() + (i + 1) * sizeof sent, sizeof sent);
      into[i] += sent;
    }
  }

 private:
  const What what_;
  int left_;
};

/// In the middle of a step, when pieces before it were applied: the job ends on all ranks, on each with an error.
TEST(Coding, AWrongMessageEndsTheJobOnAllRanks) {
  using What = Spoiling::What;
  for (const auto& machine_of : {std::vector{0, 1}, std::vector{0, 0, 1, 1}, std::vector{0, 1, 2}})
    for (const What what : {What::nothing, What::kind, What::body})
      for (const int zero : {0, 2}) {
        const int last = static_cast<int>(machine_of.size()) - 1;
        const auto outcomes = run_machines(machine_of, [&](const OnMachine& rank) {
          Options options{.bucket_bytes = 20000, .zero = zero};
          const bool spoils = rank.all.rank() == last;
          options.own_codec = [&] { return std::make_unique<Spoiling>(spoils ? what : What::nothing, 12); };
          const auto exchange = make_exchange(group_of(rank), model(), space::momentum(), options);
          for (int step = 0; step < 4; step++) one_step(*exchange, rank.all.rank(), step);
          rank.all.barrier("at the end");
        });
        if (what == What::nothing) {
          expect_all_well(outcomes);
          continue;
        }
        size_t corrupt = 0;
        for (const auto& outcome : outcomes) {
          ASSERT_TRUE(outcome) << "a rank has not heard of it";
          try {
            std::rethrow_exception(outcome);
          } catch (const Corruption& error) {
            corrupt++;
            EXPECT_NE(std::string(error.what()).find(what == What::kind ? "78" : "without its mark"), std::string::npos)
                << error.what();
          } catch (const Error&) {  // that another one has ended
          }
        }
        EXPECT_GE(corrupt, 1u);
      }
}

TEST(Coding, WhatIsNoFlagIsCorruption) {
  std::vector<uint8_t> flags = {0, 1, 0};
  std::vector<double> told = {1, 2};
  std::vector<std::byte> message(beside_bytes(3));
  const std::vector<uint8_t> theirs = {1, 0, 0};
  put_beside(message, theirs, told);
  add_beside(message, flags, told);
  EXPECT_EQ(flags, (std::vector<uint8_t>{1, 1, 0}));
  EXPECT_EQ(told, (std::vector<double>{2, 4}));
  for (int wrong = 2; wrong < 256; wrong++) {
    message[2] = static_cast<std::byte>(wrong);
    EXPECT_THROW(add_beside(message, flags, told), Corruption) << wrong;
  }
  EXPECT_EQ(flags, (std::vector<uint8_t>{1, 1, 0}));
  EXPECT_EQ(told, (std::vector<double>{2, 4}));
}

TEST(Coding, RefusesCodecsThatNoTextSays) {
  using compress::Kind, compress::Spec;
  const double nan = std::nan("");
  for (const Spec& wrong : {Spec{.kind = Kind::powersgd}, Spec{.kind = Kind::powersgd, .rank = -1},
                            Spec{.kind = Kind::powersgd, .rank = 65}, Spec{.kind = Kind::topk},
                            Spec{.kind = Kind::topk, .rate = nan}, Spec{.kind = Kind::randomk, .rate = -0.1},
                            Spec{.kind = Kind::sketch, .rate = 1.01}, Spec{.kind = static_cast<Kind>(99)}}) {
    EXPECT_THROW(check(Options{.codec = wrong}), InvalidArgument) << static_cast<int>(wrong.kind);
    EXPECT_THROW(check(Options{.candidates = {{.kind = Kind::fp16}, wrong}}), InvalidArgument);
  }
  EXPECT_NO_THROW(check(Options{.codec = {.kind = Kind::powersgd, .rank = 64}}));
  EXPECT_NO_THROW(check(Options{.candidates = {{.kind = Kind::topk, .rate = 1e-6}, {.kind = Kind::int8}}}));
  EXPECT_THROW(check(Options{.candidates = {{.kind = Kind::int8}, {}}}), InvalidArgument);
  EXPECT_THROW(check(Options{.candidates = {{.kind = Kind::int8}, {.kind = Kind::int8}}}), InvalidArgument);
}

TEST(Coding, RefusesWhatItCannotDo) {
  const auto error_of = [](const std::vector<int>& machine_of, Options options, const Layout& layout) {
    std::string text;
    run_machines(machine_of, [&](const OnMachine& rank) {
      try {
        make_exchange(group_of(rank), layout, space::sgd(), options);
      } catch (const InvalidArgument& error) {
        if (rank.all.rank() == 0) text = error.what();
      }
    });
    return text;
  };
  const auto expect = [&](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  const std::vector<int> two = {0, 1};
  expect(error_of({0, 0}, coded("int8"), model()), "nothing travels");
  expect(error_of(two, coded("int8"), Layout({{"a", DType::f64, {5, 5}}})), "'a' is f64");
  expect(error_of(two, coded("int8"), Layout({{"a", DType::f32, {5}}})), "nothing to do");
  const auto with = [&](const auto& change) {
    Options options = coded("topk:0.1");
    change(options);
    return error_of(two, options, model());
  };
  expect(with([](Options& o) { o.sync = Sync::central; }), "sync 'central'");
  expect(with([](Options& o) { o.sync = Sync::diloco_for(5); }), "sync 'diloco:5'");
  expect(with([](Options& o) { o.virtual_workers = 4; }), "virtual 4");
  expect(with([](Options& o) { o.elastic = true; }), "a crew that changes");
  expect(with([](Options& o) { o.codec = {}, o.codec_excludes = {"a"}; }), "nothing is compressed");
}

TEST(Coding, RanksThatDifferHearIt) {
  const auto differ = [](const auto& change, const std::vector<std::string>& words) {
    for (const auto& outcome : run_machines({0, 1}, [&](const OnMachine& rank) {
           Options options = coded("int8");
           if (rank.all.rank() == 1) change(options);
           make_exchange(group_of(rank), model(), space::sgd(), options);
         }))
      expect_error<Mismatch>(outcome, words);
  };
  differ([](Options& o) { o.codec = compress::spec_named("topk:0.01"); },
         {"compress: rank 0 has 'int8', rank 1 has 'topk:0.01'"});
  differ([](Options& o) { o.codec = {}; }, {"compress: rank 0 has 'int8', rank 1 has none"});
  differ([](Options& o) { o.codec = {}, o.own_codec = [] { return std::make_unique<Threshold>(); }; },
         {"compress: rank 0 has 'int8', rank 1 has 'the program's codec"});
  for (const auto& outcome : run_machines({0, 1}, [&](const OnMachine& rank) {
         Options options{.own_codec_name = rank.all.rank() == 0 ? "threshold" : "another"};
         options.own_codec = [] { return std::make_unique<Threshold>(); };
         make_exchange(group_of(rank), model(), space::sgd(), options);
       }))
    expect_error<Mismatch>(outcome, {"rank 0 has 'the program's codec 'threshold''", "'another'"});
  differ([](Options& o) { o.codec_excludes = {"last"}; }, {"not compressed: rank 0 has none, rank 1 has 'last'"});
}

}  // namespace
}  // namespace trireme::exchange::tests
