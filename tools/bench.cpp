// `trireme bench`: ours and the peers alternately, several rounds, medians.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/cluster/launching/launcher.h>

#include "bench.h"
#include "commands.h"
#include "hosts.h"
#include "peers.h"
#include "scratch.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

struct Settings {
  std::string self, worker;  // this program, and the one with libtorch
  int rounds = 5;
  std::vector<int> ranks = {2, 4, 8};
  std::vector<std::string> cases;
  HostsFlags hosts;
  std::string engine;   // "": as the environment says
  double gbit = 0;      // speed of the hosts' links, for the limit
  bool guards = false;  // measure what looking for NaN and clipping cost
  std::vector<size_t> sizes = {4096, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
};

/// Adds the "us" of each {"bytes": B, "us": T} line to the measurement of that size.
void collect(std::map<size_t, Measurement>& all, const std::string& who, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const auto row = nlohmann::json::parse(line);
    if (const auto found = all.find(row["bytes"]); found != all.end()) found->second.samples[who].push_back(row["us"]);
  }
}

/// On this machine with two ranks, or on the hosts that were given.
std::vector<std::string> run(const Settings& s, const std::string& what, const std::vector<std::string>& command) {
  if (!s.hosts.given()) return run_and_read(what, 2, command);
  cluster::HostsOptions options = s.hosts.options(s.self);
  if (!s.engine.empty()) options.environment.emplace_back("TRIREME_ENGINE", s.engine);
  return run_on_hosts(what, options, command);
}

/// What nothing can beat: each machine's links carry what it lacks, once; twice for an allreduce, as a ring does it.
double wire_limit(const Settings& s, const std::string& collective, double bytes) {
  const double machines = static_cast<double>(s.hosts.options(s.self).hosts.size());
  const double once = (machines - 1) / machines * bytes * 8 / (s.gbit * 1e9);
  return collective == "allreduce" ? 2 * once : once;
}

/// One collective by size; `mpi` and `limit` are peers besides Gloo.
struct Contest {
  std::string collective;
  int ranks;
  bool private_memory;
  std::string mpi, limit;  // programs; "": none
};

void bench_by_size(const Settings& s, const Contest& contest) {
  const std::string& collective = contest.collective;
  std::string list;
  std::map<size_t, Measurement> all;
  for (size_t bytes : s.sizes) {
    list += (list.empty() ? "" : ",") + std::to_string(bytes);
    all[bytes] = {contest.private_memory ? collective + "-private" : collective,
                  fmt::format("{}x{}B", contest.ranks, bytes),
                  "us",
                  {}};
  }
  const std::string n = std::to_string(contest.ranks);
  std::vector<std::string> ours = {s.worker, "bench", "--out={out}", "--sizes=" + list, "--collective=" + collective};
  if (contest.private_memory) ours.push_back("--private");
  const std::vector<std::string> gloo = {kPython, peer_program("gloo_collectives.py"), "{out}", list, collective};
  const auto run_ranks = [&](const std::string& what, const std::vector<std::string>& command) {
    return s.hosts.given() ? run(s, what, command) : run_and_read(what, contest.ranks, command);
  };
  std::vector<std::function<void()>> who = {[&] { collect(all, "ours", run_ranks("ours", ours)); }};
  if (s.hosts.given() || has_python_torch()) who.push_back([&] { collect(all, "gloo", run_ranks("Gloo", gloo)); });
  if (!contest.mpi.empty())
    who.push_back([&] {
      collect(all, "openmpi",
              run_and_read("Open MPI", 1,
                           {"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", n, contest.mpi, "{out}", list}));
    });
  if (!contest.limit.empty())
    who.push_back([&] { collect(all, "limit", run_and_read("limit", 1, {contest.limit, "{out}", list})); });
  alternate(s.rounds, who);
  for (auto& [bytes, measurement] : all) {
    if (s.gbit > 0)
      measurement.samples["limit"].assign(measurement.samples["ours"].size(),
                                          wire_limit(s, collective, static_cast<double>(bytes)) * 1e6);
    print_measurement(measurement);
  }
}

