// `trireme compare`: the same training once per way of synchronising, and what came of each.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/cluster/launching/launcher.h>

#include "commands.h"
#include "comparison.h"
#include "idle_flags.h"
#include "scratch.h"
#include "train.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

struct Settings {
  TrainSettings train;  // the flags of `train`; `sync` has all modes
  std::string csv = "out/compare.csv", plot = "out/compare.svg";
  std::optional<double> target;
  std::vector<std::string> sets, optimizers;  // as they were given
};

/// A setting of one mode: --set MODE:FLAG=VALUE.
struct Setting {
  std::string mode, flag, value;
};

/// One training, checked and ready to start.
struct Job {
  std::string mode, own;  // the latter as the plot says it: "lr=0.02 optimizer=sgd"
  TrainSettings settings;
  Invocation invocation;
  std::vector<Idle> idle{};  // flags that do nothing in this mode
};

const std::vector<std::string> kOwnFlags = {"sync",   "report", "save",         "csv",          "plot",
                                            "target", "set",    "optimizer-of", "quiet-report", "help"};

// ---- what was asked for ----

std::vector<std::string> modes_in(const std::string& list) {
  std::vector<std::string> modes;
  std::stringstream in(list);
  for (std::string mode, more; std::getline(in, mode, ',');) {
    if (mode.starts_with("elastic:") && std::getline(in, more, ','))
      mode += "," + more;        // its two settings have a comma between them
    exchange::sync_named(mode);  // throws for a name that is none
    if (std::find(modes.begin(), modes.end(), mode) != modes.end())
      fail<InvalidArgument>("--sync has '{}' twice: each mode has one line", mode);
    modes.push_back(mode);
  }
  if (modes.empty())
    fail<InvalidArgument>("--sync is empty: give the modes to compare, such as --sync shared,allreduce");
  return modes;
}

/// Names of flags that one mode may have for itself: all of `train`'s, but for what tells the runs apart.
std::vector<std::string> settable_flags(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames())
      if (std::find(kOwnFlags.begin(), kOwnFlags.end(), name) == kOwnFlags.end()) names.push_back(name);
  return names;
}

/// "stale:3:lr=0.02" is the mode stale:3, the flag lr and the value 0.02.
Setting parse_setting(const std::string& text) {
  const size_t equals = text.find('='), colon = text.rfind(':', equals);
  if (equals == std::string::npos || colon == std::string::npos || colon == 0)
    fail<InvalidArgument>("--set {}: it must be MODE:FLAG=VALUE, such as async:lr=0.02", text);
  std::string flag = text.substr(colon + 1, equals - colon - 1);
  flag.erase(0, std::min(flag.find_first_not_of('-'), flag.size()));
  return {text.substr(0, colon), flag, text.substr(equals + 1)};
}

std::vector<Setting> settings_in(const Settings& s, const std::vector<std::string>& modes, const CLI::App& command) {
  std::vector<Setting> settings;
  for (const std::string& text : s.sets) settings.push_back(parse_setting(text));
  for (const std::string& text : s.optimizers) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos)
      fail<InvalidArgument>("--optimizer-of {}: it must be MODE=OPTIMIZER, such as async=sgd", text);
    settings.push_back({text.substr(0, equals), "optimizer", text.substr(equals + 1)});
  }
  const std::vector<std::string> flags = settable_flags(command);
  for (const Setting& setting : settings) {
    if (std::find(modes.begin(), modes.end(), setting.mode) == modes.end())
      fail<InvalidArgument>("a setting for the mode '{}', which --sync does not have{}", setting.mode,
                            did_you_mean(setting.mode, modes));
    if (std::find(flags.begin(), flags.end(), setting.flag) == flags.end())
      fail<InvalidArgument>(
          "--set {}:{}: a mode cannot have a '{}' of its own{}. `trireme train --help` lists the flags", setting.mode,
          setting.flag, setting.flag, did_you_mean(setting.flag, flags));
  }
  return settings;
}

