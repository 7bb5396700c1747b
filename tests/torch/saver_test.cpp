// label: multiproc
// A saver whose folder is slow, full or broken: training goes on, nobody waits longer than was asked for, and what is
// given up ends soon.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <set>

#include <trireme/checkpoint/folder.h>
#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using checkpoint::Files;

/// The system's own, which can be made to wait or to fail. Thread-safe.
class FaultyFiles final : public Files {
 public:
  /// Reads of tensors wait from now on, until go_on().
  void hold_reads() { set(holds_, true); }
  void go_on() { set(holds_, false); }
  /// Until so many reads wait, or were made.
  void await_reads(int count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return reads_ >= count; }));
  }
  int reads() {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  /// From now on, 0: not at all.
  void refuse_new_files(int error) { files_error_ = error; }
  void refuse_looks(int error) { looks_error_ = error; }

  int open(const std::string& path, int flags, int mode) override {
    if ((flags & O_CREAT) != 0 && files_error_ != 0) return errno = files_error_, -1;
    const int file = below_.open(path, flags, mode);
    const std::lock_guard lock(mutex_);
    if (path.ends_with(".safetensors"))
      tensors_.insert(file);
    else
      tensors_.erase(file);
    return file;
  }
  ssize_t pread(int file, void* data, size_t bytes, uint64_t at) override {
    if (std::unique_lock lock(mutex_); tensors_.contains(file)) {
      reads_++;
      changed_.notify_all();
      changed_.wait_for(lock, std::chrono::seconds(20), [this] { return !holds_; });
    }
    return below_.pread(file, data, bytes, at);
  }
  int list(const std::string& path, std::vector<std::string>& names) override {
    if (looks_error_ != 0) return errno = looks_error_, -1;
    return below_.list(path, names);
  }
  int close(int file) override { return below_.close(file); }
  ssize_t pwrite(int file, const void* data, size_t bytes, uint64_t at) override {
    return below_.pwrite(file, data, bytes, at);
  }
  int fsync(int file) override { return below_.fsync(file); }
  int fallocate(int file, uint64_t bytes) override { return below_.fallocate(file, bytes); }
  int ftruncate(int file, uint64_t bytes) override { return below_.ftruncate(file, bytes); }
  int64_t size(int file) override { return below_.size(file); }
  int rename(const std::string& from, const std::string& to) override { return below_.rename(from, to); }
  int unlink(const std::string& path) override { return below_.unlink(path); }
  int mkdir(const std::string& path, int mode) override { return below_.mkdir(path, mode); }
  int rmdir(const std::string& path) override { return below_.rmdir(path); }
  std::unique_ptr<checkpoint::Changes> watch(const std::string& folder) override { return below_.watch(folder); }

 private:
  void set(bool& what, bool to) {
    const std::lock_guard lock(mutex_);
    what = to;
    changed_.notify_all();
  }

  Files& below_ = checkpoint::system_files();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> tensors_;  // open files that have some
  bool holds_ = false;
  int reads_ = 0;
  std::atomic<int> files_error_{0}, looks_error_{0};
};

struct Folder {
  Folder() : path(fs::temp_directory_path() / fmt::format("trireme-saver-{}-{}", getpid(), count++)) {}
  ~Folder() { fs::remove_all(path); }
  /// Steps of complete ones, newest first.
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& entry : checkpoint::Folder(checkpoint::system_files(), path).list())
      if (entry.condition == checkpoint::Condition::complete) steps.push_back(entry.step);
    return steps;
  }
  fs::path path;
  inline static int count = 0;
};

constexpr int kMegabytes = 8;             // of parameters, and as many of momentum
constexpr Seconds kSoon{0.2}, kLong{20};  // that a test waits in vain; that it would take to wait in vain
using Steps = std::vector<int64_t>;

/// Each rank with its own files, where there are several.
void run(int ranks, const std::function<void(World&, Parallel&)>& body) {
  test::run_ranks(ranks, [&](World& world) {
    torch::nn::Linear net(1 << 9, kMegabytes << 9);
    auto train = parallel(world, *net, momentum({.lr = 0.1}));
    body(world, train);
  });
}

