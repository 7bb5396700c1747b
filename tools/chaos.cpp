// `trireme chaos`: a real training job whose workers are killed and stopped, and whether it minded.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include <trireme/base/error.h>

#include "chaos_plan.h"
#include "commands.h"
#include "disturb.h"
#include "scratch.h"
#include "victim_job.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr Seconds kToStop{10};       // a job that was asked to
constexpr double kAccuracy = 0.01;   // how far apart the accuracies of two runs may be
constexpr size_t kShownLines = 20;   // of a job's output, when something is wrong
constexpr double kMost = 3600 * 24;  // seconds that an undisturbed run may take

struct Settings {
  PlanOptions plan;
  int workers = 4, spares = 0, virtual_workers = 0, leave = 2;
  double patience = 120, limit = 0;
  std::string json;
  std::vector<std::string> train;  // flags of `train`
};

/// What came of one job.
struct Outcome {
  int exit_code = 0;
  Json report;
  double seconds = 0;  // from its start to its end
  std::vector<pid_t> left;
  std::vector<std::string> last_lines;
};

struct Check {
  std::string name;
  bool ok = false;
  std::string text;  // what was found
};

/// Whoever wants to stop has what there is so far.
struct Stopped {
  int signal;
};

bool has_flag(const std::vector<std::string>& words, const std::string& flag) {
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& word) { return word == flag || word.starts_with(flag + "="); });
}

/// A command line of `train`: what was given, and besides what this needs.
std::vector<std::string> command_of(const Settings& s, const Invocation& invocation, int epochs,
                                    const fs::path& report) {
  std::vector<std::string> words = {invocation.program, "train"};
  words.insert(words.end(), s.train.begin(), s.train.end());
  const auto add = [&](const std::string& flag, const std::string& value) {
    if (!has_flag(s.train, flag)) words.insert(words.end(), {flag, value});
  };
  add("--workers", std::to_string(s.workers));
  add("--on-failure", "replace");
  if (s.spares > 0) add("--spares", std::to_string(s.spares));
  if (s.virtual_workers > 0) add("--virtual", std::to_string(s.virtual_workers));
  if (epochs > 0) add("--epochs", std::to_string(epochs));
  add("--progress", "none");
  words.insert(words.end(), {"--report", report.string()});
  return words;
}

/// Of ours: what other programs of the machine do meanwhile is their business.
std::vector<std::string> shared_memory() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/dev/shm", none))
    if (const std::string name = entry.path().filename().string(); name.find("trireme") != std::string::npos)
      names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Outcome finish(VictimJob& job, const fs::path& report, double seconds, Clock::time_point start) {
  const Deadline deadline{Seconds(seconds)};
  while (!deadline.passed() && job.pass(Seconds(std::min(0.1, deadline.left().count() + 1e-3)))) job.processes();
  const bool hung = !job.exit_code();
  const int signal = job.stop_wanted();
  job.end(kToStop);
  if (signal != 0) throw Stopped{signal};
  Outcome outcome{.exit_code = job.exit_code().value_or(-1), .seconds = seconds_since(start)};
  if (hung) outcome.exit_code = -1;
  job.pass(Seconds(0.2));  // its processes end with it, within a moment
  outcome.left = job.left();
  outcome.last_lines = job.last_lines(kShownLines);
  std::ifstream file(report);
  if (file) outcome.report = Json::parse(file, nullptr, false);
  return outcome;
}

Outcome run_calm(const std::vector<std::string>& command, const fs::path& folder, const char* name) {
  const fs::path report = folder / fmt::format("{}.json", name);
  const auto start = Clock::now();
  VictimJob job(command, folder / fmt::format("{}.log", name));
  Outcome outcome = finish(job, report, kMost, start);
  if (outcome.exit_code != 0 || !outcome.report.is_object())
    fail<Error>("the job fails without any disturbance, with exit code {}. Its last lines:\n  {}", outcome.exit_code,
                fmt::join(outcome.last_lines, "\n  "));
  return outcome;
}

