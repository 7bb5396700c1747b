// `trireme bench ps`: parameter servers against what the memory and the wire allow.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/cluster/coordination/tls.h>

#include "bench.h"
#include "bench_ps.h"
#include "commands.h"
#include "peers.h"

namespace trireme::tools {
namespace {

struct Settings {
  std::string self, worker;  // this program, and the one with libtorch
  int rounds = 5;
  std::vector<std::string> cases;
  std::vector<size_t> sizes = {1 << 20, 4 << 20, 16 << 20, 64 << 20};
};

using Measurements = std::map<size_t, Measurement>;  // by bytes

std::string list_of(const std::vector<size_t>& sizes) { return fmt::format("{}", fmt::join(sizes, ",")); }

std::vector<std::string> measure(const Settings& s, const std::string& what, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {s.self, "bench", "ps-measure", "--out={out}", "--what=" + what};
  command.insert(command.end(), flags.begin(), flags.end());
  return run_and_read("ps " + what, 1, command);
}

/// Each line's "us" is ours, every other field but "bytes" is a peer. False when nothing came.
bool collect(Measurements& all, const std::string& who, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const auto row = nlohmann::json::parse(line);
    const auto found = all.find(row["bytes"]);
    if (found == all.end()) continue;
    for (const auto& [key, value] : row.items())
      if (key != "bytes") add_sample(found->second, key == "us" ? who : key, value);
  }
  return !lines.empty();
}

Measurements empty_measurements(const std::vector<size_t>& sizes, const std::string& name) {
  Measurements all;
  for (size_t bytes : sizes) all[bytes] = {"ps", fmt::format("{}-{}B", name, bytes), "us", {}};
  return all;
}

void print(const Measurements& all) {
  for (const auto& [bytes, measurement] : all) print_measurement(measurement);
}

/// A range by shared memory, against a memcpy of it on one core.
void bench_range(const Settings& s, const std::string& what) {
  Measurements all = empty_measurements(s.sizes, "shm-" + what);
  for (int round = 0; round < s.rounds; round++)
    collect(all, "ours", measure(s, what, {"--sizes=" + list_of(s.sizes)}));
  print(all);
}

/// The median, and the mean, which shows how often somebody else had the core.
void bench_round_trip(const Settings& s, const std::string& name, int busy) {
  Measurement middle{"ps", name + "-4B", "us", {}}, mean{"ps", name + "-4B-mean", "us", {}};
  for (int round = 0; round < s.rounds; round++) {
    const auto lines = measure(s, "round-trip", {fmt::format("--busy={}", busy)});
    add_sample(middle, "ours", number_in(lines, "us"));
    add_sample(mean, "ours", number_in(lines, "mean"));
  }
  print_measurement(middle);
  print_measurement(mean);
}

void bench_sparse(const Settings& s) {
  std::map<std::string, Measurement> all;
  for (const char* verb : {"push", "pull"})
    all[verb] = {"ps", fmt::format("shm-sparse-{}-100000x16", verb), "keys/s", {}, true};
  for (int round = 0; round < s.rounds; round++)
    for (const std::string& line : measure(s, "sparse", {})) {
      const auto row = nlohmann::json::parse(line);
      for (auto& [verb, measurement] : all) {
        add_sample(measurement, "ours", row[verb]);
        add_sample(measurement, "table", row["table " + verb]);
      }
    }
  for (const auto& [verb, measurement] : all) print_measurement(measurement);
}

/// gRPC over loopback, against a bare TCP connection.
void bench_network(const Settings& s, bool encrypted) {
  std::vector<size_t> sizes;
  std::copy_if(s.sizes.begin(), s.sizes.end(), std::back_inserter(sizes),
               [](size_t bytes) { return bytes <= 16 << 20; });
  if (sizes.empty()) return;
  const std::string tcp = compile_peer("g++", "tcp_transfer.cpp", {"-O2", "-std=c++20"}), list = list_of(sizes);
  if (tcp.empty()) leave_out("tcp", "apt-get install g++");
  std::vector<std::string> flags = {"--network", "--sizes=" + list};
  if (encrypted) {
    const auto folder = scratch() / "certificates";
    cluster::make_certificates(folder.string(), {.days = 1, .force = true});
    flags.push_back("--tls=" + folder.string());
  }
  for (const char* what : {"push", "pull"})
    for (int channels : {1, 2, 4}) {
      Measurements all =
          empty_measurements(sizes, fmt::format("{}-{}-{}ch", encrypted ? "tls" : "grpc", what, channels));
      std::vector<std::string> with_channels = flags;
      with_channels.push_back(fmt::format("--channels={}", channels));
      bool works = true;
      std::vector<std::function<void()>> who = {
          [&] { works = works && collect(all, "ours", measure(s, what, with_channels)); }};
      if (!tcp.empty())
        who.push_back([&] { works&& collect(all, "tcp", run_and_read("TCP", 1, {tcp, "{out}", list})); });
      alternate(s.rounds, who);
      if (!works) return fmt::print(stderr, "bench: leaving out {}: see above\n", encrypted ? "TLS" : "gRPC");
      print(all);
    }
}

/// Asynchronous training of LeNet, two workers and one server, against PyTorch's RPC.
void bench_train(const Settings& s) {
  Measurement m{"ps", "async-lenet-32", "samples/s", {}, true};
  const std::vector<std::string> train = {
      s.worker,     "train",      "lenet",     "--data=synthetic:12800", "--sync=async",    "--servers=1",
      "--batch=64", "--epochs=3", "--lr=0.01", "--optimizer=momentum",   "--progress=none", "--report={out}"};
  std::vector<std::function<void()>> who = {[&] {
    std::string text;
    for (const std::string& line : run_and_read("ours", 2, train, {s.self, "serve"})) text += line;
    if (!text.empty()) add_sample(m, "ours", nlohmann::json::parse(text)["epochs"].back()["samples_per_second"]);
  }};
  if (!has_python_torch()) leave_out("rpc", "apt-get install python3-torch");
  if (has_python_torch())
    who.push_back([&] {
      const std::vector<std::string> peer = {kPython, peer_program("rpc_server.py"), "{out}", "lenet-32"};
      add_sample(m, "rpc", number_in(run_and_read("PyTorch RPC", 3, peer), "samples_per_second"));
    });
  alternate(s.rounds, who);
  print_measurement(m);
}

const std::vector<std::pair<std::string, std::function<void(const Settings&)>>>& cases() {
  static const std::vector<std::pair<std::string, std::function<void(const Settings&)>>> all = {
      {"push", [](const Settings& s) { bench_range(s, "push"); }},
      {"pull", [](const Settings& s) { bench_range(s, "pull"); }},
      {"pull-in-place", [](const Settings& s) { bench_range(s, "pull-in-place"); }},
      {"round-trip", [](const Settings& s) { bench_round_trip(s, "shm-round-trip", 0); }},
      {"round-trip-busy", [](const Settings& s) { bench_round_trip(s, "shm-round-trip-busy", 2); }},
      {"sparse", [](const Settings& s) { bench_sparse(s); }},
      {"grpc", [](const Settings& s) { bench_network(s, false); }},
      {"tls", [](const Settings& s) { bench_network(s, true); }},
      {"train", [](const Settings& s) { bench_train(s); }},
  };
  return all;
}

int run(const Settings& s) {
  std::vector<std::string> known;
  for (const auto& [name, body] : cases()) known.push_back(name);
  for (const std::string& name : s.cases)
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail<InvalidArgument>("unknown case '{}'{}", name, did_you_mean(name, known));
  for (const auto& [name, body] : cases())
    if (s.cases.empty() || std::find(s.cases.begin(), s.cases.end(), name) != s.cases.end()) body(s);
  return 0;
}

}  // namespace

