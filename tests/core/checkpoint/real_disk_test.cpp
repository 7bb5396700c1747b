// label: multiproc
// The same on a real file system of a few megabytes: ext4 in a file. It fills up, and loses power under a killed job.
// Needs the right to mount.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/reader.h>

#include "../data/files.h"
#include "sample.h"

namespace trireme::tests {
namespace {

/// A small disk. In a mount namespace of this process: it is gone with it.
class Disk {
 public:
  explicit Disk(int megabytes) {
    if (unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      why_not_ = "this user may not have a mount namespace: " + errno_text();
      return;
    }
    std::filesystem::create_directory(point());
    if (!run(fmt::format("truncate -s {}M {}", megabytes, image())) || !run("mkfs.ext4 -q -F " + image()))
      why_not_ = "there is no mkfs.ext4";
    else if (!mount())
      why_not_ = "this user may not mount a file (mount -o loop)";
  }
  ~Disk() { unmount(); }

  const std::string& why_not() const { return why_not_; }
  std::string point() const { return folder_.path("disk"); }
  bool mount() { return mounted_ = run("mount -o loop " + image() + " " + point()); }
  void unmount() {
    if (mounted_) umount2(point().c_str(), 0);
    mounted_ = false;
  }
  /// What has not reached the disk is lost, the journal's open part included.
  bool lose_power() {
    constexpr unsigned long kShutdown = _IOR('X', 125, uint32_t);  // EXT4_IOC_SHUTDOWN
    uint32_t without_flush = 2;
    {
      const Descriptor root(::open(point().c_str(), O_RDONLY));
      if (ioctl(root.get(), kShutdown, &without_flush) != 0) return false;
    }
    unmount();
    return mount();
  }

 private:
  std::string image() const { return folder_.path("image"); }
  static bool run(const std::string& command) {
    return std::system(("PATH=$PATH:/sbin:/usr/sbin; " + command + " >/dev/null 2>&1").c_str()) == 0;
  }

  Folder folder_;
  std::string why_not_;
  bool mounted_ = false;
};

/// About 300 kB.
Contents large_contents() {
  return {space::Layout({{.name = "w", .shape = {40, 30, 8, 4}, .channels_last = true}, {.name = "b", .shape = {300}}}),
          {},
          {"parameters", "optimizer/momentum"}};
}

/// The step of the newest checkpoint, whose bytes are as they should be.
int64_t checked_step(const std::string& path) {
  const Contents contents = large_contents();
  Files& files = checkpoint::system_files();
  const checkpoint::Folder::Usable usable = checkpoint::Folder(files, path).newest(true);
  const checkpoint::Checkpoint opened(files, usable.entry.path);
  checkpoint::Reader reader(opened, contents.layout, {});
  for (const std::string& vector : contents.vectors) {
    const std::vector<std::byte> all = vector_bytes(vector, contents.layout, usable.entry.step);
    for (const state::Holding& holding : reader.contents().of(vector)) {
      std::vector<std::byte> got(holding.range.size());
      reader.read(vector, holding.range, got);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin() + static_cast<long>(holding.range.begin)));
    }
  }
  return usable.entry.step;
}

constexpr size_t kLarge = 1 << 20;

TEST(RealDisk, FillsUp) {
  Disk disk(8);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const std::string path = disk.point() + "/ckpt";
  const checkpoint::FolderLock lock(path);
  Files& files = checkpoint::system_files();
  int64_t step = 1;
  std::string message;
  for (; message.empty() && step < 100; step++) try {
      save(files, path, step, large_contents(), 2, 11, kLarge, kLarge);
    } catch (const IoError& error) {
      message = error.what();
    }
  EXPECT_NE(message.find("No space left on device: make room there"), std::string::npos) << message;
  ASSERT_GT(step, 4) << "some found room";
  EXPECT_EQ(checked_step(path), step - 2);
  const checkpoint::Folder folder(files, path);
  for (const checkpoint::Entry& entry : folder.list())
    EXPECT_EQ(entry.condition, checkpoint::Condition::complete) << entry.reason;
  for (const checkpoint::Retired& retired : retire(folder.list(), {.keep = 1})) folder.remove(retired.entry);
  save(files, path, step, large_contents(), 2, 11, kLarge, kLarge);
  EXPECT_EQ(checked_step(path), step);
}

/// Checkpoints without end; the number of each that is complete goes to `said`.
[[noreturn]] void write_forever(const std::string& path, int64_t step, int said) {
  Files& files = checkpoint::system_files();
  const checkpoint::FolderLock lock(path);
  const checkpoint::Folder folder(files, path);
  folder.clean();
  for (;; step++) {
    save(files, path, step, large_contents(), 2, 11, kLarge, kLarge);
    if (write(said, &step, sizeof step) != sizeof step) _exit(1);
    for (const checkpoint::Retired& retired : retire(folder.list(), {.keep = 2})) folder.remove(retired.entry);
  }
}

TEST(RealDisk, LosesPowerUnderAJob) {
  Disk disk(16);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const std::string path = disk.point() + "/ckpt";
  int64_t last = 0;
  for (int round = 0; round < 6; round++) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) write_forever(path, last + 1, ends[1]);
    close(ends[1]);
    for (int i = 0; i < 2; i++) ASSERT_EQ(read(ends[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
    usleep(static_cast<useconds_t>(round * 3000));  // somewhere in the next one
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    while (read(ends[0], &last, sizeof last) > 0) continue;
    close(ends[0]);
    ASSERT_TRUE(disk.lose_power()) << errno_text();
    const int64_t found = checked_step(path);
    EXPECT_GE(found, last) << "what was said to be complete is there";
    last = std::max(last, found);
  }
}

}  // namespace
}  // namespace trireme::tests
