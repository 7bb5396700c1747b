// label: multiproc
// launch() with shells as ranks. It writes to descriptors 1 and 2, so each launcher is a forked process whose output
// goes to files.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/cluster/launching/launcher.h>

namespace trireme::cluster::tests {
namespace {

std::string content_of(int file) {
  std::string text(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
  return pread(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) ? text : "";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool alive(pid_t pid) { return process_state(pid) != "ended"; }

/// Looks until `ready` or ten seconds have passed.
bool eventually(const std::function<bool()>& ready) {
  for (const Deadline deadline{Seconds(10)}; !deadline.passed(); usleep(5000))
    if (ready()) return true;
  return ready();
}

/// A process that calls launch().
class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options, int own_output = -1) {
    std::fflush(nullptr);  // or the child would write it again
    pid_ = fork();
    if (pid_ != 0) return;
    dup2(own_output >= 0 ? own_output : out_.get(), 1);
    dup2(err_.get(), 2);
    signal(SIGPIPE, SIG_DFL);
    int code = 99;
    try {
      const LaunchResult result = launch(options);
      const std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n", result.exit_code, result.first_failed,
                                           result.interrupted, result.reason, result.failed_server, result.culprit);
      code = write(result_.get(), text.data(), text.size()) > 0 ? result.exit_code : 98;
      for (const std::string& line : result.last_lines)
        if (write(result_.get(), (line + "\n").data(), line.size() + 1) < 0) code = 98;
    } catch (...) {
    }
    _exit(code);
  }
  ~Launcher() {
    if (ended_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  pid_t pid() const { return pid_; }
  std::string output() const { return content_of(out_.get()); }
  std::string errors() const { return content_of(err_.get()); }

  /// The exit code as a shell gives it; the result's fields are valid afterwards.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    ended_ = true;
    const auto lines = lines_of(content_of(result_.get()));
    if (lines.size() >= 6) {
      result.exit_code = std::stoi(lines[0]);
      result.first_failed = std::stoi(lines[1]);
      result.interrupted = lines[2] == "true";
      result.reason = lines[3];
      result.failed_server = std::stoi(lines[4]);
      result.culprit = lines[5];
      result.last_lines.assign(lines.begin() + 6, lines.end());
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  LaunchResult result;

 private:
  Descriptor out_{memfd_create("out", 0)}, err_{memfd_create("err", 0)}, result_{memfd_create("result", 0)};
  pid_t pid_ = -1;
  bool ended_ = false;
};

LaunchOptions shell(int ranks, const std::string& script) {
  return {.command = {"/bin/sh", "-c", script}, .ranks = ranks};
}

std::vector<pid_t> printed_pids(const std::string& output) {
  std::vector<pid_t> pids;
  for (const std::string& line : lines_of(output))
    if (const size_t at = line.find("pid "); at != std::string::npos) pids.push_back(std::stoi(line.substr(at + 4)));
  return pids;
}

void expect_within(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

// ---- going well ----

TEST(Launch, AllWell) {
  Launcher launcher(shell(3, "exit 0"));
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.result.first_failed, -1);
  EXPECT_FALSE(launcher.result.interrupted);
  EXPECT_EQ(launcher.result.reason, "");
  EXPECT_EQ(launcher.result.culprit, "");
}

TEST(Launch, SetsTheEnvironment) {
  auto options = shell(2,
                       "echo $TRIREME_RANK/$TRIREME_SIZE $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR "
                       "$OMP_NUM_THREADS $COLOUR; echo "
                       "job=$TRIREME_JOB:$MASTER_PORT");
  options.threads = 3;
  options.environment = {{"COLOUR", "blue"}, {"COLOUR", "red"}};
  setenv("TRIREME_RANK", "77", 1);  // of an outer launcher: must not shine through
  Launcher launcher(options);
  unsetenv("TRIREME_RANK");
  EXPECT_EQ(launcher.wait(), 0);
  const std::string output = launcher.output();
  for (int rank : {0, 1}) expect_within(output, fmt::format("[{0}] {0}/2 {0}/2 {0}/2 127.0.0.1 3 red\n", rank));
  std::vector<std::string> jobs;
  for (const std::string& line : lines_of(output))
    if (const size_t at = line.find("job="); at != std::string::npos) jobs.push_back(line.substr(at));
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0], jobs[1]);
  EXPECT_GT(jobs[0].size(), std::string("job=:1").size() + 8);
}

TEST(Launch, PrefixesEveryLine) {
  Launcher launcher(shell(2, "echo one; echo two >&2; printf three"));
  EXPECT_EQ(launcher.wait(), 0);
  for (int rank : {0, 1}) {
    expect_within(launcher.output(), fmt::format("[{}] one\n", rank));
    expect_within(launcher.output(), fmt::format("[{}] three\n", rank));
    expect_within(launcher.errors(), fmt::format("[{}] two\n", rank));
  }
  EXPECT_EQ(lines_of(launcher.output()).size(), 4u);
}

TEST(Launch, PassesTheFirstRankAloneThroughUnchanged) {
  auto options = shell(2, "printf 'a\\rb'; echo $RANK >&2");
  options.show = cluster::Show::first;
  Launcher launcher(options);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.output(), "a\rb");
  EXPECT_EQ(launcher.errors(), "0\n");
}

TEST(Launch, KeepsTheLastLinesOfARankThatIsNotShown) {
  auto options = shell(2, "echo rank $RANK; test $RANK = 0 && exec sleep 100; exit 9");
  options.show = cluster::Show::first;
  Launcher launcher(options);
  EXPECT_EQ(launcher.wait(), 9);
  EXPECT_EQ(launcher.output(), "rank 0\n");
  EXPECT_EQ(launcher.result.last_lines, std::vector<std::string>{"rank 1"});
}

TEST(Launch, PassesMuchOutputWhole) {
  Launcher launcher(shell(2, "i=0; while [ $i -lt 5000 ]; do echo line $i of a long output; i=$((i+1)); done"));
  EXPECT_EQ(launcher.wait(), 0);
  const auto lines = lines_of(launcher.output());
  EXPECT_EQ(lines.size(), 10000u);
  for (const std::string& line : lines) ASSERT_TRUE(line.ends_with(" of a long output")) << line;
}

TEST(Launch, GoesOnWhenNobodyReads) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  Launcher launcher(shell(1, "i=0; while [ $i -lt 50 ]; do echo hello; i=$((i+1)); done; echo end >&2"), ends[1]);
  close(ends[1]);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.errors(), "[0] end\n");
}

