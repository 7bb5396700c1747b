// label: unit
// One contract for every exchange - all modes, on one machine, on several, with servers - against one plain loop.
#include <gtest/gtest.h>

#include <atomic>

#include "crews.h"
#include "plain_loop.h"

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using space::Slot;
using space::UpdaterOptions;
using trireme::tests::expect_all_well;
using trireme::tests::expect_error;

Layout small_model() {
  return Layout({{"conv.weight", DType::f64, {6, 5, 5}},
                 {"conv.bias", DType::f64, {6}},
                 {"fc1.weight", DType::f64, {37, 41}},
                 {"fc1.bias", DType::f64, {37}},
                 {"scale", DType::f64, {}},
                 {"fc2.weight", DType::f64, {10, 37}},
                 {"unused", DType::f64, {9}},
                 {"fc2.bias", DType::f64, {10}}});
}

double* elements(std::byte* flat, const Slot& slot) { return reinterpret_cast<double*>(flat + slot.range.begin); }

Values values_of(const Exchange& exchange) {
  Values result;
  for (const Slot& slot : exchange.flat().layout().slots())
    result.emplace_back(elements(exchange.flat().parameters(), slot),
                        elements(exchange.flat().parameters(), slot) + slot.elements());
  return result;
}

/// What an exchange applies gradients one by one with is its rate as it stands, so that the loop needs no shares.
Options options_for(const Crew& crew) {
  return {.sync = crew.sync,
          .bucket_bytes = 4000,
          .zero = crew.zero,
          .zero_window = 1,
          .rate = crew.sync.one_by_one() ? Rate::full : Rate::share};
}

void one_step(Exchange& exchange, int rank, int step) {
  const Layout& layout = exchange.flat().layout();
  ASSERT_TRUE(exchange.begin(rate(step)));
  use_in_order(exchange);
  exchange.open();
  for (size_t b = 0; b < exchange.flat().buckets().size(); b++) {
    for (size_t slot = exchange.flat().buckets()[b].first; slot < exchange.flat().buckets()[b].last; slot++) {
      const bool present = has_gradient(rank, step, slot);
      for (size_t i = 0; i < layout[slot].elements(); i++)  // what a slot without a gradient holds must not matter
        elements(exchange.flat().gradients(), layout[slot])[i] = present ? gradient(rank, step, slot, i) : 1e6;
      if (present) exchange.flat().present(slot);
    }
    exchange.ready(b);
  }
  exchange.close();
  exchange.land();
  ASSERT_TRUE(exchange.outcome().landed);
  ASSERT_TRUE(exchange.outcome().sound);
}

/// One rank's training.
void train(const Crew& crew, const Member& me, const Layout& layout, const UpdaterOptions& optimizer,
           const Options& options, Values& own, Values& agreed) {
  const auto exchange = make_exchange(me.group, layout, optimizer, options);
  if (me.rank == 0 || !exchange->traits().shared)
    for (size_t slot = 0; slot < layout.size(); slot++)
      for (size_t i = 0; i < layout[slot].elements(); i++)
        elements(exchange->flat().parameters(), layout[slot])[i] = me.rank == 0 ? start_value(slot, i) : 1e9;
  me.barrier();
  exchange->state().publish();
  for (int step = 1; step <= kSteps; step++)
    for (int turn = 0; turn < (crew.takes_turns() ? crew.ranks : 1); turn++) {
      if (!crew.takes_turns() || turn == me.rank) one_step(*exchange, me.rank, step);
      if (crew.takes_turns()) me.barrier();
    }
  {
    const Reading reading(*exchange);
    own = values_of(*exchange);
  }
  me.barrier();
  exchange->state().settle();
  agreed = values_of(*exchange);
  exchange->state().resume();
  me.barrier();
}

