// label: unit
// A rank's parts of logical tensors, against an enumeration of every element.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <random>

#include <trireme/base/error.h>
#include <trireme/state/image.h>
#include <trireme/state/whole.h>

namespace {

using namespace trireme;
using namespace trireme::state;
using space::Layout;
using space::Range;
using space::Slot;

Slot slot_of(const std::string& name, DType type, std::vector<int64_t> whole, int dim, int index, int count) {
  Slot slot{name, type, whole, false, {}};
  if (count == 1) return slot;
  slot.shape[static_cast<size_t>(dim)] /= count;
  slot.cut = space::Cut{dim, index, count, std::move(whole)};
  return slot;
}

struct Shape {
  std::vector<int64_t> whole;
  int dim, count;
  DType type;
};

std::vector<Shape> random_shapes(std::mt19937& random, int count) {
  std::vector<Shape> shapes;
  for (int i = 0; i < 6; i++) {
    Shape shape{{}, 0, random() % 3 == 0 ? 1 : count, random() % 2 == 0 ? DType::f32 : DType::f64};
    for (size_t dims = 1 + random() % 4; dims > 0; dims--)
      shape.whole.push_back(1 + static_cast<int64_t>(random() % 5));
    shape.dim = static_cast<int>(random() % shape.whole.size());
    shape.whole[static_cast<size_t>(shape.dim)] *= count;
    shapes.push_back(shape);
  }
  return shapes;
}

Layout layout_of(const std::vector<Shape>& shapes, int index) {
  std::vector<Slot> slots;
  for (const Shape& s : shapes)
    slots.push_back(slot_of(fmt::format("p{}", slots.size()), s.type, s.whole, s.dim, index, s.count));
  return Layout(std::move(slots));
}

/// Byte by byte: where the elements of a rank's slots are in the whole, by their coordinates.
std::map<size_t, size_t> enumerated(const Layout& here, const Layout& whole) {
  std::map<size_t, size_t> places;
  for (size_t s = 0; s < here.size(); s++) {
    const Slot& slot = here[s];
    std::vector<int64_t> at(slot.shape.size());
    for (size_t element = 0; element < slot.elements(); element++) {
      size_t rest = element, there = 0;
      for (size_t dim = slot.shape.size(); dim-- > 0; rest /= static_cast<size_t>(slot.shape[dim]))
        at[dim] = static_cast<int64_t>(rest % static_cast<size_t>(slot.shape[dim]));
      if (slot.cut)
        at[static_cast<size_t>(slot.cut->dim)] += slot.cut->index * slot.shape[static_cast<size_t>(slot.cut->dim)];
      for (size_t dim = 0; dim < at.size(); dim++)
        there = there * static_cast<size_t>(whole[s].shape[dim]) + static_cast<size_t>(at[dim]);
      const size_t width = size_of(slot.dtype);
      for (size_t byte = 0; byte < width; byte++)
        places[slot.range.begin + element * width + byte] = whole[s].range.begin + there * width + byte;
    }
  }
  return places;
}

TEST(Whole, EveryByteIsWhereItsCoordinatesSay) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 60; turn++) {
    const int count = 1 + static_cast<int>(random() % 4);
    const std::vector<Shape> shapes = random_shapes(random, count);
    std::map<size_t, int> covered;
    for (int index = 0; index < count; index++) {
      const Whole map(layout_of(shapes, index));
      const std::map<size_t, size_t> places = enumerated(map.here(), map.layout());
      for (const auto& [here, whole] : places) covered[whole]++;
      for (int range = 0; range < 20; range++) {  // any range, in both directions
        const size_t bytes = map.here().bytes(), all = map.layout().bytes();
        Range some{random() % bytes, 0}, wide{random() % all, 0};
        some.end = some.begin + random() % (bytes - some.begin + 1);
        wide.end = wide.begin + random() % (all - wide.begin + 1);
        std::map<size_t, size_t> found, expected, back, expected_back;
        const auto into = [](std::map<size_t, size_t>& to) {
          return [&to](const Whole::Piece& piece) {
            ASSERT_EQ(piece.whole.size(), piece.here.size());
            for (size_t i = 0; i < piece.here.size(); i++) to[piece.here.begin + i] = piece.whole.begin + i;
          };
        };
        map.each(kParameters, some, into(found));
        map.each_here("worker/2/optimizer/momentum", wide, into(back));
        for (const auto& [here, whole] : places) {
          if (here >= some.begin && here < some.end) expected[here] = whole;
          if (whole >= wide.begin && whole < wide.end) expected_back[here] = whole;
        }
        ASSERT_EQ(found, expected);
        ASSERT_EQ(back, expected_back);
      }
    }
    size_t bytes = 0;
    const Whole all(layout_of(shapes, 0));
    for (const Slot& slot : all.layout().slots()) bytes += slot.range.size();
    ASSERT_EQ(covered.size(), bytes) << "the parts together are all";
  }
}

