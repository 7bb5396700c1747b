// One host's part of `trireme doctor --hosts`.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <trireme/base/error.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/cluster/launching/preflight.h>

#include "preflight.h"

namespace trireme::tools {
namespace {

using nlohmann::json;

constexpr Seconds kMeeting{20}, kOneLink{20};
constexpr double kStreaming = 0.5, kLeastStreaming = 0.1,
                 kAllStreaming = 30;  // seconds per link, and of all links together
constexpr int kSecondLooks = 2;

struct Findings {
  std::vector<cluster::HostFacts> hosts;
  std::vector<cluster::LinkFacts> links;
};

/// What the others need to know to measure their way here.
struct Peer {
  std::string address, secret;
  int port = 0;
};

std::vector<Peer> meet(cluster::Session& session, const Responder& responder, Findings& findings) {
  session.put(fmt::format("probe/{}", session.rank()), json{{"address", session.address()},
                                                            {"port", responder.port()},
                                                            {"secret", responder.secret()},
                                                            {"version", cluster::library_version()}}
                                                           .dump());
  std::vector<Peer> peers;
  const Deadline deadline(kMeeting);
  for (int rank = 0; rank < session.size(); rank++) {
    const json theirs = json::parse(session.get(fmt::format("probe/{}", rank), deadline));
    peers.push_back({.address = theirs["address"], .secret = theirs["secret"], .port = theirs["port"]});
    const auto& hosts = session.spec().hosts;
    const std::string name = static_cast<size_t>(rank) < hosts.size() ? hosts[static_cast<size_t>(rank)].first
                                                                      : fmt::format("rank {}", rank);
    findings.hosts.push_back({.name = name, .address = theirs["address"], .version = theirs["version"]});
  }
  findings.hosts[0].clock = 0;
  return peers;
}

/// One link, measured by the host that it starts from and told to all: every rank sees a result before the next link
/// begins, so that links do not disturb each other.
cluster::LinkFacts measure(cluster::Session& session, const std::vector<Peer>& peers, Findings& findings, size_t from,
                           size_t to, int attempt) {
  const size_t n = peers.size();
  const std::string key = fmt::format("link/{}/{}/{}", from, to, attempt);
  if (from == static_cast<size_t>(session.rank())) {
    const Seconds streaming(std::clamp(kAllStreaming / static_cast<double>(n * (n - 1)), kLeastStreaming, kStreaming));
    const MeasuredLink link = measure_link(peers[to].address, peers[to].port, peers[to].secret, streaming);
    session.put(
        key,
        json{{"fault", link.fault}, {"latency", link.latency}, {"bandwidth", link.bandwidth}, {"clock", link.clock}}
            .dump());
  }
  const json link = json::parse(session.get(key, Deadline(kOneLink)));
  const cluster::LinkFacts facts{
      .from = from, .to = to, .fault = link["fault"], .latency = link["latency"], .bandwidth = link["bandwidth"]};
  if (!facts.fault.empty()) return facts;
  if (from == 0) findings.hosts[to].clock = link["clock"];
  if (to == 0 && !findings.hosts[from].clock) findings.hosts[from].clock = -link["clock"].get<double>();
  return facts;
}

/// Who else uses a machine or a wire for a moment must not be taken for a bad cable: what seems slow is measured again,
/// and the better figures count.
void measure_links(cluster::Session& session, const std::vector<Peer>& peers, Findings& findings) {
  for (size_t from = 0; from < peers.size(); from++)
    for (size_t to = 0; to < peers.size(); to++)
      if (from != to) findings.links.push_back(measure(session, peers, findings, from, to, 0));
  for (int attempt = 1; attempt <= kSecondLooks; attempt++) {
    const cluster::Preflight verdicts = cluster::judge_preflight(findings.hosts, findings.links);
    for (size_t i = 0; i < findings.links.size(); i++) {
      cluster::LinkFacts& link = findings.links[i];
      if (verdicts.links[i] == cluster::kWell || !link.fault.empty()) continue;
      const cluster::LinkFacts again = measure(session, peers, findings, link.from, link.to, attempt);
      if (!again.fault.empty()) continue;
      link.latency = std::min(link.latency, again.latency);
      link.bandwidth = std::max(link.bandwidth, again.bandwidth);
    }
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
    fmt::print("  {:<16} {:<16} {:<10} {:>10}  {}\n", host.name, host.address, host.version, clock_text(host.clock),
               verdicts.hosts[i]);
  }
}

void print_links(const Findings& findings, const cluster::Preflight& verdicts) {
  fmt::print("\n  {:<16} {:<16} {:>10} {:>14}  verdict\n", "from", "to", "latency", "bandwidth");
  for (size_t i = 0; i < findings.links.size(); i++) {
    const cluster::LinkFacts& link = findings.links[i];
    const bool there = link.fault.empty();
    fmt::print("  {:<16} {:<16} {:>10} {:>14}  {}\n", findings.hosts[link.from].name, findings.hosts[link.to].name,
               there ? fmt::format("{:.0f} us", link.latency * 1e6) : "-",
               there ? fmt::format("{:.3g} Gbit/s", link.bandwidth / 1e9) : "-", verdicts.links[i]);
  }
}

}  // namespace

int preflight_probe() {
  const cluster::Place place = cluster::place_here();
  if (place.coordinator.empty())
    fail<InvalidArgument>("--probe is what `trireme doctor --hosts` starts on each host; start that");
  cluster::Session session(
      {.coordinator = place.coordinator, .job = place.job, .token = place.token, .tls = place.tls, .timeout = kMeeting},
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