// ---- from there to command lines of `train` ----

/// The flags that were given, but for those of `compare` itself, as `train` reads them.
std::vector<std::string> flags_given(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (std::find(kOwnFlags.begin(), kOwnFlags.end(), name) == kOwnFlags.end())
      flags.push_back(fmt::format("--{}={}", name, option->results().back()));
  }
  return flags;
}

/// out/lenet.json of the mode stale:3 is out/lenet-stale-3.json: no run overwrites another's.
std::string file_of(const std::string& file, std::string mode) {
  std::replace_if(
      mode.begin(), mode.end(), [](char c) { return c == ':' || c == '/'; }, '-');
  const fs::path path(file);
  return (path.parent_path() / fmt::format("{}-{}{}", path.stem().string(), mode, path.extension().string())).string();
}

/// Reads a command line of `train` as `train` does.
void parse_train(const std::vector<std::string>& args, const cluster::Place& place, Job& job) {
  CLI::App app;
  TrainSettings& settings = job.settings;
  const CLI::App* command = add_train_flags(app, settings);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::ParseError& error) {
    fail<InvalidArgument>("{}", error.what());
  }
  resolve(settings, place);
  job.idle = idle_flags(*command, settings, true);
}

/// A flag of all modes has to do something in one of them, and a mode's own in that mode.
void refuse_idle(const std::vector<Job>& jobs, const std::vector<Setting>& own, const CLI::App& command,
                 const Invocation& invocation) {
  const auto is_idle = [](const Job& job, const std::string& flag) {
    return std::any_of(job.idle.begin(), job.idle.end(), [&](const Idle& idle) { return idle.flag == flag; });
  };
  for (const Job& job : jobs)
    for (const Idle& idle : job.idle) {
      const bool its_own = std::any_of(
          own.begin(), own.end(), [&](const Setting& s) { return s.mode == job.mode && "--" + s.flag == idle.flag; });
      if (its_own) fail<InvalidArgument>("mode {}: {}", job.mode, idle.reason);
      const bool everywhere =
          std::all_of(jobs.begin(), jobs.end(), [&](const Job& other) { return is_idle(other, idle.flag); });
      if (everywhere && !overruled(idle, command, invocation))
        fail<InvalidArgument>("{}{}", place_of(idle.flag, invocation), idle.reason);
    }
}

Job job_of(const std::string& mode, const Settings& s, const std::vector<std::string>& flags,
           const std::vector<Setting>& own, const fs::path& scratch, const Invocation& invocation) {
  const train::Options& o = s.train.options;
  std::vector<std::string> args = {"train", o.model};
  args.insert(args.end(), flags.begin(), flags.end());
  if (!exchange::sync_named(mode).takes_servers()) args.emplace_back("--servers=0");  // they are for the other modes
  const bool rated = std::any_of(flags.begin(), flags.end(), [](const auto& f) { return f.starts_with("--rate="); });
  if (rated && !exchange::sync_named(mode).one_by_one()) args.emplace_back("--rate=share");  // as above
  std::string note;
  for (const Setting& setting : own) {
    if (setting.mode != mode) continue;
    args.push_back(fmt::format("--{}={}", setting.flag, setting.value));
    note += fmt::format("{}{}={}", note.empty() ? "" : " ", setting.flag, setting.value);
  }
  args.push_back("--sync=" + mode);
  args.push_back("--report=" + file_of(o.report.empty() ? (scratch / "report.json").string() : o.report, mode));
  if (o.report.empty()) args.push_back("--quiet-report");
  if (!o.save.empty()) args.push_back("--save=" + file_of(o.save, mode));
  try {
    Job job{mode, note, {}, {invocation.program, invocation.worker, args, {}}};
    parse_train(args, cluster::place_here(), job);
    return job;
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("mode {}: {}", mode, error.what());
  }
}