TEST(Whole, WhatHasNoSlotsIsTheSame) {
  const Whole map(Layout({slot_of("w", DType::f32, {4, 6}, 1, 1, 2)}));
  for (const char* vector : {"buffers/mean", "worker/1/buffers/mean"}) {
    int calls = 0;
    map.each(vector, {3, 9}, [&](const Whole::Piece& piece) {
      calls++;
      EXPECT_EQ(piece.whole, (Range{3, 9}));
      EXPECT_EQ(piece.here, (Range{3, 9}));
    });
    EXPECT_EQ(calls, 1);
  }
  EXPECT_EQ(map.layout().describe(), "w f32[4,6]\n");
  EXPECT_EQ(map.here().describe(), "w f32[4,3], part 1 of 2 of [4,6]\n");
  EXPECT_EQ(map.whole_of(About{.layout = map.here().describe()}).layout, "w f32[4,6]\n");
  EXPECT_EQ(map.here_of(About{.layout = "v f32[4,6]\n"}).layout, "v f32[4,6]\n");
}

/// A stage has some of the tensors, and of one of them a part.
TEST(Whole, SomeOfTheTensors) {
  const auto slots = [](bool all, int index, int count) {
    std::vector<Slot> some;
    if (all) some.push_back(slot_of("first", DType::f32, {3, 5}, 0, 0, 1));
    some.push_back(slot_of("second", DType::f32, {4, 6}, 1, index, count));
    if (all) some.push_back(slot_of("third", DType::f64, {7}, 0, 0, 1));
    some.push_back(slot_of("fourth", DType::f32, {2}, 0, 0, 1));
    return Layout(std::move(some));
  };
  const Layout whole = slots(true, 0, 1);
  const Whole map(slots(false, 1, 2), whole);
  std::map<size_t, size_t> found, steps, back;
  const auto into = [](std::map<size_t, size_t>& places) {
    return [&places](const Whole::Piece& piece) {
      for (size_t i = 0; i < piece.here.size(); i++) places[piece.here.begin + i] = piece.whole.begin + i;
    };
  };
  map.each(kParameters, {0, map.here().bytes()}, into(found));
  map.each_here("optimizer/variance", {0, whole.bytes()}, into(back));
  map.each("worker/1/optimizer/steps", {0, 16}, into(steps));
  std::map<size_t, size_t> expected;
  for (size_t row = 0; row < 4; row++)  // the last three of six numbers in each row
    for (size_t byte = 0; byte < 12; byte++) expected[row * 12 + byte] = whole[1].range.begin + row * 24 + 12 + byte;
  for (size_t byte = 0; byte < 8; byte++) expected[map.here()[1].range.begin + byte] = whole[3].range.begin + byte;
  EXPECT_EQ(found, expected);
  EXPECT_EQ(back, expected);
  std::map<size_t, size_t> counts;
  for (size_t byte = 0; byte < 8; byte++) counts[byte] = 8 + byte, counts[8 + byte] = 24 + byte;
  EXPECT_EQ(steps, counts);
  EXPECT_EQ(map.whole_of(About{.layout = map.here().describe()}).layout, whole.describe());
  EXPECT_EQ(map.here_of(About{.layout = whole.describe()}).layout, map.here().describe());
  EXPECT_EQ(map.here_of(About{.layout = "first f32[3,5]\nsecond f32[9,9]\nthird f64[7]\n"}).layout,
            "second f32[9,9]\nno such parameter\n");
  EXPECT_THROW(Whole(slots(true, 0, 1), slots(false, 0, 1)), InvalidArgument);
}