/// As many as the plan needs, by the speed of one.
int epochs_for(const Settings& s, const std::vector<Blow>& plan, const Invocation& invocation, const fs::path& folder) {
  if (has_flag(s.train, "--epochs") || has_flag(s.train, "--max-steps")) return 0;
  const Outcome pilot = run_calm(command_of(s, invocation, 2, folder / "pilot.json"), folder, "pilot");
  const double epoch = pilot.report["epochs"].back().value("seconds", 1.0);
  const double recovery = 1.5;  // seconds that a blow may have to wait for others to come
  const double needed = duration_of(plan) + recovery * static_cast<double>(plan.size()) + 2;
  return std::max(2, static_cast<int>(std::ceil(needed / std::max(epoch, 1e-3))));
}

// ---- what must be so afterwards ----

Check check_samples(const Json& calm, const Json& report) {
  Check check{.name = "each sample once"};
  const size_t epochs = calm["epochs"].size(), made = report["epochs"].size();
  if (made != epochs) return check.text = fmt::format("{} epochs of {}", made, epochs), check;
  size_t whole = 0;
  for (size_t i = 0; i < epochs; i++) {
    const Json &before = calm["epochs"][i], &after = report["epochs"][i];
    const int64_t wanted = before.value("samples", int64_t{-1});
    if (wanted > 0 && after.value("samples", int64_t{-2}) == wanted && after.value("each_once", false)) whole++;
  }
  check.ok = whole == epochs;
  check.text = fmt::format("{} of {} epochs had all {} samples, each once", whole, epochs,
                           epochs > 0 ? calm["epochs"][0].value("samples", int64_t{-1}) : 0);
  return check;
}

Check check_losses(const Json& report, const std::vector<Struck>& struck) {
  const auto wanted = std::count_if(struck.begin(), struck.end(),
                                    [](const Struck& s) { return s.blow.kind == Blow::kill || s.given_up; });
  int64_t lost = 0, joined = 0;
  for (const Json& epoch : report["epochs"]) {
    lost += epoch.value("lost", int64_t{0});
    joined += epoch.value("joined", int64_t{0});
  }
  // Whoever was struck before it was in the crew is no loss of the crew's.
  return {"workers lost", lost <= wanted,
          fmt::format("the report has {} lost and {} joined; {} were killed or given up", lost, joined, wanted)};
}

Check check_result(const Settings& s, const Json& calm, const Json& report) {
  const std::string ours = report.value("sha256", ""), theirs = calm.value("sha256", "none");
  if (s.virtual_workers > 0 || has_flag(s.train, "--virtual"))
    return {"same bits", ours == theirs, fmt::format("SHA-256 {}, undisturbed {}", ours, theirs)};
  const auto accuracy = [](const Json& of) {
    return of["epochs"].empty() ? -1.0 : of["epochs"].back().value("test_accuracy", -1.0);
  };
  const double disturbed = accuracy(report), undisturbed = accuracy(calm);
  return {"same accuracy", disturbed >= 0 && std::abs(disturbed - undisturbed) <= kAccuracy,
          fmt::format("{:.4f}, undisturbed {:.4f}", disturbed, undisturbed)};
}

std::vector<Check> checks_of(const Settings& s, const std::vector<Blow>& plan, const Disturbance& done,
                             const Outcome& calm, const Outcome& disturbed,
                             const std::vector<std::string>& new_memory) {
  std::vector<Check> checks = {
      {"ended well", disturbed.exit_code == 0,
       disturbed.exit_code < 0 ? "it did not end" : fmt::format("exit code {}", disturbed.exit_code)},
      {"all blows struck", done.trouble.empty() && done.struck.size() == plan.size(),
       fmt::format("{} of {}{}{}", done.struck.size(), plan.size(), done.trouble.empty() ? "" : ": ", done.trouble)},
      {"no process left", disturbed.left.empty(), fmt::format("{} left", disturbed.left.size())},
      {"no shared memory left", new_memory.empty(), fmt::format("{}", fmt::join(new_memory, ", "))}};
  if (!disturbed.report.is_object()) {
    checks.push_back({"report", false, "there is none"});
    return checks;
  }
  checks.push_back(check_samples(calm.report, disturbed.report));
  checks.push_back(check_losses(disturbed.report, done.struck));
  checks.push_back(check_result(s, calm.report, disturbed.report));
  return checks;
}