/// Trains, and expects that all ranks agree.
Trained train_all(const Crew& crew, const Layout& layout, const UpdaterOptions& optimizer, const Options& options) {
  const auto ranks = static_cast<size_t>(crew.ranks);
  std::vector<Values> own(ranks), agreed(ranks);
  expect_all_well(run(crew, [&](const Member& me) {
    const auto at = static_cast<size_t>(me.rank);
    train(crew, me, layout, optimizer, options, own[at], agreed[at]);
  }));
  for (const Values& other : agreed) EXPECT_EQ(other, agreed[0]);
  return {own, agreed[0]};
}

void expect_near(const Layout& layout, const Values& got, const Values& wanted, const std::string& where) {
  ASSERT_EQ(got.size(), wanted.size()) << where;
  for (size_t slot = 0; slot < wanted.size(); slot++)
    for (size_t i = 0; i < wanted[slot].size(); i++)
      ASSERT_NEAR(got[slot][i], wanted[slot][i], 1e-12) << where << " " << layout[slot].name << "[" << i << "]";
}

/// Where each rank sees the last update of all at once; otherwise it knows only what it was given with its own.
bool sees_all(const Crew& crew) {
  return crew.sync.lockstep() || crew.sync.kind == Sync::hogwild || crew.sync.kind == Sync::local ||
         crew.sync.kind == Sync::diloco || crew.sync.kind == Sync::elastic;
}

void expect_trained(const Crew& crew, const Layout& layout, const Trained& got, const Trained& wanted,
                    const std::string& where) {
  expect_near(layout, got.agreed, wanted.agreed, where);
  for (size_t rank = 0; sees_all(crew) && rank < got.own.size(); rank++)
    expect_near(layout, got.own[rank], wanted.own[rank], where + fmt::format(", rank {}'s own:", rank));
}

const std::vector<UpdaterOptions>& optimizers() {
  static const std::vector<UpdaterOptions> all = {space::sgd({.weight_decay = 0.01}),
                                                  space::momentum(),
                                                  space::momentum({.nesterov = true, .weight_decay = 0.01}),
                                                  space::adagrad(),
                                                  space::adam({.weight_decay = 0.01}),
                                                  space::adamw({.weight_decay = 0.1})};
  return all;
}

class EveryExchange : public testing::TestWithParam<Crew> {
 protected:
  static const Crew& crew() { return GetParam(); }
  static Options options() { return options_for(crew()); }
  /// For what is refused before servers are asked: they would wait for ranks that do not come.
  static Crew without_servers() {
    Crew crew = GetParam();
    crew.servers = 0;
    return crew;
  }
};

TEST_P(EveryExchange, FollowsTheFormulas) {
  const Layout layout = small_model();
  for (const UpdaterOptions& optimizer : optimizers()) {
    const Trained got = train_all(crew(), layout, optimizer, options());
    expect_trained(crew(), layout, got, plain_loop(layout, optimizer, crew().sync, crew().ranks),
                   space::name_of(optimizer.kind));
    for (size_t i = 0; i < 9; i++)
      EXPECT_NEAR(got.agreed[6][i], start_value(6, i), 1e-15) << "a parameter without gradients moved";
  }
}

TEST_P(EveryExchange, ClipsByTheNorm) {
  constexpr double kNorm = 12;
  const Layout layout = small_model();
  Options clipping = options();
  clipping.clip = kNorm;
  for (const UpdaterOptions& optimizer : {space::sgd(), space::momentum()})
    for (bool overlap : {false, true}) {
      clipping.overlap = overlap;
      const Trained wanted = plain_loop(layout, optimizer, crew().sync, crew().ranks, kNorm);
      const int gradients = kSteps * (crew().sync.lockstep() ? 1 : crew().ranks);
      ASSERT_GT(wanted.clipped, gradients / 3);
      ASSERT_LT(wanted.clipped, gradients);
      expect_trained(crew(), layout, train_all(crew(), layout, optimizer, clipping), wanted,
                     space::name_of(optimizer.kind));
    }
}

