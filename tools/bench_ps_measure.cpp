// A worker and a server in two processes: what `trireme bench ps` times.
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>

#include <trireme/base/error.h>
#include <trireme/cluster/launching/launcher.h>
#include <trireme/ps/client.h>
#include <trireme/ps/server.h>

#include "bench.h"
#include "bench_ps.h"
#include "sparse_speed.h"

namespace trireme::tools {
namespace {

constexpr Seconds kTimeout{20}, kServerTimeout{120};  // a server may have to wait until others have been measured
constexpr float kGradient = 1.0f;
constexpr double kRate = 1.0 / 1024;  // sums of it are exact, so that what the server did can be checked
constexpr size_t kKeys = 100'000, kRows = 1'000'000, kWidth = 16;

/// A child that ends with this object, or with its parent.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ < 0) fail<IoError>("cannot start a process: {}", errno_text());
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body());
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t pid_;
};

/// One value, from the process that puts it to the one that gets it. A value that begins with '!' is an error.
class PipeStore final : public comm::network::KeyValue {
 public:
  PipeStore() {
    int ends[2];
    if (pipe(ends) != 0) fail<IoError>("cannot make a pipe: {}", errno_text());
    read_ = Descriptor(ends[0]);
    write_ = Descriptor(ends[1]);
  }
  void put(const std::string& /*key*/, const std::string& value) override {
    if (write(write_.get(), value.data(), value.size()) != static_cast<ssize_t>(value.size()))
      fail<IoError>("cannot write to a pipe: {}", errno_text());
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    pollfd look{read_.get(), POLLIN, 0};
    if (poll(&look, 1, static_cast<int>(deadline.left().count() * 1e3)) <= 0)
      fail<Timeout>("the server has not put {}", key);
    char text[1024];
    const ssize_t got = read(read_.get(), text, sizeof text);
    if (got > 0 && text[0] == '!') throw Error(std::string(text + 1, static_cast<size_t>(got) - 1));
    return {text, static_cast<size_t>(std::max<ssize_t>(0, got))};
  }

 private:
  Descriptor read_, write_;
};

/// A server for one worker.
class ServerProcess {
 public:
  explicit ServerProcess(const PsMeasure& options)
      : meeting{.job = cluster::random_name(),
                .token = "bench",
                .tls = options.tls,
                .remote_only = options.network,
                .channels = options.channels},
        child_([&] { return serve(options.network); }) {
    if (options.network) meeting.store = &store_;
  }

  ps::Meeting meeting;

 private:
  int serve(bool network) try {
    ps::ServerOptions options{.meeting = meeting, .timeout = kServerTimeout};
    if (network) options.meeting.store = &store_;
    ps::Server(options).run();
    return 0;
  } catch (const std::exception& error) {
    store_.put("", fmt::format("!{}", error.what()).substr(0, 1000));
    return 1;
  }

  PipeStore store_;
  Child child_;
};

double us_of(const std::function<void()>& call) {
  const auto start = Clock::now();
  call();
  return seconds_since(start) * 1e6;
}

struct Pair {
  double ours = 0, peer = 0;  // µs, medians
  double mean = 0;            // of ours
};

/// By turns, so that both meet the same machine.
Pair by_turns(int rounds, const std::function<void()>& ours, const std::function<void()>& peer) {
  std::vector<double> mine, theirs;
  for (int round = -3; round < rounds; round++) {
    const double a = us_of(ours), b = us_of(peer);
    if (round < 0) continue;
    mine.push_back(a);
    theirs.push_back(b);
  }
  return {median(mine), median(theirs),
          std::accumulate(mine.begin(), mine.end(), 0.0) / static_cast<double>(mine.size())};
}

ps::Job job_of(size_t bytes) {
  ps::Job job{.layout = space::Layout({{"x", DType::f32, {static_cast<int64_t>(bytes / 4)}}})};
  job.optimizer = space::sgd({});
  job.rules = {.order = ps::Order::on_arrival};
  return job;
}

float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }

/// Every parameter is what so many pushes make of 0.
void check(ps::Client& client, space::Range range, int pushes) {
  client.pull(range).wait();
  const float expected = -static_cast<float>(kRate) * kGradient * static_cast<float>(pushes);
  const float* p = floats(client.parameters());
  for (size_t i = 0; i < range.size() / 4; i++)
    if (p[i] != expected) fail<Error>("after {} pushes, parameter {} is {} instead of {}", pushes, i, p[i], expected);
}

/// Ordinary memory, as malloc gives it to everybody; memcpy is fastest when both sides begin with a page.
std::unique_ptr<void, decltype(&std::free)> touched_pages(size_t bytes) {
  void* pages = std::aligned_alloc(kPage, round_up(bytes, kPage));
  if (pages == nullptr) fail<IoError>("no memory for {} bytes", bytes);
  return {std::memset(pages, 1, bytes), &std::free};
}