int bench_collective(const Settings& s, const std::string& collective) {
  if (s.hosts.given()) {
    int ranks = 0;
    for (const auto& [name, slots] : s.hosts.options(s.self).hosts) ranks += slots;
    return bench_by_size(s, {collective, ranks, false, "", ""}), 0;
  }
  if (!has_python_torch()) leave_out("gloo", "apt-get install python3-torch");
  if (collective != "allreduce") {
    for (int ranks : s.ranks) bench_by_size(s, {collective, ranks, false, "", ""});
    return 0;
  }
  const std::string mpi = has_open_mpi() ? compile_peer("mpicc", "mpi_allreduce.c", {"-O2"}) : "";
  const std::string limit = compile_peer("g++", "limit_shm_allreduce.cpp", {"-O3", "-march=native", "-std=c++20"});
  if (mpi.empty()) leave_out("openmpi", "apt-get install openmpi-bin libopenmpi-dev");
  if (limit.empty()) leave_out("limit", "apt-get install g++");
  for (int ranks : s.ranks) {
    bench_by_size(s, {collective, ranks, false, mpi, ranks == 2 ? limit : ""});
    if (ranks == 2) bench_by_size(s, {collective, ranks, true, mpi, ""});
  }
  return 0;
}

/// One step's time at the mean of the processes' speeds: two unrelated ones do not wait for the slower.
double joint_time(const std::vector<std::string>& lines) {
  double speed = 0;
  for (const std::string& line : lines) speed += 1 / nlohmann::json::parse(line)["ms_per_step"].get<double>();
  return lines.empty() ? -1 : static_cast<double>(lines.size()) / speed;
}

/// What nothing can beat: computing alone, or an ideal ring over the links, whichever takes longer.
void add_wire_limit(const Settings& s, Measurement& m, double bytes) {
  const double wire = wire_limit(s, "allreduce", bytes) * 1e3;
  for (double compute : m.samples["unrelated"]) m.samples["limit"].push_back(std::max(compute, wire));
}

/// Milliseconds per step, and against two unrelated processes side by side (the efficiency).
void bench_step(const Settings& s, const std::string& name) {
  Measurement m{"train", s.hosts.given() ? fmt::format("{}@{}", name, s.hosts.hosts) : name, "ms", {}};
  double bytes = 0;  // of the gradients
  const std::vector<std::string> worker = {s.worker, "bench", "--out={out}", "--case=" + name};
  std::vector<std::string> alone = worker;
  alone.push_back("--alone");
  std::vector<std::function<void()>> who = {
      [&] {
        const auto lines = run(s, "ours", worker);
        bytes = number_in(lines, "bytes");
        add_sample(m, "ours", number_in(lines, "ms_per_step"));
      },
      [&] { add_sample(m, "unrelated", joint_time(run(s, "unrelated processes", alone))); }};
  if (has_python_torch())
    who.push_back([&] {
      add_sample(m, "ddp",
                 number_in(run(s, "DDP", {kPython, peer_program("ddp_train.py"), "{out}", name}), "ms_per_step"));
    });
  alternate(s.rounds, who);
  if (s.gbit > 0) add_wire_limit(s, m, bytes);
  print_measurement(m);
}

/// The same step without looking for NaN, and with every gradient clipped: what these cost.
void bench_guards(const Settings& s, const std::string& name) {
  constexpr int kTurns = 20;  // of each round
  Measurement m{"train", name + "-guards", "ms", {}};
  const std::vector<std::string> worker = {s.worker, "bench", "--out={out}", "--case=" + name,
                                           fmt::format("--guards={}", kTurns * s.rounds)};
  for (const std::string& line : run(s, "guards", worker)) {
    add_sample(m, "ours", number_in({line}, "watch"));
    add_sample(m, "unwatched", number_in({line}, "none"));
    add_sample(m, "clipped", number_in({line}, "clip"));
  }
  print_measurement(m);
}

/// Seconds per epoch of LeNet on Fashion-MNIST.
void bench_fashion(const Settings& s) {
  Measurement m{"train", "fashion-lenet-32", "s", {}};
  const auto ours = [&] {
    const auto lines = run_and_read("ours", 2,
                                    {s.worker, "train", "lenet", "--data=fashion-mnist", "--batch=64", "--epochs=2",
                                     "--lr=0.05", "--progress=none", "--report={out}"});
    std::string text;
    for (const std::string& line : lines) text += line;
    if (!text.empty()) add_sample(m, "ours", nlohmann::json::parse(text)["epochs"].back()["seconds"]);
  };
  std::vector<std::function<void()>> who = {ours};
  if (has_python_torch())
    who.push_back([&] {
      add_sample(
          m, "ddp",
          number_in(run_and_read("DDP", 2, {kPython, peer_program("ddp_fashion.py"), "{out}", "2"}), "epoch_seconds"));
    });
  alternate(s.rounds, who);
  print_measurement(m);
}

