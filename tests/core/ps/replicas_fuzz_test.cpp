// label: unit
// What servers tell each other, damaged: copies of a shard, records of a log and what goes beside it, greetings. A
// server that reads it gives up with a reason, or goes on; it touches no memory that is not its own.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/ps/copy.h>
#include <trireme/ps/shm/door.h>
#include <trireme/ps/shm/incoming.h>
#include <trireme/ps/shm/replica.h>

#include "servers.h"

namespace trireme::ps::tests {
namespace {

constexpr size_t kMostMemory = 1 << 20;

/// Of services that damaged descriptions may make.
struct LittleMemory final : ModelMemory {
  std::byte* take(int model, size_t bytes) override {
    if (bytes > kMostMemory) fail<IoError>("so much memory is not there");
    return (models[model] = std::make_unique<std::byte[]>(bytes + 1)).get();
  }
  void give_back(int model) override { models.erase(model); }
  std::map<int, std::unique_ptr<std::byte[]>> models;
};

Job little_job() {
  Job job{.layout = space::Layout({{"w", DType::f32, {40}}, {"b", DType::f32, {7}}}),
          .workers = 2,
          .bucket_bytes = 128,
          .chunk_bytes = 128};
  job.optimizer = space::momentum({.lr = 1});
  job.rules = {.workers = 2, .order = Order::together};
  job.tables = {{.name = "t", .width = 2, .optimizer = space::sgd({})}};
  return job;
}

/// The memory of a worker of that job, filled.
class WorkerMemory {
 public:
  explicit WorkerMemory(const std::string& job)
      : memory_([&] {
          const shm::Plot plot = shm::Plot::plan(2, job.size(), 256, 2, 4096);
          return shm::Memory(Segment::create(plot.total), plot);
        }()) {
    std::memcpy(memory_.job(), job.data(), job.size());
    std::fill_n(reinterpret_cast<float*>(memory_.gradients()), 64, 1.f);
    std::fill_n(memory_.present(), 2, uint8_t{1});
  }
  const shm::Memory& memory() const { return memory_; }
  Descriptor descriptor() const { return Descriptor(dup(memory_.segment().descriptor())); }

 private:
  shm::Memory memory_;
};

struct Deaf final : Connection {
  void reply(const Reply& /*reply*/, std::span<const std::byte> data) override {
    for (const std::byte byte : data) heard += static_cast<uint64_t>(byte);
  }
  std::string name() const override { return fmt::format("worker {}", worker); }
  uint64_t heard = 0;
};

class Mischief {
 public:
  explicit Mischief(uint64_t seed) : random_(seed) {}
  size_t below(size_t n) { return random_() % n; }

  void damage(std::span<std::byte> bytes) {
    constexpr uint64_t kNasty[] = {
        0, 1, 2, 7, 64, 255, 0x7fffffff, 0xffffffff, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}};
    for (size_t changes = 1 + below(3); changes > 0 && !bytes.empty(); changes--) {
      const uint64_t value = below(3) == 0 ? random_() : kNasty[below(std::size(kNasty))];
      const size_t at = below(bytes.size()), width = std::min<size_t>(size_t{1} << below(4), bytes.size() - at);
      std::memcpy(bytes.data() + at, &value, width);
    }
  }
  template <class T>
  T damaged(T value) {
    std::array<std::byte, sizeof(T)> bytes;
    std::memcpy(bytes.data(), &value, sizeof value);
    damage(bytes);
    std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof value);
    return value;
  }

 private:
  std::mt19937_64 random_;
};

// ---- copies ----

