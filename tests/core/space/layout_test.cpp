// label: unit
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include <trireme/base/error.h>
#include <trireme/space/arena.h>
#include <trireme/space/layout.h>

namespace trireme::space::tests {
namespace {

TEST(Range, PartsCoverTheWholeExactlyOnCacheLines) {
  for (size_t begin : {size_t{0}, size_t{64}, size_t{4160}})
    for (size_t size : {0, 1, 63, 64, 65, 128, 1000, 4096, 100001})
      for (int parts : {1, 2, 3, 4, 7, 8, 64}) {
        const Range whole{begin, begin + size};
        size_t at = whole.begin, least = size, most = 0;
        for (int i = 0; i < parts; i++) {
          const Range part = part_of(whole, i, parts);
          ASSERT_EQ(part.begin, at);
          ASSERT_LE(part.begin, part.end);
          ASSERT_TRUE(part.end == whole.end || (part.end - whole.begin) % kLine == 0);
          least = std::min(least, part.size());
          most = std::max(most, part.size());
          at = part.end;
        }
        ASSERT_EQ(at, whole.end);
        ASSERT_LE(most - least, kLine);
      }
}

TEST(Range, Intersection) {
  EXPECT_EQ(intersect({0, 10}, {5, 20}), (Range{5, 10}));
  EXPECT_EQ(intersect({5, 20}, {0, 10}), (Range{5, 10}));
  EXPECT_EQ(intersect({0, 10}, {2, 3}), (Range{2, 3}));
  EXPECT_TRUE(intersect({0, 10}, {10, 20}).empty());
  EXPECT_TRUE(intersect({10, 20}, {0, 5}).empty());
  EXPECT_EQ(intersect({10, 20}, {0, 5}).size(), 0u);
}

std::vector<Slot> lenet() {
  return {{"conv1.weight", DType::f32, {6, 1, 5, 5}},
          {"conv1.bias", DType::f32, {6}},
          {"scale", DType::f64, {}},
          {"fc.weight", DType::f32, {10, 84}},
          {"nothing", DType::f32, {0, 3}}};
}

TEST(Layout, SlotsStartOnCacheLinesAndDoNotOverlap) {
  const Layout layout(lenet());
  size_t end = 0;
  for (const Slot& slot : layout.slots()) {
    EXPECT_EQ(slot.range.begin % kLine, 0u) << slot.name;
    EXPECT_GE(slot.range.begin, end) << slot.name;
    EXPECT_LT(slot.range.begin - end, kLine) << slot.name;
    EXPECT_EQ(slot.range.size(), slot.elements() * size_of(slot.dtype)) << slot.name;
    end = slot.range.end;
  }
  EXPECT_GE(layout.bytes(), end);
  EXPECT_EQ(layout.bytes() % kLine, 0u);
  EXPECT_EQ(layout.elements(), 150u + 6 + 1 + 840);
  EXPECT_EQ(layout[0].describe(), "conv1.weight f32[6,1,5,5]");
  EXPECT_EQ(layout[2].elements(), 1u);  // a scalar
}

TEST(Layout, NegativeExtentsAreRefused) { EXPECT_THROW(Layout({{"w", DType::f32, {3, -1}}}), InvalidArgument); }

TEST(Layout, FingerprintTellsEveryChange) {
  std::set<uint64_t> seen = {Layout(lenet()).fingerprint()};
  EXPECT_TRUE(seen.contains(Layout(lenet()).fingerprint()));
  const auto expect_new = [&](const auto& change) {
    auto slots = lenet();
    change(slots);
    EXPECT_TRUE(seen.insert(Layout(slots).fingerprint()).second);
  };
  expect_new([](auto& s) { s[1].name = "conv1.bia"; });
  expect_new([](auto& s) { s[1].dtype = DType::i32; });
  expect_new([](auto& s) { s[0].shape = {6, 5, 1, 5}; });
  expect_new([](auto& s) { s[0].shape = {150}; });
  expect_new([](auto& s) { s[0].channels_last = true; });
  expect_new([](auto& s) { s.pop_back(); });
  expect_new([](auto& s) { s.push_back({"more", DType::f32, {1}}); });
  expect_new([](auto& s) { std::swap(s[0], s[1]); });
}

TEST(Layout, FirstDifferenceIsASentence) {
  const std::string mine = Layout(lenet()).describe();
  EXPECT_EQ(first_difference(mine, 0, mine, 1), "");
  auto slots = lenet();
  slots[1].shape = {7};
  slots[3].shape = {10, 85};
  EXPECT_EQ(first_difference(mine, 0, Layout(slots).describe(), 2),
            "parameter 1: rank 0 has 'conv1.bias f32[6]', rank 2 has 'conv1.bias f32[7]'");
  slots = lenet();
  slots.pop_back();
  EXPECT_EQ(first_difference(mine, 0, Layout(slots).describe(), 1),
            "parameter 4: rank 0 has 'nothing f32[0,3]', rank 1 has 'no such parameter'");
  EXPECT_EQ(first_difference(Layout(slots).describe(), 0, mine, 1),
            "parameter 4: rank 0 has 'no such parameter', rank 1 has 'nothing f32[0,3]'");
}

TEST(Buckets, CoverAllSlotsBackwardsExactlyOnceInOneTypeEach) {
  std::vector<Slot> slots;
  for (int i = 0; i < 40; i++)
    slots.push_back({fmt::format("p{}", i), i % 11 < 8 ? DType::f32 : DType::f64, {i * 37 % 300}});
  const Layout layout(slots);
  for (size_t bytes : {0, 1, 64, 500, 4000, 1 << 20}) {
    size_t next = layout.size();
    for (const Bucket& bucket : plan_buckets(layout, bytes)) {
      ASSERT_EQ(bucket.last, next);
      ASSERT_LT(bucket.first, bucket.last);
      for (size_t slot = bucket.first; slot < bucket.last; slot++) ASSERT_EQ(layout[slot].dtype, bucket.dtype);
      ASSERT_EQ(bucket.range, (Range{layout[bucket.first].range.begin, layout[bucket.last - 1].range.end}));
      const bool break_of_type = bucket.first > 0 && layout[bucket.first - 1].dtype != bucket.dtype;
      ASSERT_TRUE(break_of_type || bucket.first == 0 || bucket.range.size() >= bytes) << "not full";
      ASSERT_TRUE(bucket.last - bucket.first == 1 || bucket.range.end - layout[bucket.first + 1].range.begin < bytes)
          << "more than needed";
      ASSERT_NE(bucket.name.find(layout[bucket.first].name), std::string::npos);
      ASSERT_NE(bucket.name.find(layout[bucket.last - 1].name), std::string::npos);
      next = bucket.first;
    }
    ASSERT_EQ(next, 0u);
  }
  EXPECT_TRUE(plan_buckets(Layout(), 100).empty());
}

TEST(Arena, IsZeroedAndAligned) {
  const Arena arena = Arena::of_process(10000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % kLine, 0u);
  for (size_t i = 0; i < arena.bytes(); i++) ASSERT_EQ(arena.data()[i], std::byte{0});
  EXPECT_EQ(Arena::of_process(0).bytes(), 0u);
  const auto segment = Segment::create();
  Arena::of_segment(segment, 0, 100, "a test").data()[99] = std::byte{1};
  EXPECT_EQ(segment->at(0)[99], std::byte{1});
}

}  // namespace
}  // namespace trireme::space::tests
