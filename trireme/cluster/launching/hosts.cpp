#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <sstream>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/launching/hosts.h>

namespace trireme::cluster {
namespace {

constexpr Seconds kTyping{600};  // for people to start agents by hand
constexpr Seconds kGoodbyes{5};

int slots_in(std::string_view text, const std::string& where) {
  int slots = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (error != std::errc{} || stop != text.data() + text.size() || slots < 1 || slots > 256)
    fail<InvalidArgument>("{}: '{}' is not a number of ranks (1 to 256)", where, text);
  return slots;
}

/// "b:2" or "b".
std::pair<std::string, int> host_in(const std::string& word, const std::string& where) {
  const size_t colon = word.find(':');
  const std::string name = word.substr(0, colon);
  if (name.empty() || name[0] == '-') fail<InvalidArgument>("{}: '{}' is not a host name", where, word);
  return {name, colon == std::string::npos ? 1 : slots_in(std::string_view(word).substr(colon + 1), where)};
}

void add_host(Hosts& hosts, std::pair<std::string, int> host, const std::string& where) {
  for (const auto& [name, slots] : hosts)
    if (name == host.first)
      fail<InvalidArgument>("{}: host '{}' is there twice; give it more ranks instead", where, name);
  hosts.push_back(std::move(host));
}

std::string quoted(const std::string& word) {
  if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%") ==
          std::string::npos &&
      !word.empty())
    return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

/// The addresses of a host, and for each the address of ours from which it is reached.
std::string own_address_towards(const std::string& host, bool& is_local) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), "9", &hints, &found); code != 0)
    fail<InvalidArgument>("host '{}' cannot be found: {}. Check the spelling, /etc/hosts and DNS", host,
                          gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const Descriptor socket_(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (!socket_ || connect(socket_.get(), a->ai_addr, a->ai_addrlen) != 0) continue;
    if (getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) continue;
    char text[NI_MAXHOST], theirs[NI_MAXHOST];
    getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    getnameinfo(a->ai_addr, a->ai_addrlen, theirs, sizeof theirs, nullptr, 0, NI_NUMERICHOST);
    is_local = std::string(text) == theirs;
    return text;
  }
  fail<InvalidArgument>("host '{}' cannot be reached: no route to it. Is its network interface up?", host);
}

std::string as_typed(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) text += (text.empty() ? "" : " ") + quoted(word);
  return text;
}

}  // namespace

Hosts parse_hosts(const std::string& text) {
  Hosts hosts;
  std::stringstream words(text);
  for (std::string word; std::getline(words, word, ',');) add_host(hosts, host_in(word, "--hosts"), "--hosts");
  if (hosts.empty()) fail<InvalidArgument>("--hosts is empty. Example: --hosts a:2,b:2");
  return hosts;
}

Hosts read_hostfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail<IoError>("cannot read the host file {}: {}", path, errno_text());
  Hosts hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    const std::string where = fmt::format("{}:{}", path, ++number);
    std::stringstream words(line.substr(0, line.find('#')));
    std::string name, slots, more;
    if (!(words >> name)) continue;
    auto host = host_in(name, where);
    if (words >> slots)
      host.second =
          slots_in(slots.starts_with("slots=") ? std::string_view(slots).substr(6) : std::string_view(slots), where);
    if (words >> more)
      fail<InvalidArgument>("{}: nothing is expected after '{}', but there is '{}'", where, slots, more);
    add_host(hosts, std::move(host), where);
  }
  if (hosts.empty()) fail<InvalidArgument>("the host file {} names no host", path);
  return hosts;
}

std::vector<std::string> remote_command(const std::string& remote, const std::string& host,
                                        const std::vector<std::string>& command) {
  std::vector<std::string> words;
  bool has_host = false, has_command = false;
  std::stringstream parts(remote);
  for (std::string word; parts >> word;) {
    if (word == "{command}") {
      has_command = true;
      const bool shell = !words.empty() && words[0].substr(words[0].rfind('/') + 1) == "ssh";
      for (const std::string& part : command) words.push_back(shell ? quoted(part) : part);
      continue;
    }
    for (size_t at = word.find("{host}"); at != std::string::npos; at = word.find("{host}", at + host.size())) {
      word.replace(at, 6, host);
      has_host = true;
    }
    words.push_back(word);
  }
  if (!has_host || !has_command)
    fail<InvalidArgument>(
        "--remote '{}' needs the word {{command}} and, somewhere, {{host}}. Example: --remote \"ssh {{host}} "
        "{{command}}\"",
        remote);
  return words;
}

