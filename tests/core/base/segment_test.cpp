// label: unit
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/base/futex.h>
#include <trireme/base/process.h>
#include <trireme/base/segment.h>

namespace trireme::tests {
namespace {

TEST(Segment, TwoMappingsOfOneDescriptorSeeTheSameBytes) {
  const auto first = Segment::create();
  Segment second(Descriptor(dup(first->descriptor())));
  std::byte* mine = first->map(kPage, 3 * kPage, "a test");
  std::byte* theirs = second.map(kPage, 3 * kPage, "a test");
  ASSERT_NE(mine, theirs);
  EXPECT_EQ(theirs[3 * kPage - 1], std::byte{0});
  mine[3 * kPage - 1] = std::byte{42};
  theirs[0] = std::byte{43};
  EXPECT_EQ(theirs[3 * kPage - 1], std::byte{42});
  EXPECT_EQ(mine[0], std::byte{43});
}

TEST(Segment, OffsetsAndPointersTurnIntoEachOther) {
  const auto segment = Segment::create();
  const std::byte* block = segment->map(2 * kPage, kPage, "a test");
  EXPECT_EQ(segment->offset_of(block + 5), 2 * kPage + 5);
  EXPECT_EQ(segment->at(2 * kPage), block);
  int local = 0;
  EXPECT_EQ(segment->offset_of(&local), std::nullopt);
}

TEST(Segment, MappingABlockAgainGivesTheSameBlock) {
  const auto segment = Segment::create();
  std::byte* block = segment->map(0, kPage, "a test");
  block[7] = std::byte{9};
  EXPECT_EQ(segment->map(0, kPage, "a test"), block);
  EXPECT_EQ(block[7], std::byte{9});
}

TEST(Segment, ReservesItsPages) {
  const auto segment = Segment::create();
  segment->map(0, 1 << 20, "a test");
  struct stat now {};
  ASSERT_EQ(fstat(segment->descriptor(), &now), 0);
  EXPECT_GE(now.st_blocks * 512, 1 << 20);
}

TEST(Segment, ManyThreadsMayMapTheSameBlock) {
  const auto segment = Segment::create();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++)
    threads.emplace_back([&, i] { segment->map(0, 1 << 20, "a test")[i] = std::byte(i + 1); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 4; i++) EXPECT_EQ(segment->at(0)[i], std::byte(i + 1));
}

TEST(Segment, TooMuchIsRefusedWithTheNumbers) {
  const auto segment = Segment::create();
  try {
    segment->map(0, size_t{100} << 40, "the model's parameters");
    FAIL() << "100 TiB were given";
  } catch (const IoError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the model's parameters"), std::string::npos) << text;
    EXPECT_NE(text.find("104857600.0 MiB wanted"), std::string::npos) << text;
    EXPECT_NE(text.find("MiB free"), std::string::npos) << text;
  }
  EXPECT_NE(segment->map(0, kPage, "less"), nullptr);  // still of use
}

TEST(Segment, MoreThanTheMachineHasIsRefused) {
  const auto segment = Segment::create();
  const size_t more = round_up(available_memory() + (size_t{1} << 30), kPage);
  ASSERT_LT(more, Segment::kAddresses);
  EXPECT_THROW(segment->map(0, more, "too much"), IoError);
}

/// As `ulimit -v` does, for the length of a test: this process may have so many more bytes of addresses.
class AddressLimit {
 public:
  explicit AddressLimit(size_t more) {
    getrlimit(RLIMIT_AS, &before_);
    constexpr rlim_t kFar = rlim_t{1} << 60;
    set(kFar);
    set(kFar - *addresses_left() + more);
  }
  ~AddressLimit() { set(before_.rlim_cur); }

 private:
  void set(rlim_t bytes) const {
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  rlimit before_{};
};

TEST(Segment, TakesHalfOfTheAddressesThatALimitLeaves) {
  constexpr size_t kGiB = size_t{1} << 30;
  EXPECT_FALSE(addresses_left());
  const AddressLimit limit(4 * kGiB);
  const auto segment = Segment::create(), second = Segment::create();  // which takes half of the rest
  EXPECT_NE(segment->map(0, kPage, "something small"), nullptr);
  EXPECT_NE(segment->map(kGiB, kPage, "something further off"), nullptr);
  EXPECT_TRUE(segment->offset_of(segment->at(kGiB + kGiB / 2)));
  EXPECT_FALSE(segment->offset_of(segment->at(3 * kGiB)));
  EXPECT_FALSE(second->offset_of(second->at(2 * kGiB)));
  try {
    segment->map(3 * kGiB, kPage, "the data set's inputs");
    FAIL() << "addresses beyond the limit were given";
  } catch (const IoError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the data set's inputs"), std::string::npos) << text;
    EXPECT_NE(text.find("'ulimit -v' limits the addresses of this process: raise it"), std::string::npos) << text;
  }
}

TEST(Deadline, CountsDownAndNeverBelowZero) {
  const Deadline far(Seconds(1000));
  EXPECT_FALSE(far.passed());
  EXPECT_GT(far.left().count(), 900);
  EXPECT_LE(far.left().count(), 1000);
  EXPECT_EQ(far.limit().count(), 1000);
  const Deadline past(Seconds(-1));
  EXPECT_TRUE(past.passed());
  EXPECT_EQ(past.left().count(), 0);
}

TEST(Deadline, MayBeLongerThanTheClockCounts) {
  const Deadline never(Seconds(1e12));
  EXPECT_FALSE(never.passed());
  EXPECT_GT(never.left().count(), 1e6);
}

TEST(Futex, WakesASleeperAndEndsAtItsLimit) {
  std::atomic<uint32_t> word{0};
  futex_wait(word, 0, Seconds(0.01));  // nobody wakes it
  futex_wait(word, 1, Seconds(1000));  // the word is not 1: no sleep
  std::thread sleeper([&] {
    while (word.load() == 0) futex_wait(word, 0, Seconds(1000));
  });
  word.store(1);
  futex_wake_all(word);
  sleeper.join();
  EXPECT_EQ(word.load(), 1u);
}

TEST(Process, StateOfThisOne) {
  EXPECT_EQ(process_state(getpid()), "running");
  EXPECT_EQ(process_state(0x3fffffff), "ended");
  EXPECT_TRUE(open_process(getpid()));
  EXPECT_FALSE(open_process(0x3fffffff));
  EXPECT_GE(usable_cores(), 1);
}

TEST(Descriptor, ClosesWhenItsOwnerGoes) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    Descriptor first(ends[0]);
    Descriptor second(std::move(first));
    EXPECT_FALSE(first);
    EXPECT_EQ(second.get(), ends[0]);
  }
  EXPECT_EQ(close(ends[0]), -1);
  Descriptor other(ends[1]);
  other.reset();
  EXPECT_FALSE(other);
  EXPECT_EQ(close(ends[1]), -1);
}

TEST(Errors, FormTheirTree) {
  try {
    fail<PeerLost>("rank {} died", 3);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 3 died");
    EXPECT_NE(dynamic_cast<const PeerLost*>(&error), nullptr);
  }
  EXPECT_EQ(errno_text(ENOENT), "No such file or directory");
}

}  // namespace
}  // namespace trireme::tests
