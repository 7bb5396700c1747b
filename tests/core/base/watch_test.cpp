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
    const Watch watch("watch-test", event.get(), [&] {
      told++;
      told.notify_all();
    });
    EXPECT_EQ(told.load(), 0);
    write_to(event);
    told.wait(0);
  }
  EXPECT_EQ(told.load(), 1);
}

TEST(Watch, EndsWithoutHavingTold) {
  const Descriptor event(eventfd(0, EFD_CLOEXEC));
  std::atomic<int> told{0};
  {
    const Watch watch("watch-test", event.get(), [&] { told++; });
  }
  {
    const Watch nothing("watch-test", -1, [&] { told++; });
  }
  write_to(event);
  EXPECT_EQ(told.load(), 0);
}

}  // namespace
}  // namespace trireme::tests
