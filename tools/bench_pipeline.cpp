// `trireme bench pipeline`: models in stages: how long stages wait, and how fast it is against one worker, against
// PyTorch's Pipe, and between hosts against data parallelism.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/stages/check.h>
#include <trireme/stages/timeline.h>

#include "bench.h"
#include "bench_flags.h"
#include "commands.h"
#include "hosts.h"
#include "peers.h"

namespace trireme::tools {
namespace {

using Words = std::vector<std::string>;

const Words kLocalCases = {"bubble-even", "bubble-gpt", "bubble-4", "bubble-8", "gpt", "resnet18", "clip"};
const std::string kHostsCase = "large";
const Words kSchedules = {"gpipe", "1f1b", "interleaved:2", "zero-bubble"};
constexpr std::array kMicro = {4, 8, 16};

struct Settings {
  std::string self, worker;  // this program, and the one with libtorch
  int rounds = 5;
  Words cases;
  int micro = 16;
  double sleep_ms = 5;
  HostsFlags hosts;
  ModelMeasure model, large, images;
  int images_micro = 8;
};

Words command_of(const Settings& s, const PipelineMeasure& what) {
  Words words = {s.worker, "bench", "--out={out}"};
  for (const std::string& word : words_of(what)) words.push_back(word);
  return words;
}

double step_of(const Settings& s, const std::string& what, int ranks, const PipelineMeasure& measure) {
  const Words command = command_of(s, measure);
  return number_in(
      s.hosts.given() ? run_on_hosts(what, s.hosts.options(s.self), command) : run_and_read(what, ranks, command),
      "ms_per_step");
}

// ---- how long stages wait ----

/// What was measured of one schedule with some micro-batches.
struct Bubble {
  stages::ScheduleSpec spec;
  int micro;
  Measurement share, idle, held;
  std::vector<int> peak;  // by stage: the check's
};

Bubble bubble_of(const std::string& subject, int stages, const std::string& schedule, int micro) {
  Bubble bubble{stages::parse_schedule(schedule), micro, {}, {}, {}, {}};
  const std::string name = fmt::format("bubble-{}-{}x{}-{}", subject, stages, micro, schedule);
  bubble.share = {"pipeline", name, "share", {}};
  bubble.idle = {"pipeline", name, "idle ms", {}};
  bubble.held = {"pipeline", name, "activations", {}};
  bubble.peak = stages::check(stages::make_schedule(bubble.spec, stages, micro)).peak;
  return bubble;
}

/// A line of a worker: {"schedule": …, "micro": …, "bubble": …, …}.
void add_line(Bubble& bubble, int stages, const nlohmann::json& line) {
  add_sample(bubble.share, "ours", line["bubble"]);
  add_sample(bubble.share, "simulated", line["simulated"]);
  const auto formula = stages::bubble_formula(bubble.spec, stages, bubble.micro);
  if (formula) add_sample(bubble.share, "formula", *formula);
  add_sample(bubble.idle, "ours", line["idle_ms"]);
  const std::vector<int> peak = line["peak"];
  add_sample(bubble.held, "ours", *std::max_element(peak.begin(), peak.end()));
  add_sample(bubble.held, "check", *std::max_element(bubble.peak.begin(), bubble.peak.end()));
  const bool fills = bubble.spec.name == stages::ScheduleSpec::Name::zero_bubble;  // weight parts may be done early
  for (size_t stage = 0; stage < peak.size(); stage++)
    if (peak[stage] > bubble.peak[stage] || (peak[stage] < bubble.peak[stage] && !fills))
      fmt::print(stderr, "bench: {}: stage {} held {} activations, and its schedule says {}\n", bubble.held.name, stage,
                 peak[stage], bubble.peak[stage]);
}

/// Zero bubble against 1f1b with as many micro-batches, in the same processes.
void compare_with_1f1b(std::vector<Bubble>& bubbles) {
  for (Bubble& bubble : bubbles)
    for (const Bubble& other : bubbles)
      if (bubble.spec.name == stages::ScheduleSpec::Name::zero_bubble && other.micro == bubble.micro &&
          other.spec.name == stages::ScheduleSpec::Name::one_f_one_b) {
        bubble.share.samples["1f1b"] = other.share.samples.at("ours");
        bubble.idle.samples["1f1b"] = other.idle.samples.at("ours");
      }
}

/// One start of the stages measures all schedules, one after another: neighbours in time are compared.
void bench_bubbles(const Settings& s, const std::string& subject, int stages) {
  PipelineMeasure measure{.subject = subject, .schedules = kSchedules, .micro = {kMicro.begin(), kMicro.end()}};
  measure.sleep_ms = s.sleep_ms;
  measure.model = s.model;
  Words command = command_of(s, measure);
  command.emplace_back("--bubbles");
  std::vector<Bubble> bubbles;
  for (const int micro : kMicro)
    for (const std::string& schedule : kSchedules) bubbles.push_back(bubble_of(subject, stages, schedule, micro));
  for (int round = 0; round < s.rounds; round++) {
    const std::vector<std::string> lines = run_and_read("bubbles of " + subject, stages, command);
    for (size_t i = 0; i < std::min(lines.size(), bubbles.size()); i++)
      add_line(bubbles[i], stages, nlohmann::json::parse(lines[i]));
  }
  if (!bubbles.front().share.samples.contains("ours")) return print_measurement(bubbles.front().share);
  compare_with_1f1b(bubbles);
  for (const Bubble& bubble : bubbles)
    for (const Measurement* row : {&bubble.share, &bubble.idle, &bubble.held})
      if (row->samples.size() > 1) print_measurement(*row);
}

// ---- how fast they are ----

double pipe(const Settings& s, int threads) {
  const ModelMeasure& m = s.model;
  const std::string spec = fmt::format("{},{},{},{},{},{},{}", m.layers, m.width, m.heads, m.context, m.vocabulary,
                                       m.batch, std::max(2, m.steps / 2));
  return number_in(run_and_read("PyTorch's Pipe", 1,
                                {kPython, peer_program("pipe_train.py"), "{out}", spec, std::to_string(s.micro),
                                 std::to_string(threads)}),
                   "ms_per_step");
}

/// Two stages against one worker on the same batch, whole and in the same micro-batches (one stage).
void bench_speed(const Settings& s, const std::string& subject) {
  const bool images = subject == "resnet18";
  const int micro = images ? s.images_micro : s.micro;
  PipelineMeasure measure{.subject = subject, .micro = {micro}};
  measure.channels_last = images;
  measure.model = images ? s.images : s.model;
  std::map<std::string, Measurement> rows;
  for (const char* schedule : {"1f1b", "zero-bubble"})
    rows[schedule] = {"pipeline", fmt::format("{}-2x{}-{}", subject, micro, schedule), "ms", {}};
  const auto with = [&](const std::string& schedule) {
    PipelineMeasure one = measure;
    one.schedules = {schedule};
    return one;
  };
  const auto add_peer = [&](const std::string& who, double ms) {
    for (auto& [schedule, row] : rows) add_sample(row, who, ms);
  };
  std::vector<std::function<void()>> who;
  for (auto& [schedule, row] : rows)
    who.emplace_back(
        [&, schedule = schedule] { add_sample(rows.at(schedule), "ours", step_of(s, schedule, 2, with(schedule))); });
  who.emplace_back([&] { add_peer("one-worker", step_of(s, "one worker", 1, with("none"))); });
  who.emplace_back([&] { add_peer("one-stage", step_of(s, "one stage", 1, with("1f1b"))); });
  if (subject == "gpt" && has_python_torch())
    for (const int threads : {1, 2})
      who.emplace_back([&, threads] { add_peer(threads == 1 ? "pipe" : "pipe-2-threads", pipe(s, threads)); });
  alternate(s.rounds, who);
  for (const auto& [schedule, row] : rows) print_measurement(row);
}

/// Two stages of large layers, whose gradients are clipped by a norm that they never have: updates that may begin
/// before it is known, against those that wait for it, and against none.
void bench_clip(const Settings& s) {
  PipelineMeasure measure{.subject = "wide", .micro = {4}};
  measure.model = s.model;
  measure.model.layers = 4;
  measure.model.width = 2048;
  measure.clip = 1e9;
  std::map<std::string, Measurement> rows;
  std::vector<std::function<void()>> who;
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    Measurement& row = rows[schedule] = {"pipeline", fmt::format("clip-2x4-{}", schedule), "ms", {}};
    measure.schedules = {schedule};
    const auto add = [&](const std::string& name, const PipelineMeasure& one) {
      who.emplace_back([&s, &row, name, one] { add_sample(row, name, step_of(s, name, 2, one)); });
    };
    PipelineMeasure waits = measure, none = measure;
    waits.waits = true;
    none.clip = 0;
    add("ours", measure), add("waits", waits), add("no-clip", none);
  }
  alternate(s.rounds, who);
  for (const auto& [schedule, row] : rows) print_measurement(row);
}

/// Between hosts: a large GPT with few samples, whose gradients weigh far more than its activations.
void bench_large(const Settings& s) {
  PipelineMeasure measure{.subject = "gpt"};
  measure.model = s.large;
  measure.micro = {static_cast<int>(std::min<int64_t>(s.micro, s.large.batch))};
  Measurement row{"pipeline", fmt::format("gpt-{}x{}-1f1b@{}", s.large.layers, s.large.width, s.hosts.hosts), "ms", {}};
  const auto with = [&](const std::string& schedule) {
    measure.schedules = {schedule};
    return step_of(s, schedule == "none" ? "data" : schedule, 0, measure);
  };
  alternate(s.rounds, {[&] { add_sample(row, "ours", with("1f1b")); },
                       [&] { add_sample(row, "zero-bubble", with("zero-bubble")); },
                       [&] { add_sample(row, "data", with("none")); }});
  print_measurement(row);
}

// ---- the command ----

void bench_case(const Settings& s, const std::string& name) {
  if (name == "bubble-even") return bench_bubbles(s, "even", 2);
  if (name == "bubble-gpt") return bench_bubbles(s, "gpt", 2);
  if (name.starts_with("bubble-")) return bench_bubbles(s, "sleep", std::stoi(name.substr(7)));
  if (name == "clip") return bench_clip(s);
  bench_speed(s, name);
}

int bench(const Settings& s) {
  const Words known = s.hosts.given() ? Words{kHostsCase} : kLocalCases;
  for (const std::string& name : s.cases) {
    if (name == kHostsCase && !s.hosts.given())
      fail<InvalidArgument>("the case '{}' is one between hosts: add --hosts, or use scripts/bench_hosts", name);
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail<InvalidArgument>("unknown case '{}'{}{}", name, s.hosts.given() ? " between hosts" : "",
                            did_you_mean(name, known));
  }
  if (!s.hosts.given() && !has_python_torch()) leave_out("pipe", "apt-get install python3-torch");
  for (const std::string& name : s.cases.empty() ? known : s.cases)
    s.hosts.given() ? bench_large(s) : bench_case(s, name);
  return 0;
}

/// What was not said is as large as the case needs it. Convolutions of few images are slow: a micro-batch has 16.
void size_images(const CLI::App& command, Settings& s) {
  s.images = s.model;
  if (command.count("--samples") == 0) s.images.batch = 128;
  if (command.count("--steps") == 0) s.images.steps = 3;
  if (command.count("--micro") > 0) s.images_micro = s.micro;
}

/// The same.
ModelMeasure large_model(const CLI::App& command, const ModelMeasure& given) {
  ModelMeasure large = given;
  const auto unless = [&](const char* flag, int64_t& value, int64_t otherwise) {
    if (command.count(flag) == 0) value = otherwise;
  };
  unless("--model-width", large.width, 1024);
  unless("--heads", large.heads, 8);
  unless("--context", large.context, 64);
  unless("--samples", large.batch, 8);
  if (command.count("--steps") == 0) large.steps = 4;
  return large;
}

}  // namespace