TEST_P(EveryExchange, TwoRunsGiveTheSameBits) {
  const Layout layout = small_model();
  const Trained one = train_all(crew(), layout, space::adam(), options()),
                other = train_all(crew(), layout, space::adam(), options());
  EXPECT_EQ(one.agreed, other.agreed);
  EXPECT_EQ(one.own, other.own);
}

TEST_P(EveryExchange, OverlapAndBucketsDoNotChangeTheBits) {
  const Layout layout = small_model();
  Options other = options();
  const Values wanted = train_all(crew(), layout, space::momentum(), other).agreed;
  other.overlap = false;
  EXPECT_EQ(train_all(crew(), layout, space::momentum(), other).agreed, wanted);
  for (size_t bytes : {size_t{1}, size_t{1} << 30}) {
    other.bucket_bytes = bytes;
    for (bool overlap : {false, true}) {
      other.overlap = overlap;
      EXPECT_EQ(train_all(crew(), layout, space::momentum(), other).agreed, wanted) << bytes << " bytes a bucket";
    }
  }
}

TEST_P(EveryExchange, HundredsOfBucketsInAStep) {
  std::vector<Slot> slots;
  for (int i = 0; i < 200; i++) slots.push_back({fmt::format("p{}", i), DType::f64, {i % 5 + 1}});
  const Layout layout(slots);
  Options tiny = options();
  tiny.bucket_bytes = 1;
  for (bool overlap : {false, true}) {
    tiny.overlap = overlap;
    expect_trained(crew(), layout, train_all(crew(), layout, space::sgd(), tiny),
                   plain_loop(layout, space::sgd(), crew().sync, crew().ranks), "sgd");
  }
}

/// The traits against the mode's own description of itself.
TEST_P(EveryExchange, IsWhatItSays) {
  expect_all_well(run(crew(), [&](const Member& me) {
    const auto exchange = make_exchange(me.group, small_model(), space::sgd(), options());
    const Traits traits = exchange->traits();
    const bool on_servers = crew().sync.needs_servers() && crew().sync.kind != Sync::elastic;
    EXPECT_EQ(traits.lockstep, crew().sync.lockstep());
    EXPECT_EQ(traits.gives_work, crew().sync.one_by_one() && crew().sync.kind != Sync::round_robin);
    EXPECT_EQ(traits.kept_elsewhere, crew().sync.takes_servers() || crew().sync.kind == Sync::diloco);
    EXPECT_EQ(traits.shared, crew().sync.kind == Sync::shared || crew().sync.kind == Sync::hogwild ||
                                 (on_servers && crew().sync.lockstep()));
    EXPECT_EQ(traits.patient, crew().sync.kind == Sync::shared && !crew().machine_of.empty());
    EXPECT_EQ(traits.tells, crew().sync.kind == Sync::shared);
    EXPECT_EQ(exchange->paging() != nullptr, crew().zero == 3 && !crew().machine_of.empty());
    EXPECT_EQ(exchange->succession(), nullptr);
    EXPECT_EQ(exchange->virtual_workers(), nullptr);
    EXPECT_EQ(exchange->client() != nullptr, crew().servers > 0);
    EXPECT_EQ(exchange->source().run(), (Pieces{me.rank, me.rank + 1}));
    EXPECT_EQ(exchange->source().pieces(), crew().ranks);
    // One copy where it is shared: what the first rank of a machine writes, the others see.
    auto* const first = reinterpret_cast<std::atomic<double>*>(exchange->flat().parameters());
    if (me.group.local.rank() == 0) first->store(5);
    me.barrier();
    EXPECT_EQ(first->load() == 5, traits.shared || me.group.local.rank() == 0);
    me.barrier();
  }));
}

