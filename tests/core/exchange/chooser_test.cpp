// label: unit
// Gradients between machines while codecs take turns: nothing is lost, and all machines change together.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/exchange/exchange.h>
#include <trireme/state/image.h>

#include "crews.h"

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using trireme::tests::expect_all_well;
using trireme::tests::expect_error;
using trireme::tests::OnMachine;
using trireme::tests::run_machines;
using Values = std::vector<double>;

constexpr double kRate = 0.01;

/// Several buckets; a slot of several pieces in rows that these do not divide; a bucket that no codec takes.
Layout model() {
  return Layout({{"large", DType::f32, {700, 601}},
                 {"large.bias", DType::f32, {6010}},
                 {"middle", DType::f32, {40, 37}},
                 {"last", DType::f32, {7, 3}}});
}

Options choosing(const char* codecs) {
  Options options{.bucket_bytes = 20000};
  options.candidates = compress::candidates_named(codecs);
  return options;
}

float gradient_of(int rank, int step, size_t slot, size_t i) {
  const size_t seed = static_cast<size_t>(rank) * 7919 + static_cast<size_t>(step) * 104729 + slot * 1299709 + i;
  const uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15;
  return static_cast<float>((mixed ^ (mixed >> 31)) >> 40) * 0x1p-23f - 0.9f;
}

/// Nobody has a gradient for a slot in some steps.
bool has(int step, size_t slot) { return slot != 2 || step % 3 != 1; }

float* values(std::byte* flat, const space::Slot& slot) { return reinterpret_cast<float*>(flat + slot.range.begin); }

void one_step(Exchange& exchange, int rank, int step, int bad) {
  const Layout& layout = exchange.flat().layout();
  exchange.begin(kRate);
  exchange.open();
  for (size_t b = 0; b < exchange.flat().buckets().size(); b++) {
    for (size_t slot = exchange.flat().buckets()[b].first; slot < exchange.flat().buckets()[b].last; slot++) {
      float* const gradient = values(exchange.flat().gradients(), layout[slot]);
      for (size_t i = 0; i < layout[slot].elements(); i++) gradient[i] = gradient_of(rank, step, slot, i);
      if (step == bad && rank == 0 && slot == 0) gradient[5] = std::nanf("");
      if (has(step, slot)) exchange.flat().present(slot);
    }
    exchange.ready(b);
  }
  exchange.close();
  exchange.land();
  EXPECT_EQ(exchange.outcome().sound, step != bad);
}

/// Runs some steps with each of `spans` of them, each by a new exchange that goes on with the state of the one before;
/// every element's parameter, and what is kept for it, against the sum of all gradients.
struct Course {
  std::vector<int> machine_of;
  Options options{};
  std::vector<int> spans;
  int bad = -1;

  std::vector<state::Image> kept{};
  std::vector<Compression> seen{};  // by rank
  Values left{};                    // by span: magnitudes of all that was kept in the end

  void run() {
    int begin = 0;
    for (const int steps : spans) {
      std::vector<state::Image> before = std::move(kept);
      kept.assign(machine_of.size(), {});
      seen.assign(machine_of.size(), {});
      expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
        const auto me = static_cast<size_t>(rank.all.rank());
        const auto exchange = make_exchange(group_of(rank), model(), space::sgd(), options);
        exchange->state().publish();
        if (!before.empty()) exchange->state().restore(before[me]);
        for (int step = begin; step < begin + steps; step++) one_step(*exchange, rank.all.rank(), step, bad);
        exchange->state().visit(kept[me]);
        if (exchange->compression() != nullptr) seen[me] = *exchange->compression();
        rank.all.barrier("seen");
      }));
      check(begin += steps);
    }
  }

  Values of(const state::Image& image, const std::string& vector, const space::Slot& slot) const {
    std::vector<float> floats(slot.elements());
    const std::vector<std::byte> bytes =
        image.bytes_of(vector, {slot.range.begin, slot.range.begin + slot.elements() * sizeof(float)});
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    return {floats.begin(), floats.end()};
  }
  void check(int steps) {
    state::Image all;
    for (const state::Image& image : kept) all.add(image);
    double magnitudes = 0;
    const Layout layout = model();
    for (size_t s = 0; s < layout.size(); s++) {
      Values got = of(all, state::kParameters, layout[s]);
      for (int machine = 0; machine <= machine_of.back(); machine++) {
        const Values rest = of(all, state::of_worker(machine, state::kResidual), layout[s]);
        for (size_t i = 0; i < got.size(); i++) {
          got[i] -= kRate * rest[i];
          magnitudes += std::abs(rest[i]);
        }
      }
      for (size_t i = 0; i < got.size(); i += 7) {
        double wanted = 0;
        for (int step = 0; step < steps; step++)
          for (size_t rank = 0; rank < machine_of.size() && has(step, s) && step != bad; rank++)
            wanted -= kRate * static_cast<double>(gradient_of(static_cast<int>(rank), step, s, i));
        ASSERT_NEAR(got[i], wanted, 2e-3) << layout[s].name << " " << i;
      }
    }
    left.push_back(magnitudes);
  }
};