/// A server in the middle of everything: gradients, pulls and workers that wait, rows, delays.
class Busy {
 public:
  Busy() : job_(little_job()), worker_(job_.encode()) {
    for (int worker = 0; worker < 2; worker++) {
      connections.push_back(std::make_shared<Deaf>());
      connections.back()->worker = worker;
      connections.back()->service = models.open(0, worker, job_.encode()).service;
    }
    for (uint32_t chunk = 0; chunk < service().chunks().size(); chunk++) {
      const space::Range range = service().chunks()[chunk].range;
      ask(0, {.verb = Verb::push, .chunk = chunk, .step = 1, .lr = 1, .begin = range.begin, .bytes = range.size()});
      ask(1, {.verb = Verb::pull, .chunk = chunk, .version = 5, .begin = range.begin, .bytes = range.size()});
    }
    const uint64_t keys[] = {3, 5, 7};
    std::memcpy(worker_.memory().staging(), keys, sizeof keys);
    ask(1, {.verb = Verb::sparse_push, .lr = 1, .version = 3, .bytes = 3 * (8 + 2 * sizeof(float))});
    ask(1, {.verb = Verb::barrier});
    models.control("delay 1 20");
  }
  const Service& service() const { return *connections[0]->service; }
  void ask(int worker, Request request) {
    const auto& from = connections[static_cast<size_t>(worker)];
    request.id = ++ids_;
    from->service->handle(shm::incoming_of(from, request, worker_.memory()), {});
  }

  std::vector<std::shared_ptr<Deaf>> connections;

 private:
  const Job job_;
  const WorkerMemory worker_;
  Helpers helpers_{0};
  LittleMemory memory_;
  metrics::Registry registry_;
  uint64_t ids_ = 0;

 public:
  Models models{0, memory_, helpers_, registry_};
};

std::vector<std::byte> whole_copy() {
  const Busy busy;
  CopyWriter out;
  busy.models.copy_to(out);
  return {out.bytes().begin(), out.bytes().end()};
}

