// label: unit
// The journal of a coordinator as a file: what was durable is found again after power loss, full disks and deaths at
// any system call, and what is damaged is never taken for something else.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include <trireme/base/error.h>
#include <trireme/cluster/journal/file.h>
#include <trireme/cluster/journal/format.h>
#include <trireme/cluster/journal/reader.h>
#include <trireme/cluster/journal/writer.h>

#include "tests/core/checkpoint/memory_files.h"

namespace trireme::cluster::journal::tests {
namespace {

using trireme::tests::Killed;
using trireme::tests::MemoryFiles;

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

testing::AssertionResult has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos ? testing::AssertionSuccess()
                                              : testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}
#define EXPECT_HAS(text, part) EXPECT_TRUE(has(text, part))

/// A journal of some records, and where each of them ends.
struct Sample {
  explicit Sample(std::mt19937& random, int records = 6) : bytes(header_bytes(0)), ends{bytes.size()}, states(1) {
    uint64_t sequence = 1 + random() % 100;
    for (int i = 0; i < records; i++) {
      Changes changes;
      for (unsigned n = 1 + random() % 3; n > 0; n--) {
        const std::string key = "key " + std::to_string(random() % 5);
        if (random() % 4 == 0)
          changes.push_back({key, std::nullopt});
        else
          changes.push_back({key, std::string(random() % 40, static_cast<char>('a' + random() % 26))});
      }
      bytes += record_bytes(sequence++, changes);
      ends.push_back(bytes.size());
      states.push_back(states.back());
      apply_changes(changes, states.back());
    }
  }
  std::string bytes;
  std::vector<size_t> ends;
  std::vector<Contents> states;  // after each record
};

TEST(Journal, WhatWasWrittenIsFoundAgain) {
  MemoryFiles files;
  {
    FileJournal journal(files, "/j");
    journal.write({{"a", "1"}, {"b", std::string("\0\xff", 2)}});
    journal.write({{"a", std::nullopt}, {"c", ""}});
    EXPECT_TRUE(journal.take_remarks().empty());
  }
  files.lose_power();
  FileJournal journal(files, "/j");
  EXPECT_EQ(journal.contents(), (Contents{{"b", std::string("\0\xff", 2)}, {"c", ""}}));
  EXPECT_TRUE(journal.take_remarks().empty());
}

TEST(Journal, ATailThatIsCutAnywhereLosesItsRecordAlone) {
  std::mt19937 random(1);
  const Sample sample(random);
  for (size_t size = kHeaderBytes; size <= sample.bytes.size(); size++) {
    const Found found = read_journal(sample.bytes.substr(0, size), "j");
    const size_t whole =
        static_cast<size_t>(std::upper_bound(sample.ends.begin(), sample.ends.end(), size) - sample.ends.begin() - 1);
    ASSERT_EQ(found.contents, sample.states[whole]) << size;
    ASSERT_EQ(found.end, sample.ends[whole]);
    ASSERT_EQ(found.remark.empty(), size == sample.ends[whole]) << size;
  }
}

TEST(Journal, DamageInTheMiddleIsAnErrorThatNamesIt) {
  std::mt19937 random(2);
  const Sample sample(random);
  for (size_t at = kHeaderBytes; at < sample.ends[sample.ends.size() - 2]; at++) {
    std::string bytes = sample.bytes;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    const size_t whole =
        static_cast<size_t>(std::upper_bound(sample.ends.begin(), sample.ends.end(), at) - sample.ends.begin() - 1);
    const std::string text = message_of([&] { read_journal(bytes, "j"); });
    ASSERT_TRUE(has(text, fmt::format("the journal j is damaged in the middle: behind byte {}", sample.ends[whole])));
  }
  std::string without = sample.bytes;  // a whole record that is not there
  without.erase(sample.ends[2], sample.ends[3] - sample.ends[2]);
  EXPECT_HAS(message_of([&] { read_journal(without, "j"); }), "damaged in the middle");
}

TEST(Journal, WhatIsNoJournalIsNamed) {
  EXPECT_HAS(message_of([] { read_journal("hello", "j"); }), "j is no journal of a coordinator");
  EXPECT_HAS(message_of([] { read_journal("", "j"); }), "j is no journal of a coordinator");
  std::string header = header_bytes(0);
  header[kHeaderChecksumAt]++;
  EXPECT_HAS(message_of([&] { read_journal(header, "j"); }), "damaged header");
  std::string gap = header_bytes(0);
  gap.replace(kStateAt, 4, state_bytes(kGapState));
  EXPECT_HAS(message_of([&] { read_journal(gap, "j"); }), "is not up to date");
  std::string other = header_bytes(0);
  other.replace(kStateAt, 4, "what");
  EXPECT_HAS(message_of([&] { read_journal(other, "j"); }), "damaged header");
}

/// What a compacted file began with was durable before it had its name: a tail that is missing there is no torn write.
TEST(Journal, WhatWasDurableFromTheBeginningIsNoTail) {
  uint64_t sequence = 1;
  const std::string records = all_records({{"a", "1"}}, sequence);
  const std::string bytes = header_bytes(records.size()) + records;
  EXPECT_EQ(read_journal(bytes, "j").contents, (Contents{{"a", "1"}}));
  EXPECT_HAS(message_of([&] { read_journal(bytes.substr(0, bytes.size() - 1), "j"); }), "cut short");
  std::string flipped = bytes;
  flipped.back()++;
  EXPECT_HAS(message_of([&] { read_journal(flipped, "j"); }), "was durable from the beginning");
}

/// Damaged in every way: what is read is what was true after one of its records, or an error.
TEST(Journal, AHundredThousandDamagedFilesAreUnderstoodOrRefused) {
  const char* wanted = std::getenv("JOURNALS");
  const uint64_t journals = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 100'000;
  uint64_t refused = 0, cut = 0;
  std::mt19937 random(3);
  std::vector<Sample> samples;
  for (int i = 0; i < 50; i++) samples.emplace_back(random, static_cast<int>(random() % 8));
  for (uint64_t i = 0; i < journals; i++) {
    const Sample& sample = samples[random() % samples.size()];
    std::string bytes = sample.bytes;
    for (unsigned n = 1 + random() % 3; n > 0; n--) {
      const size_t at = bytes.empty() ? 0 : random() % bytes.size(), length = random() % 30;
      switch (random() % 6) {
        case 0:
          if (!bytes.empty()) bytes[at] = static_cast<char>(random());
          break;
        case 1:
          if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.erase(at, length);
          break;
        case 4:
          bytes.insert(at, length, static_cast<char>(random()));
          break;
        default:
          bytes += sample.bytes.substr(sample.bytes.size() - std::min<size_t>(sample.bytes.size(), length));
      }
    }
    try {
      const Found found = read_journal(bytes, "j");
      cut += found.remark.empty() ? 0 : 1;
      ASSERT_NE(std::find(sample.states.begin(), sample.states.end(), found.contents), sample.states.end()) << i;
      ASSERT_LE(found.end, bytes.size());
    } catch (const Corruption&) {
      refused++;
    }
  }
  EXPECT_GT(refused, journals / 10);
  EXPECT_GT(cut, journals / 10);
}

Changes change_of(int i) {
  return {{"key " + std::to_string(i % 7), std::string(static_cast<size_t>(i) * 5, 'x')}, {"last", std::to_string(i)}};
}

/// The process dies, or power is lost, at every system call: all that was answered for is there, and at most what was
/// under way beside it.
TEST(Journal, NothingThatWasAnsweredForIsLostAtAnySystemCall) {
  constexpr int kWrites = 12;
  std::mt19937 dice(4);
  for (const bool power : {false, true}) {
    for (size_t call = 1;; call++) {
      MemoryFiles files;
      int answered = -1;
      files.at_call(call, MemoryFiles::Fate::kill);
      bool ended = true;
      try {
        FileJournal journal(files, "/j");
        for (int i = 0; i < kWrites; i++) {
          journal.write(change_of(i));
          answered = i;
        }
      } catch (const Killed&) {
        ended = false;
      } catch (const Error&) {
        ended = false;
      }
      if (power)
        files.lose_power(&dice);
      else
        files.restart();
      const FileJournal after(files, "/j");
      std::vector<Contents> states(1);
      for (int i = 0; i < kWrites; i++) {
        states.push_back(states.back());
        apply_changes(change_of(i), states.back());
      }
      const auto place = std::find(states.begin(), states.end(), after.contents());
      ASSERT_NE(place, states.end()) << "call " << call;
      ASSERT_GE(place - states.begin(), answered + 1) << "call " << call << (power ? ", power lost" : "");
      if (ended) break;
    }
  }
}

TEST(Journal, AnErrorOfTheDiskIsSaidAndMadeUpForAtOnce) {
  for (size_t call = 1; call < 8; call++) {
    MemoryFiles files;
    FileJournal journal(files, "/j");
    journal.write(change_of(0));
    files.at_call(call, MemoryFiles::Fate::io_error);
    for (int i = 1; i < 5; i++) journal.write(change_of(i));
    const std::vector<std::string> remarks = journal.take_remarks();
    ASSERT_EQ(remarks.size(), 2u) << call;
    EXPECT_HAS(remarks[0], "the journal cannot be written");
    EXPECT_HAS(remarks[1], "is written again");
    files.lose_power();
    EXPECT_EQ(FileJournal(files, "/j").contents(), journal.contents()) << call;
  }
}

TEST(Journal, AFullDiskIsSaidOnceAndMadeUpForLater) {
  MemoryFiles files;
  FileJournal journal(files, "/j");
  files.at_call(1, MemoryFiles::Fate::no_space);
  for (int i = 0; i < 4; i++) journal.write(change_of(i));
  EXPECT_EQ(journal.take_remarks().size(), 1u);
  files.at_call(0, MemoryFiles::Fate::no_space);
  usleep(1'100'000);  // it does not try all the time
  journal.write({});
  const std::vector<std::string> remarks = journal.take_remarks();
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_HAS(remarks[0], "is written again");
  files.lose_power();
  EXPECT_EQ(FileJournal(files, "/j").contents(), journal.contents());
}

/// A disk without room for more: the file says of itself that something is missing.
class RealJournal : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "trireme-journal-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ / "journal"; }
  std::filesystem::path folder_;
};

