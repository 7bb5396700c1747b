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
    const Area area = areas.add("parameters", {0, 5000, 2}, "a test");
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

size_t memory_of(const Segment& segment) {
  struct stat now {};
  EXPECT_EQ(fstat(segment.descriptor(), &now), 0);
  return static_cast<size_t>(now.st_blocks) * 512;
}

TEST(Areas, WhatIsTakenAgainIsTheSameMemory) {
  const auto segment = Segment::create();
  Areas areas(*segment);
  const Area wanted{0, 5000, 2, 0, 42};
  const Areas::Taken first = areas.take("all/0/parameters", wanted, "a test");
  EXPECT_FALSE(first.same);
  segment->reserve(first.area.offset, first.area.total(), "a test");
  std::byte* const memory = segment->attach(first.area.offset, first.area.total(), "a test");
  memory[0] = std::byte{7};
  const Areas::Taken again = areas.take("all/0/parameters", wanted, "a test");
  EXPECT_TRUE(again.same);
  EXPECT_EQ(again.area.offset, first.area.offset);
  EXPECT_EQ(areas.find("all/0/parameters")->fingerprint, 42u);
  EXPECT_EQ(memory[0], std::byte{7});

  const size_t before = memory_of(*segment);
  const Areas::Taken larger = areas.take("all/0/parameters", {0, 9000, 2}, "a test");
  EXPECT_FALSE(larger.same);
  EXPECT_NE(larger.area.offset, first.area.offset);
  EXPECT_EQ(memory_of(*segment), before - first.area.total());  // given back to the machine
  EXPECT_EQ(memory[0], std::byte{0});
  EXPECT_EQ(areas.take("all/1/parameters", wanted, "a test").area.offset, first.area.offset);  // addresses, used again
}

TEST(Areas, ACrewNeverGetsTheMemoryOfTheOneBefore) {
  const auto segment = Segment::create();
  Areas areas(*segment);
  const auto take = [&](uint64_t epoch) { return areas.take("all/0/parameters", {0, 5000, 1, epoch}, "a test"); };
  const size_t zeroth = take(0).area.offset, first = take(1).area.offset;
  EXPECT_NE(first, zeroth);
  EXPECT_EQ(areas.find("all/0/parameters")->offset, first);
  EXPECT_EQ(areas.find("all/0/parameters", 0)->offset, zeroth);
  const size_t fourth = take(4).area.offset;  // nobody had it in between: the latest before stays
  EXPECT_TRUE(areas.find("all/0/parameters", 1));
  EXPECT_FALSE(areas.find("all/0/parameters", 0));
  EXPECT_NE(fourth, zeroth);
  EXPECT_NE(areas.take("all/1/parameters", {0, 5000, 1, 4}, "a test").area.offset, zeroth);  // nor its addresses
  EXPECT_EQ(areas.all("all/0/").size(), 2u);
}

TEST(Areas, WhatIsRefused) {
  const auto segment = Segment::create();
  Areas areas(*segment);
  areas.add("parameters", {0, 1, 1}, "a test");
  EXPECT_THROW(areas.add("parameters", {0, 1, 1}, "a test"), InvalidArgument);
  EXPECT_THROW(areas.add("", {0, 1, 1}, "a test"), InvalidArgument);
  EXPECT_THROW(areas.add(std::string(72, 'x'), {0, 1, 1}, "a test"), InvalidArgument);
  EXPECT_NO_THROW(areas.add(std::string(71, 'x'), {0, 1, 1}, "a test"));
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
    for (;; named++) areas.add("area " + std::to_string(named), {0, 0, 1}, "a test");
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

/// A job of a large model goes through many crews, each with memory of its own: here 3.5 GB.
TEST(Areas, HaveAddressesForManyCrews) {
  if (Segment::kAddressesOfJob == Segment::kAddresses) GTEST_SKIP() << "under ThreadSanitizer";
  constexpr size_t kModel = size_t{3500} << 20;
  const auto segment = Segment::create(Segment::kAddressesOfJob);
  Areas areas(*segment);
  for (uint64_t epoch = 0; epoch < 2000; epoch++) {
    const Area area = areas.take("a model", {.bytes = kModel, .epoch = epoch}, kPage, "a model").area;
    if (epoch % 500 != 0) continue;
    segment->reserve(area.offset, kPage, "its first page");
    std::byte* const first = segment->attach(area.offset, kPage, "its first page");
    EXPECT_EQ(*first, std::byte{0}) << "crew " << epoch;
    *first = std::byte{1};
  }
}

TEST(Areas, SayWhatToDoWhenAddressesAreUsedUp) {
  const auto segment = Segment::create(size_t{1} << 24);
  Areas areas(*segment);
  try {
    for (uint64_t epoch = 0; epoch < 100; epoch++)
      areas.take("a model", {.bytes = size_t{1} << 20, .epoch = epoch}, "a model");
    FAIL() << "addresses were given out twice";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("each new crew of a job takes others: start the job again"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme::tests
