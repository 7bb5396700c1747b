// label: unit
// What measurements say about hosts: pure functions, so the hosts are made up.
#include <gtest/gtest.h>

#include <functional>

#include <trireme/cluster/launching/preflight.h>

namespace trireme::cluster::tests {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Hosts "a", "b", … with good links of 10 Gbit/s and 50 us between all of them.
struct Network {
  std::vector<HostFacts> hosts;
  std::vector<LinkFacts> links;

  explicit Network(size_t n) {
    for (size_t i = 0; i < n; i++) hosts.push_back({std::string(1, static_cast<char>('a' + i)), "", "1.0", 0.001});
    for (size_t from = 0; from < n; from++)
      for (size_t to = 0; to < n; to++)
        if (from != to) links.push_back({from, to, "", 50e-6, 10e9});
  }
  LinkFacts& link(size_t from, size_t to) {
    for (LinkFacts& link : links)
      if (link.from == from && link.to == to) return link;
    throw std::out_of_range("no such link");
  }
  void each_of(size_t host, const std::function<void(LinkFacts&)>& change) {
    for (LinkFacts& link : links)
      if (link.from == host || link.to == host) change(link);
  }
  Preflight judge() const { return judge_preflight(hosts, links); }
  std::string verdict(size_t from, size_t to) {
    return judge().links[static_cast<size_t>(&link(from, to) - links.data())];
  }
};

TEST(Preflight, GoodHosts) {
  for (size_t n : {1, 2, 3, 8}) {
    Network network(n);
    const Preflight found = network.judge();
    EXPECT_TRUE(found.problems.empty());
    EXPECT_EQ(found.hosts, std::vector<std::string>(n, "ok"));
    EXPECT_EQ(found.links, std::vector<std::string>(n * (n - 1), "ok"));
  }
}

TEST(Preflight, NoiseIsNoProblem) {
  Network network(3);
  network.link(0, 1).bandwidth = 4e9;
  network.link(2, 1).latency = 1.9e-3;  // 38 times the usual, but harmless
  EXPECT_TRUE(network.judge().problems.empty());
}

TEST(Preflight, OtherVersion) {
  Network network(3);
  network.hosts[1].version = "0.9";
  const Preflight found = network.judge();
  EXPECT_EQ(found.hosts, (std::vector<std::string>{"ok", "VERSION", "ok"}));
  ASSERT_EQ(found.problems.size(), 1);
  for (const char* part : {"host b", "0.9", "host a", "1.0", "Install"})
    EXPECT_TRUE(has(found.problems[0], part)) << found.problems[0];
}

TEST(Preflight, Clocks) {
  Network network(4);
  network.hosts[1].clock = 7.5;
  network.hosts[2].clock = -3600;
  network.hosts[3].clock.reset();
  const Preflight found = network.judge();
  EXPECT_EQ(found.hosts, (std::vector<std::string>{"ok", "CLOCK", "CLOCK", "ok"}));
  ASSERT_EQ(found.problems.size(), 2);
  EXPECT_TRUE(has(found.problems[0], "host b is 7.5 s ahead of that of host a")) << found.problems[0];
  EXPECT_TRUE(has(found.problems[1], "host c is 3600.0 s behind")) << found.problems[1];
}

TEST(Preflight, OneSlowDirection) {
  Network network(2);
  network.link(1, 0).bandwidth = 1e9;
  EXPECT_EQ(network.verdict(0, 1), "ok");
  EXPECT_EQ(network.verdict(1, 0), "SLOW");
  const Preflight found = network.judge();
  ASSERT_EQ(found.problems.size(), 1);
  for (const char* part : {"from host b to host a", "1 Gbit/s", "10 are usual", "duplex"})
    EXPECT_TRUE(has(found.problems[0], part)) << found.problems[0];
}

TEST(Preflight, AHostWithABadCableIsNamedOnce) {
  for (size_t n : {3, 5}) {
    Network network(n);
    network.each_of(2, [](LinkFacts& link) { link.bandwidth = 0.05e9; });
    EXPECT_EQ(network.verdict(2, 0), "SLOW");
    EXPECT_EQ(network.verdict(1, 2), "SLOW");
    EXPECT_EQ(network.verdict(0, 1), "ok");
    const Preflight found = network.judge();
    ASSERT_EQ(found.problems.size(), 1);
    EXPECT_TRUE(has(found.problems[0], "host c, to and from all others: only 0.05 Gbit/s")) << found.problems[0];
  }
}

TEST(Preflight, FarAway) {
  Network network(3);
  network.each_of(0, [](LinkFacts& link) { link.latency = 30e-3; });
  EXPECT_EQ(network.verdict(0, 1), "FAR");
  EXPECT_EQ(network.verdict(2, 1), "ok");
  const Preflight found = network.judge();
  ASSERT_EQ(found.problems.size(), 1);
  for (const char* part : {"host a", "30000 us", "50 are usual"})
    EXPECT_TRUE(has(found.problems[0], part)) << found.problems[0];
}

TEST(Preflight, BlockedPorts) {
  Network network(3);
  for (size_t from : {0, 1}) network.link(from, 2) = {from, 2, "port 4242 of 10.0.0.3: Connection timed out"};
  EXPECT_EQ(network.verdict(0, 2), "BLOCKED");
  EXPECT_EQ(network.verdict(2, 0), "ok");
  const Preflight found = network.judge();
  ASSERT_EQ(found.problems.size(), 1);
  for (const char* part : {"host c, from all others", "port 4242", "timed out", "firewall"})
    EXPECT_TRUE(has(found.problems[0], part)) << found.problems[0];
}

TEST(Preflight, NoConnectionAtAll) {
  Network network(2);
  network.link(0, 1) = {0, 1, "x"};
  network.link(1, 0) = {1, 0, "y"};
  const Preflight found = network.judge();
  EXPECT_EQ(found.links, (std::vector<std::string>{"BLOCKED", "BLOCKED"}));
  EXPECT_EQ(found.problems.size(), 2);
}

TEST(Preflight, SeveralTroublesOfOneLink) {
  Network network(2);
  network.link(0, 1) = {0, 1, "", 10e-3, 1e9};
  EXPECT_EQ(network.verdict(0, 1), "SLOW, FAR");
  EXPECT_EQ(network.judge().problems.size(), 2);
}

}  // namespace
}  // namespace trireme::cluster::tests
