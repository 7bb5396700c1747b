// label: unit
// A folder of checkpoints: what to resume from, what to keep, who may write.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include <trireme/base/error.h>
#include <trireme/checkpoint/reader.h>

#include "../data/files.h"
#include "memory_files.h"
#include "sample.h"

namespace trireme::tests {
namespace {

using checkpoint::Condition;
using checkpoint::Entry;
using checkpoint::FolderLock;

template <class Body>
std::exception_ptr error_of(const Body& body) {
  try {
    body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

class FolderOf : public testing::Test {
 protected:
  FolderOf() { files_.mkdir("/ckpt", 0755); }
  void save_steps(const std::vector<int64_t>& steps) {
    for (const int64_t step : steps) save(files_, "/ckpt", step, sample_contents());
  }
  checkpoint::Folder::Usable newest(bool verify = false) { return checkpoint::Folder(files_, "/ckpt").newest(verify); }

  MemoryFiles files_;
};

TEST_F(FolderOf, NewestFirst) {
  save_steps({900, 1000, 999, 1'000'000'000'0, 1000});
  std::vector<std::string> names;
  for (const Entry& entry : checkpoint::Folder(files_, "/ckpt").list()) {
    names.push_back(entry.name);
    EXPECT_EQ(entry.condition, Condition::complete) << entry.reason;
    EXPECT_EQ(entry.manifest->step, entry.step);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"step-10000000000", "step-000001000.2", "step-000001000", "step-000000999",
                                             "step-000000900"}));
  EXPECT_EQ(newest().entry.step, 10'000'000'000);
  EXPECT_TRUE(newest().skipped.empty());
}

TEST_F(FolderOf, WhatIsOfNoUseIsSkippedAndNamed) {
  save_steps({1, 2, 3, 4, 5});
  files_.unlink("/ckpt/step-000000005/manifest.json");                                  // half-written
  files_.bytes_of("/ckpt/step-000000004/model-00001-of-00003.safetensors").pop_back();  // short
  files_.bytes_of("/ckpt/step-000000003/model-00001-of-00003.safetensors").back() ^= std::byte{1};
  const auto quick = newest(false);
  EXPECT_EQ(quick.entry.step, 3) << "hashes are not looked at";
  const auto usable = newest(true);
  EXPECT_EQ(usable.entry.step, 2);
  ASSERT_EQ(usable.skipped.size(), 3u);
  EXPECT_NE(usable.skipped[0].find("step-000000005 is half-written"), std::string::npos) << usable.skipped[0];
  EXPECT_NE(usable.skipped[1].find("model-00001-of-00003"), std::string::npos) << usable.skipped[1];
  EXPECT_NE(usable.skipped[2].find("SHA-256 of model-00001-of-00003"), std::string::npos) << usable.skipped[2];

  EXPECT_EQ(checkpoint::Folder(files_, "/ckpt/step-000000002").newest(true).entry.step, 2);
  EXPECT_EQ(checkpoint::Folder(files_, "/ckpt/step-000000001/").newest(true).entry.step, 1);
  expect_error<InvalidArgument>(error_of([&] { checkpoint::Folder(files_, "/ckpt/step-000000003").newest(true); }),
                                {"SHA-256"});
}

TEST_F(FolderOf, ANewerVersionIsSkippedAndKept) {
  save_steps({1, 2});
  auto& bytes = files_.bytes_of("/ckpt/step-000000002/manifest.json");
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text.replace(text.find("\"version\": 2"), 12, "\"version\": 7");
  std::memcpy(bytes.data(), hashed_anew(text).data(), text.size());
  EXPECT_EQ(newest().entry.step, 1);
  EXPECT_NE(newest().skipped.at(0).find("version 7"), std::string::npos);
  const checkpoint::Folder folder(files_, "/ckpt");
  EXPECT_EQ(folder.list()[0].condition, Condition::newer);
  EXPECT_TRUE(folder.clean().empty());
  for (const checkpoint::Retired& retired : retire(folder.list(), {.keep = 1})) EXPECT_NE(retired.entry.step, 2);
}

/// Another job works in the folder whenever a file is opened to be read.
class Shared final : public Files {
 public:
  Shared(Files& below, std::function<void(const std::string&)> meanwhile)
      : below_(below), meanwhile_(std::move(meanwhile)) {}
  int open(const std::string& path, int flags, int mode) override {
    meanwhile_(path);
    return below_.open(path, flags, mode);
  }
  int close(int file) override { return below_.close(file); }
  ssize_t pread(int file, void* data, size_t bytes, uint64_t at) override {
    return below_.pread(file, data, bytes, at);
  }
  ssize_t pwrite(int, const void*, size_t, uint64_t) override { return errno = EROFS, -1; }
  int fsync(int file) override { return below_.fsync(file); }
  int fallocate(int, uint64_t) override { return errno = EROFS, -1; }
  int ftruncate(int, uint64_t) override { return errno = EROFS, -1; }
  int64_t size(int file) override { return below_.size(file); }
  int rename(const std::string&, const std::string&) override { return errno = EROFS, -1; }
  int unlink(const std::string&) override { return errno = EROFS, -1; }
  int mkdir(const std::string&, int) override { return errno = EROFS, -1; }
  int rmdir(const std::string&) override { return errno = EROFS, -1; }
  int list(const std::string& path, std::vector<std::string>& names) override { return below_.list(path, names); }
  std::unique_ptr<checkpoint::Changes> watch(const std::string& folder) override { return below_.watch(folder); }

 private:
  Files& below_;
  std::function<void(const std::string&)> meanwhile_;
};

TEST_F(FolderOf, AnotherJobRemovesWhatWasChosen) {
  save_steps({1});
  const checkpoint::Folder folder(files_, "/ckpt");
  for (const int changes : {1, 2, 3}) {
    int64_t step = folder.list().front().step;
    const int64_t last = step + changes;
    size_t reads = 0;  // of the model's first file: once to look at it, then to open and to hash it
    Shared shared(files_, [&](const std::string& path) {
      if (step == last || path.find("model-00001") == path.npos || ++reads % 3 != 0) return;
      save_steps({++step});
      folder.remove(folder.list().back());
    });
    if (changes < 3) {
      const auto usable = checkpoint::Folder(shared, "/ckpt").newest(true);
      EXPECT_EQ(usable.entry.step, last);
      EXPECT_TRUE(usable.skipped.empty());
    } else {
      EXPECT_THROW(checkpoint::Folder(shared, "/ckpt").newest(true), InvalidArgument) << "it looks three times";
    }
    EXPECT_EQ(step, last) << "what was chosen was removed as often";
  }
}

TEST_F(FolderOf, NothingToResumeFromIsSaid) {
  expect_error<InvalidArgument>(error_of([&] { newest(); }), {"/ckpt", "empty", "give the folder that"});
  files_.mkdir("/ckpt/photos", 0755);
  expect_error<InvalidArgument>(error_of([&] { newest(); }), {"/ckpt is no folder of checkpoints"});
  save_steps({1});
  files_.unlink("/ckpt/step-000000001/manifest.json");
  expect_error<InvalidArgument>(error_of([&] { newest(); }), {"no checkpoint in /ckpt", "half-written"});
  expect_error<InvalidArgument>(error_of([&] { checkpoint::Folder(files_, "/none").newest(); }), {"no folder /none"});
  const Folder real;
  expect_error<InvalidArgument>(
      error_of([&] { checkpoint::Folder(checkpoint::system_files(), real.write("f", "x")).newest(); }), {"is a file"});
}

TEST_F(FolderOf, CleaningRemovesWhatIsHalfWrittenAlone) {
  save_steps({1, 2, 3});
  files_.unlink("/ckpt/step-000000003/manifest.json");
  files_.bytes_of("/ckpt/step-000000002/model-00001-of-00003.safetensors").pop_back();
  const std::vector<std::string> done = checkpoint::Folder(files_, "/ckpt").clean();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_NE(done[0].find("step-000000003"), std::string::npos);
  EXPECT_FALSE(files_.exists("/ckpt/step-000000003"));
  EXPECT_TRUE(files_.exists("/ckpt/step-000000002"));
}

TEST(Lock, IsOneJobsAtATime) {
  const Folder folder;
  const std::string path = folder.path("a/b");
  {
    const FolderLock lock(path);
    expect_error<InvalidArgument>(error_of([&] { FolderLock second(path); }),
                                  {"another job", path, "process " + std::to_string(getpid()), "since 2", "choose"});
  }
  const FolderLock again(path);
}

TEST(Lock, EndsWithItsProcess) {
  const Folder folder;
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(folder.path());
    if (write(pipe_ends[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char ready = 0;
  ASSERT_EQ(read(pipe_ends[0], &ready, 1), 1);
  EXPECT_THROW(FolderLock{folder.path()}, InvalidArgument);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_NO_THROW(FolderLock{folder.path()});
  close(pipe_ends[0]), close(pipe_ends[1]);
}

TEST(Lock, OfAFileIsRefused) {
  const Folder folder;
  EXPECT_THROW(FolderLock{folder.write("file", "")}, IoError);
}

Entry entry(int64_t step, Condition condition = Condition::complete, std::map<std::string, double> metrics = {}) {
  Entry entry{.name = std::to_string(step), .step = step, .condition = condition};
  if (condition == Condition::complete) entry.manifest.emplace().metrics = std::move(metrics);
  return entry;
}

std::vector<std::string> retired_names(const std::vector<Entry>& entries, const checkpoint::KeepRule& rule) {
  std::vector<std::string> names;
  for (const checkpoint::Retired& retired : retire(entries, rule)) {
    names.push_back(retired.entry.name);
    EXPECT_FALSE(retired.reason.empty());
  }
  return names;
}

TEST(Retire, KeepsTheNewestAndTheBest) {
  using Names = std::vector<std::string>;
  const auto with = [](int64_t step, double accuracy) { return entry(step, Condition::complete, {{"acc", accuracy}}); };
  const std::vector<Entry> five = {with(5, 0.5), with(4, 0.9), with(3, NAN), with(2, 0.9), with(1, 0.1)};
  EXPECT_EQ(retired_names(five, {.keep = 3}), (Names{"1", "2"}));
  EXPECT_EQ(retired_names(five, {.keep = 1}), (Names{"1", "2", "3", "4"}));
  EXPECT_EQ(retired_names(five, {.keep = 0}), Names{});
  EXPECT_EQ(retired_names(five, {.keep = 9}), Names{});
  EXPECT_EQ(retired_names(five, {.keep = 1, .best = "acc"}), (Names{"1", "2", "3"}));
  EXPECT_EQ(retired_names(five, {.keep = 1, .best = "acc", .higher_is_better = false}), (Names{"2", "3", "4"}));
  EXPECT_EQ(retired_names(five, {.keep = 1, .best = "loss"}), (Names{"1", "2", "3", "4"}));
  const auto reasons = retire(five, {.keep = 1, .best = "acc"});
  EXPECT_NE(reasons[0].reason.find("older than the 1 newest, and its acc 0.1 is no better than 0.9 of 4"),
            std::string::npos)
      << reasons[0].reason;
}

TEST(Retire, CountsCompleteOnesAlone) {
  using Names = std::vector<std::string>;
  const std::vector<Entry> mixed = {entry(9, Condition::half_written),
                                    entry(8, Condition::damaged),
                                    entry(7),
                                    entry(6, Condition::damaged),
                                    entry(5),
                                    entry(4, Condition::damaged),
                                    entry(3)};
  EXPECT_EQ(retired_names(mixed, {.keep = 2}), (Names{"3", "4"}));
  EXPECT_EQ(retired_names({entry(2, Condition::damaged), entry(1, Condition::half_written)}, {.keep = 1}), Names{});
}

}  // namespace
}  // namespace trireme::tests