std::string measure_range(const PsMeasure& o, const ServerProcess& server, size_t bytes) {
  const ps::Job job = job_of(bytes);
  ps::Client client(server.meeting, 0, job, {.timeout = kTimeout, .in_place = o.what == "pull-in-place"});
  const space::Range range{0, bytes};
  client.set({0, job.layout.bytes()}).wait();
  std::fill_n(floats(client.gradients()), bytes / 4, kGradient);
  const auto from = touched_pages(bytes), to = touched_pages(bytes);
  int pushes = 0;
  const auto push = [&] { client.push(range, {.step = pushes++, .lr = kRate}).wait(); };
  const auto pull = [&] { client.pull(range).wait(); };
  const auto copy = [&] {
    if (o.network) return;  // its peer is TCP, measured elsewhere, and a copy would take the caches
    std::memcpy(to.get(), from.get(), bytes);
    asm volatile("" ::"r"(to.get()) : "memory");  // or the compiler would leave it out
  };
  const int rounds = static_cast<int>(std::clamp<size_t>((size_t{512} << 20) / bytes, 11, 201));
  const Pair times = by_turns(rounds, o.what == "push" ? std::function<void()>(push) : pull, copy);
  check(client, range, pushes);
  if (o.network) return fmt::format("{{\"bytes\": {}, \"us\": {:.3f}}}\n", bytes, times.ours);  // its peer is TCP
  return fmt::format("{{\"bytes\": {}, \"us\": {:.3f}, \"memcpy\": {:.3f}}}\n", bytes, times.ours, times.peer);
}

std::string measure_ranges(const PsMeasure& o) {
  std::vector<std::unique_ptr<ServerProcess>> servers;  // all of them first: gRPC's threads do not survive a fork
  for (size_t i = 0; i < o.sizes.size(); i++) servers.push_back(std::make_unique<ServerProcess>(o));
  std::string text;
  for (size_t i = 0; i < o.sizes.size(); i++) text += measure_range(o, *servers[i], o.sizes[i]);
  return text;
}

/// Four bytes there, and the answer back.
std::string measure_round_trip(const PsMeasure& o) {
  ServerProcess server(o);
  std::vector<std::unique_ptr<Child>> busy;
  for (int i = 0; i < o.busy; i++)
    busy.push_back(std::make_unique<Child>([] {
      for (volatile uint64_t count = 0;;) count = count + 1;
      return 0;
    }));
  ps::Client client(server.meeting, 0, job_of(64), {.timeout = kTimeout});
  client.set({0, 64}).wait();
  floats(client.gradients())[0] = kGradient;
  int pushes = 0;
  const int rounds = o.busy > 0 ? 500 : 5000;
  const Pair times = by_turns(
      rounds,
      [&] {
        client.push({0, 4}, {.step = pushes++, .lr = kRate}).wait();
      },
      [] {});
  check(client, {0, 4}, pushes);
  return fmt::format("{{\"bytes\": 4, \"us\": {:.3f}, \"mean\": {:.3f}}}\n", times.ours, times.mean);
}

std::string measure_sparse_requests(const PsMeasure& o) {
  ServerProcess server(o);
  ps::SparseTable::Options table{.name = "rows", .width = kWidth, .optimizer = space::sgd({})};
  ps::Job job{.tables = {table}};
  ps::Client client(server.meeting, 0, job, {.timeout = kTimeout});
  std::vector<uint64_t> keys(kKeys);
  std::vector<float> rows(kKeys * kWidth), gradients(kKeys * kWidth, kGradient);
  const auto key_of = [](uint64_t row) { return (row + 1) * 0xbf58476d1ce4e5b9; };
  for (size_t row = 0; row < kRows; row += kKeys) {
    for (size_t i = 0; i < kKeys; i++) keys[i] = key_of(row + i);
    client.pull_rows(0, keys, rows.data()).wait();
  }
  std::mt19937_64 random(1);
  std::vector<double> push, pull;
  for (int round = -3; round < 60; round++) {
    for (uint64_t& key : keys) key = key_of(random() % kRows);
    const double pushed = us_of([&] { client.push_rows(0, keys, gradients.data(), kRate).wait(); });
    for (uint64_t& key : keys) key = key_of(random() % kRows);
    const double pulled = us_of([&] { client.pull_rows(0, keys, rows.data()).wait(); });
    if (round < 0) continue;
    push.push_back(kKeys / pushed * 1e6);
    pull.push_back(kKeys / pulled * 1e6);
  }
  if (std::all_of(rows.begin(), rows.end(), [](float value) { return value == 0; })) fail<Error>("no row was updated");
  const SparseSpeed alone = measure_sparse(table, kRows, kKeys, Seconds(0.5));
  return fmt::format("{{\"push\": {:.0f}, \"pull\": {:.0f}, \"table push\": {:.0f}, \"table pull\": {:.0f}}}\n",
                     median(push), median(pull), alone.push, alone.pull);
}

}  // namespace

int measure_ps(const PsMeasure& options) {
  std::string text;
  if (options.what == "round-trip") text = measure_round_trip(options);
  if (options.what == "sparse") text = measure_sparse_requests(options);
  if (text.empty()) text = measure_ranges(options);
  std::ofstream(options.out) << text;
  return 0;
}

}  // namespace trireme::tools
