// label: unit
// Ranks of one machine that agree among themselves on the next crew.
#include <gtest/gtest.h>

#include <thread>

#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/muster.h>

namespace trireme::cluster::tests {
namespace {

/// Ranks are threads; the even ones live.
TEST(Muster, AnyNumberOfRanksAgree) {
  for (const int ranks : {2, 7, 700}) {
    const auto segment = std::shared_ptr<Segment>(Segment::create());
    const std::string job = random_name();
    Crew before{3, {}};
    for (int rank = 0; rank < ranks; rank++) before.ranks.push_back(rank);
    std::vector<Mustered> results(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank += 2)
      threads.emplace_back([&, rank] {
        const Facts facts{.job = job, .rank = rank, .segment = segment};
        results[static_cast<size_t>(rank)] = muster(facts, before, [](int other) { return Peer{-1, other % 2 == 0}; });
      });
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < ranks; rank += 2) {
      const Mustered& mine = results[static_cast<size_t>(rank)];
      ASSERT_EQ(mine.crew.epoch, 4u);
      ASSERT_EQ(mine.control, results[0].control);
      ASSERT_EQ(mine.crew.ranks.size(), static_cast<size_t>((ranks + 1) / 2));
      for (size_t i = 0; i < mine.crew.ranks.size(); i++) ASSERT_EQ(mine.crew.ranks[i], static_cast<int>(2 * i));
    }
  }
}

}  // namespace
}  // namespace trireme::cluster::tests
