// label: unit
// State of every exchange: shown, thrown away, restored; then training goes on as if nothing had been.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include <trireme/exchange/exchange.h>
#include <trireme/ps/server.h>
#include <trireme/state/image.h>

#include "../comm/machines.h"

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using space::Optimizer;
using space::Slot;
using space::UpdaterOptions;
using state::Image;
using trireme::tests::expect_all_well;
using trireme::tests::expect_error;
using trireme::tests::OnMachine;
using trireme::tests::Outcomes;

constexpr int kBefore = 7, kAfter = 6;
using Parameters = std::vector<std::vector<double>>;  // by slot

/// Who trains, and how.
struct Crew {
  Sync sync = Sync::shared;
  int ranks = 2;
  int servers = 0;
  std::vector<int> machine_of{};  // by rank; none: one machine
  size_t bucket_bytes = 4000;
  int zero = 0;
};

std::string describe(const Crew& crew) {
  std::string text = fmt::format("{}_{}_ranks_{}_servers_{}_machines", name_of(crew.sync), crew.ranks, crew.servers,
                                 crew.machine_of.empty() ? 1 : crew.machine_of.back() + 1);
  if (crew.zero > 0) text += fmt::format("_zero_{}", crew.zero);
  for (char& c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return text;
}

std::string job_name() {
  static std::atomic<int> jobs{0};
  return fmt::format("state-test-{}-{}", getpid(), jobs++);
}

/// Ranks as threads, with worlds of their own, beside servers.
Outcomes run_with_servers(const Crew& crew, const std::function<void(const Group&)>& body) {
  const std::string job = job_name();
  Outcomes outcomes(static_cast<size_t>(crew.ranks + crew.servers));
  std::vector<std::thread> threads;
  const auto start = [&](int number, const std::function<void()>& part) {
    threads.emplace_back([&outcomes, number, part] {
      try {
        part();
      } catch (...) {
        outcomes[static_cast<size_t>(number)] = std::current_exception();
      }
    });
  };
  for (int server = 0; server < crew.servers; server++)
    start(crew.ranks + server, [=] {
      ps::Server({.server = server,
                  .workers = crew.ranks,
                  .servers = crew.servers,
                  .meeting = {.job = job},
                  .timeout = Seconds(20),
                  .helpers = 0})
          .run();
    });
  for (int rank = 0; rank < crew.ranks; rank++)
    start(rank, [=, &body] {
      World world({.rank = rank, .size = crew.ranks, .job = job, .launcher = "test", .servers = crew.servers},
                  {.timeout = Seconds(20)});
      Group group(world.local());
      group.world = &world;
      body(group);
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Outcomes run(const Crew& crew, const std::function<void(const Group&)>& body) {
  if (crew.servers > 0) return run_with_servers(crew, body);
  if (crew.machine_of.empty())
    return trireme::tests::run_ranks(crew.ranks, [&](comm::shm::Communicator& group) { body(group); });
  return trireme::tests::run_machines(crew.machine_of, [&](const OnMachine& rank) {
    Group group(rank.all, rank.here, rank.lane, rank.all.topology().lanes());
    group.second_lane = [&] { return rank.second_lane; };
    body(group);
  });
}

Layout small_model() {
  return Layout({{"conv.weight", DType::f64, {6, 5, 5}},
                 {"conv.bias", DType::f64, {6}},
                 {"fc1.weight", DType::f64, {37, 41}},
                 {"nothing", DType::f64, {0}},
                 {"fc1.bias", DType::f64, {37}},
                 {"scale", DType::f64, {}},
                 {"fc2.weight", DType::f64, {10, 37}},
                 {"fc2.bias", DType::f64, {10}}});
}

double noise(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b * 0xbf58476d1ce4e5b9 + c * 0x94d049bb133111eb + d * 0xd6e8feb86659fd93 + 1;
  for (int i = 0; i < 3; i++) x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<double>(x >> 11) * 0x1p-52 - 1;
}

double start_value(size_t slot, size_t i) { return noise(77, slot, i, 0); }
/// It depends on the parameter: what is wrong in it shows in all later steps.
double gradient(int rank, int step, size_t slot, size_t i, double parameter) {
  return noise(static_cast<uint64_t>(rank) + 1, static_cast<uint64_t>(step), slot, i) + 0.1 * parameter;
}
double rate(int step) { return 0.02 / (1 + 0.1 * step); }
bool has_gradient(int rank, int step, size_t slot) {
  if (step % 3 == 1 && slot == 2) return false;  // nobody: Adam does not count it
  if (step % 4 == 1 && slot % 3 == 0) return rank % 2 == 1;
  return true;
}

double* elements(std::byte* flat, const Slot& slot) { return reinterpret_cast<double*>(flat + slot.range.begin); }

void fill_parameters(Exchange& exchange, int rank, double more) {
  const Layout& layout = exchange.flat().layout();
  for (size_t slot = 0; rank == 0 && slot < layout.size(); slot++)
    for (size_t i = 0; i < layout[slot].elements(); i++)
      elements(exchange.flat().parameters(), layout[slot])[i] = start_value(slot, i) + more;
  exchange.state().publish();
}

/// Steps [first, last).
void train(Exchange& exchange, int rank, int first, int last) {
  const Layout& layout = exchange.flat().layout();
  for (int step = first; step < last; step++) {
    ASSERT_TRUE(exchange.begin(rate(step)));
    if (exchange.paging() != nullptr) exchange.paging()->begin_pass(Pass::last);
    exchange.open();
    for (size_t b = 0; b < exchange.flat().buckets().size(); b++) {
      for (size_t slot = exchange.flat().buckets()[b].first; slot < exchange.flat().buckets()[b].last; slot++) {
        if (exchange.paging() != nullptr) exchange.await(layout[slot].range);  // also on ranks without a gradient
        if (!has_gradient(rank, step, slot)) continue;
        double *to = elements(exchange.flat().gradients(), layout[slot]),
               *at = elements(exchange.flat().parameters(), layout[slot]);
        for (size_t i = 0; i < layout[slot].elements(); i++) to[i] = gradient(rank, step, slot, i, at[i]);
        exchange.flat().present(slot);
      }
      exchange.ready(b);
    }
    exchange.close();
    exchange.land();
  }
}

Options options_of(const Crew& crew) {
  return {
      .sync = crew.sync, .bucket_bytes = crew.bucket_bytes, .zero = crew.zero, .zero_window = 1, .chunk_bytes = 2048};
}

/// By rank: what each showed.
using Images = std::vector<Image>;

Image all_of(const Images& images) {
  Image all;
  for (const Image& image : images) all.add(image);
  return all;
}

struct Ended {
  Images images;
  std::vector<Parameters> parameters;  // by rank, settled
  state::OwnerMap owners;
};

/// A job: `kept` is restored if it is there, otherwise training begins with the first step. Shows its state before step
/// `show`, if there is such a step.
Ended job(const Crew& crew, const UpdaterOptions& optimizer, const Images* kept, int first, int last, int show) {
  Ended ended{Images(static_cast<size_t>(crew.ranks)), std::vector<Parameters>(static_cast<size_t>(crew.ranks)), {}};
  const Layout layout = small_model();
  expect_all_well(run(crew, [&](const Group& group) {
    const int rank = group.all.rank();
    const auto mine = static_cast<size_t>(rank);
    const auto exchange = make_exchange(group, layout, optimizer, options_of(crew));
    fill_parameters(*exchange, rank, kept != nullptr ? 5 : 0);
    if (kept != nullptr) {
      Image image = (*kept)[mine];
      exchange->state().restore(image);
    }
    // Without locks two who write at a time race: here they do it by turns.
    const bool turns = crew.sync == Sync::hogwild;
    const auto train_to = [&](int from, int to) {
      for (int other = 0; turns && other < rank; other++) group.all.barrier("turn");
      train(*exchange, rank, from, to);
      for (int other = rank; turns && other < crew.ranks; other++) group.all.barrier("turn");
    };
    if (show >= first) {
      train_to(first, show);
      exchange->state().visit(ended.images[mine]);
    }
    train_to(std::max(first, show), last);
    if (rank == 0) ended.owners = exchange->state().owners();
    exchange->state().settle();
    for (const Slot& slot : layout.slots())
      ended.parameters[mine].emplace_back(elements(exchange->flat().parameters(), slot),
                                          elements(exchange->flat().parameters(), slot) + slot.elements());
    exchange->state().resume();
    group.all.barrier("read");
  }));
  return ended;
}

/// All where it is quick.
std::vector<UpdaterOptions> optimizers(const Crew& crew) {
  std::vector<UpdaterOptions> some = {space::momentum({.nesterov = true}), space::adam({.weight_decay = 0.01})};
  if (crew.sync == Sync::shared && crew.machine_of.empty())
    some.insert(some.end(), {space::sgd(), space::adagrad(), space::adamw()});
  return some;
}

class EveryExchange : public testing::TestWithParam<Crew> {};

/// Where the same run twice gives the same bits: all together, or one alone.
bool repeats(const Crew& crew) {
  const bool together = crew.sync == Sync::shared || crew.sync == Sync::allreduce || crew.sync == Sync::central ||
                        crew.sync == Sync::server || crew.sync.kind == Sync::local || crew.sync.kind == Sync::diloco;
  return together || crew.ranks == 1;
}

TEST_P(EveryExchange, GoesOnWithTheSameBits) {
  if (!repeats(GetParam())) GTEST_SKIP() << "no two runs are the same";
  for (const UpdaterOptions& optimizer : optimizers(GetParam())) {
    const int end = kBefore + kAfter;
    const Ended whole = job(GetParam(), optimizer, nullptr, 0, end, -1);
    const Ended shown = job(GetParam(), optimizer, nullptr, 0, end, kBefore);
    EXPECT_EQ(shown.parameters, whole.parameters) << "to look changed something, " << space::name_of(optimizer.kind);
    const Ended later = job(GetParam(), optimizer, &shown.images, kBefore, end, -1);
    EXPECT_EQ(later.parameters, whole.parameters) << space::name_of(optimizer.kind);
  }
}

TEST_P(EveryExchange, RestoresEveryValue) {
  for (const UpdaterOptions& optimizer : optimizers(GetParam())) {
    const Ended before = job(GetParam(), optimizer, nullptr, 0, kBefore, kBefore);
    const Ended after = job(GetParam(), optimizer, &before.images, kBefore, kBefore, kBefore);
    for (size_t rank = 0; rank < before.images.size(); rank++)
      EXPECT_TRUE(after.images[rank] == before.images[rank])
          << "rank " << rank << ", " << space::name_of(optimizer.kind);
    EXPECT_GE(all_of(before.images).contents().vectors().size(), 1 + space::state_names(optimizer.kind).size());
  }
}

/// What a rank shows is what the map gives it, and somebody has every byte of every slot.
TEST_P(EveryExchange, ShowsWhatItsOwnerMapSays) {
  const Layout layout = small_model();
  const Ended ended = job(GetParam(), space::adam(), nullptr, 0, 2, 2);
  for (size_t rank = 0; rank < ended.images.size(); rank++) {
    state::OwnerMap wanted;
    for (const std::string& vector : ended.owners.vectors())
      for (const state::Holding& holding : ended.owners.of(vector))
        if (holding.owner == static_cast<int>(rank)) wanted.add(vector, holding.range, 0);
    EXPECT_TRUE(ended.images[rank].contents() == wanted) << "rank " << rank;
  }
  const Image all = all_of(ended.images);
  for (const std::string& vector : all.contents().vectors())
    for (size_t slot = 0; slot < layout.size(); slot++) {
      if (layout[slot].elements() == 0) continue;
      const bool steps = vector.ends_with(state::kSteps);
      const space::Range range = steps ? state::steps_range(slot) : layout[slot].range;
      EXPECT_TRUE(all.contents().lacking(vector, range, 0).empty()) << vector << " of " << layout[slot].name;
    }
}

const std::vector<Crew>& crews() {
  static const std::vector<Crew> all = {
      {.sync = Sync::shared, .ranks = 1},
      {.sync = Sync::shared, .ranks = 3},
      {.sync = Sync::shared, .ranks = 2, .servers = 1},  // for which it has no use
      {.sync = Sync::shared, .ranks = 3, .machine_of = {0, 0, 1}},
      {.sync = Sync::shared, .ranks = 4, .machine_of = {0, 1, 0, 1}},
      {.sync = Sync::shared, .ranks = 2, .zero = 3},
      {.sync = Sync::shared, .ranks = 3, .machine_of = {0, 0, 1}, .zero = 1},
      {.sync = Sync::shared, .ranks = 4, .machine_of = {0, 1, 0, 1}, .zero = 1},
      {.sync = Sync::shared, .ranks = 4, .machine_of = {0, 1, 0, 1}, .zero = 2},
      {.sync = Sync::shared, .ranks = 2, .machine_of = {0, 1}, .zero = 3},
      {.sync = Sync::shared, .ranks = 3, .machine_of = {0, 0, 1}, .zero = 3},
      {.sync = Sync::shared, .ranks = 4, .machine_of = {0, 1, 0, 1}, .zero = 3},
      {.sync = Sync::allreduce, .ranks = 2},
      {.sync = Sync::allreduce, .ranks = 3, .machine_of = {0, 0, 1}},
      {.sync = Sync::central, .ranks = 2},
      {.sync = Sync::server, .ranks = 2, .servers = 2},
      {.sync = Sync::async, .ranks = 1, .servers = 2},
      {.sync = Sync::async, .ranks = 2, .servers = 1},
      {.sync = Sync::stale_by(2), .ranks = 2, .servers = 1},
      {.sync = Sync::trylock_with(1), .ranks = 1, .servers = 1},
      {.sync = Sync::round_robin, .ranks = 2, .servers = 2},
      {.sync = Sync::hogwild, .ranks = 1},
      {.sync = Sync::hogwild, .ranks = 3},
      {.sync = Sync::local_for(3), .ranks = 2},
      {.sync = Sync::diloco_for(3), .ranks = 2},
      {.sync = Sync::diloco_for(3), .ranks = 2, .servers = 1},  // for which it has no use
      {.sync = Sync::local_for(3), .ranks = 2, .servers = 2},
      {.sync = Sync::elastic_with(2, 0.3), .ranks = 1, .servers = 1},
      {.sync = Sync::elastic_with(2, 0.3), .ranks = 2, .servers = 2},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(State, EveryExchange, testing::ValuesIn(crews()),
                         [](const auto& info) { return describe(info.param); });

// ---- work that ranks take ----

/// A course of this many steps: all pieces that one rank takes before it finds the end, or `most`.
std::vector<int64_t> pieces_of(Exchange& exchange, std::optional<int64_t> first_step, int64_t most) {
  constexpr int64_t kSteps = 5;
  std::vector<int64_t> pieces;
  if (first_step) exchange.source().begin(*first_step, kSteps);
  while (static_cast<int64_t>(pieces.size()) < most) {
    const ps::Lease lease = exchange.source().take();
    if (lease.what != ps::Lease::piece) break;
    pieces.push_back(lease.index);
  }
  return pieces;
}

/// Of one rank: the pieces of the course that begins at `first_step` once `kept` was restored.
std::vector<int64_t> pieces_after(const Crew& crew, const Image& kept, int64_t first_step) {
  std::vector<int64_t> pieces;
  expect_all_well(run(crew, [&](const Group& group) {
    const auto exchange = make_exchange(group, small_model(), space::sgd(), options_of(crew));
    fill_parameters(*exchange, 0, 0);
    Image image = kept;
    exchange->state().restore(image);
    pieces = pieces_of(*exchange, first_step, 100);
  }));
  return pieces;
}

TEST(TakenWork, GoesOnInTheMiddleOfACourse) {
  for (const Crew& crew :
       {Crew{.sync = Sync::hogwild, .ranks = 1}, Crew{.sync = Sync::async, .ranks = 1, .servers = 1}}) {
    Image middle, end, begun;
    expect_all_well(run(crew, [&](const Group& group) {
      const auto exchange = make_exchange(group, small_model(), space::sgd(), options_of(crew));
      fill_parameters(*exchange, 0, 0);
      EXPECT_EQ(pieces_of(*exchange, 0, 100).size(), 5u);
      EXPECT_EQ(pieces_of(*exchange, 5, 2), (std::vector<int64_t>{0, 1}));
      exchange->state().visit(middle);
      EXPECT_EQ(pieces_of(*exchange, {}, 100), (std::vector<int64_t>{2, 3, 4}));
      exchange->state().visit(end);
      exchange->source().begin(10, 5);
      exchange->state().visit(begun);
    }));
    const std::vector<int64_t> none, rest = {2, 3, 4}, all = {0, 1, 2, 3, 4};
    EXPECT_EQ(pieces_after(crew, middle, 5), rest) << describe(crew);
    EXPECT_EQ(pieces_after(crew, middle, 10), all) << describe(crew);
    EXPECT_EQ(pieces_after(crew, end, 5), none) << describe(crew);
    EXPECT_EQ(pieces_after(crew, end, 10), all) << describe(crew);
    EXPECT_EQ(pieces_after(crew, begun, 10), all) << describe(crew);
  }
}

// ---- another crew ----

/// The same in one thread, with as many ranks as `ranks_at` says: the formulas of torch.optim.
Parameters reference(const Layout& layout, const UpdaterOptions& o, const std::function<int(int)>& ranks_at) {
  Parameters p, s, v;
  for (size_t slot = 0; slot < layout.size(); slot++) {
    p.emplace_back(layout[slot].elements());
    for (size_t i = 0; i < p[slot].size(); i++) p[slot][i] = start_value(slot, i);
    s.emplace_back(p[slot].size(), 0.0);
    v.emplace_back(p[slot].size(), 0.0);
  }
  std::vector<int> steps(layout.size());
  for (int step = 0; step < kBefore + kAfter; step++)
    for (size_t slot = 0; slot < layout.size(); slot++) {
      std::vector<int> present;
      for (int rank = 0; rank < ranks_at(step); rank++)
        if (has_gradient(rank, step, slot)) present.push_back(rank);
      if (present.empty()) continue;
      steps[slot]++;
      for (size_t i = 0; i < p[slot].size(); i++) {
        double &x = p[slot][i], &m = s[slot][i], &w = v[slot][i], g = 0;
        for (int rank : present) g += gradient(rank, step, slot, i, x);
        if (o.kind == Optimizer::momentum) {
          m = o.momentum * m + g;
          x -= rate(step) * m;
        } else {
          m = o.beta1 * m + (1 - o.beta1) * g;
          w = o.beta2 * w + (1 - o.beta2) * g * g;
          x -= rate(step) / (1 - std::pow(o.beta1, steps[slot])) * m /
               (std::sqrt(w) / std::sqrt(1 - std::pow(o.beta2, steps[slot])) + 1e-8);
        }
      }
    }
  return p;
}

/// What each of a new crew has after the moves: what it had, and what was sent to it. Scalars are everybody's.
Images moved(const Images& images, const std::vector<state::Move>& moves, int ranks) {
  Images after(static_cast<size_t>(ranks));
  for (size_t rank = 0; rank < after.size(); rank++) {
    if (rank < images.size()) after[rank].add(images[rank]);
    after[rank].about(images[0].about());
    for (const auto& [name, value] : images[0].scalars()) after[rank].scalar(name, value);
  }
  for (const state::Move& move : moves)
    after[static_cast<size_t>(move.to)].part(move.vector, move.range,
                                             images[static_cast<size_t>(move.from)].bytes_of(move.vector, move.range));
  return after;
}

void expect_moves(const Crew& from, const Crew& to) {
  for (const UpdaterOptions& optimizer : {space::momentum(), space::adam()}) {
    const Ended before = job(from, optimizer, nullptr, 0, kBefore, kBefore);
    state::OwnerMap owners;
    expect_all_well(run(to, [&](const Group& group) {
      const auto exchange = make_exchange(group, small_model(), optimizer, options_of(to));
      if (group.all.rank() == 0) owners = exchange->state().owners();
      group.all.barrier("asked");
    }));
    const Images images = moved(before.images, state::plan_moves(before.owners, owners), to.ranks);
    const Ended after = job(to, optimizer, &images, kBefore, kBefore + kAfter, kBefore);
    Image was = all_of(before.images), is = all_of(after.images);
    for (const std::string& vector : was.contents().vectors())
      for (const state::Holding& holding : was.contents().of(vector))
        EXPECT_EQ(is.bytes_of(vector, holding.range), was.bytes_of(vector, holding.range)) << vector;
    EXPECT_TRUE(is.contents() == was.contents());
    EXPECT_EQ(is.scalar(state::kStep), kBefore);
    const Parameters wanted =
        reference(small_model(), optimizer, [&](int step) { return step < kBefore ? from.ranks : to.ranks; });
    for (const Parameters& got : after.parameters)
      for (size_t slot = 0; slot < wanted.size(); slot++)
        for (size_t i = 0; i < wanted[slot].size(); i++)
          ASSERT_NEAR(got[slot][i], wanted[slot][i], 1e-11) << "slot " << slot << ", element " << i;
  }
}

TEST(AnotherCrew, OneRankMore) { expect_moves({.ranks = 2}, {.ranks = 3, .bucket_bytes = 2000}); }
TEST(AnotherCrew, OneRankLess) { expect_moves({.ranks = 3}, {.ranks = 2, .bucket_bytes = 20000}); }
TEST(AnotherCrew, AllreduceWithOneRank) { expect_moves({.ranks = 2}, {.sync = Sync::allreduce, .ranks = 1}); }
TEST(AnotherCrew, TwoMachines) { expect_moves({.ranks = 3}, {.ranks = 3, .machine_of = {0, 1, 1}}); }
TEST(AnotherCrew, FromOneMachineToZero3) {
  expect_moves({.ranks = 3}, {.ranks = 3, .machine_of = {0, 1, 2}, .zero = 3});
}
TEST(AnotherCrew, FromZero3ToZero1) {
  expect_moves({.ranks = 3, .machine_of = {0, 1, 1}, .zero = 3}, {.ranks = 3, .machine_of = {0, 0, 1}, .zero = 1});
}
TEST(AnotherCrew, ToServers) { expect_moves({.ranks = 2}, {.sync = Sync::server, .ranks = 3, .servers = 2}); }
TEST(AnotherCrew, FromServers) { expect_moves({.sync = Sync::server, .ranks = 3, .servers = 2}, {.ranks = 2}); }

// ---- what is refused ----

/// `kept` on rank 1, good state on rank 0: nobody changes anything.
void expect_refused(const Crew& crew, const Layout& layout, const UpdaterOptions& optimizer, const Image& bad,
                    const std::vector<std::string>& words) {
  const Outcomes outcomes = run(crew, [&](const Group& group) {
    const int rank = group.all.rank();
    const auto exchange = make_exchange(group, layout, optimizer, options_of(crew));
    fill_parameters(*exchange, rank, 0);
    Image before, after, image = bad;
    exchange->state().visit(before);
    std::exception_ptr error;
    Image good = before;
    try {
      exchange->state().restore(rank == 1 ? image : good);
    } catch (...) {
      error = std::current_exception();
    }
    exchange->state().visit(after);
    EXPECT_TRUE(before == after);
    if (error) std::rethrow_exception(error);
  });
  expect_error<InvalidArgument>(outcomes[1], words);
  expect_error<Mismatch>(outcomes[0], {"rank 0", "rank 1 has not", "Nothing changed"});
}

Image good_image(const Crew& crew, const UpdaterOptions& optimizer) {
  return all_of(job(crew, optimizer, nullptr, 0, 3, 3).images);
}

TEST(WrongState, AnotherShape) {
  const Image image = good_image({.ranks = 2}, space::momentum());
  const Layout layout = small_model();
  std::vector<Slot> slots(layout.slots().begin(), layout.slots().end());
  slots[2].shape = {37, 40};
  expect_refused({.ranks = 2}, Layout(slots), space::momentum(), image,
                 {"another model", "parameter 2", "fc1.weight f64[37,41]", "fc1.weight f64[37,40]", "rank 1"});
  slots.pop_back();
  slots[2].shape = {37, 41};
  expect_refused({.ranks = 2}, Layout(slots), space::momentum(), image, {"parameter 7", "fc2.bias", "none"});
}

TEST(WrongState, AnotherOptimizer) {
  expect_refused({.ranks = 2}, small_model(), space::adam(), good_image({.ranks = 2}, space::momentum()),
                 {"of 'momentum'", "rank 1 trains with 'adam'"});
  expect_refused({.sync = Sync::server, .ranks = 2, .servers = 1}, small_model(), space::adam(),
                 good_image({.ranks = 2}, space::momentum()), {"of 'momentum'", "rank 1 trains with 'adam'"});
}

TEST(WrongState, MissingRanges) {
  const Ended ended = job({.ranks = 2}, space::momentum(), nullptr, 0, 3, 3);
  expect_refused({.ranks = 2}, small_model(), space::momentum(), ended.images[0],  // another rank's
                 {"the state lacks bytes", "'optimizer/momentum'", "rank 1 needs", "the state has 0 to"});
}

TEST(WrongState, MissingScalar) {
  const Image image = good_image({.ranks = 2}, space::momentum());
  Image without;
  without.about(image.about());
  for (const std::string& vector : image.contents().vectors())
    for (const state::Holding& holding : image.contents().of(vector))
      without.part(vector, holding.range, image.bytes_of(vector, holding.range));
  expect_refused({.ranks = 2}, small_model(), space::momentum(), without, {"no 'step'", "rank 1"});
}

// ---- any crew goes on with any other's state ----

using Numbers = std::vector<double>;

/// Element by element; counts of steps too.
Numbers numbers_of(const Image& image, const std::string& vector) {
  Numbers numbers;
  for (const state::Holding& holding : image.contents().of(vector)) {
    const std::vector<std::byte> bytes = image.bytes_of(vector, holding.range);
    for (size_t at = 0; at < bytes.size(); at += 8) {
      double value = 0;
      int64_t count = 0;
      std::memcpy(&value, bytes.data() + at, 8);
      std::memcpy(&count, bytes.data() + at, 8);
      numbers.push_back(vector.ends_with(state::kSteps) ? static_cast<double>(count) : value);
    }
  }
  return numbers;
}

/// What a vector should be when the state of `was`, whose crew had `workers` states of their own, goes on: plainly, by
/// what the words say.
Numbers wanted_of(const Image& was, int workers, const std::string& vector, int workers_now) {
  const bool own = vector.starts_with("worker/");
  const std::string base = own ? vector.substr(vector.find('/', 7) + 1) : vector;
  const bool kept_as_it_is = own ? workers == workers_now : true;
  if (kept_as_it_is && !was.contents().of(vector).empty()) return numbers_of(was, vector);
  Numbers all;
  int count = 0;
  for (int worker = 0; worker < workers; worker++) {
    const Numbers one = numbers_of(was, fmt::format("worker/{}/{}", worker, base));
    if (one.empty()) continue;
    count++;
    all.resize(one.size());
    for (size_t i = 0; i < one.size(); i++) all[i] = base == state::kSteps ? std::max(all[i], one[i]) : all[i] + one[i];
  }
  if (count == 0) return numbers_of(was, base);
  for (double& number : all) number /= base == state::kSteps ? 1 : count;
  return all;
}

TEST(AnotherCrew, AnyGoesOnWithTheStateOfAnyOther) {
  const std::vector<Crew> some = {
      {.sync = Sync::shared, .ranks = 3},
      {.sync = Sync::shared, .ranks = 2, .machine_of = {0, 1}, .bucket_bytes = 9000},
      {.sync = Sync::shared, .ranks = 3, .machine_of = {0, 1, 1}, .zero = 1},
      {.sync = Sync::shared, .ranks = 2, .machine_of = {0, 1}, .zero = 2},
      {.sync = Sync::shared, .ranks = 4, .machine_of = {0, 1, 0, 1}, .zero = 3},
      {.sync = Sync::allreduce, .ranks = 2},
      {.sync = Sync::central, .ranks = 2},
      {.sync = Sync::server, .ranks = 2, .servers = 2},
      {.sync = Sync::async, .ranks = 2, .servers = 1},
      {.sync = Sync::hogwild, .ranks = 3},
      {.sync = Sync::local_for(3), .ranks = 2},
      {.sync = Sync::diloco_for(3), .ranks = 2},
      {.sync = Sync::elastic_with(2, 0.3), .ranks = 2, .servers = 2},
  };
  for (const Crew& from : some) {
    const Image was = good_image(from, space::adam());
    for (const Crew& to : some) {
      const Images everywhere(static_cast<size_t>(to.ranks), was);
      const Ended after = job(to, space::adam(), &everywhere, 3, 4, 3);
      const Image is = all_of(after.images);
      for (const std::string& vector : is.contents().vectors()) {
        if (vector.starts_with("optimizer/diloco/")) continue;  // what other modes do not have
        const Numbers got = numbers_of(is, vector);
        const Numbers wanted = wanted_of(was, was.about().workers, vector, is.about().workers);
        ASSERT_EQ(got.size(), wanted.size()) << describe(from) << " to " << describe(to) << ", " << vector;
        for (size_t i = 0; i < got.size(); i++)
          ASSERT_NEAR(got[i], wanted[i], 1e-15) << describe(from) << " to " << describe(to) << ", " << vector;
      }
      EXPECT_GE(is.contents().vectors().size(), 3U) << describe(to);
    }
  }
}

}  // namespace
}  // namespace trireme::exchange::tests
