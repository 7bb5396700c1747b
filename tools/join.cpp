// `trireme join`: this host's part of a job that spans several.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/cluster/launching/hosts.h>

#include "commands.h"
#include "duration_flag.h"
#include "hosts.h"

namespace trireme::tools {
namespace {

std::string token_from(const std::string& file) {
  std::string token;
  if (file == "-") {
    // Byte by byte: what follows on standard input, its end above all, belongs to the agent.
    for (char c = 0; read(0, &c, 1) == 1 && c != '\n';) token += c;
  } else if (!file.empty()) {
    std::ifstream stream(file);
    if (!std::getline(stream, token)) fail<IoError>("cannot read the token from {}: {}", file, errno_text());
  } else if (const char* variable = std::getenv("TRIREME_TOKEN"); variable != nullptr) {
    token = variable;
  }
  if (token.empty())
    fail<InvalidArgument>("no token. The coordinator prints it; give it in TRIREME_TOKEN or with --token-file FILE");
  return token;
}

}  // namespace

Run add_join(CLI::App& app, const Invocation&) {
  struct Settings {
    cluster::AgentOptions agent;
    std::string token_file;
    double timeout = 60;
  };
  auto s = std::make_shared<Settings>();
  CLI::App* command =
      app.add_subcommand("join", "Bring this host into a job that a coordinator elsewhere has: starts its ranks here");
  command->add_option("COORDINATOR", s->agent.coordinator, "Its address, HOST:PORT")->required();
  command->add_option("--slots", s->agent.slots,
                      "Ranks to start here (default: what the job's host list says; of a host that comes later: one)");
  command->add_option("--host", s->agent.host, "This host's name in the job's host list (default: its host name)");
  command->add_option("--token-file", s->token_file,
                      "File with the job's token; -: standard input (default: the variable TRIREME_TOKEN)");
  command->add_option("--tls", s->agent.tls, "Folder of certificates (`trireme tls init`)");
  command
      ->add_option("--timeout", s->timeout,
                   "How long to wait for the coordinator and for the other hosts: 60 (seconds), 90s, 10m")
      ->transform(duration_flag())
      ->capture_default_str();
  command->footer(
      "`trireme train --hosts` does this for you through ssh. By hand, where there is none:\n"
      "  trireme train lenet --hosts a:2,b:2 --remote none --port 7070     on a; says what to start on b, such as\n"
      "  TRIREME_TOKEN=… trireme join a:7070 --host b                      on b\n"
      "A job whose workers may come and go (--workers LEAST:MOST) takes up any host, at any time: docs/elastic.md");
  return [s] {
    s->agent.token = token_from(s->token_file);
    s->agent.watch_input = s->token_file == "-";
    s->agent.timeout = Seconds(s->timeout);
    s->agent.say = print_error;
    const cluster::LaunchResult result = cluster::run_agent(s->agent);
    // Of a failure elsewhere, which the launcher explains if one started this.
    const bool victim = result.exit_code == cluster::kPeerLostExit && s->agent.watch_input;
    explain_end(result, victim || (result.first_failed == 0 && result.exit_code < 128));
    return result.exit_code;
  };
}

}  // namespace trireme::tools
