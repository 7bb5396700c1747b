// label: unit
// What ZeRO decides without touching memory: whose part is what, what comes and goes, and what a stage holds.
#include <gtest/gtest.h>

#include <set>

#include <trireme/base/error.h>
#include <trireme/exchange/exchange.h>
#include <trireme/exchange/holdings.h>
#include <trireme/exchange/shares.h>
#include <trireme/exchange/window.h>

namespace trireme::exchange::tests {
namespace {

TEST(Shares, EveryByteHasOneOwnerAndCutsAreBetweenPages) {
  for (const space::Range bucket : {space::Range{64, 1 << 20}, space::Range{4096 * 3 + 128, 4096 * 3 + 5000},
                                    space::Range{0, 64}, space::Range{128, 128 + 4096 * 40}})
    for (int lanes : {1, 2, 3})
      for (int machines : {1, 2, 4, 8}) {
        const Shares shares{lanes, machines};
        size_t at = bucket.begin;
        for (int lane = 0; lane < lanes; lane++)
          for (int machine = 0; machine < machines; machine++) {
            const space::Range part = shares.part(bucket, lane, machine);
            EXPECT_EQ(part.begin, at);
            EXPECT_TRUE(part.end == bucket.end || part.end % kPage == 0 || part.empty()) << part.end;
            at = part.end;
            for (const space::Range& pages : shares.foreign_pages(bucket, lane, machine)) {
              EXPECT_TRUE(intersect(pages, part).empty());
              EXPECT_EQ(pages.begin % kPage, 0u);
              EXPECT_EQ(pages.size() % kPage, 0u);
              EXPECT_EQ(intersect(pages, shares.slice(bucket, lane)), pages);
            }
          }
        EXPECT_EQ(at, bucket.end);
      }
}

TEST(Shares, PartsAreWithinAPageOfEachOther) {
  const Shares shares{2, 8};
  for (int machine = 0; machine < 8; machine++)
    EXPECT_NEAR(static_cast<double>(shares.part({0, 1 << 20}, 1, machine).size()), (1 << 20) / 16.0, kPage);
}

/// Runs passes, and keeps the books that the window keeps.
struct Books {
  explicit Books(size_t buckets, size_t room) : window(std::vector<size_t>(buckets, 10), room), room(room) {}
  void act(const Window::Actions& actions) {
    for (const auto& [kind, bucket] : actions) {
      if (kind == Window::Action::gather)
        ASSERT_TRUE(here.insert(bucket).second);
      else
        ASSERT_EQ(here.erase(bucket), 1u);
      gathers += kind == Window::Action::gather ? 1 : 0;
    }
  }
  /// Whether it had been gathered ahead.
  bool use(size_t bucket) {
    const bool before = here.contains(bucket);
    const size_t buckets[] = {bucket};
    act(window.use(buckets, {}));
    EXPECT_TRUE(here.contains(bucket));
    EXPECT_LE(here.size() * 10, room);
    EXPECT_EQ(here.size() * 10, window.bytes_here());
    return before;
  }
  Window window;
  size_t room;
  std::set<size_t> here;
  int gathers = 0;
};

TEST(Window, GathersAheadInTheOrderThatItHasLearned) {
  Books books(8, 40);
  for (int step = 0; step < 3; step++) {
    books.gathers = 0;
    books.act(books.window.begin(1));
    int late = 0;
    for (size_t b = 0; b < 8; b++) late += books.use(b) ? 0 : 1;
    for (size_t b = 8; b-- > 0;) late += books.use(b) ? 0 : 1;
    books.act(books.window.clear());
    EXPECT_TRUE(books.here.empty());
    EXPECT_EQ(late, step == 0 ? 12 : 0) << "in the first step 8 forward, and in backward those that have gone";
    EXPECT_LE(books.gathers, 12) << "what is used again first stays";
  }
}

TEST(Window, WhatIsInUseStays) {
  Window window(std::vector<size_t>(5, 10), 20);
  std::vector<int> pinned(5);
  const size_t first[] = {0, 1, 2};  // more than there is room for
  EXPECT_EQ(window.use(first, pinned).size(), 3u);
  pinned = {1, 1, 1, 0, 0};
  const size_t second[] = {3};
  EXPECT_EQ(window.use(second, pinned), (Window::Actions{{Window::Action::gather, 3}}));
  pinned = {0, 0, 0, 0, 0};
  const size_t third[] = {4};
  const auto actions = window.use(third, pinned);
  EXPECT_EQ(actions.size(), 4u) << "three go, one comes";
}

TEST(Window, AnotherOrderIsFollowedToo) {
  Books books(6, 30);
  for (const auto& order : {std::vector<size_t>{0, 1, 2, 3, 4, 5}, std::vector<size_t>{0, 3, 1, 5, 5, 2, 4, 0},
                            std::vector<size_t>{5, 4, 3}, std::vector<size_t>{0, 1, 2}}) {
    books.act(books.window.begin(0));
    for (size_t b : order) books.use(b);
    books.act(books.window.clear());
  }
}

TEST(Window, RemembersUsesAndReadinessOfEachKindOfPass) {
  Books books(3, 30);
  books.act(books.window.begin(1));
  books.use(2);
  books.window.note_open();
  books.window.note_ready();
  books.use(0);
  books.act(books.window.begin(0));
  books.use(1);
  books.act(books.window.clear());
  using Event = Window::Event;
  EXPECT_EQ(books.window.learned(1),
            (std::vector<Event>{{Event::use, {2}}, {Event::open, {}}, {Event::ready, {}}, {Event::use, {0}}}));
  EXPECT_EQ(books.window.learned(0), (std::vector<Event>{{Event::use, {1}}}));
  EXPECT_TRUE(books.window.learned(2).empty());
}

TEST(Window, LearnsNothingFromAPassThatWasAbandoned) {
  Books books(3, 30);
  books.act(books.window.begin(0));
  books.use(1);
  books.act(books.window.clear());
  books.act(books.window.begin(0));
  books.use(2);
  books.act(books.window.abandon());
  using Event = Window::Event;
  EXPECT_EQ(books.window.learned(0), (std::vector<Event>{{Event::use, {1}}}));
  EXPECT_EQ(books.window.bytes_here(), 0U);
}

TEST(Holdings, AreTheFormulasOfTheStages) {
  for (int machines : {2, 4, 8}) {
    const auto bytes = [&](int zero) {
      return static_cast<double>(holdings_of({.parameter_bytes = 4'000'000,
                                              .optimizer = space::Optimizer::adam,
                                              .zero = zero,
                                              .machines = machines})
                                     .total()) /
             1e6;
    };
    EXPECT_DOUBLE_EQ(bytes(0), 16);
    EXPECT_DOUBLE_EQ(bytes(1), 8 + 8.0 / machines);
    EXPECT_DOUBLE_EQ(bytes(2), 4 + 12.0 / machines);
    EXPECT_DOUBLE_EQ(bytes(3), 16.0 / machines);
  }
  EXPECT_EQ(holdings_of({.parameter_bytes = 100, .zero = 3, .ranks_here = 4}).gradients, 0u);
  EXPECT_NE(
      describe_holdings({.parameter_bytes = 100'000'000, .optimizer = space::Optimizer::adam, .zero = 3, .machines = 4})
          .find("75 % less than zero 0"),
      std::string::npos);
  EXPECT_NE(describe_holdings({.parameter_bytes = 1000, .zero = 1, .ranks_here = 2}).find("on one machine"),
            std::string::npos);
}

/// Sentences are what users read: whose the figures are, and that no window is promised that nobody keeps to.
TEST(Holdings, AreSaidOfWhoHasThem) {
  HoldingsOf what{.parameter_bytes = 80'000'000,
                  .largest_bucket = 1'000'000,
                  .optimizer = space::Optimizer::adam,
                  .zero = 2,
                  .machines = 2};
  EXPECT_EQ(describe_holdings(what),
            "zero 2 on 2 machines: each holds 80.0 MB of parameters (of 80.0), 40.0 MB of gradients (of 80.0), 80.0 MB "
            "of optimizer state (of 160.0), and in a step a window of 10.0 MB, 38 % less than zero 0");
  what.in_parts = true;
  EXPECT_EQ(describe_holdings(what).substr(0, 39), "zero 2 on 2 machines: each rank holds 8");
  what.ranks_here = 3;
  EXPECT_EQ(describe_holdings(what).substr(0, 89),
            "zero 2 on 2 machines: the 3 ranks of a machine that have the same part of the model hold ");
  what = {.parameter_bytes = 80'000'000,
          .optimizer = space::Optimizer::adam,
          .zero = 2,
          .machines = 2,
          .whole_gradients = true};
  EXPECT_EQ(holdings_of(what).window, 0U) << "nothing is gathered";
  EXPECT_EQ(describe_holdings(what),
            "zero 2 on 2 machines: each holds 80.0 MB of parameters (of 80.0), 80.0 MB of gradients (of 80.0), 80.0 MB "
            "of optimizer state (of 160.0); gradients stay until the end of a step's backward passes, 25 % less than "
            "zero 0");
  what.zero = 3;
  EXPECT_EQ(holdings_of(what).window, 5'000'000U) << "half of it is for parameters";
  EXPECT_EQ(holdings_of(what).gradients, 80'000'000U);
}

TEST(Zero, IsRefusedWhereThereIsNoUpdateToDivide) {
  for (const Sync& sync : {Sync(Sync::async), Sync(Sync::hogwild), Sync::local_for(3), Sync(Sync::allreduce),
                           Sync(Sync::central), Sync(Sync::server)})
    EXPECT_THROW(check({.sync = sync, .zero = 1}), InvalidArgument) << name_of(sync);
  EXPECT_THROW(check({.zero = 4}), InvalidArgument);
  EXPECT_THROW(check({.zero = -1}), InvalidArgument);
  check({.zero = 3});
}

}  // namespace
}  // namespace trireme::exchange::tests