// ---- what is shown ----

Json json_of(const std::optional<double>& value) {
  return value ? Json(std::round(*value * 1e3) / 1e3) : Json(nullptr);
}

Json json_of(const Struck& s) {
  return {{"what", s.blow.kind == Blow::kill ? "kill" : "stop"},
          {"at_seconds", std::round(s.at * 1e4) / 1e4},
          {"rank", s.rank},
          {"process", s.process},
          {"crew_before", s.before},
          {"crew_after", s.after},
          {"stopped_seconds", s.blow.lasts},
          {"given_up", s.given_up},
          {"step_ms", json_of(s.step_ms)},
          {"next_ms", json_of(s.next_ms)},
          {"beyond_ms", json_of(s.beyond_ms())},
          {"full_ms", json_of(s.full_ms)}};
}

Json json_of(const Summary& s) { return {{"tries", s.tries}, {"median", s.median}, {"p99", s.p99}, {"most", s.most}}; }

Json json_of(const Settings& s, const Disturbance& done, const Outcome& calm, const Outcome& disturbed,
             const std::vector<Check>& checks) {
  Json all = {{"chaos", {{"seed", s.plan.seed}, {"kills", s.plan.kills}, {"stops", s.plan.stops}}},
              {"undisturbed_seconds", calm.seconds},
              {"seconds", disturbed.seconds},
              {"kill_to_next_step_beyond_its_own_ms", json_of(summary_of(beyond_of(done.struck, Blow::kill)))},
              {"kill_to_full_strength_ms", json_of(summary_of(full_of(done.struck, Blow::kill)))},
              {"ok", std::all_of(checks.begin(), checks.end(), [](const Check& c) { return c.ok; })}};
  for (const Check& check : checks)
    all["checks"].push_back({{"name", check.name}, {"ok", check.ok}, {"found", check.text}});
  all["blows"] = Json::array();
  for (const Struck& one : done.struck) all["blows"].push_back(json_of(one));
  return all;
}

void write_json(const std::string& path, const Json& json) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  if (!file.flush()) fail<IoError>("cannot write {}: {}", path, errno_text());
}

int show(const Settings& s, const Disturbance& done, const Outcome& calm, const Outcome& disturbed,
         const std::vector<Check>& checks) {
  fmt::print("{}", table_of(done.struck));
  fmt::print(
      "next ms: from the signal to the end of the first step of the crew without it, as that crew tells on the "
      "machine's clock\n");
  fmt::print("undisturbed {:.1f} s, disturbed {:.1f} s\n", calm.seconds, disturbed.seconds);
  bool ok = true;
  for (const Check& check : checks) {
    fmt::print("{:<6}{}: {}\n", check.ok ? "ok" : "WRONG", check.name, check.text.empty() ? "none" : check.text);
    ok = ok && check.ok;
  }
  if (!ok) fmt::print("the last lines of the job:\n  {}\n", fmt::join(disturbed.last_lines, "\n  "));
  write_json(s.json, json_of(s, done, calm, disturbed, checks));
  return ok ? 0 : 1;
}

void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

int chaos(const Settings& s, const Invocation& invocation) try {
  const ScratchFolder folder("trireme-chaos");
  const std::vector<Blow> plan = plan_of(s.plan);
  const std::vector<std::string> memory = shared_memory();
  const int epochs = epochs_for(s, plan, invocation, folder.path());
  const auto command = [&](const char* name) {
    return command_of(s, invocation, epochs, folder.path() / fmt::format("{}.json", name));
  };
  say(fmt::format("{} kills and {} stops, seed {}: {}", s.plan.kills, s.plan.stops, s.plan.seed,
                  fmt::join(command("disturbed"), " ")));
  const Outcome calm = run_calm(command("undisturbed"), folder.path(), "undisturbed");
  say(fmt::format("undisturbed: {:.1f} s", calm.seconds));
  const auto start = Clock::now();
  VictimJob job(command("disturbed"), folder.path() / "disturbed.log");
  DisturbOptions options{.leave = s.leave, .patience = Seconds(s.patience)};
  size_t count = 0;
  options.tell = [&](const Struck& struck) {
    if (++count % 25 == 0) say(fmt::format("{} of {} blows, {:.0f} s", count, plan.size(), struck.at));
  };
  const Disturbance done = disturb(job, plan, options);
  if (job.stop_wanted() != 0) throw Stopped{job.stop_wanted()};
  const double rest = done.trouble.empty() ? 4 * calm.seconds + s.patience : 0;  // after trouble, it need not end
  const Outcome disturbed = finish(job, folder.path() / "disturbed.json", rest, start);
  std::vector<std::string> now = shared_memory(), new_memory;
  std::set_difference(now.begin(), now.end(), memory.begin(), memory.end(), std::back_inserter(new_memory));
  return show(s, done, calm, disturbed, checks_of(s, plan, done, calm, disturbed, new_memory));
} catch (const Stopped& stopped) {
  print_error("stopped on request: the job has ended, and nothing was checked");
  return 128 + stopped.signal;
}

