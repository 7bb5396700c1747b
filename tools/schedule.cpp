// `trireme schedule`: what a pipeline's stages do when, without training anything.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <optional>

#include <trireme/base/error.h>
#include <trireme/stages/check.h>
#include <trireme/stages/drawing.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/stages/timeline_file.h>

#include "commands.h"

namespace trireme::tools {
namespace {

using namespace stages;

struct Settings {
  std::string name, out, save, happened;
  std::optional<int> stages, micro;
  Costs costs;
  std::optional<double> input, weight;
  bool actions = false, check = false;
};

void require_positive(const char* flag, double value) {
  if (!(value > 0) || !std::isfinite(value)) fail<InvalidArgument>("{} is a number above 0, not {:g}", flag, value);
}

/// Half of the backward each, unless they are given.
Costs costs_of(const Settings& s) {
  Costs costs = s.costs;
  require_positive("--forward", costs.forward);
  require_positive("--backward", costs.backward);
  if (s.input) require_positive("--input", *s.input);
  if (s.weight) require_positive("--weight", *s.weight);
  if (costs.transfer != 0) require_positive("--transfer", costs.transfer);
  costs.input = s.input.value_or(s.weight ? costs.backward - *s.weight : costs.backward / 2);
  costs.weight = s.weight.value_or(costs.backward - costs.input);
  if (!(costs.input > 0) || !(costs.weight > 0))
    fail<InvalidArgument>("--input and --weight are parts of --backward ({:g}): neither can be all of it",
                          costs.backward);
  if (s.input || s.weight) costs.backward = costs.input + costs.weight;
  return costs;
}

/// A file says for how many it is.
Schedule schedule_of(const Settings& s, const ScheduleSpec& spec) {
  if (spec.name == ScheduleSpec::Name::file) {
    const Schedule read = read_schedule(spec.path);
    return make_schedule(spec, s.stages.value_or(read.stages), s.micro.value_or(read.micro));
  }
  if (!s.stages) fail<InvalidArgument>("--stages is needed: how many stages there are");
  if (!s.micro) fail<InvalidArgument>("--micro is needed: how many micro-batches there are");
  return make_schedule(spec, *s.stages, *s.micro);
}

int columns_of_terminal() {
  winsize size{};
  return isatty(1) != 0 && ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

void print_numbers(const Settings& s, const ScheduleSpec& spec, const Schedule& schedule, const Timeline& planned) {
  const auto formula = bubble_formula(spec, schedule.stages, schedule.micro, s.costs);
  fmt::print("bubble            {:.1f} % of {:g}{}\n", 100 * planned.bubble, planned.total,
             formula ? fmt::format("; by formula {:.1f} %", 100 * *formula) : "");
  fmt::print("peak activations  {} (by stage)\n", fmt::join(check(schedule).peak, " "));
}

void write_picture(const Settings& s, const Schedule& schedule, const Timeline& planned) {
  const std::string title =
      fmt::format("{}: {} stages, {} micro-batches{}", schedule.name, schedule.stages, schedule.micro,
                  schedule.chunks == 1 ? "" : fmt::format(", {} chunks", schedule.chunks));
  std::vector<Panel> panels = {{"planned", planned, ""}};
  if (!s.happened.empty()) {
    const Timeline happened = read_timeline(s.happened);
    panels = {{"planned, at the median costs", simulate(schedule, measured_costs(happened)), "s"},
              {"happened", happened, "s"}};
  }
  write_text_file(s.out, draw_svg(title, panels));
}

int show(Settings s) {
  const ScheduleSpec spec = parse_schedule(s.name);
  s.costs = costs_of(s);
  const Schedule schedule = schedule_of(s, spec);
  fmt::print("{}: {} stages, {} micro-batches{}\n", s.name, schedule.stages, schedule.micro,
             schedule.chunks == 1 ? "" : fmt::format(", {} chunks in each stage", schedule.chunks));
  if (s.check) {  // make_schedule() has read a file and refused it; of ours it is a proof for who wants to see it
    const Verdict verdict = check(schedule);
    if (!verdict.ok) fail<InvalidArgument>("{}", verdict.reason);
    fmt::print("checked: every forward before its backward, every send with its receive, no deadlock\n");
  }
  const Timeline planned = simulate(schedule, s.costs);
  if (s.actions)
    fmt::print("{}", to_text(schedule));
  else if (!s.check)
    fmt::print("{}", draw_text(planned, columns_of_terminal()));
  print_numbers(s, spec, schedule, planned);
  if (!s.out.empty()) write_picture(s, schedule, planned);
  if (!s.save.empty()) write_text_file(s.save, to_text(schedule));
  if (const std::string sentence = few_micro_batches(schedule, s.costs); !sentence.empty())
    fmt::print(stderr, "warning: {}\n", sentence);
  return 0;
}

void add_costs(CLI::App& command, Settings& s) {
  const auto cost = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("What things cost, in any unit");
  };
  cost("--forward", s.costs.forward, "Forward of a micro-batch in a stage, all chunks together")->capture_default_str();
  cost("--backward", s.costs.backward, "Backward of it")->capture_default_str();
  cost("--input", s.input, "Backward's part for inputs, for zero-bubble; otherwise half");
  cost("--weight", s.weight, "Its part for weights; otherwise the other half");
  cost("--transfer", s.costs.transfer, "Between two stages, each way")->capture_default_str();
  command.add_flag("--rendezvous", s.costs.rendezvous, "A send ends only when its receive is reached")
      ->group("What things cost, in any unit");
}

}  // namespace

Run add_schedule(CLI::App& app, const Invocation&) {
  auto s = std::make_shared<Settings>();
  CLI::App* command =
      app.add_subcommand("schedule", "Show what the stages of a pipeline do when, and how long they wait");
  command->add_option("NAME", s->name, "gpipe, 1f1b, interleaved:V (V chunks in each stage), zero-bubble or file:PATH")
      ->required();
  command->add_option("--stages", s->stages, "Stages, one rank each; a file says it itself");
  command->add_option("--micro", s->micro, "Micro-batches of a step; a file says it itself");
  command->add_option("--out", s->out, "Draw it: an SVG file");
  command
      ->add_option("--happened", s->happened,
                   "With --out: below it what a run did, from its --record-schedule FILE; costs are then measured ones")
      ->needs("--out");
  command->add_flag("--actions", s->actions,
                    "Print the actions of each stage instead of the picture, as files have them");
  command->add_option("--save", s->save, "Write them to a file, to change it and to train with file:PATH");
  command->add_flag("--check", s->check, "Only say whether it works out; a file that does not is refused in any case");
  add_costs(*command, *s);
  command->footer(
      "In the picture F is a forward, B a backward, I and W its parts for inputs and weights; the number is the\n"
      "micro-batch, and dots are waits: the bubble. Peak activations are the micro-batches (times chunks) whose "
      "forward\n"
      "is done and whose backward is not: what a stage needs memory for.\n"
      "  gpipe          all forwards, then all backwards: holds all activations\n"
      "  1f1b           the same bubble, and holds at most as many as there are stages\n"
      "  interleaved:V  a stage has V pieces of the model: the bubble is V times smaller, with more sent and held\n"
      "  zero-bubble    weights' gradients fill the waits: a third of the bubble, at most as many held as stages\n"
      "  file:PATH      your own; docs/pipeline.md has the format\n"
      "Examples:\n"
      "  trireme schedule 1f1b --stages 4 --micro 8\n"
      "  trireme schedule zero-bubble --stages 4 --micro 8 --out zero-bubble.svg\n"
      "  trireme schedule interleaved:2 --stages 2 --micro 8 --forward 1 --backward 2 --transfer 0.1\n"
      "  trireme schedule gpipe --stages 2 --micro 4 --save my.schedule\n"
      "  trireme schedule file:my.schedule --check");
  return [s] { return show(*s); };
}

}  // namespace trireme::tools