// ---- the runs ----

/// The first line of what the one who failed said, or how it ended.
std::string why_it_failed(const cluster::LaunchResult& result) {
  constexpr std::string_view kPrefix = "trireme: ";
  for (const std::string& line : result.last_lines)
    if (line.starts_with(kPrefix)) return line.substr(kPrefix.size());
  return result.reason.empty() ? fmt::format("exit code {}", result.exit_code) : result.reason;
}

bool signal_waits() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
         sigismember(&pending, SIGHUP) == 1;
}

struct Outcome {
  std::vector<ModeResult> results;  // of the modes that ended by themselves
  int exit_code = 0;
  std::string interrupted;  // the mode that was not finished, or ""
};

/// One training. Returns its exit code; 128 and more when somebody asked to stop.
int run_job(const Job& job, Outcome& outcome) {
  try {
    const cluster::LaunchResult result = launch_training(job.settings, cluster::place_here(), job.invocation);
    if (result.interrupted) return result.exit_code;
    outcome.results.push_back(result.exit_code == 0 ? read_report(job.mode, job.settings.options.report)
                                                    : ModeResult{.mode = job.mode, .error = why_it_failed(result)});
  } catch (const Error& error) {  // of this mode: the others go on
    print_error(error.what());
    const std::string text = error.what();
    outcome.results.push_back({.mode = job.mode, .error = text.substr(0, text.find('\n'))});
  }
  outcome.results.back().own = job.own;
  return outcome.results.back().error.empty() ? 0 : 1;
}

Outcome run_all(const std::vector<Job>& jobs) {
  Outcome outcome;
  for (size_t i = 0; i < jobs.size(); i++) {
    if (jobs[i].settings.progress != "none") fmt::print("--- mode {} of {}: {}\n", i + 1, jobs.size(), jobs[i].mode);
    std::fflush(stdout);  // the workers' lines go around stdio
    const int code = signal_waits() ? 128 + SIGINT : run_job(jobs[i], outcome);
    outcome.exit_code = std::max(outcome.exit_code, code >= 128 ? code : std::min(code, 1));
    if (code < 128) continue;
    outcome.interrupted = jobs[i].mode;
    break;
  }
  return outcome;
}

// ---- what is shown ----

size_t columns() {
  winsize size{};
  return isatty(1) != 0 && ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

void write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << text;
  if (!file.flush()) fail<IoError>("cannot write {}: {}", path, errno_text());
  fmt::print("{} written\n", path);
}

std::string description(const TrainSettings& s) {
  const train::Options& o = s.options;
  return fmt::format("{} on {}, {} worker{}, batch {}, {}, lr {:g}", o.model, o.data, s.workers,
                     s.workers == 1 ? "" : "s", o.batch, s.optimizer, o.optimizer.lr);
}

void show(const Outcome& outcome, const Settings& s, const std::string& subtitle, size_t modes) {
  const std::string measure = name_of(measure_of(outcome.results));
  fmt::print("\n{}: {} at the end of each epoch; staleness in updates\n", subtitle, measure);
  fmt::print("{}", table_of(outcome.results, s.target, columns()));
  for (const ModeResult& r : outcome.results)
    if (!r.own.empty()) fmt::print("{} had {}\n", r.mode, r.own);
  for (const ModeResult& r : outcome.results)
    if (!r.warning.empty()) fmt::print("warning: {}: {}\n", r.mode, r.warning);
  for (const ModeResult& r : outcome.results)
    if (const auto times = unsteadiness(r))
      fmt::print(
          "warning: the fastest epoch of {} was {:.1f} times as fast as its slowest. Something else probably used the "
          "machine: do not trust the speeds\n",
          r.mode, *times);
  if (!outcome.interrupted.empty())
    fmt::print("interrupted in {}, mode {} of {}: it is left out\n", outcome.interrupted, outcome.results.size() + 1,
               modes);
  const bool any =
      std::any_of(outcome.results.begin(), outcome.results.end(), [](const ModeResult& r) { return r.error.empty(); });
  if (!any) return;  // an older comparison is better than an empty one
  write_file(s.csv, csv_of(outcome.results));
  write_file(s.plot, to_svg(plot_of(outcome.results, s.target, subtitle)));
}

