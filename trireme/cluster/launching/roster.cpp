#include "roster.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include <trireme/base/process.h>

namespace trireme::cluster {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kThreadVariables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"};

/// What a rank finds in its environment; `local` is its number here.
Variables variables_of_rank(const LaunchOptions& options, int number, int local, bool newcomer) {
  const std::string rank = std::to_string(number), size = std::to_string(options.size);
  Variables set = {{"TRIREME_ROLE", "worker"},
                   {"TRIREME_RANK", rank},
                   {"TRIREME_SIZE", size},
                   {"TRIREME_SERVERS", std::to_string(options.total_servers)},
                   {"TRIREME_REPLICAS", std::to_string(options.replicas)},
                   {"TRIREME_JOB", options.job},
                   {"RANK", rank},
                   {"LOCAL_RANK", std::to_string(local)},
                   {"WORLD_SIZE", size},
                   {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
                   {"MASTER_ADDR", options.master},
                   {"MASTER_PORT", std::to_string(options.master_port)}};
  if (newcomer) set.emplace_back("TRIREME_NEWCOMER", "1");
  return set;
}

std::vector<std::string> environment_of_rank(const LaunchOptions& options, int number, int local, bool newcomer) {
  const bool agents = !options.commands.empty();
  Variables set = agents ? Variables{} : variables_of_rank(options, number, local, newcomer);
  const std::string threads =
      std::to_string(options.threads > 0 ? options.threads : std::max(1, usable_cores() / options.ranks));
  for (const char* name : kThreadVariables)
    if (options.threads > 0 || getenv(name) == nullptr) set.emplace_back(name, threads);
  set.insert(set.end(), options.environment.begin(), options.environment.end());
  if (agents) return environment_with(set, {});
  std::vector<std::string_view> without = {"TRIREME_SERVER"};
  if (!newcomer) without.emplace_back("TRIREME_NEWCOMER");  // of an outer launcher
  return environment_with(set, without);
}

std::vector<std::string> environment_of_server(const LaunchOptions& options, int server) {
  Variables set = options.environment;
  set.insert(set.end(), {{"TRIREME_ROLE", "server"},
                         {"TRIREME_SERVER", std::to_string(server)},
                         {"TRIREME_SERVERS", std::to_string(options.total_servers)},
                         {"TRIREME_REPLICAS", std::to_string(options.replicas)},
                         {"TRIREME_SIZE", std::to_string(options.size)},
                         {"TRIREME_JOB", options.job}});
  for (const char* name : kThreadVariables) set.emplace_back(name, "1");
  return environment_with(set,
                          {"TRIREME_RANK", "TRIREME_NEWCOMER", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"});
}

}  // namespace

Roster::~Roster() {
  for (Child& child : children_)
    if (child.pid > 0 && !child.status) {
      kill(-child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
}

void Roster::start_all() {
  for (int index : options_.servers) start(server(index), index, true, false);
  const int first = options_.commands.empty() ? options_.first_rank : 0;
  for (int local = 0; local < options_.ranks; local++)
    start(rank(first + local, local, options_.newcomers), first + local, false, options_.newcomers);
}

void Roster::start_server(int number) { start(server(number), number, true, true); }

const Child& Roster::start_newcomer(int number) {
  const int place = number < 0 ? static_cast<int>(children_.size()) : number;  // some number that no other one here has
  start(rank(number, place, true), number, false, true);
  return children_.back();
}

void Roster::start(ChildOptions options, int number, bool is_server, bool newcomer) {
  children_.push_back(start_child(std::move(options)));
  Child& child = children_.back();
  child.number = number;
  child.is_server = is_server;
  child.newcomer = newcomer;
}

ChildOptions Roster::rank(int number, int local, bool newcomer) const {
  const bool agents = !options_.commands.empty();
  const auto index = static_cast<size_t>(local);
  return {.name = agents       ? options_.names[index]
                  : number < 0 ? "a newcomer"
                               : fmt::format("rank {}", number),
          .command = agents ? options_.commands[index] : options_.command,
          .environment = environment_of_rank(options_, number, local, newcomer),
          .input = options_.input,
          .prefix = options_.show != Show::labelled ? ""
                    : number < 0                    ? "[new] "
                                                    : fmt::format("[{}] ", number),
          .shown = options_.show != Show::first || number == 0,
          .slate = !agents,
          .keeper = agents ? nullptr : &keeper_,
          .desk = desk_,
          .signals = signals_.of_children(),
          .broken_pipe = signals_.broken_pipe()};
}

ChildOptions Roster::server(int server) const {
  const std::string name = fmt::format("server {}", server);
  return {.name = name,
          .command = options_.server_command,
          .environment = environment_of_server(options_, server),
          .prefix = options_.show == Show::labelled ? fmt::format("[{}] ", name) : "",
          .shown = options_.show != Show::first,
          .signals = signals_.of_children(),
          .broken_pipe = signals_.broken_pipe()};
}

void Roster::learn_numbers() {
  for (Child& child : children_) {
    if (child.number >= 0 || child.slate.rank() < 0) continue;
    child.number = child.slate.rank();
    child.name = fmt::format("rank {}", child.number);
    if (options_.show == Show::labelled)
      for (Pipe& stream : child.streams) stream.set_prefix(fmt::format("[{}] ", child.number));
  }
}

int Roster::living() const {
  return static_cast<int>(std::count_if(children_.begin(), children_.end(),
                                        [](const Child& child) { return !child.is_server && !child.status; }));
}

bool Roster::ranks_ended() const { return living() == 0; }

bool Roster::all_ended() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.status.has_value(); });
}

bool Roster::anything_open() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& child) {
    return !child.status ||
           std::any_of(child.streams.begin(), child.streams.end(), [](const Pipe& s) { return s.descriptor() >= 0; });
  });
}

void Roster::signal(int signal, bool servers) const {
  for (const Child& child : children_) {
    if (child.status || (child.is_server && !servers)) continue;
    kill(-child.pid, signal);
    kill(-child.pid, SIGCONT);  // a stopped process takes its signal only when it goes on
  }
}

}  // namespace trireme::cluster
