// One host's part of `trireme doctor --hosts`.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include <trireme/base/error.h>
#include <trireme/cluster/coordinator.h>
#include <trireme/cluster/environment.h>
#include <trireme/cluster/preflight.h>
#include <trireme/cluster/session.h>
#include "preflight.h"

namespace trireme::tools {
namespace {

using nlohmann::json;

constexpr Seconds kMeeting{20}, kOneLink{20};
constexpr double kStreaming = 0.5, kLeastStreaming = 0.1, kAllStreaming = 30;  // seconds per link, and of all links together

struct Findings {
  std::vector<cluster::HostFacts> hosts;
  std::vector<cluster::LinkFacts> links;
};

/// What the others need to know to measure their way here.
struct Peer {
  std::string address, secret;
  int port = 0;
};

std::string link_key(size_t from, size_t to) { return fmt::format("link/{}/{}", from, to); }

std::vector<Peer> meet(cluster::Session& session, const Responder& responder, Findings& findings) {
  session.put(fmt::format("probe/{}", session.rank()),
              json{{"address", session.address()}, {"port", responder.port()}, {"secret", responder.secret()}, {"version", cluster::library_version()}}.dump());
  std::vector<Peer> peers;
  const Deadline deadline(kMeeting);
  for (int rank = 0; rank < session.size(); rank++) {
    const json theirs = json::parse(session.get(fmt::format("probe/{}", rank), deadline));
    peers.push_back({.address = theirs["address"], .secret = theirs["secret"], .port = theirs["port"]});
    const auto& hosts = session.spec().hosts;
    const std::string name = static_cast<size_t>(rank) < hosts.size() ? hosts[static_cast<size_t>(rank)].first : fmt::format("rank {}", rank);
    findings.hosts.push_back({.name = name, .address = theirs["address"], .version = theirs["version"]});
  }
  findings.hosts[0].clock = 0;
  return peers;
}

/// Every rank sees the result of every link before the next one begins: they are measured one at a time, and do not disturb each other.
void measure_links(cluster::Session& session, const std::vector<Peer>& peers, Findings& findings) {
  const size_t n = peers.size(), own = static_cast<size_t>(session.rank());
  const Seconds streaming(std::clamp(kAllStreaming / static_cast<double>(n * (n - 1)), kLeastStreaming, kStreaming));
  for (size_t from = 0; from < n; from++)
    for (size_t to = 0; to < n; to++) {
      if (from == to) continue;
      if (from == own) {
        const MeasuredLink link = measure_link(peers[to].address, peers[to].port, peers[to].secret, streaming);
        session.put(link_key(from, to), json{{"fault", link.fault}, {"latency", link.latency}, {"bandwidth", link.bandwidth}, {"clock", link.clock}}.dump());
      }
      const json link = json::parse(session.get(link_key(from, to), Deadline(kOneLink)));
      findings.links.push_back({.from = from, .to = to, .fault = link["fault"], .latency = link["latency"], .bandwidth = link["bandwidth"]});
      if (!findings.links.back().fault.empty()) continue;
      if (from == 0) findings.hosts[to].clock = link["clock"];
      if (to == 0 && !findings.hosts[from].clock) findings.hosts[from].clock = -link["clock"].get<double>();
    }
}

std::string clock_text(const std::optional<double>& clock) {
  if (!clock) return "unknown";
  return std::abs(*clock) < 1 ? fmt::format("{:+.1f} ms", *clock * 1e3) : fmt::format("{:+.1f} s", *clock);
}

void print_hosts(const Findings& findings, const cluster::Preflight& verdicts) {
  fmt::print("  {:<16} {:<16} {:<10} {:>10}  verdict\n", "host", "address", "version", "clock");
  for (size_t i = 0; i < findings.hosts.size(); i++) {
    const cluster::HostFacts& host = findings.hosts[i];
    fmt::print("  {:<16} {:<16} {:<10} {:>10}  {}\n", host.name, host.address, host.version, clock_text(host.clock), verdicts.hosts[i]);
  }
}

void print_links(const Findings& findings, const cluster::Preflight& verdicts) {
  fmt::print("\n  {:<16} {:<16} {:>10} {:>14}  verdict\n", "from", "to", "latency", "bandwidth");
  for (size_t i = 0; i < findings.links.size(); i++) {
    const cluster::LinkFacts& link = findings.links[i];
    const bool there = link.fault.empty();
    fmt::print("  {:<16} {:<16} {:>10} {:>14}  {}\n", findings.hosts[link.from].name, findings.hosts[link.to].name,
               there ? fmt::format("{:.0f} us", link.latency * 1e6) : "-", there ? fmt::format("{:.3g} Gbit/s", link.bandwidth / 1e9) : "-", verdicts.links[i]);
  }
}

}  // namespace

int preflight_probe() {
  const cluster::Place place = cluster::place_here();
  if (place.coordinator.empty()) fail<InvalidArgument>("--probe is what `trireme doctor --hosts` starts on each host; start that");
  cluster::Session session({.coordinator = place.coordinator, .job = place.job, .token = place.token, .tls = place.tls, .timeout = kMeeting},
                           {.rank = place.rank, .size = place.size, .host = cluster::own_host_name(), .pid = getpid()});
  cluster::Preflight verdicts;
  if (session.size() > 1) {
    Findings findings;
    const Responder responder(session.address());
    measure_links(session, meet(session, responder, findings), findings);
    verdicts = cluster::judge_preflight(findings.hosts, findings.links);
    if (session.rank() == 0) {
      print_hosts(findings, verdicts);
      print_links(findings, verdicts);
      for (const std::string& problem : verdicts.problems) fmt::print("\nPROBLEM  {}\n", problem);
      std::fflush(stdout);
    }
  }
  session.leave(0);
  return session.rank() == 0 && !verdicts.problems.empty() ? kProblemsExit : 0;
}

}  // namespace trireme::tools
