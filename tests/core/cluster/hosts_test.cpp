// label: multiproc grpc
// launch_on_hosts() with two names of this machine as hosts. This program is also the agent of each, as `trireme join`
// would be (see main). gRPC does not survive a fork, so it is used in forked processes only.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <sstream>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/launching/hosts.h>

namespace trireme::cluster::tests {
namespace {

std::string content_of(const Descriptor& file) {
  std::string text(static_cast<size_t>(lseek(file.get(), 0, SEEK_END)), '\0');
  return pread(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) ? text : "";
}

struct Ended {
  int exit_code = -1;
  std::string output, errors, reason;
};

/// In a process of its own, which writes to descriptors of ours.
Ended launch_apart(const HostsOptions& options) {
  const Descriptor out(memfd_create("out", 0)), err(memfd_create("err", 0)), reason(memfd_create("reason", 0));
  std::fflush(nullptr);  // or the child would write it again
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out.get(), 1);
    dup2(err.get(), 2);
    int code = 99;
    std::string why;
    try {
      const LaunchResult result = launch_on_hosts(options);
      code = result.exit_code;
      why = result.reason;
    } catch (const std::exception& error) {
      why = error.what();
    }
    _exit(write(reason.get(), why.data(), why.size()) == static_cast<ssize_t>(why.size()) ? code : 98);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content_of(out), content_of(err),
          content_of(reason)};
}

HostsOptions two_hosts(const std::string& ranks, int servers, const std::string& server) {
  return {.hosts = {{"localhost", 1}, {"127.0.0.1", 1}},
          .program = "/proc/self/exe",
          .command = {"/bin/sh", "-c", ranks},
          .server_command = {"/bin/sh", "-c", server},
          .servers = servers,
          .heartbeat_limit = Seconds(10),
          .timeout = Seconds(20)};
}

TEST(Hosts, ServersAreDealtOutToTheHosts) {
  HostsOptions options = two_hosts("echo agent $PPID; echo servers $TRIREME_SERVERS", 3,
                                   "echo agent $PPID; echo $TRIREME_ROLE $TRIREME_SERVER/$TRIREME_SERVERS "
                                   "$TRIREME_SIZE; [ -n \"$TRIREME_COORDINATOR\" ] && "
                                   "[ \"$TRIREME_TOKEN\" = secret ] && echo knows where");
  options.token = "secret";
  const Ended ended = launch_apart(options);
  EXPECT_EQ(ended.exit_code, 0) << ended.reason << ended.errors;
  std::map<std::string, std::string> agent_of;
  std::istringstream lines(ended.output);
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find("] agent "); at != std::string::npos)
      agent_of[line.substr(1, at - 1)] = line.substr(at + 8);
  EXPECT_EQ(agent_of.size(), 5u) << ended.output;
  EXPECT_NE(agent_of["0"], agent_of["1"]);
  EXPECT_EQ(agent_of["server 0"], agent_of["0"]);
  EXPECT_EQ(agent_of["server 1"], agent_of["1"]);
  EXPECT_EQ(agent_of["server 2"], agent_of["0"]);
  for (int server : {0, 1, 2}) {
    EXPECT_NE(ended.output.find(fmt::format("[server {0}] server {0}/3 2\n", server)), std::string::npos)
        << ended.output;
    EXPECT_NE(ended.output.find(fmt::format("[server {}] knows where\n", server)), std::string::npos) << ended.output;
  }
  for (int rank : {0, 1})
    EXPECT_NE(ended.output.find(fmt::format("[{}] servers 3\n", rank)), std::string::npos) << ended.output;
}

TEST(Hosts, AServerThatDiesIsNamedWithItsHost) {
  const Ended ended = launch_apart(two_hosts(
      "exec sleep 100", 2, "if [ $TRIREME_SERVER = 1 ]; then echo no memory; kill -9 $$; fi; exec sleep 100"));
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_EQ(ended.reason.find("server 1 on host 127.0.0.1 failed with exit code 137: server 1 (process "), 0u)
      << ended.reason;
  EXPECT_NE(ended.reason.find("no memory"), std::string::npos) << ended.reason;  // its last words
}

TEST(Hosts, ServersStayForTheRanksOfOtherHosts) {
  // Longer than a launcher gives lingering servers: server 0 outlives the rank beside it until the other rank has
  // ended, and is asked to end then.
  const Ended ended = launch_apart(two_hosts("[ $TRIREME_RANK = 0 ] || sleep 6; echo rank has ended", 1,
                                             "trap 'echo asked; exit 0' TERM; while true; do sleep 0.05; done"));
  EXPECT_EQ(ended.exit_code, 0) << ended.reason << ended.errors;
  const size_t last_rank = ended.output.find("[1] rank has ended"), asked = ended.output.find("[server 0] asked");
  EXPECT_NE(asked, std::string::npos) << ended.output;
  EXPECT_LT(last_rank, asked) << ended.output;
}

TEST(Hosts, ServersWithoutAProgramAreRefused) {
  HostsOptions options = two_hosts("exit 0", 1, "");
  options.server_command.clear();
  EXPECT_THROW(launch_on_hosts(options), InvalidArgument);
}

/// What `trireme join` does with the arguments that launch_on_hosts() gives it.
int run_join(const std::vector<std::string>& arguments) {
  AgentOptions options{.coordinator = arguments.at(0), .watch_input = true};
  for (size_t i = 1; i + 1 < arguments.size(); i += 2) {
    if (arguments[i] == "--host") options.host = arguments[i + 1];
    if (arguments[i] == "--timeout") options.timeout = Seconds(std::stod(arguments[i + 1]));
  }
  for (char c = 0; read(0, &c, 1) == 1 && c != '\n';) options.token += c;
  return run_agent(options).exit_code;
}

}  // namespace
}  // namespace trireme::cluster::tests

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "join") return trireme::cluster::tests::run_join({argv + 2, argv + argc});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