int bench_train(const Settings& s) {
  if (!s.guards && !has_python_torch()) leave_out("ddp", "apt-get install python3-torch");
  std::vector<std::string> known(kTrainCases.begin(), kTrainCases.end());
  if (!s.guards) known.push_back("fashion-lenet-32");
  for (const std::string& name : s.cases)
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail<InvalidArgument>("unknown case '{}'{}", name, did_you_mean(name, known));
  for (const std::string& name : s.cases.empty() ? known : s.cases)
    name.starts_with("fashion") ? bench_fashion(s) : s.guards ? bench_guards(s, name) : bench_step(s, name);
  return 0;
}

}  // namespace

const fs::path& scratch() {
  static const ScratchFolder folder("trireme-bench");
  return folder.path();
}

void alternate(int rounds, const std::vector<std::function<void()>>& who) {
  for (int round = 0; round < rounds; round++)
    for (size_t i = 0; i < who.size(); i++) who[(i + static_cast<size_t>(round)) % who.size()]();
}

void add_sample(Measurement& m, const std::string& who, double value) {
  if (value > 0) m.samples[who].push_back(value);
}

double number_in(const std::vector<std::string>& lines, const char* key) {
  return lines.empty() ? -1 : nlohmann::json::parse(lines.back()).value(key, -1.0);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void print_measurement(const Measurement& m) {
  const auto ours = m.samples.find("ours");
  if (ours == m.samples.end()) return fmt::print(stderr, "bench {} {}: ours did not run\n", m.bench, m.name);
  nlohmann::ordered_json line = {
      {"bench", m.bench}, {"case", m.name}, {"metric", m.metric}, {"ours", median(ours->second)}};
  line["peers"] = nlohmann::json::object();
  line["ratio"] = nlohmann::json::object();
  const auto rounded = [](double value) { return std::stod(fmt::format("{:.4g}", value)); };
  line["ours"] = rounded(median(ours->second));
  for (const auto& [who, values] : m.samples) {
    std::vector<double> short_values;
    for (double value : values) short_values.push_back(rounded(value));
    line["samples"][who] = short_values;
    if (who == "ours") continue;
    line["peers"][who] = rounded(median(values));
    // Round by round, because the machine's speed drifts: neighbours in time are compared with each other.
    std::vector<double> ratios;
    for (size_t i = 0; i < std::min(values.size(), ours->second.size()); i++)
      ratios.push_back(m.more_is_better ? ours->second[i] / values[i] : values[i] / ours->second[i]);
    line["ratio"][who] = rounded(median(ratios));
  }
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

namespace {

/// Runs the command with the name of a file in the place of {out}; the lines that it wrote there.
std::vector<std::string> read_results(
    const std::string& what, std::vector<std::string> command,
    const std::function<cluster::LaunchResult(const std::vector<std::string>&)>& start) {
  const fs::path out = scratch() / "result";
  fs::remove(out);
  for (std::string& word : command)
    if (const size_t at = word.find("{out}"); at != std::string::npos) word.replace(at, 5, out.string());
  const cluster::LaunchResult result = start(command);
  if (result.interrupted) std::exit(result.exit_code);
  if (result.exit_code != 0) fmt::print(stderr, "bench: {} failed: {}\n", what, result.reason);
  std::vector<std::string> lines;
  std::ifstream file(out);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return result.exit_code == 0 ? lines : std::vector<std::string>{};
}

}  // namespace

std::vector<std::string> run_and_read(const std::string& what, int ranks, const std::vector<std::string>& command,
                                      const std::vector<std::string>& server_command) {
  return read_results(what, command, [&](const auto& words) {
    cluster::LaunchOptions options{
        .command = words, .ranks = ranks, .threads = 1, .show = cluster::Show::first, .server_command = server_command};
    if (!server_command.empty()) options.servers = {0};
    return cluster::launch(options);
  });
}

std::vector<std::string> run_on_hosts(const std::string& what, cluster::HostsOptions hosts,
                                      const std::vector<std::string>& command) {
  return read_results(what, command, [&](const auto& words) {
    hosts.command = words;
    hosts.show = cluster::Show::first;
    hosts.environment = {{"OMP_NUM_THREADS", "1"}};
    return cluster::launch_on_hosts(hosts);
  });
}

std::string compile_peer(const std::string& compiler, const std::string& source,
                         const std::vector<std::string>& flags) {
  const fs::path binary = scratch() / fs::path(source).stem();
  std::vector<std::string> command = {compiler};
  command.insert(command.end(), flags.begin(), flags.end());
  for (const std::string& word : {peer_program(source), std::string("-o"), binary.string()}) command.push_back(word);
  return cluster::launch({.command = command, .ranks = 1, .show = cluster::Show::first}).exit_code == 0
             ? binary.string()
             : "";
}

void leave_out(const std::string& name, const std::string& remedy) {
  static std::set<std::string> said;
  if (said.insert(name).second)
    fmt::print(stderr, "bench: leaving out {}: not installed. Get it with: {}\n", name, remedy);
}

Run add_bench(CLI::App& app, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->self = invocation.program;
  s->worker = invocation.worker;
  CLI::App* bench = app.add_subcommand(
      "bench",
      "Measure ours and the peers alternately; one JSON object a line, a ratio above 1 means that ours is better");
  bench->require_subcommand(1);
  std::vector<CLI::App*> collectives, all;
  for (const char* name : kCollectives)
    collectives.push_back(bench->add_subcommand(name, std::string(name) == "allreduce"
                                                          ? "Time by size against Gloo, Open MPI and the memory's limit"
                                                          : "Time by size of the whole vector, against Gloo"));
  CLI::App* train = bench->add_subcommand(
      "train", "Time of a training step against PyTorch DDP, and against two unrelated processes (the efficiency)");
  all = collectives;
  all.push_back(train);
  for (CLI::App* sub : all) {
    sub->add_option("--rounds", s->rounds, "Alternate rounds; the median counts")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    add_hosts_flags(*sub, s->hosts);
    sub->add_option("--engine", s->engine, "Between machines, as in `trireme train`")
        ->check(CLI::IsMember(cluster::engine_words()))
        ->group("Several hosts");
    sub->add_option("--gbit", s->gbit,
                    "Speed of the hosts' links in Gbit/s: adds what an ideal ring takes as the peer \"limit\"")
        ->group("Several hosts");
  }
  for (CLI::App* sub : collectives) {
    sub->add_option("--sizes", s->sizes, "Bytes, separated by commas")->delimiter(',')->capture_default_str();
    sub->add_option("--ranks", s->ranks, "Numbers of ranks on this machine, separated by commas")
        ->delimiter(',')
        ->capture_default_str()
        ->check(CLI::Range(2, 256));
  }
  train->add_flag("--guards", s->guards, "Instead: against a step that does not look for NaN, and one that clips");
  train->add_option("--case", s->cases, "Cases, separated by commas; default: all")->delimiter(',');
  const Run ps = add_bench_ps(*bench, invocation), checkpoint = add_bench_checkpoint(*bench, invocation),
            model = add_bench_model(*bench, invocation), pipeline = add_bench_pipeline(*bench, invocation),
            elastic = add_bench_elastic(*bench, invocation), balance = add_bench_balance(*bench, invocation),
            compress = add_bench_compress(*bench, invocation);
  return [s, all, train, ps, checkpoint, model, pipeline, elastic, balance, compress, bench] {
    const auto chosen = std::find_if(all.begin(), all.end(), [](const CLI::App* sub) { return sub->parsed(); });
    if (bench->got_subcommand("checkpoint")) return checkpoint();
    if (bench->got_subcommand("model")) return model();
    if (bench->got_subcommand("pipeline")) return pipeline();
    if (bench->got_subcommand("elastic")) return elastic();
    if (bench->got_subcommand("balance")) return balance();
    if (bench->got_subcommand("compress")) return compress();
    if (chosen == all.end()) return ps();
    refuse_without_hosts(**chosen, s->hosts);
    if ((*chosen)->count("--gbit") > 0 && !s->hosts.given())
      fail<InvalidArgument>("--gbit has no effect without --hosts or --hostfile");
    for (size_t& bytes : s->sizes) bytes = std::max<size_t>(4, bytes / 4 * 4);
    return *chosen == train ? bench_train(*s) : bench_collective(*s, (*chosen)->get_name());
  };
}

}  // namespace trireme::tools
