// label: multiproc grpc
// Coordinators that are killed and started again, and real sessions that wait for them. gRPC does not survive a fork,
// so a coordinator that dies is this program, started again with a role (see main).
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/launching/launcher.h>

namespace trireme::cluster::tests {
namespace {

constexpr Seconds kLong{20};  // what a busy machine is given

CoordinatorOptions coordinator_options(int ranks, int port, const std::string& journal) {
  CoordinatorOptions options;
  options.address = "127.0.0.1";
  options.port = port;
  options.token = "secret";
  options.host = "a";
  options.ranks = ranks;
  options.heartbeat_limit = Seconds(1.5);
  options.journal = journal;
  return options;
}

template <class E, class F>
std::string message_of(const F& run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another class of error: ") + error.what();
  }
  return "no error";
}

testing::AssertionResult has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos ? testing::AssertionSuccess()
                                              : testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}
#define EXPECT_HAS(text, part) EXPECT_TRUE(has(text, part))

bool eventually(const std::function<bool()>& ready) {
  for (const Deadline deadline{kLong}; !deadline.passed(); usleep(2000))
    if (ready()) return true;
  return ready();
}

/// A coordinator in a process of its own.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "/proc/self/exe");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw IoError("pipe");
    output_ = Descriptor(ends[0]);
    const Descriptor input(ends[1]);
    pid_ = fork();
    if (pid_ != 0) return;
    dup2(input.get(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Process() { end(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { kill(pid_, signal); }
  /// With SIGKILL, until it is gone.
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  std::string line() const {
    std::string text;
    char c = 0;
    while (read(output_.get(), &c, 1) == 1 && c != '\n') text += c;
    return text;
  }

 private:
  pid_t pid_ = 0;
  Descriptor output_;
};

class CoordinatorRestart : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "trireme-restart-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    port_ = free_port();
  }
  void TearDown() override {
    process_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string journal() const { return (folder_ / "journal").string(); }

  /// Begins, or takes over.
  void start(int ranks, bool elastic = false, double patience = 60) {
    process_ = std::make_unique<Process>(std::vector<std::string>{"--coordinator", std::to_string(ranks),
                                                                  std::to_string(port_), journal(),
                                                                  elastic ? "elastic" : "", std::to_string(patience)});
    ASSERT_EQ(process_->line(), "listens");
  }

  std::unique_ptr<Session> join(int rank, Seconds timeout = kLong) const {
    SessionOptions options;
    options.coordinator = fmt::format("127.0.0.1:{}", port_);
    options.token = "secret";
    options.timeout = timeout;
    options.heartbeat_limit = Seconds(1.5);
    return std::make_unique<Session>(options, Member{Member::worker, rank, 0, 0, "b", 0});
  }

  std::filesystem::path folder_;
  int port_ = 0;
  std::unique_ptr<Process> process_;
};

TEST_F(CoordinatorRestart, SessionsComeBackAndNothingIsLost) {
  start(2);
  const auto a = join(0), b = join(1);
  a->put("before", "1");
  auto waits = std::async(std::launch::async, [&] { return a->get("during", Deadline(kLong)); });
  usleep(50'000);
  process_->end();
  auto puts = std::async(std::launch::async, [&] { b->put("during", "2"); });
  usleep(1'000'000);
  EXPECT_FALSE(a->failure());
  start(2);
  puts.get();
  EXPECT_EQ(waits.get(), "2");
  EXPECT_EQ(b->get("before", Deadline(kLong)), "1");
  a->leave(0);
  process_->end();
  start(2);
  b->leave(0);
  EXPECT_EQ(process_->line(), "ended, 0 failures");
  EXPECT_FALSE(a->failure());
  EXPECT_FALSE(b->failure());
}

/// Whoever leaves while there is no coordinator waits for the next one: its end would be taken for a death.
TEST_F(CoordinatorRestart, AGoodbyeWaitsForTheNextCoordinator) {
  start(2);
  const auto a = join(0), b = join(1);
  process_->end();
  auto leaves = std::async(std::launch::async, [&] { a->leave(0); });
  EXPECT_EQ(leaves.wait_for(std::chrono::milliseconds(2000)), std::future_status::timeout);
  start(2);
  leaves.get();
  b->leave(0);
  EXPECT_EQ(process_->line(), "ended, 0 failures");
}

TEST_F(CoordinatorRestart, WhenThePatienceHasPassedTheRankStopsItself) {
  start(1, false, 1);
  const auto a = join(0);
  auto waits = std::async(std::launch::async,
                          [&] { return message_of<PeerLost>([&] { a->get("never", Deadline(Seconds(100))); }); });
  usleep(50'000);
  process_->end();
  const auto begin = Clock::now();
  EXPECT_HAS(waits.get(), "and no other one came in its place (limit 1 s: --coordinator-patience)");
  EXPECT_GT(seconds_since(begin), 0.9);
  EXPECT_LT(seconds_since(begin), 10);
  a->leave(1);
  EXPECT_LT(seconds_since(begin), 15);
}

TEST_F(CoordinatorRestart, ARankThatDiesMeanwhileIsReplacedByTheNextCrew) {
  constexpr double kPatience = 3;
  start(3, true, kPatience);
  auto a = join(0), b = join(1), c = join(2);
  for (const auto& each : {&a, &b, &c}) (*each)->confirm(0, "m");
  // All of them have been heard: a coordinator that has to answer one has heard the others' words before.
  for (const auto& each : {&a, &b, &c}) (*each)->put("here", "");
  process_->end();
  b.reset();  // without a goodbye
  auto next = std::async(std::launch::async, [&] { return a->next_crew(0, Deadline(Seconds(1))); });
  usleep(500'000);
  start(3, true, kPatience);
  const CrewChange change = next.get();  // though it took longer than that second
  EXPECT_EQ(change.epoch, 1u);
  EXPECT_EQ(change.ranks, (std::vector{0, 2}));
  EXPECT_HAS(change.reason, "rank 1 on host b");
  EXPECT_HAS(change.reason, "has not come back within 3 s after the coordinator was started again");
  EXPECT_EQ(c->next_crew(0, Deadline(kLong)).epoch, 1u);
  a->confirm(1, "m");
  c->confirm(1, "m");
  process_->end();  // and once more, in another epoch
  start(3, true, kPatience);
  a->put("again", "");
  EXPECT_HAS(message_of<Timeout>([&] { a->next_crew(1, Deadline(Seconds(0.5))); }), "no crew after epoch 1");
  a->leave(0);
  c->leave(0);
  EXPECT_EQ(process_->line(), "ended, 0 failures");
}

/// One that is stopped and goes on finds its members where they were.
TEST_F(CoordinatorRestart, AStoppedCoordinatorGoesOnWithEverybody) {
  start(2);
  const auto a = join(0), b = join(1);
  process_->send(SIGSTOP);
  usleep(4'500'000);  // beyond the heartbeat limit: they try to reach it anew, and give that up again
  process_->send(SIGCONT);
  a->put("key", "value");
  EXPECT_EQ(b->get("key", Deadline(kLong)), "value");
  usleep(1'000'000);
  EXPECT_FALSE(a->failure());
  EXPECT_FALSE(b->failure());
  a->leave(0);
  b->leave(0);
  EXPECT_EQ(process_->line(), "ended, 0 failures");
}

TEST_F(CoordinatorRestart, WhoHasNoJournalOfThemRefusesThem) {
  start(1);
  const auto a = join(0);
  process_->end();
  std::filesystem::remove(journal());
  start(1);
  EXPECT_TRUE(eventually([&] { return a->failure().has_value(); }));
  EXPECT_HAS(a->failure()->reason, "does not know host b");
}

TEST_F(CoordinatorRestart, RegistrationsThatItInterruptsGoOn) {
  start(3);
  std::vector<std::future<int>> ranks;
  std::vector<std::unique_ptr<Session>> sessions(3);
  for (size_t i = 0; i < 2; i++)
    ranks.push_back(std::async(std::launch::async, [&, i] {
      sessions[i] = join(-1);
      return sessions[i]->rank();
    }));
  usleep(300'000);
  process_->end();
  start(3);
  sessions[2] = join(-1);
  std::vector<int> all{sessions[2]->rank()};
  for (auto& rank : ranks) all.push_back(rank.get());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector{0, 1, 2}));
  for (const auto& session : sessions) session->leave(0);
  EXPECT_EQ(process_->line(), "ended, 0 failures");
}

/// Killed again and again while everybody is busy.
TEST_F(CoordinatorRestart, ManyDeathsInARow) {
  constexpr int kRanks = 4, kKills = 8;
  start(kRanks);
  std::vector<std::unique_ptr<Session>> sessions;
  for (int rank = 0; rank < kRanks; rank++) sessions.push_back(join(rank));
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  std::vector<int> rounds(kRanks);
  for (int rank = 0; rank < kRanks; rank++)
    threads.emplace_back([&, rank] {
      Session& session = *sessions[static_cast<size_t>(rank)];
      for (int i = 0; !stop || i % kRanks != 0; i++) {
        session.put(fmt::format("{}/{}", rank, i % 50), std::to_string(i));
        EXPECT_EQ(session.get(fmt::format("{}/{}", rank, i % 50), Deadline(kLong)), std::to_string(i));
        rounds[static_cast<size_t>(rank)] = i;
      }
    });
  for (int i = 0; i < kKills; i++) {
    usleep(200'000);
    process_->end();
    start(kRanks);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (const int count : rounds) EXPECT_GT(count, kKills);
  for (const auto& session : sessions) {
    EXPECT_FALSE(session->failure());
    session->leave(0);
  }
  EXPECT_EQ(process_->line(), "ended, 0 failures");
}

TEST_F(CoordinatorRestart, AJournalNeedsAPort) {
  EXPECT_HAS(message_of<InvalidArgument>([&] { Coordinator{coordinator_options(1, 0, journal())}; }), "Give --port");
}

int run_coordinator(int ranks, int port, const std::string& journal, bool elastic, double patience) {
  CoordinatorOptions options = coordinator_options(ranks, port, journal);
  options.patience = Seconds(patience);
  if (elastic) options.on_loss = OnLoss::change_crew;
  Coordinator coordinator(options);
  const auto say = [](const std::string& text) { return write(1, text.data(), text.size()) > 0; };
  if (!say("listens\n")) return 1;
  if (!coordinator.wait_ended(Deadline(Seconds(60)))) return 2;
  say(fmt::format("ended, {} failures\n", coordinator.snapshot().failures.size()));
  return 0;
}

}  // namespace
}  // namespace trireme::cluster::tests

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--coordinator")
    return trireme::cluster::tests::run_coordinator(std::atoi(argv[2]), std::atoi(argv[3]), argv[4],
                                                    std::string(argv[5]) == "elastic", std::atof(argv[6]));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