void check(const Settings& s) {
  if (s.plan.kills + s.plan.stops == 0) fail<InvalidArgument>("--kills 0 and --stops 0: there is nothing to do");
  if (!(s.plan.every > 0 && s.plan.stop_for > 0 && s.patience > 0))
    fail<InvalidArgument>("--every, --stop-for and --patience are seconds above 0");
  if (s.leave >= s.workers && !has_flag(s.train, "--workers"))
    fail<InvalidArgument>("--leave {} of {} workers: nobody may be struck. Choose a smaller number, or more --workers",
                          s.leave, s.workers);
  for (const char* flag : {"--report", "--hosts", "--hostfile"})
    if (has_flag(s.train, flag))
      fail<InvalidArgument>("{} cannot be among the flags of the job: {}", flag,
                            std::string(flag) == "--report" ? "its report is read here, see --json"
                                                            : "only processes of this machine can be killed");
}

}  // namespace

Run add_chaos(CLI::App& app, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "chaos", "Kill and stop the workers of a training job at random moments, and check that nothing is lost");
  command->add_option("--kills", s->plan.kills, "Workers to kill, with SIGKILL")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000));
  command->add_option("--stops", s->plan.stops, "Workers to stop for a while, with SIGSTOP and SIGCONT")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000));
  command->add_option("--seed", s->plan.seed, "Of the plan: who is struck when, and how")->capture_default_str();
  command->add_option("--every", s->plan.every, "Seconds between two blows, on average")->capture_default_str();
  command->add_option("--stop-for", s->plan.stop_for, "Seconds that a worker is stopped, on average")
      ->capture_default_str();
  command->add_option("--leave", s->leave, "A blow waits until so many workers are left after it")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--workers", s->workers, "Of the job")->capture_default_str()->check(CLI::Range(2, 1024));
  command->add_option("--spares", s->spares, "Of the job: workers that wait to replace others")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->add_option("--virtual", s->virtual_workers, "Of the job: its bits must be those of an undisturbed run then")
      ->capture_default_str()
      ->check(CLI::Range(0, 65536));
  command->add_option("--patience", s->patience, "Seconds without a step, or with too few workers, that are a hang")
      ->capture_default_str();
  command->add_option("--json", s->json, "File for all that was found");
  command->footer(
      "What stands after -- are flags of `trireme train`: lenet --data synthetic:20000 where there is nothing. Without "
      "--epochs a first run of two\n"
      "epochs says how many the blows need. An undisturbed run comes first; afterwards both must have the same bits "
      "(--virtual), or accuracies within\n"
      "one point, each sample of each epoch once, no more workers lost than were killed, and nothing may be left "
      "behind. Otherwise the exit code is 1.\n"
      "Only processes that the job itself has started are struck. See docs/chaos.md.\n"
      "Examples:\n"
      "  trireme chaos --kills 10\n"
      "  trireme chaos --kills 200 --virtual 8 --spares 1 --seed 7 -- lenet --data fashion-mnist");
  return [s, invocation] {
    s->train = invocation.rest;
    if (s->train.empty()) s->train = {"lenet", "--data", "synthetic:20000"};
    check(*s);
    return chaos(*s, invocation);
  };
}

}  // namespace trireme::tools
