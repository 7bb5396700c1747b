// label: unit
// Handles, the registry and its snapshots: sums over threads against plain loops, with a reader beside the writers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/metrics/metrics.h>

namespace trireme::metrics::tests {
namespace {

constexpr Description kApples{"apples", "apples", "Apples that were counted"};
constexpr Description kPears{"pears", "pears", "Pears that are there now"};
constexpr Description kSizes{"sizes", "things", "How large things were"};

/// By dividing again and again, where the code looks at the exponent.
size_t reference_bucket(double value, double first) {
  size_t bucket = 0;
  for (double edge = first; value >= edge && bucket + 1 < kBuckets; edge *= 2) bucket++;
  return bucket;
}

TEST(Metrics, ThreadsAddUp) {
  constexpr int kThreads = 4, kTimes = 20'000;
  Registry registry;
  Counter own(&registry, kApples);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    double last = 0;
    while (!done.load()) {
      const Snapshot now = registry.snapshot(16);
      const double apples = now.total("apples").value, sizes = now.total("sizes").count();
      EXPECT_GE(apples, last);
      EXPECT_LE(sizes, kThreads * kTimes);
      for (const SpanRecord& span : now.spans()) EXPECT_EQ(span.name, span.seconds < 0.5 ? "short" : "long");
      last = apples;
    }
  });
  std::vector<std::thread> writers;
  for (int i = 0; i < kThreads; i++)
    writers.emplace_back([&registry, i] {
      Counter apples(&registry, kApples);
      Histogram sizes(&registry, kSizes, "", kOne);
      Spans spans(&registry);
      for (int j = 0; j < kTimes; j++) {
        apples.add();
        sizes.add(i);
        spans.add(j % 2 == 0 ? "short" : "long", Clock::now(), j % 2);
      }
    });
  own.add(0.5);
  for (std::thread& writer : writers) writer.join();
  done.store(true);
  reader.join();
  const Snapshot all = registry.snapshot(100);
  EXPECT_EQ(all.total("apples").value, kThreads * kTimes + 0.5);
  const Entry sizes = all.total("sizes");
  EXPECT_EQ(sizes.count(), kThreads * kTimes);
  EXPECT_EQ(sizes.sum, kTimes * (0 + 1 + 2 + 3));
  EXPECT_EQ(sizes.most, 3);
  EXPECT_EQ(sizes.buckets[0], kTimes);
  EXPECT_EQ(sizes.buckets[1], kTimes);
  EXPECT_EQ(sizes.buckets[2], 2 * kTimes);
  EXPECT_TRUE(all.spans().empty()) << "the rings went with their threads";
}

TEST(Metrics, WhatHandlesCountedStaysWhenTheyAreGone) {
  Registry registry;
  for (int i = 0; i < 3; i++) {
    Counter apples(&registry, kApples);
    Gauge pears(&registry, kPears);
    apples.add(2);
    pears.set(i);
    EXPECT_EQ(registry.snapshot().total("apples").value, 2 * (i + 1));
    EXPECT_EQ(registry.snapshot().total("pears").value, i);
  }
  EXPECT_EQ(registry.snapshot().total("apples").value, 6);
  EXPECT_EQ(registry.snapshot().entries().size(), 1u) << "a gauge goes with its owner";
}

TEST(Metrics, HandlesOutliveTheirRegistryAndMove) {
  std::optional<Registry> registry(std::in_place);
  Counter apples(&*registry, kApples), moved = std::move(apples);
  moved.add();
  EXPECT_EQ(registry->snapshot().total("apples").value, 1);
  registry.reset();
  moved.add();
  EXPECT_EQ(moved.value(), 2);
  Counter alone(nullptr, kApples);
  alone.add(3);
  EXPECT_EQ(alone.value(), 3);
}

TEST(Metrics, LabelsKeepApart) {
  Registry registry;
  Counter one(&registry, kApples, "model 0"), two(&registry, kApples, "model 1"), none(&registry, kApples);
  one.add(1);
  two.add(2);
  none.add(4);
  const Snapshot all = registry.snapshot();
  EXPECT_EQ(all.entries().size(), 3u);
  EXPECT_EQ(all.total("apples").value, 7);
  EXPECT_EQ(all.json(), R"({"model 0":{"apples":1},"model 1":{"apples":2},"apples":4})");
  EXPECT_EQ(registry.listed().size(), 1u);
  EXPECT_THROW(Gauge(&registry, kApples, "model 0"), InvalidArgument);
}

TEST(Metrics, HistogramsAgreeWithALoop) {
  std::mt19937_64 random(3);
  for (double first : {kOne, kMicrosecond}) {
    Registry registry;
    Histogram histogram(&registry, kSizes, "", first);
    std::array<double, kBuckets> expected{};
    double sum = 0, most = 0;
    const auto add = [&](double value) {
      histogram.add(value);
      expected[reference_bucket(value, first)]++;
      sum += value;
      most = std::max(most, value);
    };
    for (int i = 0; i < 40; i++)
      for (double edge = std::ldexp(first, i - 2); double value : {edge, std::nextafter(edge, 0.0), edge * 1.5})
        add(value);
    add(0);
    for (int i = 0; i < 1000; i++) add(std::exp(std::uniform_real_distribution<>(-20, 10)(random)));
    for (double wrong : {-1.0, std::nan("")}) histogram.add(wrong);
    const Entry found = registry.snapshot().total("sizes");
    EXPECT_EQ(found.buckets, expected);
    EXPECT_EQ(found.sum, sum);
    EXPECT_EQ(found.most, most);
    EXPECT_DOUBLE_EQ(found.mean(), sum / (40 * 3 + 1 + 1000));
  }
}

TEST(Metrics, TimesAreMeasuredOnlyWhereSomebodyWantsThem) {
  for (bool timed : {true, false}) {
    Registry registry(timed);
    Histogram seconds(&registry, kSizes);
    Spans spans(&registry);
    { const Timer timer(&seconds); }
    { const Timer none(nullptr); }
    Laps laps(spans, registry.timed());
    laps.end("first", seconds);
    laps.end("second", seconds);
    const Snapshot all = registry.snapshot(9);
    EXPECT_EQ(all.total("sizes").count(), timed ? 3 : 0);
    ASSERT_EQ(all.spans().size(), timed ? 2u : 0u);
    if (!timed) continue;
    EXPECT_EQ(all.spans()[0].name, "first");
    EXPECT_NEAR(all.spans()[0].begin + all.spans()[0].seconds, all.spans()[1].begin, 1e-9);
  }
}

TEST(Metrics, ARingKeepsTheLastSpans) {
  Registry registry;
  Spans spans(&registry);
  const auto begin = Clock::now();
  for (int i = 0; i < 1000; i++) spans.add("x", begin, i);
  std::vector<double> found;
  const Snapshot last = registry.snapshot(3);
  for (const SpanRecord& span : last.spans()) found.push_back(span.seconds);
  EXPECT_EQ(found, (std::vector<double>{997, 998, 999}));
  EXPECT_EQ(registry.snapshot(5000).spans().size(), Ring::kEntries - 1);
  EXPECT_EQ(registry.snapshot().spans().size(), 0u);
}

}  // namespace
}  // namespace trireme::metrics::tests
