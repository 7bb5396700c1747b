// label: unit
#include <set>

#include "files.h"

namespace trireme::tests {
namespace {

using data::make_synthetic;

TEST(Synthetic, IsTheSameForAnyNumberOfRanks) {
  const Content one = read_by(1, [](auto& group) { return make_synthetic(group, 101, 5); });
  EXPECT_EQ(one.count, 101u);
  EXPECT_EQ(one.shape, (std::vector<int64_t>{1, 28, 28}));
  EXPECT_EQ(one.classes, 10);
  for (int ranks : {2, 3, 4}) EXPECT_EQ(read_by(ranks, [](auto& group) { return make_synthetic(group, 101, 5); }), one);
}

TEST(Synthetic, DependsOnTheSeed) {
  const auto with = [](uint64_t seed) {
    return read_by(1, [&](auto& group) { return make_synthetic(group, 20, seed); });
  };
  EXPECT_EQ(with(1), with(1));
  EXPECT_NE(with(1), with(2));
}

TEST(Synthetic, HasAllClassesAndPatternsToLearn) {
  const Content set = read_by(1, [](auto& group) { return make_synthetic(group, 500, 1); });
  EXPECT_EQ(std::set<int64_t>(set.labels.begin(), set.labels.end()).size(), 10u);
  // The mean picture of a class is near its own pattern: samples of one class are nearer to each other than to those of
  // another.
  const auto distance = [&](size_t a, size_t b) {
    double sum = 0;
    for (size_t p = 0; p < 784; p++) sum += std::abs(set.inputs[a * 784 + p] - set.inputs[b * 784 + p]);
    return sum;
  };
  double same = 0, other = 0, sames = 0, others = 0;
  for (size_t i = 1; i < set.count; i++)
    (set.labels[i] == set.labels[0] ? (sames++, same) : (others++, other)) += distance(0, i);
  EXPECT_LT(same / sames * 1.2, other / others);
}

TEST(Open, SyntheticOfAnyCount) {
  expect_all_well(run_ranks(2, [](comm::shm::Communicator& group) {
    const data::Splits splits = data::open(group, "synthetic:37");
    EXPECT_EQ(splits.train.count, 37u);
    EXPECT_EQ(splits.test.count, 3u);
    EXPECT_EQ(data::open(group, "synthetic:1").test.count, 1u);
  }));
}

void expect_unknown(const std::string& what, const std::vector<std::string>& parts) {
  expect_refused<InvalidArgument>(
      2, [&](auto& group) { return data::open(group, what).train; }, parts);
}

TEST(Open, BadCounts) {
  for (const char* what : {"synthetic:", "synthetic:0", "synthetic:-1", "synthetic:10x", "synthetic:4294967296",
                           "synthetic:23528800348188864", "synthetic:99999999999999999999999"})
    expect_unknown(what, {what, "synthetic:COUNT"});
}

TEST(Open, MoreThanMemoryHoldsIsAnError) {
  expect_refused<IoError>(2, [](auto& group) { return data::open(group, "synthetic:4294967295").train; },
                          {"no room in shared memory", "the data set's inputs"});
}

TEST(Open, UnknownNameGivesTheNearest) {
  expect_unknown("fashion-mnits", {"'fashion-mnits'", "did you mean 'fashion-mnist'?", "Known: "});
  expect_unknown("syntetic", {"did you mean 'synthetic'?"});
  expect_unknown("zzz", {"unknown data set 'zzz'. Known: "});
}

TEST(Open, MissingPathsAndOtherFiles) {
  const Folder folder;
  expect_refused<IoError>(2, [&](auto& group) { return data::open(group, folder.path("no/such")).train; },
                          {folder.path("no/such")});
  expect_refused<IoError>(2, [&](auto& group) { return data::open(group, "missing.csv").train; }, {"missing.csv"});
  expect_refused<IoError>(2, [&](auto& group) { return data::open(group, folder.path()).train; },
                          {folder.path(), "train.csv"});
  expect_unknown(folder.write("notes.pdf", "hello"), {"notes.pdf", "is not a data set"});
}

TEST(Share, CutsWithoutGaps) {
  for (size_t count : {0u, 1u, 5u, 64u, 1000u})
    for (int ranks : {1, 2, 3, 7}) {
      size_t next = 0;
      for (int rank = 0; rank < ranks; rank++) {
        const data::Share share = data::share_of(count, rank, ranks);
        EXPECT_EQ(share.begin, next);
        next = share.end;
      }
      EXPECT_EQ(next, count);
    }
}

}  // namespace
}  // namespace trireme::tests