// ---- going wrong ----

TEST(Launch, GivesTheExitCodeOfTheFirstFailedRank) {
  Launcher launcher(shell(3, "if [ $RANK = 1 ]; then echo about to fail; exit 7; fi; exec sleep 100"));
  const auto begin = Clock::now();
  EXPECT_EQ(launcher.wait(), 7);
  EXPECT_LT(seconds_since(begin), 20);  // nobody slept to the end
  EXPECT_EQ(launcher.result.first_failed, 1);
  expect_within(launcher.result.reason, "rank 1 (process");
  expect_within(launcher.result.reason, "exit code 7");
  EXPECT_EQ(launcher.result.last_lines, std::vector<std::string>{"about to fail"});
}

TEST(Launch, NamesTheSignalAndTheLastLines) {
  Launcher launcher(shell(
      2, "[ $RANK = 0 ] && exec sleep 100; i=0; while [ $i -lt 20 ]; do echo step $i; i=$((i+1)); done; kill -9 $$"));
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_EQ(launcher.result.first_failed, 1);
  expect_within(launcher.result.reason, "rank 1");
  expect_within(launcher.result.reason, "signal 9 (SIGKILL");
  ASSERT_FALSE(launcher.result.last_lines.empty());
  EXPECT_LT(launcher.result.last_lines.size(), 20u);
  EXPECT_EQ(launcher.result.last_lines.back(), "step 19");
}