class CopyFuzz : public testing::Test {
 protected:
  /// What becomes of a server that is filled with these bytes: what is wrong with them, or "" and it is tried out.
  std::string fill(std::span<const std::byte> bytes) {
    LittleMemory memory;
    metrics::Registry registry;
    Models models(0, memory, helpers_, registry);
    std::map<int, std::shared_ptr<Deaf>> shadows;
    const auto shadow = [&](int worker) {
      auto& one = shadows[worker];
      if (!one) one = std::make_shared<Deaf>(), one->worker = worker;
      return one;
    };
    try {
      CopyReader in(bytes);
      models.copy_from(in, [&](int model, int worker, const Request& request) {
        const auto from = shadow(worker);
        from->service = models.open(model, worker, text_).service;
        if (from->service == nullptr) fail<Corruption>("nobody is there");
        return shm::incoming_of(from, request, worker_.memory());
      });
      try_out(models, shadow);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  template <class Shadow>
  void try_out(Models& models, const Shadow& shadow) {
    models.tick(Clock::now() + std::chrono::hours(1));
    Service* const service = models.where(1);
    if (service == nullptr || service->job() == nullptr) return;
    shadow(1)->service = service;
    for (uint32_t chunk = 0; chunk < service->chunks().size() && chunk < 4; chunk++) {
      const space::Range range = service->chunks()[chunk].range;
      const Request push{
          .id = 1000 + chunk, .chunk = chunk, .step = 1, .lr = 1, .begin = range.begin, .bytes = range.size()};
      service->handle(shm::incoming_of(shadow(1), push, worker_.memory()), {});
    }
    models.lost(*service, 1, "worker 1 died");
    EXPECT_EQ(models.digest().size(), 64u);
  }

  Helpers helpers_{0};
  const std::string text_ = little_job().encode();
  const WorkerMemory worker_{text_};
};

TEST_F(CopyFuzz, AGoodCopyIsTaken) { EXPECT_EQ(fill(whole_copy()), ""); }

TEST_F(CopyFuzz, ADamagedOneIsRefusedOrHarmless) {
  const std::vector<std::byte> good = whole_copy();
  Mischief mischief(20261119);
  size_t taken = 0, refused = 0;
  for (int i = 0; i < 100'000; i++) {
    std::vector<std::byte> bytes = good;
    mischief.damage(bytes);
    if (mischief.below(4) == 0) bytes.resize(mischief.below(bytes.size()));
    bytes.shrink_to_fit();
    fill(bytes).empty() ? taken++ : refused++;
  }
  EXPECT_GT(taken, 1000u);
  EXPECT_GT(refused, 30'000u);
}

// ---- logs ----

/// A backup and the ends of a primary that says what it likes.
class LogFuzz : public testing::Test {
 protected:
  static constexpr size_t kBytes = (sizeof(shm::Log) + kPage - 1) / kPage * kPage;

  LogFuzz()
      : log_memory_(Segment::create(kBytes)),
        bell_memory_(Segment::create(kPage)),
        log_(*reinterpret_cast<shm::Log*>(log_memory_->map(0, kBytes, "a log"))),
        bell_(*reinterpret_cast<Bell*>(bell_memory_->map(0, kPage, "a bell"))) {
    const std::vector<std::byte> copy = whole_copy();
    copy_ = Segment::create(round_up(copy.size(), kPage));
    std::memcpy(copy_->map(0, round_up(copy.size(), kPage), "a copy"), copy.data(), copy.size());
    copy_bytes_ = copy.size();
  }

  shm::Record record(shm::Event event, int worker, const Request& request = {}) {
    return {.order = ++order_, .event = event, .worker = worker, .now = 1, .request = request};
  }

  /// One of the things that a primary writes, each record with what goes beside it.
  void say(Mischief& mischief) {
    const int worker = static_cast<int>(mischief.below(2));
    const bool good = mischief.below(3) > 0;
    const auto write = [&](shm::Record one) {
      if (!good) one = mischief.damaged(one);
      log_.records.push(one);
    };
    const auto beside = [&](shm::Aside aside, const Segment& segment) {
      if (!good) aside = mischief.damaged(aside);
      mischief.below(20) == 0 ? send_message(primary_.get(), &aside, sizeof aside)
                              : send_message(primary_.get(), &aside, sizeof aside, {segment.descriptor()});
    };
    const uint64_t id = order_ + 1;
    switch (mischief.below(8)) {
      case 0:
      case 1:
        beside({.event = shm::Event::open, .worker = worker, .process = 1, .plot = worker_.memory().plot()},
               worker_.memory().segment());
        return write(record(shm::Event::open, worker));
      case 2:
        return write(record(shm::Event::lost, worker));
      case 3:
        return write(record(shm::Event::tick, -1));
      case 4: {
        shm::Aside aside{.event = shm::Event::control};
        std::strncpy(aside.words.data(), "delay 0 5", aside.words.size() - 1);
        send_message(primary_.get(), &aside, sizeof aside);
        return write(record(shm::Event::control, -1));
      }
      case 5:
        beside({.event = shm::Event::fill, .bytes = copy_bytes_}, *copy_);
        return write(record(shm::Event::fill, -1));
      case 6:
        return write(record(shm::Event::filled, -1));
      default:
        const auto verb = static_cast<Verb>(mischief.below(static_cast<size_t>(Verb::count)));
        return write(record(shm::Event::request, worker, {.id = id, .verb = verb, .lr = 1, .bytes = 128}));
    }
  }

  const WorkerMemory worker_{little_job().encode()};
  std::shared_ptr<Segment> log_memory_, bell_memory_, copy_;
  shm::Log& log_;
  Bell& bell_;
  size_t copy_bytes_ = 0;
  uint64_t order_ = 0;
  Descriptor primary_;
};

TEST_F(LogFuzz, ADamagedLogEndsTheBackupOrIsHarmless) {
  Mischief mischief(7);
  Helpers helpers(0);
  const shm::Surroundings around{.server = 1, .servers = 2, .job = "a job"};
  size_t well = 0, given_up = 0;
  for (int said = 0; said < 100'000;) {
    LittleMemory memory;
    metrics::Registry registry;
    Models models(0, memory, helpers, registry);
    const Charge charge{.primary = 0, .backup = 1};
    shm::Replica replica(models, charge, around);
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    primary_ = Descriptor(ends[0]);
    auto following = std::make_shared<shm::Following>();
    following->socket = Descriptor(ends[1]);
    log_.records.written = log_.records.read = 0;
    log_.applied = 0;
    log_.dropped = log_.given_up = 0;
    order_ = 0;
    following->log = &log_;
    following->bell = &bell_;
    replica.follow(following, charge);
    for (size_t more = 1 + mischief.below(12); more > 0; more--, said++) say(mischief);
    primary_ = {};  // so that nobody waits for what is not to come
    while (replica.look_after()) continue;
    replica.fault().empty() ? well++ : given_up++;
    ASSERT_EQ(replica.fault().empty(), log_.given_up.load() == 0);
    ASSERT_LE(log_.applied.load(), order_);
  }
  EXPECT_GT(well, 1000u);
  EXPECT_GT(given_up, 5000u);
}

// ---- greetings ----

TEST(GreetingFuzz, APlotThatFitsLiesInsideItsFileInOrder) {
  Mischief mischief(3);
  const shm::Plot good = shm::Plot::plan(3, 500, 4096, 7, 300);
  ASSERT_TRUE(good.fits(good.total));
  size_t fitting = 0;
  for (int i = 0; i < 100'000; i++) {
    const shm::Plot plot = mischief.damaged(good);
    const uint64_t size = mischief.below(2) == 0 ? good.total : mischief.below(4 * good.total);
    if (!plot.fits(size)) continue;
    fitting++;
    ASSERT_LE(plot.total, size);
    ASSERT_LE(sizeof(Bell) + plot.lines * sizeof(shm::Line), plot.job);
    ASSERT_LE(plot.job + plot.job_bytes, plot.gradients);
    ASSERT_LE(plot.gradients + plot.flat_bytes, plot.parameters);
    ASSERT_LE(plot.parameters + plot.flat_bytes, plot.present);
    ASSERT_LE(plot.present + plot.slots, plot.staging);
    ASSERT_LE(plot.staging + plot.staging_bytes, plot.total);
  }
  EXPECT_GT(fitting, 100u);
}

/// Greetings of strangers of this user, some with a descriptor, at the door of a server that then serves its worker.
TEST(GreetingFuzz, NoneDisturbsAServer) {
  const Job job = small_job(1, 1, Order::on_arrival);
  Servers running(Way::shm, 1, 1);
  Mischief mischief(4);
  const auto file = Segment::create(kPage);
  for (int i = 0; i < 100'000; i++) {
    const Descriptor stranger = open_unix_socket();
    while (!connect_to(stranger.get(), shm::door_name(running.meeting.job, 0))) std::this_thread::yield();
    shm::Hello hello{.kind = static_cast<shm::Visitor>(mischief.below(6)), .worker = 0, .plot = {.lines = 1}};
    if (mischief.below(2) == 0) hello = mischief.damaged(hello);
    if (hello.kind == shm::Visitor::sibling)  // any other size would be a server's that asks for the model's memory
      hello.plot.flat_bytes = mischief.below(2) == 0 ? 0 : ~uint64_t{0};
    const size_t bytes = mischief.below(8) == 0 ? mischief.below(sizeof hello) : sizeof hello;
    mischief.below(2) == 0 ? send_message(stranger.get(), &hello, bytes)
                           : send_message(stranger.get(), &hello, bytes, {file->descriptor()});
  }
  expect_all_well(run_workers(running.meeting, job, [](Client& client) {
    client.set(whole(client)).wait();
    client.push(whole(client), {.lr = 0.5, .pull = true}).wait();
  }));
  running.join();
  expect_all_well(running.errors);
}

}  // namespace
}  // namespace trireme::ps::tests