Run add_bench_pipeline(CLI::App& bench_command, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->self = invocation.program;
  s->worker = invocation.worker;
  s->model.batch = 32;
  s->model.steps = 8;
  CLI::App* command = bench_command.add_subcommand(
      "pipeline",
      "Models in stages. Cases bubble-…: the share of the time in which stages wait, by schedule, against the "
      "formula, and activations held at most, against the schedule's check: of equal layers in 2 stages "
      "(bubble-even), of a GPT in 2 (bubble-gpt), and of 4 and 8 stages that sleep instead of computing (bubble-4, "
      "bubble-8). Cases gpt and resnet18: a step in 2 stages against one worker (the ratio is the speed-up), against "
      "one stage with the same micro-batches, and against PyTorch's Pipe. Case clip: updates that begin before the "
      "norm is known that they are clipped by, against those that wait for it. With --hosts the case large: a GPT "
      "with large layers and few samples in stages, against data "
      "parallelism");
  command
      ->add_option("--case", s->cases,
                   "bubble-even, bubble-gpt, bubble-4, bubble-8, gpt, resnet18, clip, separated by commas; default: "
                   "all")
      ->delimiter(',');
  command->add_option("--rounds", s->rounds, "Alternate rounds; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--micro", s->micro,
                   "Micro-batches of gpt and large, and if it is given of resnet18, which has 8; bubbles are of 4, 8 "
                   "and 16")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--sleep-ms", s->sleep_ms, "Of a forward pass that sleeps, and of each half of a backward pass")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_model_measure(*command, s->model);
  add_hosts_flags(*command, s->hosts);
  return [s, command] {
    refuse_without_hosts(*command, s->hosts);
    s->large = large_model(*command, s->model);
    size_images(*command, *s);
    return bench(*s);
  };
}

}  // namespace trireme::tools
