// `trireme tune`: which allreduce between these machines is faster at which size.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/cluster/environment/tuning.h>

#include "bench.h"
#include "commands.h"
#include "hosts.h"

namespace trireme::tools {
namespace {

constexpr size_t kAll = std::numeric_limits<size_t>::max();

struct Settings {
  std::string self, worker, engine = "auto", cache;
  HostsFlags hosts;
  int rounds = 3;
  std::vector<size_t> sizes;
};

/// Microseconds by size, of each round.
using Samples = std::map<size_t, std::vector<double>>;

std::vector<size_t> default_sizes() {
  std::vector<size_t> sizes;
  for (size_t bytes = 4 << 10; bytes <= 16 << 20; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

std::string bytes_text(size_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{:g} MiB", static_cast<double>(bytes) / (1 << 20));
  return bytes >= 1 << 10 ? fmt::format("{:g} KiB", static_cast<double>(bytes) / (1 << 10))
                          : fmt::format("{} B", bytes);
}

/// One launch, in which all sizes go one way. Returns the number of machines.
int measure(const Settings& s, const char* way, size_t direct_bytes, Samples& samples) {
  const bool insisted = !s.hosts.tls.empty() && s.engine != "stream";
  std::vector<std::string> command = {s.worker,
                                      "tune",
                                      "--out={out}",
                                      fmt::format("--engine={}{}", s.engine, insisted ? ":insecure" : ""),
                                      fmt::format("--sizes={}", fmt::join(s.sizes, ",")),
                                      fmt::format("--direct-bytes={}", direct_bytes)};
  int machines = 0;
  for (const std::string& line : run_on_hosts(way, s.hosts.options(s.self), command)) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains("machines")) machines = row["machines"];
    if (row.contains("bytes")) samples[row["bytes"]].push_back(row["us"]);
  }
  if (machines == 0)
    fail<IoError>(
        "nothing was measured. If there is no error above: rank 0 writes the times, so this host must be the first of "
        "--hosts");
  if (machines == 1)
    fail<InvalidArgument>("these hosts are one machine, whose ranks share memory: there is nothing to tune");
  return machines;
}

cluster::Timings medians(const Samples& samples) {
  cluster::Timings timings;
  for (const auto& [bytes, us] : samples) timings[bytes] = median(us) * 1e-6;
  return timings;
}

void print_table(const cluster::Tuning& tuning) {
  fmt::print("{} between {} machines\n  {:>8} {:>12} {:>12}\n", tuning.engine, tuning.machines, "bytes", "direct",
             "ring");
  for (const auto& [bytes, direct] : tuning.direct)
    fmt::print("  {:>8} {:>9.0f} us {:>9.0f} us  {}\n", bytes_text(bytes), direct * 1e6, tuning.ring.at(bytes) * 1e6,
               bytes <= tuning.direct_bytes ? "direct" : "ring");
  fmt::print("{}\n", tuning.direct_bytes == kAll ? "direct for all sizes: a ring is never clearly faster"
                     : tuning.direct_bytes == 0
                         ? "a ring for all sizes: it is always faster"
                         : fmt::format("direct up to {}, a ring above", bytes_text(tuning.direct_bytes)));
}

int tune(Settings& s) {
  if (!s.hosts.given())
    fail<InvalidArgument>(
        "ranks of one machine share memory: there is nothing to tune. Give --hosts, this one first: --hosts a:2,b:2");
  if (s.cache.empty())
    fail<InvalidArgument>("no place to keep the result: neither XDG_CACHE_HOME nor HOME is set. Give --cache FILE");
  s.engine = cluster::engine_for(s.engine, !s.hosts.tls.empty(), false);
  for (size_t& bytes : s.sizes) bytes = std::max(sizeof(float), bytes / sizeof(float) * sizeof(float));
  Samples direct, ring;
  cluster::Tuning tuning{.engine = s.engine};
  for (int round = 1; round <= s.rounds; round++) {  // alternately, as the network's speed drifts
    fmt::print(stderr, "round {} of {}\n", round, s.rounds);
    tuning.machines = measure(s, "direct", kAll, direct);
    measure(s, "ring", 0, ring);
  }
  tuning.direct = medians(direct);
  tuning.ring = medians(ring);
  tuning.direct_bytes = cluster::best_direct_bytes(tuning.direct, tuning.ring);
  cluster::keep_tuning(s.cache, tuning);
  print_table(tuning);
  fmt::print("kept in {}: jobs between {} machines whose rank 0 is on this host use it from now on\n", s.cache,
             tuning.machines);
  return 0;
}

}  // namespace

Run add_tune(CLI::App& app, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->self = invocation.program;
  s->worker = invocation.worker;
  s->cache = cluster::cache_file(cluster::kTuningFile);
  s->sizes = default_sizes();
  CLI::App* command =
      app.add_subcommand("tune", "Measure how gradients travel fastest between hosts, and keep it for later jobs");
  add_hosts_flags(*command, s->hosts);
  command->add_option("--engine", s->engine, "Who carries data between machines, as in `trireme train`")
      ->capture_default_str();
  command->add_option("--rounds", s->rounds, "Alternate rounds; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--cache", s->cache, "File to keep it in; jobs look in the default one")->capture_default_str();
  command->add_option("--sizes", s->sizes)->delimiter(',')->group("");
  command->footer(
      "Small data is summed fastest when every machine sends it to all others at once (direct), large data in a ring, "
      "which sends less in more\n"
      "trips. Where the one ends and the other begins depends on the network: this tries both, from 4 KiB to 16 MiB. "
      "With three machines or more,\n"
      "a ring adds in another order, so the last bits of a training may change.\n"
      "Use the ranks per host that you train with, when nothing else uses the network, and again when it has changed.\n"
      "Example:\n"
      "  trireme tune --hosts a:2,b:2,c:2");
  return [s] { return tune(*s); };
}

}  // namespace trireme::tools