Run add_bench_ps(CLI::App& bench, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->self = invocation.program;
  s->worker = invocation.worker;
  CLI::App* ps = bench.add_subcommand("ps",
                                      "Parameter servers: push, pull and round trips against memcpy and TCP, keys per "
                                      "second of sparse tables, training against PyTorch RPC");
  ps->add_option("--rounds", s->rounds, "Rounds; the median counts")->capture_default_str()->check(CLI::PositiveNumber);
  ps->add_option("--case", s->cases,
                 "push, pull, pull-in-place, round-trip, round-trip-busy, sparse, grpc, tls, train, separated by "
                 "commas; default: all")
      ->delimiter(',');
  ps->add_option("--sizes", s->sizes, "Bytes, separated by commas")->delimiter(',')->capture_default_str();
  auto m = std::make_shared<PsMeasure>();
  CLI::App* process = bench.add_subcommand("ps-measure", "What `bench ps` starts")->group("");
  process->add_option("--out", m->out)->required();
  process->add_option("--what", m->what)->check(CLI::IsMember(kPsMeasures));
  process->add_option("--sizes", m->sizes)->delimiter(',');
  process->add_flag("--network", m->network);
  process->add_option("--channels", m->channels);
  process->add_option("--tls", m->tls);
  process->add_option("--busy", m->busy);
  return [s, m, ps] {
    if (!ps->parsed()) return measure_ps(*m);
    for (size_t& bytes : s->sizes) bytes = std::max<size_t>(4, bytes / 4 * 4);
    return run(*s);
  };
}

}  // namespace trireme::tools