// The launcher is held up, so that it sees both deaths at once.
TEST(Launch, AKillIsTheCauseAndAnErrorItsConsequence) {
  Launcher launcher(shell(2, "echo pid $$; sleep 0.3; if [ $RANK = 1 ]; then kill -9 $$; fi; exit 1"));
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  kill(launcher.pid(), SIGSTOP);
  for (pid_t pid : printed_pids(launcher.output())) EXPECT_TRUE(eventually([&] { return !alive(pid); }));
  kill(launcher.pid(), SIGCONT);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_EQ(launcher.result.first_failed, 1);
}

TEST(Launch, WhoOnlyLostAPeerIsNotTheCause) {
  Launcher launcher(
      shell(3, fmt::format("case $RANK in 0) exit {};; 1) sleep 0.3; exit 6;; esac; exec sleep 100", kPeerLostExit)));
  EXPECT_EQ(launcher.wait(), 6);
  EXPECT_EQ(launcher.result.first_failed, 1);
}

TEST(Launch, WhomItEndedItselfIsNotTheCause) {
  auto options = shell(3, "if [ $RANK = 2 ]; then sleep 0.2; exit 5; fi; exec sleep 100");
  options.grace = Seconds(0);
  Launcher launcher(options);
  EXPECT_EQ(launcher.wait(), 5);
  EXPECT_EQ(launcher.result.first_failed, 2);
}

/// What libstdc++ prints about an exception that nobody catches.
std::string terminate(const std::string& what) {
  return fmt::format(
      "printf \"terminate called after throwing an instance of 'std::runtime_error'\\n  what():  {}\\n\" >&2; kill "
      "-ABRT $$",
      what);
}

TEST(Launch, TheTextOfAnUncaughtExceptionIsTheCause) {
  Launcher launcher(shell(2, "[ $RANK = 0 ] && exec sleep 100; " + terminate("no such file")));
  EXPECT_EQ(launcher.wait(), 128 + SIGABRT);
  EXPECT_EQ(launcher.result.first_failed, 1);
  expect_within(launcher.result.reason, "died first: uncaught exception: no such file (after ");
}

TEST(Launch, SoIsThatOfATraceback) {
  Launcher launcher(shell(2,
                          "[ $RANK = 0 ] && exec sleep 100; printf 'Traceback (most recent call last):\\n  File "
                          "x\\nValueError: no such shard\\n' >&2; exit 1"));
  EXPECT_EQ(launcher.wait(), 1);
  expect_within(launcher.result.reason, "died first: uncaught exception: ValueError: no such shard (after ");
}

// The launcher is held up, so that it sees both deaths at once; the lower rank's words came later.
TEST(Launch, OfTwoExceptionsTheFirstIsTheCause) {
  const std::string first = testing::TempDir() + "first-" + std::to_string(getpid());
  Launcher launcher(shell(2, "echo pid $$; if [ $RANK = 0 ]; then while [ ! -s " + first + " ]; do sleep 0.02; done; " +
                                 "while kill -0 $(cat " + first + ") 2>/dev/null; do sleep 0.02; done; " +
                                 terminate("connection closed by peer") + "; fi; echo $$ > " + first + "; sleep 0.2; " +
                                 terminate("boom")));
  EXPECT_EQ(launcher.wait(), 128 + SIGABRT);
  EXPECT_EQ(launcher.result.first_failed, 1);
  expect_within(launcher.result.reason, "boom");
  unlink(first.c_str());
}

TEST(Launch, SaysWhenAProgramCannotBeStarted) {
  Launcher launcher({.command = {"/no/such/program"}, .ranks = 2});
  EXPECT_EQ(launcher.wait(), 127);
  expect_within(launcher.errors(), "cannot start /no/such/program: No such file or directory");
}

