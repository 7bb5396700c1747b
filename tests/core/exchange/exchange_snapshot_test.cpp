// label: multiproc
// Snapshots of every exchange, read while training goes on: bit by bit what visit() showed at that step.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include <trireme/state/image.h>

#include "crews.h"

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using space::UpdaterOptions;
using state::Image;
using state::Snapshot;
using trireme::tests::expect_all_well;
using trireme::tests::expect_error;

constexpr int kBefore = 3, kAfter = 20;

/// Slots of several chunks, of less than one, and of a few bytes; in both types. Nobody has a gradient for 'frozen'.
Layout model() {
  return Layout({{"conv.weight", DType::f32, {300, 257}},
                 {"conv.bias", DType::f32, {300}},
                 {"frozen", DType::f32, {100, 211}},
                 {"fc.weight", DType::f64, {111, 199}},
                 {"fc.bias", DType::f64, {7}},
                 {"scale", DType::f64, {}}});
}
constexpr size_t kFrozen = 2;

double made_up(uint64_t a, uint64_t b, uint64_t i) {
  const uint64_t x = (i + 1) * 0x9e3779b97f4a7c15 + a * 0xbf58476d1ce4e5b9 + b * 0x94d049bb133111eb;
  return static_cast<double>(x >> 40) * 0x1p-23 - 1;
}

void fill(std::byte* flat, const space::Slot& slot, uint64_t a, uint64_t b) {
  const auto as = [&]<class T>(T* to) {
    for (size_t i = 0; i < slot.elements(); i++) to[i] = static_cast<T>(made_up(a, b, i));
  };
  slot.dtype == DType::f64 ? as(reinterpret_cast<double*>(flat + slot.range.begin))
                           : as(reinterpret_cast<float*>(flat + slot.range.begin));
}

void begin_with(Exchange& exchange, const Member& me, uint64_t seed) {
  exchange.state().before_writing();
  me.barrier();
  for (size_t slot = 0; me.rank == 0 && slot < exchange.flat().layout().size(); slot++)
    fill(exchange.flat().parameters(), exchange.flat().layout()[slot], seed, slot);
  me.barrier();
  exchange.state().publish();
}

bool has_gradient(int rank, int step, size_t slot) {
  if (slot == kFrozen || (step % 5 == 4 && slot == 3)) return false;
  return step % 4 != 1 || slot % 3 != 0 || rank % 2 == 1;
}

void one_step(Exchange& exchange, int rank, int step) {
  ASSERT_TRUE(exchange.begin(0.01));
  exchange.open();
  for (size_t b = 0; b < exchange.flat().buckets().size(); b++) {
    for (size_t slot = exchange.flat().buckets()[b].first; slot < exchange.flat().buckets()[b].last; slot++) {
      if (!has_gradient(rank, step, slot)) continue;
      fill(exchange.flat().gradients(), exchange.flat().layout()[slot], static_cast<uint64_t>(rank * 1000 + step),
           slot);
      exchange.flat().present(slot);
    }
    exchange.ready(b);
  }
  exchange.close();
  exchange.land();
}

/// A job of one rank, in which something is done after each step.
struct Job {
  const Crew& crew;
  const Member& me;
  std::unique_ptr<Exchange> exchange;
  int steps = 0;

  Job(const Crew& crew, const Member& me, const UpdaterOptions& optimizer, Options options = {}) : crew(crew), me(me) {
    options.sync = crew.sync;
    options.bucket_bytes = 200'000;
    options.zero = crew.zero;
    options.rate = crew.sync.one_by_one() ? Rate::full : Rate::share;
    exchange = make_exchange(me.group, model(), optimizer, options);
    begin_with(*exchange, me, 5);
  }
  void train(
      int count, const std::function<void()>& then = [] {}) {
    for (int i = 0; i < count; i++, steps++) {
      for (int turn = 0; turn < (crew.takes_turns() ? crew.ranks : 1); turn++) {
        if (!crew.takes_turns() || turn == me.rank) one_step(*exchange, me.rank, steps);
        if (crew.takes_turns()) me.barrier();
      }
      then();
    }
  }
  Image image() {
    Image image;
    exchange->state().visit(image);
    return image;
  }
  std::shared_ptr<Snapshot> snapshot() { return exchange->state().snapshot(exchange->state().owners()); }
};

