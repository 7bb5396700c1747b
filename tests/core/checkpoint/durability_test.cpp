// label: multiproc
// Whatever happens to a job while it writes a checkpoint, the newest complete one loads with the right bytes: killed at
// any system call, with or without power lost, a full disk, errors, a folder that became read-only.
#include <gtest/gtest.h>

#include <cerrno>

#include <trireme/base/error.h>
#include <trireme/checkpoint/reader.h>

#include "memory_files.h"
#include "sample.h"

namespace trireme::tests {
namespace {

using Fate = MemoryFiles::Fate;

const Contents& contents() {
  static const Contents contents = [] {
    Contents small{
        space::Layout({{.name = "w", .shape = {4, 3, 2, 2}, .channels_last = true}, {.name = "b", .shape = {3}}}),
        {},
        {"parameters", "optimizer/momentum"}};
    return small;
  }();
  return contents;
}

/// Few files, as every call is a test.
void save_small(MemoryFiles& files, int64_t step) {
  constexpr size_t kLarge = 1 << 20;
  save(files, "/ckpt", step, contents(), 2, 2, kLarge, kLarge);
}

/// A job's life: checkpoints of steps 100 and 200, of which one is kept. Returns the step of the last one.
int64_t train(MemoryFiles& files) {
  const checkpoint::Folder folder(files, "/ckpt");
  folder.clean();
  int64_t done = 0;
  for (const int64_t step : {100, 200}) {
    save_small(files, step);
    done = step;
    for (const checkpoint::Retired& retired : retire(folder.list(), {.keep = 1})) folder.remove(retired.entry);
  }
  return done;
}

/// The step of the newest checkpoint after all its bytes were found right; 0 when there is none.
int64_t newest_step(MemoryFiles& files) {
  const checkpoint::Folder folder(files, "/ckpt");
  const std::vector<checkpoint::Entry> entries = folder.list();
  for (const checkpoint::Entry& entry : entries)
    EXPECT_NE(entry.condition, checkpoint::Condition::damaged) << entry.reason;
  if (std::none_of(entries.begin(), entries.end(),
                   [](const auto& entry) { return entry.condition == checkpoint::Condition::complete; }))
    return 0;
  const checkpoint::Folder::Usable usable = folder.newest();
  const checkpoint::Checkpoint checkpoint(files, usable.entry.path);
  checkpoint.verify(1);
  checkpoint::Reader reader(checkpoint, contents().layout, {});
  for (const std::string& vector : contents().vectors)
    for (const state::Holding& holding : reader.contents().of(vector)) {
      std::vector<std::byte> got(holding.range.size());
      reader.read(vector, holding.range, got);
      const std::vector<std::byte> all = vector_bytes(vector, contents().layout, usable.entry.step);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin() + static_cast<long>(holding.range.begin)));
    }
  return usable.entry.step;
}

/// With a folder that is there for good.
std::unique_ptr<MemoryFiles> new_disk() {
  auto files = std::make_unique<MemoryFiles>();
  files->mkdir("/ckpt", 0755);
  checkpoint::sync_folder(*files, "/");
  return files;
}

size_t all_calls() {
  const auto files = new_disk();
  files->at_call(0, Fate::kill);
  EXPECT_EQ(train(*files), 200);
  EXPECT_EQ(newest_step(*files), 200);
  return files->calls();
}

/// What had been promised before call n, by what the job said.
struct Outcome {
  int64_t committed = 0;  // the last step of which save() returned
  bool error = false;     // it was told of a fault, not killed
};

Outcome train_until(MemoryFiles& files, size_t n, Fate fate) {
  files.at_call(n, fate);
  Outcome outcome;
  const checkpoint::Folder folder(files, "/ckpt");
  for (const int64_t step : {100, 200}) try {
      save_small(files, step);
      outcome.committed = step;
      for (const checkpoint::Retired& retired : retire(folder.list(), {.keep = 1})) folder.remove(retired.entry);
    } catch (const Killed&) {
      return outcome;
    } catch (const Error&) {
      outcome.error = true;  // training goes on without this one
    }
  return outcome;
}

/// The next job finds its way. For a part of the calls: it takes as long as everything before.
void go_on(MemoryFiles& files, size_t number) {
  if (number % 5 != 0) return;
  ASSERT_EQ(train(files), 200) << "call " << number;
  ASSERT_EQ(newest_step(files), 200);
}

/// The names of folders that had to be made are there, too.
TEST(Durability, FoldersThatAreMadeStay) {
  const auto files = new_disk();
  checkpoint::make_folders(*files, "/ckpt/runs/of/today");
  checkpoint::make_folders(*files, "/ckpt/runs/of/today");
  files->lose_power();
  EXPECT_TRUE(files->exists("/ckpt/runs/of/today"));
}

TEST(Durability, KilledAtAnyCall) {
  const size_t calls = all_calls();
  ASSERT_GT(calls, 100u);
  for (size_t n = 1; n <= calls; n++) {
    const auto files = new_disk();
    const int64_t committed = train_until(*files, n, Fate::kill).committed;
    files->restart();
    ASSERT_GE(newest_step(*files), committed) << "call " << n;
    go_on(*files, n);
  }
}

TEST(Durability, PowerLostAtAnyCall) {
  const size_t calls = all_calls();
  for (size_t n = 1; n <= calls; n++)
    for (uint32_t seed = 0; seed < 4; seed++) {  // 0: all that was not synced is lost; others: some of it
      const auto files = new_disk();
      const int64_t committed = train_until(*files, n, Fate::kill).committed;
      std::mt19937 dice(seed);
      files->lose_power(seed == 0 ? nullptr : &dice);
      ASSERT_GE(newest_step(*files), committed) << "call " << n << ", seed " << seed;
      ASSERT_FALSE(HasFailure()) << "call " << n << ", seed " << seed;
      go_on(*files, n + seed);
    }
}

TEST(Durability, FullDiskAtAnyCall) {
  const size_t calls = all_calls();
  size_t told = 0;
  for (size_t n = 1; n <= calls; n++) {
    const auto files = new_disk();
    const Outcome outcome = train_until(*files, n, Fate::no_space);
    told += outcome.error;
    files->restart();
    ASSERT_GE(newest_step(*files), outcome.committed) << "call " << n;
    for (const checkpoint::Entry& entry : checkpoint::Folder(*files, "/ckpt").list())
      ASSERT_EQ(entry.condition, checkpoint::Condition::complete) << "what failed was removed, call " << n;
  }
  EXPECT_GT(told, calls / 2) << "nothing is written on a full disk, and that is said";
}

TEST(Durability, OneErrorAtAnyCall) {
  const size_t calls = all_calls();
  for (size_t n = 1; n <= calls; n++) {
    const auto files = new_disk();
    const Outcome outcome = train_until(*files, n, Fate::io_error);
    files->restart();
    ASSERT_GE(newest_step(*files), outcome.committed) << "call " << n;
  }
}

TEST(Durability, FolderThatBecomesReadOnly) {
  for (const int error : {EROFS, EACCES}) {
    const auto files = new_disk();
    save(*files, "/ckpt", 100, contents());
    files->refuse_writes(error);
    try {
      save(*files, "/ckpt", 200, contents());
      FAIL() << "nothing can be written";
    } catch (const IoError& failure) {
      EXPECT_NE(std::string(failure.what()).find("may write to"), std::string::npos) << failure.what();
      EXPECT_NE(std::string(failure.what()).find("/ckpt/step-000000200"), std::string::npos) << failure.what();
    }
    EXPECT_EQ(newest_step(*files), 100);
  }
}

}  // namespace
}  // namespace trireme::tests
