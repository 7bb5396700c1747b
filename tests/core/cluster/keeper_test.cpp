// label: multiproc
// Memory that outlives the ranks that use it: a process that comes later finds what one that was killed has left.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <trireme/base/inherited.h>
#include <trireme/cluster/launching/keeper.h>
#include <trireme/cluster/world.h>

#include "../comm/process.h"

namespace trireme::cluster::tests {
namespace {

using trireme::tests::Process;

Place place_of(const Keeper& keeper, int rank, int ranks, const char* job) {
  Place place{rank, ranks, fmt::format("{}-{}", job, getpid()), "test"};
  place.segment = keeper.variable();
  return place;
}

TEST(Keeper, WhoComesLaterMapsWhatOthersHaveLeft) {
  const Keeper keeper;
  std::vector<std::unique_ptr<Process>> first;
  for (int rank = 0; rank < 2; rank++)
    first.push_back(std::make_unique<Process>([&, place = place_of(keeper, rank, 2, "first")](const Process::Say& say) {
      World world(place, {.timeout = Seconds(20)});
      const auto block = world.local().keep("parameters", 40000, 2);
      if (block.found) fail<Error>("somebody was here before");
      auto* mine = reinterpret_cast<int32_t*>(block.parts[static_cast<size_t>(rank)]);
      for (int i = 0; i < 10000; i++) mine[i] = i * (rank + 1);
      world.comm().allreduce(mine, 10000, DType::i32, Op::sum, "in place");
      say("written");
      pause();
    }));
  for (auto& rank : first) ASSERT_EQ(rank->next_line(), "written");
  for (auto& rank : first) kill(rank->pid(), SIGKILL);
  first.clear();

  Process process([&, place = place_of(keeper, 0, 1, "later")](const Process::Say& say) {
    World world(place, {.timeout = Seconds(20)});
    const auto block = world.local().keep("parameters", 40000, 2);
    if (!block.found) fail<Error>("nothing was left");
    for (const std::byte* part : block.parts)
      for (int i = 0; i < 10000; i++)
        if (reinterpret_cast<const int32_t*>(part)[i] != 3 * i) fail<Error>("element {} is wrong", i);
    world.local().allreduce(block.parts[0], 10000, DType::i32, Op::sum, "in place");
    try {
      world.local().keep("parameters", 40000, 3);
      fail<Error>("taken");
    } catch (const Mismatch& error) {
      say(error.what());
    }
  });
  EXPECT_EQ(process.next_line(),
            "shared memory has 'parameters' as 2 parts of 40000 bytes, and 3 parts of 40000 bytes are asked for");
  EXPECT_EQ(process.next_line(), "ok");
}

TEST(Keeper, WhatARankStartsItselfDoesNotInheritTheMemory) {
  const Keeper keeper;
  fcntl(keeper.descriptor(), F_SETFD, 0);  // as a rank gets it
  const auto segment = kept_segment(keeper.variable());
  ASSERT_TRUE(segment);
  EXPECT_TRUE(segment->is(keeper.descriptor()));
  EXPECT_EQ(fcntl(keeper.descriptor(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(fcntl(segment->descriptor(), F_GETFD), FD_CLOEXEC);
  EXPECT_TRUE(kept_segment(keeper.variable()));  // for whoever joins again
}

TEST(Keeper, WhatStandsForNothingIsPassedOver) {
  const Keeper keeper;
  const std::string number = std::to_string(keeper.descriptor());
  for (const std::string& text :
       {std::string(), std::string("x"), number, number + ":", number + ":1", std::string("-1:5"), std::string("999:5"),
        keeper.variable() + "x", ":" + keeper.variable()})
    EXPECT_FALSE(kept_segment(text)) << text;
}

}  // namespace
}  // namespace trireme::cluster::tests