/// The parameters are what all gradients make of them, but for what is still kept, whichever codec has left it over.
TEST(Chooser, NothingIsLostWhenCodecsChange) {
  Course course{.machine_of = {0, 0, 1}, .options = choosing("auto:topk:0.05,powersgd:1"), .spans = {250}};
  course.run();
  for (const Compression& one : course.seen) {
    EXPECT_GE(one.looks, 1);
    EXPECT_EQ(one.judgement.choice, course.seen[0].judgement.choice);
    EXPECT_EQ(one.judgement.reason, course.seen[0].judgement.reason);
    ASSERT_EQ(one.judgement.buckets.size(), one.buckets.size());
    for (const compress::Verdict& verdict : one.judgement.buckets) EXPECT_FALSE(verdict.reason.empty());
  }
}

TEST(Chooser, AStepThatIsLeftOutLeavesNothing) {
  for (const int bad : {17, 23, 31}) {  // in heats of several codecs, however long these are
    Course course{.machine_of = {0, 1}, .options = choosing("auto:int8,sign"), .spans = {45}, .bad = bad};
    course.options.on_nan = OnNan::skip;
    course.run();
  }
}

/// A checkpoint in the middle of a look has what codecs keep; whoever goes on begins with no codec, and sends it.
TEST(Chooser, GoesOnFromACheckpoint) {
  double left = 0;
  for (const int stop : {17, 23}) {  // by 23 steps a codec has its turn, however long heats are
    Course course{.machine_of = {0, 0, 1, 1}, .options = choosing("auto:topk:0.05,sign"), .spans = {stop, 5, 11}};
    course.run();
    left += course.left[0];
    EXPECT_EQ(course.left[1], 0) << "five steps without a codec, and something is still kept";
  }
  EXPECT_GT(left, 0);
}

TEST(Chooser, OneMachineHasNothingToChoose) {
  const auto trained = [](const Options& options) {
    std::vector<state::Image> kept(2);
    expect_all_well(run_machines({0, 0}, [&](const OnMachine& rank) {
      const auto exchange = make_exchange(group_of(rank), model(), space::sgd(), options);
      exchange->state().publish();
      for (int step = 0; step < 30; step++) one_step(*exchange, rank.all.rank(), step, -1);
      exchange->state().visit(kept[static_cast<size_t>(rank.all.rank())]);
      ASSERT_NE(exchange->compression() != nullptr, !options.chooses());
      if (options.chooses()) {
        EXPECT_TRUE(exchange->compression()->settled);
        EXPECT_NE(exchange->compression()->judgement.reason.find("nothing travels"), std::string::npos);
      }
    }));
    return kept;
  };
  const auto with = trained(choosing("auto")), without = trained({.bucket_bytes = 20000});
  for (size_t rank = 0; rank < with.size(); rank++) EXPECT_EQ(with[rank].contents(), without[rank].contents());
  EXPECT_EQ(with[0].bytes_of(state::kParameters, {0, 4096}), without[0].bytes_of(state::kParameters, {0, 4096}));
}

TEST(Chooser, RefusesWhatItCannotDo) {
  const auto error_of = [](const auto& change) {
    Options options = choosing("auto:int8");
    change(options);
    std::string text;
    run_machines({0, 1}, [&](const OnMachine& rank) {
      try {
        make_exchange(group_of(rank), model(), space::sgd(), options);
      } catch (const InvalidArgument& error) {
        if (rank.all.rank() == 0) text = error.what();
      }
    });
    return text;
  };
  const auto expect = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  expect(error_of([](Options& o) { o.zero = 1; }),
         "compress auto:int8 on several machines is not there yet with zero 1");
  expect(error_of([](Options& o) { o.sync = Sync::allreduce; }), "sync 'allreduce'");
  expect(error_of([](Options& o) { o.virtual_workers = 2; }), "virtual 2");
  expect(error_of([](Options& o) { o.codec = compress::spec_named("sign"); }), "leave out one of them");
}

TEST(Chooser, RanksThatDifferHearIt) {
  for (const auto& outcome : run_machines({0, 1}, [&](const OnMachine& rank) {
         make_exchange(group_of(rank), model(), space::sgd(),
                       choosing(rank.all.rank() == 0 ? "auto:int8" : "auto:int8,sign"));
       }))
    expect_error<Mismatch>(outcome, {"compress: rank 0 has 'auto:int8', rank 1 has 'auto:int8,sign'"});
}

}  // namespace
}  // namespace trireme::exchange::tests