/// What a snapshot has, read and released chunk by chunk: `before_each` is called with the number of the chunk.
Image read(
    Snapshot& snapshot, const std::function<void(size_t)>& before_each = [](size_t) {}) {
  Image image;
  image.about(snapshot.about());
  for (const auto& [name, value] : snapshot.scalars()) image.scalar(name, value);
  size_t chunk = 0;
  for (size_t part = 0; part < snapshot.parts().size(); part++) {
    const auto& [vector, range] = snapshot.parts()[part];
    std::vector<std::byte> bytes(range.size());
    for (size_t at = 0; at < bytes.size(); at += Snapshot::kChunk) {
      const size_t end = std::min(bytes.size(), at + Snapshot::kChunk);
      before_each(chunk++);
      snapshot.read(part, at, std::span(bytes).subspan(at, end - at));
      snapshot.release(part, end);
    }
    image.part(vector, range, bytes);
  }
  EXPECT_TRUE(snapshot.released());
  return image;
}

size_t chunks_of(const Snapshot& snapshot) {
  size_t chunks = 0;
  for (const Snapshot::Part& part : snapshot.parts())
    chunks += (part.range.size() + Snapshot::kChunk - 1) / Snapshot::kChunk;
  return chunks;
}

/// A thread that reads a snapshot: a part of it after each tick(), so that some is read before it changes and some long
/// after; or as fast as it can.
class Reader {
 public:
  Reader(std::shared_ptr<Snapshot> snapshot, bool slowly)
      : slowly_(slowly), thread_([this, snapshot] {
          const size_t chunks = chunks_of(*snapshot);
          image_ = read(*snapshot, [&](size_t chunk) { wait_for(static_cast<int>(chunk * kAfter / chunks)); });
        }) {}
  ~Reader() {
    if (thread_.joinable()) join();
  }
  void tick() {
    ticks_++;
    ticks_.notify_all();
  }
  const Image& join() {
    ticks_ += kAfter;
    ticks_.notify_all();
    thread_.join();
    return image_;
  }

 private:
  void wait_for(int ticks) {
    for (int now = ticks_.load(); slowly_ && now < ticks; now = ticks_.load()) ticks_.wait(now);
  }
  std::atomic<int> ticks_{0};
  bool slowly_;
  Image image_;
  std::thread thread_;
};

std::vector<UpdaterOptions> optimizers(const Crew& crew) {
  std::vector<UpdaterOptions> some = {space::momentum({.nesterov = true}), space::adam({.weight_decay = 0.01})};
  if (crew.sync == Sync::shared && crew.machine_of.empty())
    some.insert(some.end(), {space::sgd(), space::adagrad(), space::adamw()});
  return some;
}

class EveryExchange : public testing::TestWithParam<Crew> {
 protected:
  static const Crew& crew() { return GetParam(); }
};

TEST_P(EveryExchange, IsReadSlowlyWhileTrainingGoesOn) {
  for (const UpdaterOptions& optimizer : optimizers(crew()))
    expect_all_well(run(crew(), [&](const Member& me) {
      Job job(crew(), me, optimizer);
      job.train(kBefore);
      const Image wanted = job.image();
      Reader reader(job.snapshot(), true);
      job.train(kAfter, [&] { reader.tick(); });
      EXPECT_TRUE(reader.join() == wanted) << space::name_of(optimizer.kind) << ", rank " << me.rank;
      EXPECT_FALSE(job.image() == wanted) << "training changes what a rank has";
      me.barrier();
    }));
}