TEST_F(RealJournal, AFileThatIsNotUpToDateIsRefused) {
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  std::vector<std::string> remarks, later;
  std::string refused;
  Contents contents;
  {
    const auto journal = open_file_journal(path());
    const rlimit full{4096, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
    for (int i = 0; i < 10; i++) journal->write({{"key " + std::to_string(i), std::string(1000, 'x')}});
    remarks = journal->take_remarks();
    std::filesystem::copy_file(path(), path() + ".copy");
    setrlimit(RLIMIT_FSIZE, &old);
    for (const Deadline deadline(Seconds(20)); later.empty() && !deadline.passed(); later = journal->take_remarks()) {
      usleep(100'000);
      journal->write({});
    }
    contents = journal->contents();
  }
  std::signal(SIGXFSZ, ignored);
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_HAS(remarks[0], "The job goes on; but should this coordinator die");
  EXPECT_HAS(message_of([&] { open_file_journal(path() + ".copy"); }), "is not up to date");
  ASSERT_EQ(later.size(), 1u);
  EXPECT_HAS(later[0], "is written again, and up to date");
  EXPECT_EQ(contents.size(), 10u);
  EXPECT_EQ(open_file_journal(path())->contents(), contents);
}

TEST_F(RealJournal, BelongsToOneProcess) {
  auto journal = open_file_journal(path());
  EXPECT_HAS(message_of([&] { open_file_journal(path()); }), "another coordinator that runs on this host");
  journal.reset();
  open_file_journal(path());
  EXPECT_HAS(message_of([&] { open_file_journal((folder_ / "nowhere" / "j").string()); }), "nowhere");
}

TEST_F(RealJournal, DoesNotGrowForever) {
  const auto journal = open_file_journal(path());
  for (int i = 0; i < 300; i++) journal->write({{"key", std::string(20'000, static_cast<char>('a' + i % 26))}});
  EXPECT_LT(std::filesystem::file_size(path()), size_t{2} << 20);
  EXPECT_FALSE(std::filesystem::exists(path() + ".new"));
  EXPECT_EQ(read_journal(
                [&] {
                  std::ifstream file(path(), std::ios::binary);
                  return std::string(std::istreambuf_iterator<char>(file), {});
                }(),
                path())
                .contents,
            journal->contents());
}

}  // namespace
}  // namespace trireme::cluster::journal::tests