TEST(Launch, RefusesNonsense) {
  EXPECT_THROW(launch({}), InvalidArgument);
  EXPECT_THROW(launch({.command = {"true"}, .ranks = 0}), InvalidArgument);
  EXPECT_THROW(launch({.command = {"true"}, .ranks = 257}), InvalidArgument);
}

// ---- leaving nobody behind ----

TEST(Launch, EndsARankThatIgnoresSigterm) {
  auto options = shell(
      2, "trap '' TERM; echo pid $$; if [ $RANK = 0 ]; then sleep 0.3; exit 3; fi; while true; do sleep 0.1; done");
  options.grace = Seconds(0.2);
  Launcher launcher(options);
  EXPECT_EQ(launcher.wait(), 3);
  const auto pids = printed_pids(launcher.output());
  ASSERT_EQ(pids.size(), 2u);
  for (pid_t pid : pids) EXPECT_FALSE(alive(pid)) << pid;
}

TEST(Launch, EndsAStoppedRank) {
  auto options = shell(2, "echo pid $$; if [ $RANK = 0 ]; then sleep 0.3; exit 3; fi; kill -STOP $$");
  options.grace = Seconds(0.2);
  Launcher launcher(options);
  EXPECT_EQ(launcher.wait(), 3);
  const auto pids = printed_pids(launcher.output());
  ASSERT_EQ(pids.size(), 2u);
  for (pid_t pid : pids) EXPECT_FALSE(alive(pid)) << pid;
}

TEST(Launch, EndsWhatARankStartedItself) {
  Launcher launcher(shell(2, "sleep 100 & echo pid $!; exit 0"));
  const auto begin = Clock::now();
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_LT(seconds_since(begin), 20);
  const auto pids = printed_pids(launcher.output());
  ASSERT_EQ(pids.size(), 2u);
  for (pid_t pid : pids) EXPECT_TRUE(eventually([&] { return !alive(pid); })) << pid;
}

TEST(Launch, ForwardsAnInterruption) {
  Launcher launcher(shell(2, "trap 'echo asked; exit 4' TERM; echo pid $$; while true; do sleep 0.02; done"));
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGTERM);
  EXPECT_TRUE(launcher.result.interrupted);
  for (int rank : {0, 1}) expect_within(launcher.output(), fmt::format("[{}] asked", rank));
  for (pid_t pid : printed_pids(launcher.output())) EXPECT_FALSE(alive(pid)) << pid;
}

TEST(Launch, ASecondInterruptionKills) {
  Launcher launcher(shell(2, "trap 'echo asked' INT; echo pid $$; while true; do sleep 0.02; done"));
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  kill(launcher.pid(), SIGINT);
  ASSERT_TRUE(eventually([&] { return launcher.output().find("asked") != std::string::npos; }));
  kill(launcher.pid(), SIGINT);  // at once: the same wish again, as timeout(1) sends it
  usleep(400'000);
  for (pid_t pid : printed_pids(launcher.output())) EXPECT_TRUE(alive(pid)) << pid;
  const auto begin = Clock::now();
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGINT);
  EXPECT_LT(seconds_since(begin), 4);  // without it the ranks would have five seconds
  for (pid_t pid : printed_pids(launcher.output())) EXPECT_FALSE(alive(pid)) << pid;
}

// ---- asked to stop ----

/// Keeps a core busy for so many seconds.
std::string busy(int seconds) {
  return fmt::format("end=$(( $(date +%s) + {} )); while [ $(date +%s) -lt $end ]; do :; done", seconds);
}

TEST(Launch, WaitsAsLongAsRanksMakeProgress) {
  auto options =
      shell(2, "trap '" + busy(4) + "; echo saved; exit 0' INT; echo pid $$; while true; do sleep 0.02; done");
  options.patience = Seconds(1);  // much less than they need
  Launcher launcher(options);
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGINT);
  for (int rank : {0, 1}) expect_within(launcher.output(), fmt::format("[{}] saved", rank));
}

