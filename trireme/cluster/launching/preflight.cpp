#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include <trireme/cluster/coordination/membership.h>
#include <trireme/cluster/launching/preflight.h>

namespace trireme::cluster {
namespace {

constexpr double kSlow = 3, kFar = 10;     // times worse than usual
constexpr double kHarmlessLatency = 2e-3;  // seconds: below, nobody need care
constexpr double kGbit = 1e9, kMicrosecond = 1e-6;

using Measure = std::function<double(const LinkFacts&)>;  // larger is better

/// The median of every host's best link; 0 when there is none.
double usual(size_t hosts, const std::vector<LinkFacts>& links, const Measure& measure) {
  std::vector<double> best(hosts, 0);
  for (const LinkFacts& link : links)
    if (link.fault.empty())
      for (size_t host : {link.from, link.to}) best[host] = std::max(best[host], measure(link));
  std::sort(best.begin(), best.end());
  return best.empty() ? 0 : best[best.size() / 2];
}

/// One thing that can be wrong with links.
struct Trouble {
  std::string word;            // for the table
  bool only_incoming = false;  // a host is at fault when all links to it are bad, whatever those from it are
  std::function<bool(const LinkFacts&)> bad;
  std::function<std::string(const LinkFacts&)> what;  // "only 0.05 Gbit/s, …"
  std::string remedy;
};

class Judge {
 public:
  Judge(const std::vector<HostFacts>& hosts, const std::vector<LinkFacts>& links) : hosts_(hosts), links_(links) {
    result_.hosts.resize(hosts.size());
    result_.links.resize(links.size());
  }

  void version_and_clock() {
    for (size_t i = 0; i < hosts_.size(); i++) {
      const HostFacts& host = hosts_[i];
      if (host.version != hosts_[0].version)
        problem(result_.hosts[i], "VERSION",
                fmt::format("host {} runs trireme {}, host {} runs {}. Install the same version on all hosts",
                            host.name, host.version, hosts_[0].name, hosts_[0].version));
      if (host.clock && !(std::abs(*host.clock) <= kClockTolerance))
        problem(result_.hosts[i], "CLOCK",
                fmt::format("the clock of host {} is {:.1f} s {} that of host {}. Run chrony or ntp on both: log times "
                            "do not agree, and certificates may be refused",
                            host.name, std::abs(*host.clock), *host.clock > 0 ? "ahead of" : "behind", hosts_[0].name));
    }
  }

  void trouble(const Trouble& trouble) {
    const std::set<size_t> culprits = hosts_all_bad(trouble);
    for (size_t host : culprits) {
      const auto example = std::find_if(links_.begin(), links_.end(), [&](const LinkFacts& link) {
        return concerns(trouble, link, host) && trouble.bad(link);
      });
      result_.problems.push_back(fmt::format("host {}, {} all others: {}. {}", hosts_[host].name,
                                             trouble.only_incoming ? "from" : "to and from", trouble.what(*example),
                                             trouble.remedy));
    }
    for (size_t i = 0; i < links_.size(); i++) {
      const LinkFacts& link = links_[i];
      if (!trouble.bad(link)) continue;
      add_word(result_.links[i], trouble.word);
      const bool said =
          std::any_of(culprits.begin(), culprits.end(), [&](size_t host) { return concerns(trouble, link, host); });
      if (!said)
        result_.problems.push_back(fmt::format("from host {} to host {}: {}. {}", hosts_[link.from].name,
                                               hosts_[link.to].name, trouble.what(link), trouble.remedy));
    }
  }

  Preflight finish() {
    for (auto* verdicts : {&result_.hosts, &result_.links})
      for (std::string& verdict : *verdicts)
        if (verdict.empty()) verdict = kWell;
    return std::move(result_);
  }

 private:
  static bool concerns(const Trouble& trouble, const LinkFacts& link, size_t host) {
    return link.to == host || (link.from == host && !trouble.only_incoming);
  }

  /// With two hosts nobody can say which of them it is.
  std::set<size_t> hosts_all_bad(const Trouble& trouble) const {
    std::set<size_t> all_bad;
    for (size_t host = 0; hosts_.size() > 2 && host < hosts_.size(); host++) {
      const auto fine = [&](const LinkFacts& link) { return concerns(trouble, link, host) && !trouble.bad(link); };
      const auto concerned = [&](const LinkFacts& link) { return concerns(trouble, link, host); };
      if (std::any_of(links_.begin(), links_.end(), concerned) && std::none_of(links_.begin(), links_.end(), fine))
        all_bad.insert(host);
    }
    return all_bad;
  }

  static void add_word(std::string& verdict, const std::string& word) {
    verdict += (verdict.empty() ? "" : ", ") + word;
  }
  void problem(std::string& verdict, const std::string& word, std::string sentence) {
    add_word(verdict, word);
    result_.problems.push_back(std::move(sentence));
  }

  const std::vector<HostFacts>& hosts_;
  const std::vector<LinkFacts>& links_;
  Preflight result_;
};

}  // namespace

Preflight judge_preflight(const std::vector<HostFacts>& hosts, const std::vector<LinkFacts>& links) {
  const double bandwidth = usual(hosts.size(), links, [](const LinkFacts& link) { return link.bandwidth; });
  const double speed =
      usual(hosts.size(), links, [](const LinkFacts& link) { return link.latency > 0 ? 1 / link.latency : 0; });
  Judge judge(hosts, links);
  judge.version_and_clock();
  judge.trouble(
      {.word = "BLOCKED",
       .only_incoming = true,
       .bad = [](const LinkFacts& link) { return !link.fault.empty(); },
       .what = [](const LinkFacts& link) { return "no connection, " + link.fault; },
       .remedy =
           "Is there a firewall? Ranks connect to each other on any port above 1024: open these between the hosts"});
  judge.trouble({.word = "SLOW",
                 .bad = [=](const LinkFacts& link) { return link.fault.empty() && link.bandwidth * kSlow < bandwidth; },
                 .what =
                     [=](const LinkFacts& link) {
                       return fmt::format("only {:.3g} Gbit/s, where {:.3g} are usual among these hosts",
                                          link.bandwidth / kGbit, bandwidth / kGbit);
                     },
                 .remedy = "Check the cable, speed and duplex (`ethtool`), and who else uses this network now"});
  judge.trouble({.word = "FAR",
                 .bad =
                     [=](const LinkFacts& link) {
                       return link.fault.empty() && link.latency > kHarmlessLatency && link.latency * speed > kFar;
                     },
                 .what =
                     [=](const LinkFacts& link) {
                       return fmt::format("a round trip takes {:.0f} us, where {:.0f} are usual among these hosts",
                                          link.latency / kMicrosecond, 1 / speed / kMicrosecond);
                     },
                 .remedy = "Is it elsewhere, behind a VPN or a slow interface? `traceroute` shows the way; --address "
                           "chooses another network"});
  return judge.finish();
}

}  // namespace trireme::cluster
