// label: unit
// The directory of a segment: memory is given out once, and a name leads whoever comes later to what was left.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <thread>

#include <trireme/base/areas.h>
#include <trireme/base/error.h>

namespace trireme::tests {
namespace {

TEST(Areas, GiveOutMemoryOnceAndReserveIt) {
  const auto segment = Segment::create();
  Areas areas(*segment);
  const size_t first = areas.claim(1, "a test"), second = areas.claim(3 * kPage + 1, "a test"),
               third = areas.claim(0, "a test");
  EXPECT_EQ(first, Areas::kBytes);
  EXPECT_EQ(second, first + kPage);
  EXPECT_EQ(third, second + 4 * kPage);
  struct stat now {};
  ASSERT_EQ(fstat(segment->descriptor(), &now), 0);
  EXPECT_EQ(static_cast<size_t>(now.st_blocks) * 512, third + kPage);
}

TEST(Areas, ManyThreadsGetDifferentMemory) {
  const auto segment = Segment::create();
  std::vector<std::vector<size_t>> got(4);
  std::vector<std::thread> threads;
  for (auto& mine : got)
    threads.emplace_back([&] {
      Areas areas(*segment);
      for (int i = 0; i < 100; i++) mine.push_back(areas.claim(kPage, "a test"));
    });
  for (std::thread& thread : threads) thread.join();
  std::set<size_t> all;
  for (const auto& mine : got) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 400u);
}

TEST(Areas, WhoComesLaterFindsByNameWhatWasLeft) {
  const auto segment = Segment::create();
  {
    Areas areas(*segment);
    const Area area = areas.add("parameters", 5000, 2, "a test");
    EXPECT_EQ(area.stride(), 2 * kPage);
    segment->attach(area.offset, area.total(), "a test")[area.stride() + 4999] = std::byte{7};
    EXPECT_FALSE(areas.find("gradients"));
  }
  Segment later(Descriptor(dup(segment->descriptor())));
  const auto area = Areas(later).find("parameters");
  ASSERT_TRUE(area);
  EXPECT_EQ(area->bytes, 5000u);
  EXPECT_EQ(area->parts, 2);
  EXPECT_EQ(later.attach(area->offset, area->total(), "a test")[area->stride() + 4999], std::byte{7});
}

TEST(Areas, WhatIsRefused) {
  const auto segment = Segment::create();
  Areas areas(*segment);
  areas.add("parameters", 1, 1, "a test");
  EXPECT_THROW(areas.add("parameters", 1, 1, "a test"), InvalidArgument);
  EXPECT_THROW(areas.add("", 1, 1, "a test"), InvalidArgument);
  EXPECT_THROW(areas.add(std::string(40, 'x'), 1, 1, "a test"), InvalidArgument);
  EXPECT_NO_THROW(areas.add(std::string(39, 'x'), 1, 1, "a test"));
  EXPECT_THROW(areas.claim(size_t{100} << 40, "too much"), IoError);
  const size_t next = areas.claim(kPage, "a test");
  EXPECT_EQ(areas.claim(kPage, "a test"), next + kPage);  // nothing was lost by asking for too much
  EXPECT_LT(next, size_t{1} << 30);
}

TEST(Areas, AFullDirectorySaysSo) {
  const auto segment = Segment::create();
  Areas areas(*segment);
  int named = 0;
  try {
    for (;; named++) areas.add("area " + std::to_string(named), 0, 1, "a test");
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("named areas already"), std::string::npos) << error.what();
  }
  EXPECT_GT(named, 100);
  EXPECT_TRUE(areas.find("area 100"));
}

TEST(Segment, KnowsItsOwnDescriptors) {
  const auto one = Segment::create(), other = Segment::create();
  const Descriptor copy(dup(one->descriptor()));
  EXPECT_TRUE(one->is(copy.get()));
  EXPECT_FALSE(other->is(copy.get()));
}

}  // namespace
}  // namespace trireme::tests
