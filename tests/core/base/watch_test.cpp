// label: unit
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

#include <trireme/base/watch.h>

namespace trireme::tests {
namespace {

void write_to(const Descriptor& descriptor) {
  const uint64_t one = 1;
  ASSERT_EQ(write(descriptor.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
}

TEST(Watch, TellsOnce) {
  const Descriptor event(eventfd(0, EFD_CLOEXEC));
  std::atomic<int> told{0};
  {
    const Watch watch("watch-test", {event.get()}, [&](size_t) {
      told++;
      told.notify_all();
    });
    EXPECT_EQ(told.load(), 0);
    write_to(event);
    told.wait(0);
  }
  EXPECT_EQ(told.load(), 1);
}

TEST(Watch, TellsWhichOfSeveral) {
  const Descriptor events[] = {Descriptor(eventfd(0, EFD_CLOEXEC)), Descriptor(eventfd(0, EFD_CLOEXEC))};
  std::atomic<size_t> told{0};  // a digit for each
  const Watch watch("watch-test", {events[0].get(), -1, events[1].get()}, [&](size_t which) {
    told = told * 10 + which + 1;
    told.notify_all();
  });
  write_to(events[1]);
  told.wait(0);
  EXPECT_EQ(told.load(), 3u);
  write_to(events[0]);
  told.wait(3);
  EXPECT_EQ(told.load(), 31u);
}

TEST(Watch, EndsWithoutHavingTold) {
  const Descriptor event(eventfd(0, EFD_CLOEXEC));
  std::atomic<int> told{0};
  {
    const Watch watch("watch-test", {event.get()}, [&](size_t) { told++; });
  }
  {
    const Watch nothing("watch-test", {-1}, [&](size_t) { told++; });
  }
  write_to(event);
  EXPECT_EQ(told.load(), 0);
}

}  // namespace
}  // namespace trireme::tests