/// What is taken does not change what training comes to, and two may be read at a time.
TEST_P(EveryExchange, TwoAreReadAtATimeAndChangeNothing) {
  std::vector<Image> ends(static_cast<size_t>(crew().ranks));
  for (const bool take : {false, true})
    expect_all_well(run(crew(), [&](const Member& me) {
      Job job(crew(), me, space::adam());
      job.train(kBefore);
      const Image first = job.image();
      std::optional<Reader> one, two;
      if (take) one.emplace(job.snapshot(), true);
      job.train(2, [&] {
        if (take) one->tick();
      });
      const Image second = job.image();
      if (take) two.emplace(job.snapshot(), false);
      job.train(5, [&] {
        if (take) one->tick();
      });
      const Image end = job.image();
      if (take) {
        EXPECT_TRUE(one->join() == first) << "rank " << me.rank;
        EXPECT_TRUE(two->join() == second) << "rank " << me.rank;
      }
      Image& before = ends[static_cast<size_t>(me.rank)];
      const bool repeats = crew().sync.lockstep() || crew().takes_turns();
      EXPECT_TRUE(!take || !repeats || end == before) << "rank " << me.rank;
      before = end;
      me.barrier();
    }));
}

/// One that nobody reads costs nothing in the end; one that is read when the exchange is gone has all.
TEST_P(EveryExchange, IsDroppedUnreadOrOutlivesTheExchange) {
  expect_all_well(run(crew(), [&](const Member& me) {
    Job job(crew(), me, space::momentum());
    job.train(1);
    job.snapshot();
    auto held = job.snapshot();
    job.train(1);
    held.reset();
    job.train(1);
    const Image wanted = job.image();
    const auto last = job.snapshot();
    job.train(2);
    const Image later = job.image();
    const auto unchanged = job.snapshot();
    me.barrier();
    job.exchange.reset();
    EXPECT_TRUE(read(*last) == wanted) << "rank " << me.rank;
    EXPECT_TRUE(read(*unchanged) == later) << "rank " << me.rank;
  }));
}

/// Settling, parameters that are written by hand, and state that is restored, also from a snapshot: all of that happens
/// beside updates.
TEST_P(EveryExchange, KeepsItsBytesWhateverElseIsWritten) {
  expect_all_well(run(crew(), [&](const Member& me) {
    Job job(crew(), me, space::adam());
    job.train(kBefore);
    const Image wanted = job.image();
    const auto settled = job.snapshot();
    job.exchange->state().settle();
    job.exchange->state().resume();
    EXPECT_TRUE(read(*settled) == wanted) << "rank " << me.rank;
    const Image before = job.image();
    const auto overwritten = job.snapshot();
    begin_with(*job.exchange, me, 99);
    EXPECT_TRUE(read(*overwritten) == before) << "rank " << me.rank;
    const Image now = job.image();
    const auto replaced = job.snapshot();
    Image earlier = wanted;
    job.exchange->state().restore(earlier);
    EXPECT_TRUE(read(*replaced) == now) << "rank " << me.rank;
    EXPECT_TRUE(job.image() == wanted) << "rank " << me.rank;
    const auto source = job.snapshot();
    job.train(2);
    job.exchange->state().restore(*source);
    EXPECT_TRUE(job.image() == wanted) << "rank " << me.rank;
    me.barrier();
  }));
}

INSTANTIATE_TEST_SUITE_P(Snapshots, EveryExchange, testing::ValuesIn(all_crews()),
                         [](const auto& info) { return info.param.name(); });

