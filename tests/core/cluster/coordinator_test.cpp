// label: multiproc grpc
// A real coordinator and real sessions over loopback, some of them in processes of their own that are killed or
// stopped. gRPC does not survive a fork, so those are this program, started again with a role (see main).
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <thread>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/coordination/tls.h>
#include <trireme/cluster/launching/launcher.h>

namespace trireme::cluster::tests {
namespace {

constexpr Seconds kLong{20};  // what a busy machine is given

CoordinatorOptions coordinator_options(int ranks) {
  CoordinatorOptions options;
  options.address = "127.0.0.1";
  options.token = "secret";
  options.host = "a";
  options.ranks = ranks;
  options.heartbeat_limit = Seconds(10);
  return options;
}

SessionOptions session_options(int port) {
  SessionOptions options;
  options.coordinator = fmt::format("127.0.0.1:{}", port);
  options.token = "secret";
  options.timeout = kLong;
  options.heartbeat_limit = Seconds(10);
  return options;
}

Member worker(int rank, const std::string& host = "b") { return {Member::worker, rank, 0, 0, host, 0}; }

std::unique_ptr<Session> join(int port, int rank) {
  return std::make_unique<Session>(session_options(port), worker(rank));
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

/// This program in a role of its own.
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
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { kill(pid_, signal); }
  std::string line() const {
    std::string text;
    char c = 0;
    while (read(output_.get(), &c, 1) == 1 && c != '\n') text += c;
    return text;
  }
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  Descriptor output_;
};

/// A worker process that has registered.
std::unique_ptr<Process> worker_process(int port, int rank, double limit = 10) {
  auto process = std::make_unique<Process>(
      std::vector<std::string>{"--worker", std::to_string(port), std::to_string(rank), std::to_string(limit)});
  EXPECT_EQ(process->line(), "registered");
  return process;
}

TEST(Coordinator, ValuesAreSeenByAll) {
  Coordinator coordinator(coordinator_options(2));
  const auto a = join(coordinator.port(), 0), b = join(coordinator.port(), 1);
  EXPECT_EQ(a->rank(), 0);
  EXPECT_EQ(b->size(), 2);
  EXPECT_EQ(b->address(), "127.0.0.1");
  EXPECT_TRUE(a->warnings().empty());
  auto waiting = std::async(std::launch::async, [&] { return a->get("key", Deadline(kLong)); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  const std::string value("\0\xff value", 8);
  b->put("key", value);
  EXPECT_EQ(waiting.get(), value);
  EXPECT_EQ(b->get("key", Deadline(kLong)), value);
  const std::string text = message_of<Timeout>([&] { a->get("nothing", Deadline(Seconds(0.1))); });
  EXPECT_HAS(text, "nobody has put 'nothing' within 0.1 s");
  a->leave(0);
  b->leave(0);
  EXPECT_TRUE(coordinator.wait_ended(Deadline(kLong)));
  EXPECT_TRUE(coordinator.snapshot().failures.empty());
  EXPECT_FALSE(a->failure());
}

TEST(Coordinator, HeartbeatsTellWhatMembersCount) {
  CoordinatorOptions options = coordinator_options(2);
  options.heartbeat_limit = Seconds(1);
  Coordinator coordinator(options);
  std::atomic<int> updates{1};
  SessionOptions mine = session_options(coordinator.port());
  mine.heartbeat_limit = Seconds(1);
  mine.counted = [&] {
    return metrics::Snapshot({{.name = "updates", .unit = "updates", .value = static_cast<double>(updates.load())}});
  };
  Session counts(mine, worker(1));
  const auto silent = join(coordinator.port(), 0);
  const auto heard = [&] {
    const auto all = coordinator.counted();
    return all.size() == 1 && all[0].member.rank == 1 ? all[0].snapshot.total("updates").value : -1;
  };
  EXPECT_TRUE(eventually([&] { return heard() == 1; }));
  updates = 2;
  EXPECT_TRUE(eventually([&] { return heard() == 2; }));
  updates = 3;
  counts.leave(0);
  EXPECT_EQ(heard(), 3) << "its last word";
  silent->leave(0);
}

TEST(Coordinator, RanksAreAssignedByHost) {
  Coordinator coordinator(coordinator_options(4));
  std::vector<std::future<std::pair<std::string, int>>> all;
  std::vector<std::unique_ptr<Session>> sessions(4);
  for (size_t i = 0; i < 4; i++)
    all.push_back(std::async(std::launch::async, [&, i] {
      const std::string host = i % 2 == 0 ? "b" : "c";
      sessions[i] = std::make_unique<Session>(session_options(coordinator.port()), worker(-1, host));
      return std::pair(host, sessions[i]->rank());
    }));
  std::map<std::string, std::vector<int>> ranks;
  for (auto& one : all) {
    const auto [host, rank] = one.get();
    ranks[host].push_back(rank);
  }
  for (auto& [host, held] : ranks) {
    std::sort(held.begin(), held.end());
    EXPECT_EQ(held[0] + 1, held[1]) << host;
  }
}

TEST(Coordinator, AMissingRankIsToldToThoseWhoWait) {
  Coordinator coordinator(coordinator_options(2));
  SessionOptions options = session_options(coordinator.port());
  options.timeout = Seconds(2.5);
  options.heartbeat_limit = Seconds(1);
  EXPECT_HAS(message_of<Timeout>([&] { Session(options, worker(-1)); }),
             "could not assign a rank within 2.5 s: 1 of 2 ranks have registered");
}

TEST(Coordinator, AgentsLearnTheJobAndTellOfDeaths) {
  CoordinatorOptions options = coordinator_options(3);
  options.spec = {{{"a", 1}, {"b", 2}}, {"program", "--flag"}, {{"NAME", "value"}}};
  Coordinator coordinator(options);
  Session b(session_options(coordinator.port()), {Member::agent, -1, 0, 0, "b", 0}),
      a(session_options(coordinator.port()), {Member::agent, -1, 0, 0, "a", 0});
  EXPECT_EQ(b.rank(), 1);
  EXPECT_EQ(b.slots(), 2);
  EXPECT_EQ(a.spec().command, options.spec.command);
  EXPECT_EQ(a.spec().environment, options.spec.environment);
  EXPECT_EQ(a.spec().hosts, options.spec.hosts);
  EXPECT_TRUE(coordinator.snapshot().complete);
  std::promise<Failure> told;
  a.on_failure([&](const Failure& failure) { told.set_value(failure); });
  b.leave(137, "killed by signal 9", 2);
  auto future = told.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  const Failure failure = future.get();
  EXPECT_EQ(failure.rank, 2);
  EXPECT_EQ(failure.host, "b");
  EXPECT_EQ(failure.reason, "rank 2 on host b failed with exit code 137: killed by signal 9");
}

TEST(Coordinator, PushesTheNextCrewWhereThePolicySaysSo) {
  CoordinatorOptions options = coordinator_options(3);
  options.on_loss = OnLoss::change_crew;
  Coordinator coordinator(options);
  auto a = join(coordinator.port(), 0), b = join(coordinator.port(), 1), c = join(coordinator.port(), 2);
  std::promise<CrewChange> told;
  a->on_crew([&](const CrewChange& change) { told.set_value(change); });
  std::string within, without;
  std::thread bound([&] { within = message_of<PeerLost>([&] { a->get_within(0, "key", Deadline(kLong)); }); });
  std::thread free([&] { without = a->get("key", Deadline(kLong)); });
  b.reset();  // without a goodbye
  bound.join();
  EXPECT_HAS(within, "rank 1 on host b");
  auto future = told.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  for (const CrewChange& change : {future.get(), c->next_crew(0, Deadline(kLong))}) {
    EXPECT_EQ(change.epoch, 1u);
    EXPECT_EQ(change.ranks, (std::vector{0, 2}));
    EXPECT_HAS(change.reason, "rank 1 on host b");
  }
  EXPECT_FALSE(a->failure());
  EXPECT_HAS(message_of<PeerLost>([&] { c->get_within(0, "key", Deadline(kLong)); }), "rank 1 on host b");
  c->put("key", "value");  // who waits for something else goes on waiting
  free.join();
  EXPECT_EQ(without, "value");
  EXPECT_EQ(c->get_within(1, "key", Deadline(kLong)), "value");
  EXPECT_HAS(message_of<Timeout>([&] { c->next_crew(1, Deadline(Seconds(0.05))); }), "no crew after epoch 1");
  a->leave(0);
  c->leave(0);
  EXPECT_TRUE(coordinator.wait_ended(Deadline(kLong)));
  EXPECT_TRUE(coordinator.snapshot().failures.empty());
}

TEST(Coordinator, ServersAreMembersBesideTheRanks) {
  CoordinatorOptions options = coordinator_options(1);
  options.servers = 2;
  options.spec = {.hosts = {{"b", 1}}, .command = {"program"}, .server_command = {"server", "--flag"}};
  Coordinator coordinator(options);
  const auto serve = [&](int index) {
    return std::make_unique<Session>(session_options(coordinator.port()),
                                     Member{Member::server, index, 1, 0, "s", 0, 2});
  };
  const auto rank = join(coordinator.port(), -1);  // placed though no server is there
  EXPECT_EQ(rank->rank(), 0);
  EXPECT_EQ(rank->servers(), 2);
  const auto second = serve(1), first = serve(-1);
  EXPECT_EQ(first->rank(), 0);
  EXPECT_EQ(second->rank(), 1);
  EXPECT_EQ(first->size(), 1);
  EXPECT_EQ(first->servers(), 2);
  EXPECT_EQ(first->spec().server_command, options.spec.server_command);
  EXPECT_EQ(first->meeting(), rank->meeting());
  EXPECT_HAS(first->meeting(), options.token);
  EXPECT_TRUE(coordinator.snapshot().complete);
  EXPECT_HAS(message_of<InvalidArgument>([&] { serve(1); }), "server 1 is taken");
  second->put("server/1", "where it is");
  EXPECT_EQ(rank->get("server/1", Deadline(kLong)), "where it is");
  rank->leave(0);
  first->leave(0);
  EXPECT_FALSE(coordinator.wait_ended(Deadline(Seconds(0))));
  second->leave(0);
  EXPECT_TRUE(coordinator.wait_ended(Deadline(kLong)));
  EXPECT_TRUE(coordinator.snapshot().failures.empty());
}

TEST(Coordinator, ALostServerIsToldToAll) {
  CoordinatorOptions options = coordinator_options(1);
  options.servers = 1;
  Coordinator coordinator(options);
  const auto rank = join(coordinator.port(), 0);
  Session(session_options(coordinator.port()), {Member::server, 0, 0, 0, "s", 4242});  // gone without a goodbye
  EXPECT_TRUE(eventually([&] { return rank->failure().has_value(); }));
  EXPECT_EQ(rank->failure()->rank, -1);
  EXPECT_HAS(rank->failure()->reason, "server 0 on host s (process 4242) is gone: ");
}

TEST(Coordinator, TheTokenIsRequired) {
  Coordinator coordinator(coordinator_options(1));
  SessionOptions options = session_options(coordinator.port());
  options.token = "wrong";
  const std::string text = message_of<InvalidArgument>([&] { Session(options, worker(0)); });
  EXPECT_EQ(
      text,
      fmt::format("host b: the coordinator at 127.0.0.1:{} refuses the token: give the same TRIREME_TOKEN on all hosts",
                  coordinator.port()));
  EXPECT_EQ(coordinator.snapshot().epoch, 0u);
  EXPECT_HAS(message_of<InvalidArgument>([] { Coordinator({.token = ""}); }), "needs a token");
}

TEST(Coordinator, OtherJobsVersionsAndRanksAreRefused) {
  Coordinator coordinator(coordinator_options(2));
  SessionOptions options = session_options(coordinator.port());
  options.job = "other";
  EXPECT_HAS(message_of<InvalidArgument>([&] { Session(options, worker(0)); }), "serves job 'job', not 'other'");
  options = session_options(coordinator.port());
  options.version = "9.9";
  const std::string text = message_of<Mismatch>([&] { Session(options, worker(0)); });
  EXPECT_HAS(text, "host b runs trireme 9.9, the coordinator on host a runs ");
  const auto first = join(coordinator.port(), 0);
  const std::string conflict =
      message_of<InvalidArgument>([&] { Session(session_options(coordinator.port()), worker(0, "c")); });
  EXPECT_HAS(conflict, "rank 0 is taken: host b");
  EXPECT_HAS(conflict, "host c");
  EXPECT_EQ(coordinator.snapshot().members.size(), 1u);
}

TEST(Coordinator, APortInUseIsNamed) {
  Coordinator coordinator(coordinator_options(1));
  CoordinatorOptions options = coordinator_options(1);
  options.port = coordinator.port();
  const std::string text = message_of<IoError>([&] { Coordinator{options}; });
  EXPECT_HAS(text, fmt::format("127.0.0.1:{}: Address already in use", coordinator.port()));
  EXPECT_HAS(text, "--port");
}

TEST(Coordinator, ThePortIsFreeAgainAtOnce) {
  CoordinatorOptions options = coordinator_options(1);
  for (int i = 0; i < 3; i++) {
    Coordinator coordinator(options);
    options.port = coordinator.port();
    join(coordinator.port(), 0)->leave(0);
  }
}

TEST(Coordinator, SessionsWaitForACoordinatorThatIsNotUpYet) {
  CoordinatorOptions options = coordinator_options(1);
  options.port = Coordinator(options).port();  // free now
  auto early = std::async(std::launch::async, [&] { return join(options.port, 0); });
  EXPECT_EQ(early.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  Coordinator coordinator(options);
  EXPECT_EQ(early.get()->rank(), 0);
}

TEST(Coordinator, NobodyThereIsATimeoutThatNamesTheAddress) {
  const int port = Coordinator(coordinator_options(1)).port();
  SessionOptions options = session_options(port);
  options.timeout = Seconds(0.3);
  const std::string text = message_of<Timeout>([&] { Session(options, worker(0)); });
  EXPECT_HAS(text,
             fmt::format("the coordinator at 127.0.0.1:{} has not answered within 0.3 s (Connection refused)", port));
  options.coordinator = "nowhere";
  EXPECT_HAS(message_of<InvalidArgument>([&] { Session(options, worker(0)); }), "host:port");
}

TEST(Coordinator, TooLargeValuesAreRefusedAndTheRestGoesOn) {
  Coordinator coordinator(coordinator_options(1));
  const auto session = join(coordinator.port(), 0);
  const CoordinatorLimits limits;
  session->put("large", std::string(limits.value_bytes, 'x'));
  EXPECT_EQ(session->get("large", Deadline(kLong)).size(), limits.value_bytes);
  for (const size_t bytes : {limits.value_bytes + 1, limits.message_bytes, size_t{8} << 20})
    EXPECT_HAS(message_of<InvalidArgument>([&] { session->put("huge", std::string(bytes, 'x')); }),
               fmt::format("'huge' ({} bytes)", bytes));
  EXPECT_HAS(message_of<InvalidArgument>([&] { session->put(std::string(2000, 'k'), ""); }),
             "a key has 1 to 1024 bytes");
  session->put("key", "value");
  EXPECT_EQ(session->get("key", Deadline(kLong)), "value");
  EXPECT_FALSE(session->failure());
}

TEST(Coordinator, AnErrorOfOneEndsTheWaitsOfAll) {
  Coordinator coordinator(coordinator_options(3));
  const auto a = join(coordinator.port(), 0), b = join(coordinator.port(), 1), c = join(coordinator.port(), 2);
  auto waiting = std::async(std::launch::async,
                            [&] { return message_of<PeerLost>([&] { a->get("never", Deadline(Seconds(100))); }); });
  usleep(20'000);
  c->leave(3, "no memory");
  EXPECT_HAS(waiting.get(), "failed with exit code 3: no memory");
  EXPECT_HAS(message_of<PeerLost>([&] { b->put("x", "y"); }), "no memory");
  EXPECT_HAS(message_of<PeerLost>([&] { join(coordinator.port(), 2); }), "the job has failed: rank 2 on host b");
  int calls = 0;
  std::promise<void> called;
  b->on_failure([&](const Failure&) { calls++, called.set_value(); });  // known already: told at once
  EXPECT_EQ(called.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  for (const auto& session : {&a, &b}) (*session)->leave(kPeerLostExit);
  EXPECT_TRUE(coordinator.wait_ended(Deadline(kLong)));
  EXPECT_EQ(coordinator.snapshot().failures.size(), 1u);
  EXPECT_EQ(calls, 1);
}

TEST(Coordinator, WithoutAGoodbyeItIsALoss) {
  Coordinator coordinator(coordinator_options(2));
  const auto stays = join(coordinator.port(), 0);
  join(coordinator.port(), 1).reset();
  EXPECT_TRUE(eventually([&] { return stays->failure().has_value(); }));
  EXPECT_EQ(stays->failure()->rank, 1);
}

TEST(Coordinator, AKilledProcessIsNoticedLongBeforeTheHeartbeatLimit) {
  Coordinator coordinator(coordinator_options(3));
  const auto own = join(coordinator.port(), 0);
  const auto survivor = worker_process(coordinator.port(), 1), victim = worker_process(coordinator.port(), 2);
  const auto begin = Clock::now();
  victim->send(SIGKILL);
  EXPECT_TRUE(eventually([&] { return own->failure().has_value(); }));
  EXPECT_LT(seconds_since(begin), 3);  // of 10
  EXPECT_EQ(own->failure()->rank, 2);
  EXPECT_HAS(own->failure()->reason, "killed or has crashed");
  EXPECT_EQ(survivor->wait(), kPeerLostExit);
  EXPECT_LT(seconds_since(begin), 5);
}

TEST(Coordinator, AStoppedProcessIsNoticedAfterTheHeartbeatLimit) {
  CoordinatorOptions options = coordinator_options(2);
  options.heartbeat_limit = Seconds(1.5);
  Coordinator coordinator(options);
  const auto own = join(coordinator.port(), 0);
  const auto victim = worker_process(coordinator.port(), 1);
  usleep(2'000'000);  // longer than the limit: heartbeats keep it
  EXPECT_FALSE(own->failure());
  const auto begin = Clock::now();
  victim->send(SIGSTOP);
  EXPECT_TRUE(eventually([&] { return own->failure().has_value(); }));
  EXPECT_GT(seconds_since(begin), 1.0);
  EXPECT_LT(seconds_since(begin), 6);
  EXPECT_HAS(own->failure()->reason, "rank 1 on host w");
  EXPECT_HAS(own->failure()->reason, "has not been heard of");
  victim->send(SIGCONT);  // it must see that the others went on without it
  EXPECT_EQ(victim->wait(), kPeerLostExit);
}

TEST(Coordinator, AKilledCoordinatorIsNoticedAtOnceAndAStoppedOneAfterTheLimit) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    Process coordinator({"--coordinator", "1"});
    const int port = std::stoi(coordinator.line());
    SessionOptions options = session_options(port);
    options.heartbeat_limit = Seconds(1.5);
    Session session(options, worker(0));
    auto waiting = std::async(std::launch::async, [&] {
      return message_of<PeerLost>([&] { session.get("never", Deadline(Seconds(100))); });
    });
    usleep(20'000);
    const auto begin = Clock::now();
    coordinator.send(signal);
    EXPECT_HAS(waiting.get(), signal == SIGKILL ? "is gone" : "has not answered host b for");
    EXPECT_LT(seconds_since(begin), signal == SIGKILL ? 1.4 : 6);
    ASSERT_TRUE(session.failure());
    EXPECT_HAS(session.failure()->reason, fmt::format("127.0.0.1:{}", port));
    session.leave(1);
    EXPECT_LT(seconds_since(begin), 10);
  }
}

TEST(Coordinator, ItsEndIsPromptAndSeen) {
  auto coordinator = std::make_unique<Coordinator>(coordinator_options(2));
  const auto session = join(coordinator->port(), 0);
  auto waiting = std::async(
      std::launch::async, [&] { return message_of<PeerLost>([&] { session->get("never", Deadline(Seconds(100))); }); });
  usleep(20'000);
  const auto begin = Clock::now();
  coordinator.reset();
  EXPECT_LT(seconds_since(begin), 3);
  EXPECT_HAS(waiting.get(), "is gone");
}

TEST(Coordinator, ItsEndIsPromptWhenAMemberIsStopped) {
  auto coordinator = std::make_unique<Coordinator>(coordinator_options(2));
  const auto stopped = worker_process(coordinator->port(), 0);
  stopped->send(SIGSTOP);
  const auto begin = Clock::now();
  coordinator.reset();
  EXPECT_LT(seconds_since(begin), 3);
}

TEST(Coordinator, FailingTheJobFromOutsideReachesAll) {
  Coordinator coordinator(coordinator_options(2));
  const auto session = join(coordinator.port(), 0);
  coordinator.fail_job("interrupted by Ctrl-C");
  EXPECT_TRUE(eventually([&] { return session->failure().has_value(); }));
  EXPECT_EQ(session->failure()->reason, "interrupted by Ctrl-C");
  session->leave(kPeerLostExit);
  EXPECT_TRUE(coordinator.wait_ended(Deadline(Seconds(5))));
}

TEST(Coordinator, MembersMayComeBackAfterAPeacefulEnd) {
  Coordinator coordinator(coordinator_options(2));
  for (int round = 0; round < 5; round++) {
    const auto a = join(coordinator.port(), 0), b = join(coordinator.port(), 1);
    a->put("key", std::to_string(round));
    EXPECT_EQ(b->get("key", Deadline(kLong)), std::to_string(round));
    a->leave(0);
    b->leave(0);
    EXPECT_TRUE(coordinator.wait_ended(Deadline(kLong)));
  }
  EXPECT_TRUE(coordinator.snapshot().failures.empty());
}

TEST(Coordinator, EventsTellTheStory) {
  Coordinator coordinator(coordinator_options(1));
  join(coordinator.port(), 0)->leave(0);
  EXPECT_TRUE(coordinator.wait_ended(Deadline(kLong)));
  pollfd readable{coordinator.descriptor(), POLLIN, 0};
  EXPECT_EQ(poll(&readable, 1, 0), 1);
  const std::vector<std::string> events = coordinator.take_events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_HAS(events[0], "rank 0 on host b (process ");
  EXPECT_HAS(events[0], "has registered");
  EXPECT_EQ(events[1], "all 1 ranks have registered");
  EXPECT_HAS(events[2], "has left");
  EXPECT_EQ(poll(&readable, 1, 0), 0);
}

int raw_connection(int port) {
  const int raw = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(raw, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? raw : -1;
}

TEST(Coordinator, GarbageOnThePortDoesNotDisturb) {
  Coordinator coordinator(coordinator_options(1));
  const auto session = join(coordinator.port(), 0);
  std::mt19937 random(3);
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  std::vector<Descriptor> open;
  for (int i = 0; i < 200; i++) {
    open.emplace_back(raw_connection(coordinator.port()));
    std::string bytes = i % 4 == 0   ? preface.substr(0, random() % preface.size())
                        : i % 4 == 1 ? preface
                        : i % 4 == 2 ? "GET / HTTP/1.1\r\n\r\n"
                                     : "";
    if (i % 4 != 0)
      for (unsigned n = random() % 2000; n > 0; n--) bytes += static_cast<char>(random());
    send(open.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 10 == 0) open.erase(open.begin());
  }
  session->put("key", "value");
  EXPECT_EQ(session->get("key", Deadline(kLong)), "value");
  EXPECT_FALSE(session->failure());
  EXPECT_EQ(coordinator.snapshot().members.size(), 1u);
  session->leave(0);
}

TEST(Coordinator, AProgramThatIsNoCoordinatorIsATimeout) {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  SessionOptions options = session_options(ntohs(address.sin_port));
  options.timeout = Seconds(0.5);
  EXPECT_HAS(message_of<Timeout>([&] { Session(options, worker(0)); }), "accepts connections but says nothing");
}

class CoordinatorTls : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "trireme-tls-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    make_certificates(folder("a"));
    options_ = coordinator_options(1);
    options_.tls = folder("a");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string folder(const std::string& name) const { return (root_ / name).string(); }

  template <class E>
  std::string refused(const std::string& tls, int port) {
    SessionOptions options = session_options(port);
    options.tls = tls.empty() ? "" : folder(tls);
    return message_of<E>([&] { Session(options, worker(0)); });
  }

  std::filesystem::path root_;
  CoordinatorOptions options_;
};

TEST_F(CoordinatorTls, TheSameFolderWorks) {
  Coordinator coordinator(options_);
  SessionOptions options = session_options(coordinator.port());
  options.tls = folder("a");
  Session session(options, worker(0));
  session.put("key", "value");
  EXPECT_EQ(session.get("key", Deadline(kLong)), "value");
  session.leave(0);
}

TEST_F(CoordinatorTls, AForeignCertificateIsCalledForeign) {
  Coordinator coordinator(options_);
  make_certificates(folder("b"));
  const std::string text = refused<InvalidArgument>("b", coordinator.port());
  EXPECT_HAS(text, "foreign certificate");
  EXPECT_HAS(text, folder("b"));
  // Trusts the coordinator, but shows it a stranger's certificate.
  Certificates mixed = load_certificates(folder("b"));
  mixed.authority = load_certificates(folder("a")).authority;
  const Descriptor raw(raw_connection(coordinator.port()));
  const std::string fault = handshake_fault(raw.get(), mixed, Deadline(Seconds(5)));
  EXPECT_HAS(fault, "foreign");
  EXPECT_EQ(coordinator.snapshot().epoch, 0u);
}

TEST_F(CoordinatorTls, AnExpiredCertificateIsCalledExpired) {
  Coordinator coordinator(options_);
  make_certificates(folder("old"), {.days = -1});
  EXPECT_HAS(refused<InvalidArgument>("old", coordinator.port()), "has expired on 20");
  options_.tls = folder("old");
  EXPECT_HAS(message_of<InvalidArgument>([&] { Coordinator{options_}; }), "has expired on 20");
}

TEST_F(CoordinatorTls, ACertificateForAnotherNameIsRefusedOnEitherSide) {
  make_certificates(folder("other"), {.name = "payroll", .authority = folder("a")});
  Coordinator coordinator(options_);
  EXPECT_HAS(refused<InvalidArgument>("other", coordinator.port()),
             "refuses a certificate for another name than 'trireme'");
  EXPECT_EQ(coordinator.snapshot().epoch, 0u);
  options_.tls = folder("other");
  Coordinator payroll(options_);
  const std::string text = refused<InvalidArgument>("a", payroll.port());
  EXPECT_HAS(text, "has a certificate for another name than 'trireme'");
  EXPECT_HAS(text, folder("a"));
}

TEST_F(CoordinatorTls, OneSideWithoutTlsIsTold) {
  Coordinator with(options_);
  EXPECT_HAS(refused<InvalidArgument>("", with.port()), "speaks TLS: give --tls");
  Coordinator without(coordinator_options(1));
  EXPECT_HAS(refused<InvalidArgument>("a", without.port()), "does not speak TLS");
}

/// Registers, says so, and stays until the job fails.
int run_worker(int port, int rank, double limit) {
  SessionOptions options = session_options(port);
  options.heartbeat_limit = Seconds(limit);
  Session session(options, worker(rank, "w"));
  std::promise<void> failed;
  session.on_failure([&](const Failure&) { failed.set_value(); });
  if (write(1, "registered\n", 11) != 11) return 1;
  if (failed.get_future().wait_for(std::chrono::seconds(60)) != std::future_status::ready) return 2;
  session.leave(kPeerLostExit);
  return kPeerLostExit;
}

int run_coordinator(int ranks) {
  Coordinator coordinator(coordinator_options(ranks));
  const std::string line = fmt::format("{}\n", coordinator.port());
  if (write(1, line.data(), line.size()) < 0) return 1;
  coordinator.wait_ended(Deadline(Seconds(60)));
  return 0;
}

}  // namespace
}  // namespace trireme::cluster::tests

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--worker")
    return trireme::cluster::tests::run_worker(std::atoi(argv[2]), std::atoi(argv[3]), std::atof(argv[4]));
  if (role == "--coordinator") return trireme::cluster::tests::run_coordinator(std::atoi(argv[2]));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