int compare(const Settings& s, const CLI::App& command, const Invocation& invocation) {
  if (const cluster::Place place = cluster::place_here(); place.launcher != "alone")
    fail<InvalidArgument>(
        "`trireme compare` launches its workers itself, one mode after the other, but {} has started it: start it "
        "once, by hand",
        place.launcher);
  const std::vector<std::string> modes = modes_in(s.train.sync);
  const std::vector<Setting> own = settings_in(s, modes, command);
  const ScratchFolder scratch("trireme-compare");
  std::vector<Job> jobs;
  for (const std::string& mode : modes)
    jobs.push_back(job_of(mode, s, flags_given(command), own, scratch.path(), invocation));
  refuse_idle(jobs, own, command, invocation);
  for (const std::string& file : {s.csv, s.plot}) train::check_writable(file);

  const std::string subtitle = description(jobs[0].settings);
  const cluster::SignalsForLauncher hold;  // Ctrl-C ends a training, and not this process before it has told
  const Outcome outcome = run_all(jobs);
  show(outcome, s, subtitle, modes.size());
  std::fflush(stdout);
  return outcome.exit_code;
}

}  // namespace

Run add_compare(CLI::App& app, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  CLI::App* command = add_train_flags(app, s->train, "compare");
  command->description(
      "Train the same model once per way of synchronising: a table, CSV and a plot of accuracy against time");
  command->get_option("--sync")->description(
      "The modes, separated by commas; they run one after the other. `trireme train --help` says what each is");
  command->get_option("--sync")->default_str("")->required();
  command->get_option("--report")->description("Keep the reports: FILE-MODE.json for FILE.json");
  command->get_option("--save")->description("Keep the trained models: FILE-MODE.safetensors for FILE.safetensors");
  const char* group = "Comparing";
  command->get_option("--sync")->group(group);
  command
      ->add_option("--set", s->sets,
                   "MODE:FLAG=VALUE, as often as needed: a flag of `train` for one mode, such as async:lr=0.02")
      ->group(group)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->default_str("");
  command
      ->add_option("--optimizer-of", s->optimizers,
                   "MODE=NAME, as often as needed: short for --set MODE:optimizer=NAME")
      ->group(group)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->default_str("");
  command
      ->add_option(
          "--target", s->target,
          "Adds the seconds of training until the test accuracy was this (or the loss, for tasks without accuracy)")
      ->group(group);
  command->add_option("--csv", s->csv, "One row per mode and epoch; empty: none")->group(group);
  command->add_option("--plot", s->plot, "SVG: test accuracy against seconds of training, a line per mode; empty: none")
      ->group(group);
  command->footer(
      "Every mode has the same flags, seed and epochs, so that only the synchronisation differs. What is best for one "
      "is not best for all: modes that\n"
      "use old gradients may do better with a smaller learning rate or less momentum, which --set gives them, and the "
      "table says so.\n"
      "samples/s and seconds are of training alone, without start and tests. Staleness: updates by others between a "
      "worker's look at the parameters\n"
      "and its own update. A mode that fails has its reason in the table, the others go on, and the exit code is 1.\n"
      "Examples:\n"
      "  trireme compare lenet --data fashion-mnist --workers 2 --epochs 3 --sync shared,allreduce,central --target "
      "0.85\n"
      "  trireme compare recipes/lenet.toml --sync shared,central --set central:lr=0.02 --plot out/lenet.svg");
  return [s, command, invocation] { return compare(*s, *command, invocation); };
}

}  // namespace trireme::tools