/// Two ranks show their parts, three take theirs back.
TEST(Whole, PartsOfOneDivisionBecomeThoseOfAnother) {
  const auto layout = [](int index, int count) {
    return Layout({slot_of("a", DType::f32, {6, 4}, 0, index, count),
                   slot_of("b", DType::f64, {2, 12}, 1, index, count), slot_of("c", DType::f32, {5}, 0, 0, 1)});
  };
  const Layout whole = layout(0, 1);
  std::vector<std::byte> bytes(whole.bytes());
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<std::byte>(i % 251);
  const auto part_of = [&](const Whole& map) {
    std::vector<std::byte> part(map.here().bytes());
    for (const auto& [here, there] : enumerated(map.here(), map.layout())) part[here] = bytes[there];
    return part;
  };
  Image image;
  for (int index = 0; index < 2; index++) {
    const Whole map(layout(index, 2));
    const std::vector<std::byte> mine = part_of(map);
    Image one;
    WholeVisitor visitor(map, one);
    visitor.about({.layout = map.here().describe()});
    for (const Slot& slot : map.here().slots())
      visitor.part(kParameters, slot.range, std::span(mine).subspan(slot.range.begin, slot.range.size()));
    image.add(one);
  }
  EXPECT_EQ(image.about().layout, whole.describe());
  for (const Slot& slot : whole.slots())
    EXPECT_EQ(image.bytes_of(kParameters, slot.range),
              std::vector<std::byte>(&bytes[slot.range.begin], &bytes[slot.range.begin] + slot.range.size()));
  for (int index = 0; index < 3; index++) {
    const Whole map(layout(index, 3));
    PartSource source(map, image);
    EXPECT_EQ(source.about().layout, map.here().describe());
    const std::vector<std::byte> expected = part_of(map);
    for (const Slot& slot : map.here().slots()) {
      EXPECT_TRUE(source.contents().lacking(kParameters, slot.range, 0).empty());
      std::vector<std::byte> mine(slot.range.size());
      source.read(kParameters, slot.range, mine);
      EXPECT_EQ(std::memcmp(mine.data(), &expected[slot.range.begin], mine.size()), 0) << slot.name;
    }
  }
}

/// A model of many rows: maps of who holds what stay quick.
TEST(Whole, ManyRowsTakeNoTime) {
  std::vector<Slot> slots[2];
  for (int index = 0; index < 2; index++)
    for (int layer = 0; layer < 24; layer++)
      slots[index].push_back(slot_of(fmt::format("out{}", layer), DType::f32, {2048, 512}, 1, index, 2));
  const auto start = std::chrono::steady_clock::now();
  OwnerMap owners, wanted;
  for (int index = 0; index < 2; index++) {
    const Whole map{Layout(slots[index])};
    for (const Slot& slot : map.here().slots())
      map.each(kParameters, slot.range,
               [&](const Whole::Piece& piece) { owners.add(kParameters, piece.whole, index); });
    if (index == 0)
      for (const Slot& slot : map.layout().slots()) wanted.add(kParameters, slot.range, 9);
  }
  EXPECT_EQ(owners.of(kParameters).size(), 2u * 24 * 2048);
  const std::vector<Move> moves = plan_moves(owners, wanted);
  EXPECT_EQ(moves.size(), 2u * 24 * 2048);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_LT(taken.count(), 10) << "it grows with the square of the rows";
}

TEST(BadCut, PartsThatAreNone) {
  Slot slot = slot_of("w", DType::f32, {4, 6}, 1, 1, 2);
  const auto refused = [](Slot bad) { EXPECT_THROW(Layout({std::move(bad)}), InvalidArgument); };
  Slot bad = slot;
  bad.cut->index = 2, refused(bad);
  bad = slot, bad.cut->dim = 2, refused(bad);
  bad = slot, bad.cut->whole = {4, 7}, refused(bad);
  bad = slot, bad.cut->whole = {4}, refused(bad);
  bad = slot_of("w", DType::f32, {4, 6, 2, 2}, 0, 1, 2), bad.channels_last = true, refused(bad);
  EXPECT_NE(Layout({slot}).fingerprint(), Layout({slot_of("w", DType::f32, {4, 3}, 0, 0, 1)}).fingerprint());
  EXPECT_NE(Layout({slot}).fingerprint(), Layout({slot_of("w", DType::f32, {4, 6}, 1, 0, 2)}).fingerprint());
}

}  // namespace