TEST(Saver, EndsInTheMiddleOfHashingWhenItIsGivenUp) {
  const Folder folder;
  FaultyFiles files;
  run(1, [&](World&, Parallel& train) {
    Saver saver(train, {.dir = folder.path, .files = &files});
    files.hold_reads();
    EXPECT_TRUE(saver.save({.step = 1}));
    files.await_reads(1);  // it hashes
    EXPECT_FALSE(saver.wait(kSoon));
    saver.give_up();
    files.go_on();
  });
  // Two threads hash, each with at most one read under way and one that it was about to make.
  EXPECT_LE(files.reads(), 4);
  EXPECT_LT(4, 2 * kMegabytes) << "make the model larger: this shows nothing";
  EXPECT_EQ(folder.steps(), Steps{});
  for (const auto& entry : fs::directory_iterator(folder.path))
    EXPECT_EQ(entry.path().filename(), "trireme.lock") << "what was given up is removed";
}

TEST(Saver, ASecondOneDoesNotWaitLongerForTheFirstThanItMay) {
  const Folder folder;
  FaultyFiles files;
  run(2, [&](World& world, Parallel& train) {
    Saver saver(train, {.dir = folder.path, .files = &files});
    if (world.first()) files.hold_reads();
    world.comm().barrier("reads are slow");
    EXPECT_TRUE(saver.save({.step = 1}));
    EXPECT_FALSE(saver.save({.step = 2}, kSoon));
    EXPECT_FALSE(saver.settle(kSoon));
    if (world.first()) {
      const std::vector<Saved> news = saver.news();
      EXPECT_EQ(news.size(), 1u);
      EXPECT_EQ(news.at(0).step, 2);
      EXPECT_NE(news.at(0).error.find("still being written"), std::string::npos) << news.at(0).error;
      files.go_on();
    }
    EXPECT_TRUE(saver.settle(kLong));
    EXPECT_TRUE(saver.save({.step = 3}, kLong));
    EXPECT_EQ(saver.complete().step, world.first() ? 3 : 0);
  });
  EXPECT_EQ(folder.steps(), (Steps{3, 1}));
}

/// As when a run is stopped while the checkpoint before is under way, and its grace is over.
TEST(Saver, GivesUpTheFirstWhenThereIsNoTimeForASecond) {
  const Folder folder;
  FaultyFiles files;
  run(2, [&](World& world, Parallel& train) {
    Saver saver(train, {.dir = folder.path, .files = &files});
    if (world.first()) files.hold_reads();
    world.comm().barrier("reads are slow");
    EXPECT_TRUE(saver.save({.step = 1}));
    if (world.first()) files.await_reads(1);
    EXPECT_FALSE(saver.save({.step = 2}, kSoon));
    saver.give_up();
    EXPECT_FALSE(saver.save({.step = 3}, kSoon)) << "nothing is saved afterwards";
    if (world.first()) files.go_on();
  });
  EXPECT_LE(files.reads(), 4);
  EXPECT_EQ(folder.steps(), Steps{});
}

TEST(Saver, AFolderThatCannotBeLookedIntoIsAWarning) {
  const Folder folder;
  FaultyFiles files;
  run(2, [&](World& world, Parallel& train) {
    Saver saver(train, {.dir = folder.path, .files = &files});
    for (const int error : {EIO, EACCES}) {
      if (world.first()) files.refuse_looks(error);
      world.comm().barrier("it is broken");
      EXPECT_FALSE(saver.save({.step = 1}));
      if (world.first()) {
        const std::vector<Saved> news = saver.news();
        EXPECT_EQ(news.size(), 1u);
        EXPECT_NE(news.at(0).error.find("cannot look into " + folder.path.string()), std::string::npos)
            << news.at(0).error;
        files.refuse_looks(0);
      }
    }
    world.comm().barrier("it is not");
    EXPECT_TRUE(saver.save({.step = 2}));
    saver.complete();
  });
  EXPECT_EQ(folder.steps(), Steps{2});
}

/// One rank's disk is full, so full that it cannot even say so.
TEST(Saver, WhoCannotSayThatItFailedIsHeardOf) {
  const Folder folder;
  FaultyFiles files[2];
  run(2, [&](World& world, Parallel& train) {
    Saver saver(train, {.dir = folder.path, .limit = kLong, .files = &files[world.rank()]});
    if (!world.first()) files[1].refuse_new_files(ENOSPC);
    EXPECT_TRUE(saver.save({.step = 1}));
    saver.settle(kLong);
    if (!world.first()) files[1].refuse_new_files(0);
    if (world.first()) {
      const std::vector<Saved> news = saver.news();
      EXPECT_EQ(news.size(), 1u);
      EXPECT_NE(news.at(0).error.find("given up"), std::string::npos) << "not after its limit: " << news.at(0).error;
    }
    EXPECT_TRUE(saver.save({.step = 2}));
    saver.complete();
  });
  EXPECT_EQ(folder.steps(), Steps{2});
}

}  // namespace
}  // namespace trireme