/// Of two courses, each piece to one rank; with own shares, one of every step to each.
TEST_P(EveryExchange, GivesEveryPieceOfWorkOnce) {
  constexpr int64_t kFirst[] = {0, 7}, kLength[] = {7, 5};
  std::vector<std::vector<std::atomic<int>>> given;
  for (int64_t length : kLength) given.emplace_back(static_cast<size_t>(length * crew().ranks));
  expect_all_well(run(crew(), [&](const Member& me) {
    const auto exchange = make_exchange(me.group, small_model(), space::sgd(), options());
    exchange->state().publish();
    WorkSource& source = exchange->source();
    for (size_t course = 0; course < 2; course++) {
      source.begin(kFirst[course], kLength[course]);
      int64_t count = 0;
      for (ps::Lease lease; (lease = source.take()).what != ps::Lease::end; count++) {
        ASSERT_EQ(lease.what, ps::Lease::piece);
        ASSERT_EQ(lease.step, kFirst[course] + lease.index / crew().ranks);
        if (!exchange->traits().gives_work) {
          ASSERT_EQ(lease.index, count * crew().ranks + me.rank);
        }
        given[course][static_cast<size_t>(lease.index)]++;
      }
      EXPECT_EQ(source.take().what, ps::Lease::end);
      EXPECT_TRUE(exchange->traits().gives_work || count == kLength[course]) << count;
    }
    me.barrier();
  }));
  for (const auto& course : given)
    for (const auto& times : course) EXPECT_EQ(times.load(), 1);
}

TEST_P(EveryExchange, DifferentModelsAreRefusedByName) {
  if (crew().ranks == 1) GTEST_SKIP() << "nobody to differ from";
  const auto outcomes = run(without_servers(), [&](const Member& me) {
    std::vector<Slot> slots = {{"fc.weight", DType::f64, {3, 4}}, {"fc.bias", DType::f64, {me.rank == 1 ? 5 : 3}}};
    make_exchange(me.group, Layout(slots), space::sgd(), options());
  });
  for (const auto& outcome : outcomes)
    expect_error<Mismatch>(
        outcome, {"models differ", "parameter 1", "rank 0 has 'fc.bias f64[3]'", "rank 1 has 'fc.bias f64[5]'"});
}

TEST_P(EveryExchange, AModelWithoutParametersIsRefused) {
  for (const auto& outcome :
       run(without_servers(), [&](const Member& me) { make_exchange(me.group, Layout(), space::sgd(), options()); }))
    expect_error<InvalidArgument>(outcome, {"no parameters"});
}

TEST_P(EveryExchange, WithoutAnOptimizerOnlyAllreduceWorks) {
  const Layout layout = small_model();
  const auto outcomes = run(without_servers(), [&](const Member& me) {
    const auto exchange = make_exchange(me.group, layout, std::nullopt, options());
    EXPECT_EQ(exchange->state().updater(), nullptr);
    exchange->begin(0.1);
    exchange->open();
    for (size_t slot = 0; slot < layout.size(); slot++) {
      for (size_t i = 0; i < layout[slot].elements(); i++)
        elements(exchange->flat().gradients(), layout[slot])[i] = gradient(me.rank, 1, slot, i);
      exchange->flat().present(slot);
    }
    for (size_t b = 0; b < exchange->flat().buckets().size(); b++) exchange->ready(b);
    exchange->close();
    for (size_t slot = 0; slot < layout.size(); slot++)
      for (size_t i = 0; i < layout[slot].elements(); i++) {
        double sum = 0;
        for (int rank = 0; rank < crew().ranks; rank++) sum += gradient(rank, 1, slot, i);
        ASSERT_NEAR(elements(exchange->flat().gradients(), layout[slot])[i], sum, 1e-14);
      }
  });
  if (options().sync == Sync::allreduce) return expect_all_well(outcomes);
  for (const auto& outcome : outcomes)
    expect_error<InvalidArgument>(outcome, {name_of(options().sync), "use 'allreduce'"});
}