namespace {

/// The agents look after their ranks; who has an agent that is heard of has somebody to wait for.
bool somebody_lives(const Snapshot& job, Seconds limit) {
  return std::any_of(job.members.begin(), job.members.end(), [&](const Snapshot::Entry& entry) {
    return entry.member.kind == Member::agent && entry.standing == Standing::present && entry.silence <= limit.count();
  });
}

/// For the launcher of the agents: which of them live does not matter to the crew.
CrewView crew_of(Coordinator& coordinator) {
  coordinator.take_events();
  const Snapshot now = coordinator.snapshot();
  return {.epoch = now.crew.epoch,
          .ranks = now.crew.ranks,
          .target = now.crew.target,
          .complete = now.crew.underway,
          .over = now.crew.over,
          .closing = now.crew.closing,
          .lost = now.crew.lost,
          .failure = now.failures.empty() ? "" : now.failures.front().reason};
}

}  // namespace

LaunchResult launch_on_hosts(const HostsOptions& options) {
  if (options.servers > 0 && options.server_command.empty())
    fail<InvalidArgument>("{} servers are to be launched, but there is no program for them", options.servers);
  const SignalsForLauncher signals;
  int ranks = 0;
  std::string address = options.address;
  std::vector<bool> local;
  for (const auto& [name, slots] : options.hosts) {
    ranks += slots;
    bool here = false;
    const std::string own = own_address_towards(name, here);
    local.push_back(here || name == own_host_name());
    if (address.empty() && !local.back()) address = own;
  }
  if (address.empty()) address = "127.0.0.1";  // all of them are this one
  const bool by_hand = options.remote == kByHand;
  if (by_hand && std::find(local.begin(), local.end(), true) == local.end())
    fail<InvalidArgument>("--remote {} starts ranks on this host only, but host {} is not in the host list: add it",
                          kByHand, own_host_name());

  const std::string token = options.token.empty() ? random_name() + random_name() : options.token;
  const Seconds timeout = by_hand ? std::max(kTyping, options.timeout) : options.timeout;
  Coordinator coordinator({.port = options.port,
                           .job = random_name(),
                           .token = token,
                           .tls = options.tls,
                           .ranks = ranks,
                           .servers = options.servers,
                           .heartbeat_limit = options.heartbeat_limit,
                           .on_loss = options.elasticity.elastic() ? OnLoss::change_crew : OnLoss::end_job,
                           .spec = {.hosts = options.hosts,
                                    .command = options.command,
                                    .environment = options.environment,
                                    .show = static_cast<int>(options.show),
                                    .server_command = options.server_command,
                                    .on_failure = static_cast<int>(options.elasticity.on_failure)},
                           .least = options.elasticity.elastic() ? options.elasticity.least : 1,
                           .most = options.elasticity.elastic() ? options.elasticity.most : 0,
                           .rejoin_timeout = options.elasticity.rejoin_timeout});
  LaunchOptions agents{.show = Show::plain,
                       .grace = options.heartbeat_limit + Seconds(2),
                       .elasticity = {.on_failure = options.elasticity.on_failure},
                       .crew = [&] { return crew_of(coordinator); },
                       .crew_changed = options.elasticity.elastic() ? coordinator.descriptor() : -1,
                       .say = options.say,
                       .saves = options.saves,
                       .patience = options.heartbeat_limit + Seconds(2),
                       .interrupted = [&] { coordinator.hurry("The job was interrupted"); },
                       .alive = [&] { return somebody_lives(coordinator.snapshot(), options.heartbeat_limit); },
                       .input = token + "\n"};
  for (size_t i = 0; i < options.hosts.size(); i++) {
    const std::string& name = options.hosts[i].first;
    std::vector<std::string> command = {options.program,
                                        "join",
                                        fmt::format("{}:{}", address, coordinator.port()),
                                        "--host",
                                        name,
                                        "--timeout",
                                        fmt::format("{:g}", timeout.count())};
    if (!options.tls.empty()) command.insert(command.end(), {"--tls", options.tls});
    if (by_hand && !local[i]) {
      if (options.by_hand) options.by_hand(name, as_typed(command), options.token.empty() ? token : "");
      continue;
    }
    command.insert(command.end(), {"--token-file", "-"});
    agents.commands.push_back(local[i] ? command : remote_command(options.remote, name, command));
    agents.names.push_back("the agent of host " + name);
  }
  LaunchResult result = launch(agents);
  if (by_hand || options.elasticity.elastic())  // there are agents that were not started here
    coordinator.wait_ended(Deadline(kGoodbyes));
  if (const auto failures = coordinator.snapshot().failures; !failures.empty() && !result.interrupted) {
    result.reason = failures.front().reason;
    result.last_lines.clear();  // the agent has shown them
  }
  return result;
}

}  // namespace trireme::cluster