TEST(Launch, EndsRanksThatMakeNoProgressAndSaysSo) {
  auto options = shell(2, "trap 'exec sleep 100' INT; echo pid $$; while true; do sleep 0.02; done");
  options.patience = Seconds(1);
  options.say = [](const std::string& sentence) { dprintf(2, "%s\n", sentence.c_str()); };
  Launcher launcher(options);
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGINT);
  expect_within(launcher.errors(),
                "stopping: the ranks were told, and may take their time. Ctrl-C again ends them at once");
  expect_within(launcher.errors(),
                "rank 0 and rank 1 have made no progress for 1 s after being asked to stop: ended now");
  for (pid_t pid : printed_pids(launcher.output())) EXPECT_FALSE(alive(pid)) << pid;
}

TEST(Launch, ARankGetsTheSignalThatItHandles) {
  for (const int signal : {SIGHUP, SIGTERM}) {
    Launcher launcher(shell(2, "trap 'echo asked; exit 0' INT; echo pid $$; while true; do sleep 0.02; done"));
    ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
    kill(launcher.pid(), signal);
    EXPECT_EQ(launcher.wait(), 128 + signal);
    for (int rank : {0, 1}) expect_within(launcher.output(), fmt::format("[{}] asked", rank));
  }
}

TEST(Launch, AClosedTerminalIsNoSecondWish) {
  Launcher launcher(
      shell(1, "trap 'echo asked; sleep 1; echo saved; exit 0' INT; echo pid $$; while true; do sleep 0.02; done"));
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 1; }));
  kill(launcher.pid(), SIGINT);
  ASSERT_TRUE(eventually([&] { return launcher.output().find("asked") != std::string::npos; }));
  usleep(400'000);
  kill(launcher.pid(), SIGHUP);
  EXPECT_EQ(launcher.wait(), 128 + SIGINT);
  expect_within(launcher.output(), "saved");
}

// An agent hears of a stop from whoever started it, and not by signals.
TEST(Launch, HearsWishesOnADescriptor) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  auto options = shell(2, "trap 'echo asked' INT; echo pid $$; while true; do sleep 0.02; done");
  options.hangup = ends[0];
  Launcher launcher(options);
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  ASSERT_EQ(write(ends[1], "stop\n", 5), 5);
  ASSERT_TRUE(eventually([&] {
    return launcher.output().find("[0] asked") != std::string::npos &&
           launcher.output().find("[1] asked") != std::string::npos;
  }));
  for (pid_t pid : printed_pids(launcher.output())) EXPECT_TRUE(alive(pid)) << pid;
  ASSERT_EQ(write(ends[1], "end\n", 4), 4);
  EXPECT_EQ(launcher.wait(), 128 + SIGINT);
  for (pid_t pid : printed_pids(launcher.output())) EXPECT_FALSE(alive(pid)) << pid;
  close(ends[0]);
  close(ends[1]);
}

// What starts ranks elsewhere is told on its standard input, and has the time that `alive` gives it.
TEST(Launch, TellsAgentsOnTheirStandardInput) {
  LaunchOptions options{
      .show = Show::plain, .patience = Seconds(0.3), .alive = [] { return true; }, .input = "token\n"};
  for (int i : {0, 1})
    options.commands.push_back(
        {"/bin/sh", "-c",
         fmt::format("read token; echo pid $$ $token; read wish; echo {} heard $wish; sleep 1; echo done", i)});
  options.names = {"the agent of host a", "the agent of host b"};
  Launcher launcher(options);
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGTERM);
  for (const char* words : {"0 heard stop", "1 heard stop", "done"}) expect_within(launcher.output(), words);
}

// ---- the memory of the ranks ----

bool holds(const std::filesystem::path& process, const std::string& inode) try {
  for (const auto& entry : std::filesystem::directory_iterator(process / "fd")) {
    struct stat facts {};
    if (!std::filesystem::read_symlink(entry.path()).string().starts_with("/memfd:trireme ")) continue;
    if (stat(entry.path().c_str(), &facts) == 0 && std::to_string(facts.st_ino) == inode) return true;
  }
  return false;
} catch (const std::filesystem::filesystem_error&) {
  return false;  // it is none, or has ended meanwhile
}

