// label: multiproc
// A model's memory outlives the ranks that train it: those who are left, and a process that comes later, find
// parameters and optimizer state of the last step where they lie, and go on with them. And it does not grow when models
// are made one after another.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <trireme/cluster/launching/keeper.h>
#include <trireme/cluster/world.h>
#include <trireme/exchange/exchange.h>
#include <trireme/exchange/kept_state.h>
#include <trireme/state/image.h>

#include "../comm/process.h"
#include "../comm/ranks.h"
#include "plain_loop.h"

namespace trireme::exchange::tests {
namespace {

using cluster::Keeper;
using cluster::Place;
using space::Layout;
using state::Image;
using trireme::tests::expect_all_well;
using trireme::tests::Process;
using trireme::tests::run_ranks;

constexpr int kBefore = 7, kAfter = 5;

Layout model(int64_t width = 41) {
  return Layout({{"a.weight", DType::f32, {6, 5, 5}},
                 {"a.bias", DType::f32, {6}},
                 {"b.weight", DType::f32, {370, width}},
                 {"b.bias", DType::f32, {370}},
                 {"scale", DType::f32, {}},
                 {"c.weight", DType::f32, {100, 37}},
                 {"never", DType::f32, {5}}});
}

const Options kOptions{.bucket_bytes = 8000};

/// Gradients depend on the parameters: what is wrong in them shows in all later steps.
void train(Exchange& exchange, int rank, int first, int last) {
  const Layout& layout = exchange.flat().layout();
  const auto at = [&](std::byte* flat, size_t slot) {
    return reinterpret_cast<float*>(flat + layout[slot].range.begin);
  };
  for (int step = first; step < last; step++) {
    exchange.begin(rate(step));
    exchange.open();
    for (size_t slot = 0; slot < layout.size(); slot++) {
      if (!has_gradient(rank, step, slot)) continue;
      exchange.flat().present(slot);
      for (size_t i = 0; i < layout[slot].elements(); i++)
        at(exchange.flat().gradients(), slot)[i] =
            static_cast<float>(gradient(rank, step, slot, i)) + 0.1f * at(exchange.flat().parameters(), slot)[i];
    }
    for (size_t bucket = 0; bucket < exchange.flat().buckets().size(); bucket++) exchange.ready(bucket);
    exchange.close();
    exchange.land();
  }
}

void begin(Exchange& exchange, int rank) {
  const Layout& layout = exchange.flat().layout();
  for (size_t slot = 0; rank == 0 && slot < layout.size(); slot++)
    for (size_t i = 0; i < layout[slot].elements(); i++)
      reinterpret_cast<float*>(exchange.flat().parameters() + layout[slot].range.begin)[i] =
          static_cast<float>(start_value(slot, i));
  exchange.state().publish();
}

/// State as text: what, where, and a hash of its bytes.
std::string line_of(const std::string& vector, space::Range range, std::span<const std::byte> bytes) {
  return fmt::format("{} {}-{} {:016x}; ", vector, range.begin, range.end,
                     space::hash_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

class Lines final : public state::Visitor {
 public:
  void about(const state::About& /*about*/) override {}
  void part(const std::string& vector, space::Range range, std::span<const std::byte> bytes) override {
    text += line_of(vector, range, bytes);
  }
  void scalar(const std::string& name, int64_t value) override { scalars += fmt::format("{}={} ", name, value); }
  void row(const std::string& /*table*/, const state::Row& /*row*/) override {}
  std::string text, scalars;
};

std::string lines_of(const KeptState& kept) {
  std::string text;
  for (const state::Part& part : kept.parts()) text += line_of(part.vector, part.range, part.bytes);
  return text;
}

std::string hash_of(const Image& image) {
  std::string text;
  for (const std::string& vector : image.contents().vectors())
    for (const state::Holding& holding : image.contents().of(vector))
      text += line_of(vector, holding.range, image.bytes_of(vector, holding.range));
  for (const auto& [name, value] : image.scalars()) text += fmt::format("{}={} ", name, value);
  return fmt::format("{:016x}", space::hash_text(text));
}

Place place_of(const Keeper& keeper, int rank, int ranks) {
  Place place{rank, ranks,
              fmt::format("{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid()), "test"};
  place.segment = keeper.variable();
  return place;
}

void until_somebody_dies(World& world) {
  try {
    while (true) world.comm().barrier("until somebody dies");
  } catch (const PeerLost&) {
  }
}

struct Case {
  Sync sync;
  space::UpdaterOptions optimizer;
};

/// What the new crew's training must come to: a fresh crew of as many ranks with the same state.
std::string as_a_fresh_crew(const Case& how, Image& state, int ranks) {
  std::vector<std::string> hashes(static_cast<size_t>(ranks));
  expect_all_well(run_ranks(ranks, [&](comm::shm::Communicator& local) {
    const auto exchange = make_exchange(local, model(), how.optimizer, {.sync = how.sync, .bucket_bytes = 8000});
    Image mine = state;
    exchange->state().restore(mine);
    train(*exchange, local.rank(), kBefore, kBefore + kAfter);
    Image image;
    exchange->state().visit(image);
    hashes[static_cast<size_t>(local.rank())] = hash_of(image);
  }));
  return fmt::format("{} {}", hashes[0], hashes[1]);
}

class Kept : public testing::TestWithParam<Case> {};

TEST_P(Kept, OutlivesADeathAndIsGoneOnWith) {
  const Case how = GetParam();
  const Keeper keeper;
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; rank++)
    ranks.push_back(std::make_unique<Process>([&, place = place_of(keeper, rank, 3)](const Process::Say& say) {
      World world(place, {.timeout = Seconds(20)});
      const Options options{.sync = how.sync, .bucket_bytes = 8000};
      const trireme::Group old = world.group();
      auto before = make_exchange(Group(old), model(), how.optimizer, options);
      begin(*before, rank);
      train(*before, rank, 0, kBefore);
      Lines lines;
      before->state().visit(lines);
      say(lines.text);
      if (rank == 1) pause();
      until_somebody_dies(world);
      world.regroup();

      KeptState kept(world.local().memory(), "all/0");
      if (!kept.whole() || kept.epoch() != 0) fail<Error>("it is not whole");
      before.reset();
      auto after = make_exchange(Group(world.group()), model(), how.optimizer, options);
      if (!kept.whole()) fail<Error>("a new crew has written to what the crew before has left");
      after->state().restore(kept);
      train(*after, world.group().rank(), kBefore, kBefore + kAfter);
      Image image;
      after->state().visit(image);
      say(hash_of(image));
      if (KeptState(world.local().memory(), "all/0").epoch() != 1) fail<Error>("the latest crew is not found");
      world.comm().barrier("end");
    }));
  std::string shown;
  for (auto& rank : ranks) shown += rank->next_line();
  kill(ranks[1]->pid(), SIGKILL);
  const std::string gone_on = fmt::format("{} {}", ranks[0]->next_line(), ranks[2]->next_line());
  for (int rank : {0, 2}) EXPECT_EQ(ranks[static_cast<size_t>(rank)]->next_line(), "ok");
  ranks.clear();

  Image image;  // after all ranks have ended, in a process that was none of them
  KeptState left(cluster::kept_segment(keeper.variable()), "all/0", 0);
  image.about(left.about());
  for (const std::string& vector : left.contents().vectors())
    for (const state::Holding& holding : left.contents().of(vector)) {
      std::vector<std::byte> bytes(holding.range.size());
      left.read(vector, holding.range, bytes);
      image.part(vector, holding.range, bytes);
    }
  image.scalar(state::kStep, left.scalar(state::kStep).value_or(-1));

  Process later([&](const Process::Say& say) {
    const KeptState kept(cluster::kept_segment(keeper.variable()), "all/0", 0);
    say(lines_of(kept));
    say(fmt::format("{} step {}, {}, {}", kept.whole(), kept.scalar(state::kStep).value_or(-1),
                    kept.fingerprint() == model().fingerprint(), kept.about().layout == model().describe()));
  });
  EXPECT_EQ(later.next_line(), shown);
  EXPECT_EQ(later.next_line(), fmt::format("true step {}, true, true", kBefore));
  EXPECT_EQ(later.next_line(), "ok");
  EXPECT_NE(shown.find("parameters 0-"), std::string::npos);
  for (const std::string& vector : space::state_names(how.optimizer.kind))
    EXPECT_NE(shown.find(vector), std::string::npos) << vector;
  EXPECT_EQ(gone_on, as_a_fresh_crew(how, image, 2));
}

INSTANTIATE_TEST_SUITE_P(
    Modes, Kept,
    testing::Values(Case{Sync::shared, space::momentum({.lr = 0.02})}, Case{Sync::shared, space::adam({.lr = 0.02})},
                    Case{Sync::allreduce, space::adamw({.lr = 0.02})}, Case{Sync::central, space::adam({.lr = 0.02})}),
    [](const auto& info) { return name_of(info.param.sync) + "_" + space::name_of(info.param.optimizer.kind); });

TEST(KeptState, ADeathInTheMiddleOfAStepIsSeen) {
  const Keeper keeper;
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; rank++)
    ranks.push_back(std::make_unique<Process>([&, place = place_of(keeper, rank, 3)](const Process::Say& say) {
      World world(place, {.timeout = Seconds(20)});
      const auto exchange = make_exchange(Group(world.group()), model(), space::momentum(), kOptions);
      begin(*exchange, rank);
      train(*exchange, rank, 0, 2);
      say(fmt::format("{}", KeptState(world.local().memory(), "all/0").whole()));
      world.comm().barrier("all have looked");
      if (rank == 1) {
        exchange->begin(0.1);
        exchange->open();
        exchange->ready(0);
        raise(SIGKILL);
      }
      try {
        train(*exchange, rank, 2, 3);
      } catch (const PeerLost&) {
        const KeptState kept(world.local().memory(), "all/0");
        say(fmt::format("{}", kept.whole()));
      }
    }));
  for (auto& rank : ranks) EXPECT_EQ(rank->next_line(), "true");
  for (int rank : {0, 2}) EXPECT_EQ(ranks[static_cast<size_t>(rank)]->next_line(), "false");
}

size_t memory_of(Segment& segment) {
  struct stat now {};
  fstat(segment.descriptor(), &now);
  return static_cast<size_t>(now.st_blocks) * 512;
}

TEST(KeptState, ModelsOneAfterAnotherUseTheSameMemory) {
  expect_all_well(run_ranks(3, [&](comm::shm::Communicator& local) {
    const auto once = [&](int64_t width) {
      const auto exchange = make_exchange(local, model(width), space::adam(), kOptions);
      for (size_t i = 0; i < exchange->flat().layout().bytes() / sizeof(float);
           i++)  // nothing is left of the one before
        ASSERT_EQ(reinterpret_cast<float*>(exchange->flat().parameters())[i], 0.0f);
      local.barrier("looked");
      begin(*exchange, local.rank());
      train(*exchange, local.rank(), 0, 3);
      Lines lines;
      exchange->state().visit(lines);
      EXPECT_NE(lines.scalars.find("step=3 "), std::string::npos) << lines.scalars;
    };
    once(41);
    local.barrier("first");
    const size_t first = memory_of(local.segment());
    for (int i = 0; i < 20; i++) once(41);
    local.barrier("same");
    EXPECT_EQ(memory_of(local.segment()), first);
    local.barrier("measured");
    once(97);
    once(41);
    local.barrier("other");
    const size_t both = memory_of(local.segment());
    EXPECT_EQ(both, first);  // the larger one has given its memory back
    local.barrier("all have measured");
    const size_t addresses = local.allocate(1, "a mark").parts[0] - local.segment().at(0);
    for (int i = 0; i < 20; i++) once(i % 2 == 0 ? 97 : 41);
    const size_t grown = local.allocate(1, "a mark").parts[0] - local.segment().at(0) - addresses;
    EXPECT_LT(grown, 2 * model(97).bytes() * 6) << "addresses are used again as well";
  }));
}

TEST(KeptState, ModelsAtATimeHaveMemoryOfTheirOwn) {
  expect_all_well(run_ranks(2, [&](comm::shm::Communicator& local) {
    const auto make = [&] { return make_exchange(local, model(), space::momentum(), kOptions); };
    auto first = make(), second = make();
    EXPECT_NE(first->flat().parameters(), second->flat().parameters());
    const std::byte* const place = first->flat().parameters();
    begin(*first, local.rank());
    if (local.rank() == 0) first.reset();  // only where all have let go of it can another one have its place
    auto third = make();
    EXPECT_NE(third->flat().parameters(), place);
    first.reset();
    auto fourth = make();
    EXPECT_EQ(fourth->flat().parameters(), place);
    EXPECT_EQ(KeptState::models(local.segment()).size(), 3u);
  }));
}

TEST(KeptState, WhatIsNotThereIsRefusedWithWhatIs) {
  expect_all_well(run_ranks(2, [&](comm::shm::Communicator& local) {
    const auto refused = [](const auto& call) -> std::string {
      try {
        call();
        return "taken";
      } catch (const InvalidArgument& error) {
        return error.what();
      }
    };
    EXPECT_EQ(refused([&] { KeptState(local.memory(), "all/7"); }), "shared memory has no model 'all/7'; it has none");
    auto exchange = make_exchange(local, model(), space::momentum(), kOptions);
    begin(*exchange, local.rank());
    const std::string name = local.group() + "/0";
    EXPECT_EQ(refused([&] { KeptState(local.memory(), "all/7"); }),
              fmt::format("shared memory has no model 'all/7'; it has '{}'", name));
    EXPECT_EQ(refused([&] { KeptState(local.memory(), name, 3); }),
              fmt::format("shared memory has no model '{}' of epoch 3; it has '{}'", name, name));
    KeptState kept(local.memory(), name);
    auto wider = make_exchange(local, model(43), space::momentum(), kOptions);
    const std::string layout = refused([&] { wider->state().restore(kept); });
    for (const char* side : {"[370,41]", "[370,43]"}) EXPECT_NE(layout.find(side), std::string::npos) << layout;
    auto other = make_exchange(local, model(), space::adagrad(), kOptions);
    const std::string optimizer = refused([&] { other->state().restore(kept); });
    for (const char* side : {"momentum", "adagrad"}) EXPECT_NE(optimizer.find(side), std::string::npos) << optimizer;
  }));
}

TEST(Card, IsReadBackOrRefused) {
  const Card card{{.layout = "a f32[3]\n", .optimizer = "adam", .tables = {}, .workers = 2},
                  "worker/0/step",
                  {"updates", "clock"},
                  {{"parameters", {0, 64}, 4096}, {"optimizer/steps", {8, 16}, 8192}}};
  const std::string bytes = packed(card);
  const auto again = unpacked(bytes, 8200);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->about, card.about);
  EXPECT_EQ(again->step, card.step);
  EXPECT_EQ(again->notes, card.notes);
  ASSERT_EQ(again->locations.size(), 2u);
  EXPECT_EQ(again->locations[1].vector, "optimizer/steps");
  EXPECT_EQ(again->locations[1].range, (space::Range{8, 16}));
  EXPECT_EQ(again->locations[1].offset, 8192u);
  EXPECT_FALSE(unpacked(bytes, 8199));  // it leads outside of the segment
  for (size_t length = 0; length < bytes.size(); length++)
    EXPECT_FALSE(unpacked(std::string_view(bytes).substr(0, length), 8200)) << length;
  for (size_t place = 0; place < bytes.size(); place++) {  // whatever it says, it is read or refused
    std::string wrong = bytes;
    wrong[place] = static_cast<char>(~wrong[place]);
    unpacked(wrong, 8200);
  }
}

}  // namespace
}  // namespace trireme::exchange::tests
