// `trireme bench checkpoint`: what checkpoints cost training, against torch.save in DDP and against the bare disk.
#include <fmt/format.h>
#include <linux/magic.h>
#include <nlohmann/json.hpp>
#include <sys/vfs.h>

#include <algorithm>
#include <memory>

#include "bench.h"
#include "commands.h"
#include "peers.h"
#include "scratch.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using Rows = std::vector<nlohmann::json>;  // of one run: a row for each turn

struct Settings {
  std::string worker;  // the program with libtorch
  std::string dir;     // "": the current folder
  int rounds = 4;
  CheckpointMeasure model;
};

constexpr int kRanks = 2;
constexpr double kLeastStall = 1e-3;  // s: differences between steps below that are noise, and may be negative

/// A place for checkpoints of one run, gone when it is over.
fs::path fresh(const fs::path& folder) {
  fs::remove_all(folder);
  fs::create_directory(folder);
  return folder;
}

Rows parse(const std::vector<std::string>& lines) {
  Rows rows;
  for (const std::string& line : lines) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

Rows measure_ours(const Settings& s, const fs::path& folder) {
  const CheckpointMeasure& model = s.model;
  return parse(run_and_read("ours", kRanks,
                            {s.worker, "bench", "--out={out}", "--checkpoints=" + fresh(folder).string(),
                             fmt::format("--turns={}", model.turns), fmt::format("--width={}", model.width),
                             fmt::format("--batch={}", model.batch)}));
}

Rows measure_ddp(const Settings& s, const fs::path& folder) {
  const CheckpointMeasure& model = s.model;
  return parse(run_and_read("DDP", kRanks,
                            {kPython, peer_program("ddp_checkpoint.py"), "{out}", fresh(folder).string(),
                             std::to_string(model.width), std::to_string(model.batch), std::to_string(model.turns)}));
}

template <class Value>
double median_of(const Rows& rows, const Value& value) {
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(value(row));
  return median(values);
}

double number(const nlohmann::json& row, const char* key) { return row[key].get<double>(); }
double slowdown(const nlohmann::json& row) { return number(row, "longest_ms") / number(row, "median_ms"); }
double gigabytes(const nlohmann::json& row) { return number(row, "mb") / 1e3; }
double cost_percent(double seconds) { return seconds / 60 * 100; }

/// Seconds that the longest step took longer than the median one.
double stall(const nlohmann::json& row) {
  return std::max(kLeastStall, (number(row, "longest_ms") - number(row, "median_ms")) / 1e3);
}
/// Seconds that all steps beside a checkpoint together took longer.
double lost(const nlohmann::json& row) { return std::max(kLeastStall, number(row, "extra_ms") / 1e3); }

/// One line of output for each.
struct Results {
  Measurement longest{"checkpoint", "longest-step", "ms", {}};
  Measurement slowdown{"checkpoint", "stall", "longest / median step", {}};
  Measurement first{"checkpoint", "stall-first", "longest / median step", {}};
  Measurement quiet{"checkpoint", "stall-quiet", "longest / median step", {}};
  Measurement which{"checkpoint", "longest-is", "number of the step, from save() on", {}};
  Measurement save{"checkpoint", "save", "ms", {}};
  Measurement cost{"checkpoint", "cost", "% of throughput at one a minute", {}};
  Measurement write{"checkpoint", "write", "MB/s", {}, true};
  Measurement load{"checkpoint", "load", "MB/s", {}, true};
  Measurement beside{"checkpoint", "written-beside-steps", "s", {}};
  Measurement cached{"checkpoint", "load-from-cache", "% of the files that stayed in memory", {}};
  Measurement pause{"checkpoint", "peer-stall", "s", {}};
  Measurement pause_per_gb{"checkpoint", "peer-stall-per-gb", "s/GB", {}};
  Measurement lost{"checkpoint", "peer-lost", "s", {}};
  Measurement lost_per_gb{"checkpoint", "peer-lost-per-gb", "s/GB", {}};

  void add_ours(const Rows& rows) {
    for (const auto& row : rows) add_turn(row);
    if (rows.empty()) return;
    first.samples["ours"].push_back(tools::slowdown(rows.front()));
    add_sample(pause, "ours", median_of(rows, stall));
    add_sample(pause_per_gb, "ours", median_of(rows, [](const auto& row) { return stall(row) / gigabytes(row); }));
    add_sample(lost, "ours", median_of(rows, tools::lost));
    add_sample(lost_per_gb, "ours", median_of(rows, [](const auto& row) { return tools::lost(row) / gigabytes(row); }));
  }

  /// What stops there is lost, and is the longest pause.
  void add_ddp(const Rows& rows) {
    for (const auto& [who, key] : {std::pair("ddp", "stall_s"), std::pair("ddp-fsync", "durable_s")}) {
      const auto seconds = [key](const auto& row) { return number(row, key); };
      const auto per_gb = [key](const auto& row) { return number(row, key) / gigabytes(row); };
      for (Measurement* m : {&pause, &lost}) add_sample(*m, who, median_of(rows, seconds));
      for (Measurement* m : {&pause_per_gb, &lost_per_gb}) add_sample(*m, who, median_of(rows, per_gb));
    }
  }

  void print() const {
    for (const Measurement* m : {&longest, &slowdown, &first, &quiet, &which, &save, &cost, &beside, &write, &load,
                                 &cached, &pause, &pause_per_gb, &lost, &lost_per_gb})
      print_measurement(*m);
  }

 private:
  void add_turn(const nlohmann::json& row) {
    add_sample(longest, "ours", number(row, "longest_ms"));
    add_sample(longest, "median-step", number(row, "median_ms"));
    add_sample(slowdown, "ours", tools::slowdown(row));
    quiet.samples["ours"].push_back(number(row, "quiet_longest_ms") / number(row, "median_ms"));
    which.samples["ours"].push_back(number(row, "longest_step"));
    save.samples["ours"].push_back(number(row, "save_ms"));
    cost.samples["ours"].push_back(cost_percent(number(row, "extra_ms") / 1e3));
    add_sample(beside, "ours", number(row, "checkpoint_s"));
    add_sample(write, "ours", number(row, "mb") / number(row, "write_s"));
    add_sample(write, "disk", number(row, "mb") / number(row, "disk_write_s"));
    add_sample(load, "ours", number(row, "mb") / number(row, "load_s"));
    add_sample(load, "disk", number(row, "mb") / number(row, "disk_read_s"));
    cached.samples["ours"].push_back(number(row, "stayed"));
  }
};

/// A folder of memory says nothing about disks.
void warn_of_memory(const fs::path& folder) {
  struct statfs about {};
  if (statfs(folder.c_str(), &about) == 0 && about.f_type == TMPFS_MAGIC)
    fmt::print(stderr, "bench: {} is in memory, not on a disk: choose another one with --dir\n", folder.string());
}

int run(const Settings& s) {
  const fs::path parent = s.dir.empty() ? fs::current_path() : fs::absolute(s.dir);
  fs::create_directories(parent);
  warn_of_memory(parent);
  const ScratchFolder folder("trireme-bench", parent);
  Results results;
  std::vector<std::function<void()>> who = {[&] { results.add_ours(measure_ours(s, folder.path() / "ours")); }};
  if (has_python_torch())
    who.push_back([&] { results.add_ddp(measure_ddp(s, folder.path() / "ddp")); });
  else
    leave_out("ddp", "apt-get install python3-torch");
  alternate(s.rounds, who);
  results.print();
  return results.write.samples.empty() ? 1 : 0;
}

}  // namespace

Run add_bench_checkpoint(CLI::App& bench, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->worker = invocation.worker;
  CLI::App* command = bench.add_subcommand("checkpoint",
                                           "Steps beside a checkpoint, writing and loading it against the bare disk, "
                                           "and torch.save in PyTorch DDP");
  command->add_option("--rounds", s->rounds, "Alternate rounds; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--turns", s->model.turns, "Checkpoints of each in a round")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--dir", s->dir, "Where to make a temporary folder for checkpoints; default: here");
  command
      ->add_option("--width", s->model.width, "Of the hidden layers of the model, an MLP; 4608: 100 MB of parameters")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--batch", s->model.batch, "Samples per worker and step")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  return [s] { return run(*s); };
}

}  // namespace trireme::tools