/// How many processes have this memory open.
int holders(const std::string& inode) {
  int result = 0;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) result += holds(process.path(), inode);
  return result;
}

TEST(Launch, RanksInheritOneMemoryOfTheLaunchers) {
  setenv("TRIREME_SEGMENT", "5:77", 1);  // of an outer launcher: must not shine through
  Launcher launcher(shell(2, "echo ${TRIREME_SEGMENT#*:}; stat -L -c %i /proc/self/fd/${TRIREME_SEGMENT%%:*}"));
  unsetenv("TRIREME_SEGMENT");
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  std::set<std::string> files;
  for (const std::string& line : lines_of(launcher.output())) files.insert(line.substr(4));
  EXPECT_EQ(lines_of(launcher.output()).size(), 4u);
  ASSERT_EQ(files.size(), 1u) << launcher.output();
  EXPECT_EQ(holders(*files.begin()), 0);
}

TEST(Launch, ServersHaveNoPartInIt) {
  LaunchOptions options = shell(1, "exit 0");
  options.server_command = {"/bin/sh", "-c", "echo memory=$TRIREME_SEGMENT"};
  options.servers = {0};
  Launcher launcher(options);
  EXPECT_EQ(launcher.wait(), 0);
  expect_within(launcher.output(), "memory=\n");
}

TEST(Launch, NothingOfItIsLeftWhenTheLauncherIsKilled) {
  Launcher launcher(shell(2, "echo memory ${TRIREME_SEGMENT#*:}; exec sleep 100"));
  ASSERT_TRUE(eventually([&] { return lines_of(launcher.output()).size() == 2; }));
  const std::string line = lines_of(launcher.output())[0], inode = line.substr(line.rfind(' ') + 1);
  EXPECT_EQ(holders(inode), 3);
  kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return holders(inode) == 0; }));
}

TEST(Launch, NoRankOutlivesAKilledLauncher) {
  Launcher launcher(shell(3, "echo pid $$; exec sleep 100"));
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 3; }));
  const auto pids = printed_pids(launcher.output());
  for (pid_t pid : pids) EXPECT_TRUE(alive(pid));
  kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  for (pid_t pid : pids) EXPECT_TRUE(eventually([&] { return !alive(pid); })) << pid;
}

// ---- parameter servers ----

LaunchOptions with_servers(LaunchOptions options, int servers, const std::string& script) {
  options.server_command = {"/bin/sh", "-c", script};
  for (int server = 0; server < servers; server++) options.servers.push_back(server);
  return options;
}

/// A rank's script that begins when `file` is there: no rank may be faster than the server it is about.
std::string after(const std::string& file, const std::string& script) {
  return fmt::format("while [ ! -e {} ]; do sleep 0.01; done; {}", file, script);
}