/// Gradients that are scaled, and such that are left out.
TEST(Snapshots, WithClipAndWithGradientsThatAreNotFinite) {
  for (const Crew& crew : {Crew{Sync::shared, 2}, Crew{Sync::shared, 3, 0, {0, 0, 1}}, Crew{Sync::allreduce, 2},
                           Crew{Sync::shared, 3, 0, {0, 0, 1}, 2}, Crew{Sync::shared, 2, 0, {0, 1}, 3}})
    for (const double clip : {0.0, 1.0})
      expect_all_well(run(crew, [&](const Member& me) {
        Job job(crew, me, space::momentum(), {.clip = clip});
        job.train(kBefore);
        const Image wanted = job.image();
        Reader reader(job.snapshot(), true);
        const Layout& layout = job.exchange->flat().layout();
        job.train(kAfter / 2, [&] { reader.tick(); });
        ASSERT_TRUE(job.exchange->begin(0.01));
        job.exchange->open();
        for (size_t b = 0; b < job.exchange->flat().buckets().size(); b++) {
          for (size_t slot = job.exchange->flat().buckets()[b].first; slot < job.exchange->flat().buckets()[b].last;
               slot++) {
            fill(job.exchange->flat().gradients(), layout[slot], 1, slot);
            if (slot == 0 && me.rank == 1)
              reinterpret_cast<float*>(job.exchange->flat().gradients() + layout[0].range.begin)[40'000] = NAN;
            job.exchange->flat().present(slot);
          }
          job.exchange->ready(b);
        }
        job.exchange->close();
        job.exchange->land();
        EXPECT_FALSE(job.exchange->outcome().sound);
        job.train(kAfter / 2, [&] { reader.tick(); });
        EXPECT_TRUE(reader.join() == wanted) << "rank " << me.rank;
        me.barrier();
      }));
}

/// Only what is written before it was read is copied, and what was never written is not.
TEST(Snapshots, CopyWhatChangesBeforeItIsReadAndNothingElse) {
  const Crew crew{Sync::allreduce, 2};
  expect_all_well(run(crew, [&](const Member& me) {
    Job job(crew, me, space::momentum());
    job.train(kBefore);
    const auto early = job.snapshot();
    read(*early);
    const auto late = job.snapshot();
    job.train(6);
    EXPECT_EQ(early->saved_bytes(), 0u);
    const Layout& layout = job.exchange->flat().layout();
    EXPECT_EQ(late->saved_bytes(), 2 * (layout[0].range.size() + layout[3].range.size())) << "parameters and momentum";
    me.barrier();
  }));
}

/// Ranks with copies of the same divide the work.
TEST(Snapshots, KeepWhatTheDivisionSays) {
  const Crew crew{Sync::allreduce, 3};
  std::vector<Image> parts(3);
  Image whole;
  expect_all_well(run(crew, [&](const Member& me) {
    Job job(crew, me, space::adam());
    job.train(kBefore);
    const Image all = job.image();
    state::OwnerMap division;
    for (const std::string& vector : all.contents().vectors())
      for (const state::Holding& holding : all.contents().of(vector))
        for (int rank = 0; rank < 3; rank++) division.add(vector, space::part_of(holding.range, rank, 3), rank);
    Reader reader(job.exchange->state().snapshot(division), true);
    job.train(kAfter, [&] { reader.tick(); });
    parts[static_cast<size_t>(me.rank)] = reader.join();
    if (me.rank == 0) whole = all;
    me.barrier();
  }));
  for (size_t rank = 0; rank < 3; rank++) EXPECT_FALSE(parts[rank] == whole);
  parts[0].add(parts[1]);
  parts[0].add(parts[2]);
  EXPECT_TRUE(parts[0] == whole);
}

TEST(Snapshots, ADivisionThatGivesARankWhatItDoesNotHaveIsRefused) {
  const auto outcomes = run({Sync::shared, 2}, [&](const Member& me) {
    const Crew crew{Sync::shared, 2};
    Job job(crew, me, space::momentum());
    state::OwnerMap division;
    division.add("optimizer/momentum", job.exchange->flat().layout()[0].range, me.rank);
    job.exchange->state().snapshot(division);
  });
  for (const auto& outcome : outcomes)
    expect_error<InvalidArgument>(outcome, {"asked to keep bytes", "optimizer/momentum", "owners()"});
}

/// With an optimizer of the user's, which writes when it likes.
TEST(Snapshots, OfAnOptimizerOfTheUsersIsCopiedAtOnce) {
  const Crew crew{Sync::allreduce, 2};
  expect_all_well(run(crew, [&](const Member& me) {
    const auto exchange = make_exchange(me.group, model(), {}, {.sync = Sync::allreduce});
    begin_with(*exchange, me, 5);
    Image wanted;
    exchange->state().visit(wanted);
    const auto snapshot = exchange->state().snapshot(exchange->state().owners());
    std::memset(exchange->flat().parameters(), 1, exchange->flat().layout().bytes());
    EXPECT_TRUE(read(*snapshot) == wanted);
    me.barrier();
  }));
}

}  // namespace
}  // namespace trireme::exchange::tests