TEST_P(EveryExchange, RanksWithDifferentBucketsAreRefused) {
  if (crew().ranks == 1) GTEST_SKIP() << "nobody to differ from";
  const auto outcomes = run(without_servers(), [&](const Member& me) {
    Options own = options();
    own.bucket_bytes = me.rank == 0 ? 1 : 1 << 20;
    make_exchange(me.group, small_model(), space::sgd(), own);
  });
  for (const auto& outcome : outcomes)
    expect_error<Mismatch>(outcome, {"settings differ", "bucket_bytes: rank 0 has '1', rank 1 has '1048576'"});
}

INSTANTIATE_TEST_SUITE_P(Crews, EveryExchange, testing::ValuesIn(all_crews()),
                         [](const auto& info) { return info.param.name(); });

TEST(Exchange, AllWaysGiveTheSameParameters) {
  const Layout layout = small_model();
  const auto trained = [&](const Crew& crew) {
    return train_all(crew, layout, space::adamw(), {.sync = crew.sync, .bucket_bytes = 3000}).agreed;
  };
  const Values shared = trained({Sync::shared, 3});
  EXPECT_EQ(trained({Sync::allreduce, 3}), shared);
  EXPECT_EQ(trained({Sync::central, 3}), shared);
  EXPECT_EQ(trained({Sync::server, 3, 2}), shared);
}

TEST(Exchange, SharedCarriesWhatRanksTell) {
  for (int ranks : {1, 2, 4})
    expect_all_well(run({Sync::shared, ranks}, [&](const Member& me) {
      const auto exchange = make_exchange(me.group, small_model(), space::sgd(), {.bucket_bytes = 3000});
      for (int step = 0; step < 50; step++) {
        exchange->begin(0.1);
        exchange->open();
        exchange->tell({me.rank + 0.25 * step, me.rank == step % ranks ? 1.0 : 0.0});
        for (size_t b = 0; b < exchange->flat().buckets().size(); b++) exchange->ready(b);
        exchange->close();
        exchange->land();
        ASSERT_TRUE(exchange->traits().tells);
        ASSERT_EQ(exchange->outcome().told, (Told{ranks * (ranks - 1) / 2 + 0.25 * step * ranks, 1.0}))
            << "step " << step;
      }
      me.barrier();
    }));
}

TEST(Exchange, OptimizerStateExistsOncePerMachineWhenShared) {
  const Layout layout = small_model();
  std::atomic<size_t> total{0};
  expect_all_well(run({Sync::shared, 4}, [&](const Member& me) {
    total += make_exchange(me.group, layout, space::momentum(), {})->state().updater()->state_bytes();
  }));
  EXPECT_GE(total.load(), layout.bytes() - 64);
  EXPECT_LE(total.load(), layout.bytes() + 4 * 64);
}

/// Where work is taken, nobody gets any once somebody wants to stop; without it, nobody begins.
TEST(Exchange, StopsWhereWorkIsTakenAndWhereItIsNot) {
  for (const Crew& crew : {Crew{Sync::hogwild, 3}, Crew{Sync::async, 3, 1}, Crew{Sync::stale_by(2), 3, 1}})
    for (bool takes : {true, false})
      expect_all_well(run(crew, [&](const Member& me) {
        const auto exchange = make_exchange(me.group, small_model(), space::sgd(), options_for(crew));
        exchange->state().publish();
        exchange->source().begin(0, 1000);
        bool stopped = false;
        const auto go_on = [&] {
          if (takes) {
            stopped = exchange->source().take().what == ps::Lease::stopped;
          } else if (exchange->begin(0.1)) {
            exchange->open();
            exchange->close();
            exchange->land();
          } else {
            stopped = exchange->outcome().stopped;
          }
        };
        if (me.rank == 1) {
          exchange->source().want_stop();
          for (int i = 0; i < 3; i++) go_on();
        }
        me.barrier();
        for (int i = 0; i < 3 && !stopped; i++) go_on();
        EXPECT_TRUE(stopped) << crew.name() << ", rank " << me.rank;
        me.barrier();
      }));
}

}  // namespace
}  // namespace trireme::exchange::tests