class ServerLaunch : public testing::Test {
 protected:
  std::string folder_ = [] {
    std::string name = testing::TempDir() + "trireme_servers_XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();
  std::string file_ = folder_ + "/there";

  ~ServerLaunch() override {
    unlink(file_.c_str());
    rmdir(folder_.c_str());
  }

  static void expect_nobody(const Launcher& launcher, size_t count) {
    const auto pids = printed_pids(launcher.output());
    EXPECT_EQ(pids.size(), count) << launcher.output();
    for (pid_t pid : pids) EXPECT_FALSE(alive(pid)) << pid;
  }
};

TEST_F(ServerLaunch, TellsServersAndRanksWhoTheyAre) {
  auto options =
      with_servers(shell(2, "echo $TRIREME_ROLE $TRIREME_RANK/$TRIREME_SIZE [$TRIREME_SERVER]/$TRIREME_SERVERS"), 2,
                   "echo $TRIREME_ROLE [$TRIREME_RANK$RANK]/$TRIREME_SIZE $TRIREME_SERVER/$TRIREME_SERVERS "
                   "$OMP_NUM_THREADS $COLOUR job=$TRIREME_JOB");
  options.servers = {2, 0};
  options.total_servers = 3;
  options.threads = 3;
  options.job = "abc";
  options.environment = {{"COLOUR", "red"}, {"OMP_NUM_THREADS", "3"}};
  setenv("TRIREME_RANK", "77", 1);  // of an outer launcher: must not shine through
  setenv("TRIREME_SERVER", "77", 1);
  Launcher launcher(options);
  unsetenv("TRIREME_RANK");
  unsetenv("TRIREME_SERVER");
  EXPECT_EQ(launcher.wait(), 0);
  const std::string output = launcher.output();
  for (int rank : {0, 1}) expect_within(output, fmt::format("[{0}] worker {0}/2 []/3\n", rank));
  for (int server : {0, 2})
    expect_within(output, fmt::format("[server {0}] server []/2 {0}/3 1 red job=abc\n", server));
  EXPECT_EQ(lines_of(output).size(), 4u);
}

TEST_F(ServerLaunch, AKilledServerFailsTheJob) {
  auto options =
      with_servers(shell(2, "exec sleep 100"), 2, "echo pid $$; [ $TRIREME_SERVER = 0 ] && kill -9 $$; exec sleep 100");
  options.show = Show::first;
  Launcher launcher(options);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_EQ(launcher.result.first_failed, -1);
  EXPECT_EQ(launcher.result.failed_server, 0);
  EXPECT_EQ(launcher.result.culprit, "server 0");
  expect_within(launcher.result.reason, "server 0 (process ");
  expect_within(launcher.result.reason, "died first: killed by signal 9 (SIGKILL");
  EXPECT_EQ(launcher.output(), "");  // with Show::first, servers are remembered only
  ASSERT_EQ(launcher.result.last_lines.size(), 1u);
  expect_within(launcher.result.last_lines[0], "pid ");
}

TEST_F(ServerLaunch, ARankOutranksAServerThatOnlyLostIt) {
  Launcher launcher(with_servers(shell(2, "if [ $RANK = 1 ]; then sleep 0.3; exit 6; fi; exec sleep 100"), 1,
                                 fmt::format("exit {}", kPeerLostExit)));
  EXPECT_EQ(launcher.wait(), 6);
  EXPECT_EQ(launcher.result.culprit, "rank 1");
  EXPECT_EQ(launcher.result.first_failed, 1);
  EXPECT_EQ(launcher.result.failed_server, -1);
}

TEST_F(ServerLaunch, AServersErrorIsTheCauseOfWhatRanksLost) {
  Launcher launcher(
      with_servers(shell(2, fmt::format("exit {}", kPeerLostExit)), 1, "echo no memory; sleep 0.3; exit 3"));
  EXPECT_EQ(launcher.wait(), 3);
  EXPECT_EQ(launcher.result.culprit, "server 0");
  EXPECT_EQ(launcher.result.last_lines, std::vector<std::string>{"no memory"});
}

TEST_F(ServerLaunch, WaitsForServersThatEndByThemselves) {
  Launcher launcher(with_servers(shell(1, "exit 0"), 1, "sleep 1.5; echo written"));
  EXPECT_EQ(launcher.wait(), 0);
  expect_within(launcher.output(), "[server 0] written\n");
  EXPECT_EQ(launcher.result.reason, "");
}

TEST_F(ServerLaunch, AServerThatFailsAfterTheRanksFailsTheJob) {
  Launcher launcher(with_servers(shell(1, "exit 0"), 1, "sleep 0.5; exit 4"));
  EXPECT_EQ(launcher.wait(), 4);
  EXPECT_EQ(launcher.result.culprit, "server 0");
}

TEST_F(ServerLaunch, EndsServersThatLinger) {
  const std::string script = "[ $TRIREME_SERVER = 1 ] && trap '' TERM; echo pid $$; : > " + file_ +
                             "$TRIREME_SERVER; while true; do sleep 0.05; done";
  Launcher launcher(with_servers(shell(2, after(file_ + "0", after(file_ + "1", "exit 0"))), 2, script));
  const auto begin = Clock::now();
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_GE(seconds_since(begin), 5);  // they had their time
  EXPECT_LT(seconds_since(begin), 20);
  EXPECT_EQ(launcher.result.reason, "");
  EXPECT_EQ(launcher.result.culprit, "");
  expect_nobody(launcher, 2);
  for (const char* server : {"0", "1"}) unlink((file_ + server).c_str());
}

TEST_F(ServerLaunch, EndsServersSoonWhenARankDies) {
  Launcher launcher(with_servers(shell(2, after(file_, "if [ $RANK = 1 ]; then exit 7; fi; exec sleep 100")), 1,
                                 "trap '' TERM; echo pid $$; : > " + file_ + "; while true; do sleep 0.05; done"));
  EXPECT_EQ(launcher.wait(), 7);
  EXPECT_EQ(launcher.result.first_failed, 1);
  expect_nobody(launcher, 1);
}

TEST_F(ServerLaunch, AnInterruptionIsForTheRanks) {
  // The server would say so if it were told; it ends when the ranks have saved.
  Launcher launcher(with_servers(shell(2, "trap 'sleep 0.3; echo saved; : > " + file_ +
                                              "; exit 0' INT; echo pid $$; while true; do sleep 0.02; done"),
                                 1, "trap 'echo told' INT TERM; echo pid $$; " + after(file_, "echo gone")));
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 3; }));
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGINT);
  EXPECT_TRUE(launcher.result.interrupted);
  for (const char* line : {"[0] saved", "[1] saved", "[server 0] gone"}) expect_within(launcher.output(), line);
  EXPECT_EQ(launcher.output().find("told"), std::string::npos) << launcher.output();
  expect_nobody(launcher, 3);
}

TEST_F(ServerLaunch, ASecondInterruptionKillsServersToo) {
  Launcher launcher(with_servers(shell(1, "trap 'echo asked' INT; echo pid $$; while true; do sleep 0.02; done"), 1,
                                 "trap '' INT TERM; echo pid $$; while true; do sleep 0.02; done"));
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  kill(launcher.pid(), SIGINT);
  ASSERT_TRUE(eventually([&] { return launcher.output().find("asked") != std::string::npos; }));
  usleep(400'000);
  const auto begin = Clock::now();
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGINT);
  EXPECT_LT(seconds_since(begin), 4);  // without it they would have five seconds and more
  expect_nobody(launcher, 2);
}

TEST_F(ServerLaunch, NoServerOutlivesAKilledLauncher) {
  Launcher launcher(with_servers(shell(1, "echo pid $$; exec sleep 100"), 1, "echo pid $$; exec sleep 100"));
  ASSERT_TRUE(eventually([&] { return printed_pids(launcher.output()).size() == 2; }));
  const auto pids = printed_pids(launcher.output());
  kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  for (pid_t pid : pids) EXPECT_TRUE(eventually([&] { return !alive(pid); })) << pid;
}

TEST_F(ServerLaunch, RefusesNonsense) {
  const LaunchOptions good = with_servers(shell(1, "exit 0"), 2, "exit 0");
  const auto refuses = [&](const std::function<void(LaunchOptions&)>& spoil) {
    LaunchOptions options = good;
    spoil(options);
    EXPECT_THROW(launch(options), InvalidArgument);
  };
  refuses([](LaunchOptions& o) { o.server_command.clear(); });
  refuses([](LaunchOptions& o) { o.servers = {0, 0}; });
  refuses([](LaunchOptions& o) { o.servers = {-1}; });
  refuses([](LaunchOptions& o) { o.total_servers = 1; });
  refuses([](LaunchOptions& o) { o.total_servers = -1; });
  refuses([](LaunchOptions& o) { o.commands = {{"true"}}; });
}

}  // namespace
}  // namespace trireme::cluster::tests
