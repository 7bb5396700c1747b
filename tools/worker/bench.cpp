// The processes that `trireme bench` starts for ours.
#include <memory>

#include "../bench.h"
#include "../bench_flags.h"
#include "../commands.h"

namespace trireme::tools {

Run add_bench_worker(CLI::App& app, const Invocation&) {
  struct Settings {
    std::string out, name, collective = "allreduce";
    std::vector<size_t> sizes;
    int guards = 0, elastic = 0, snapshots = 0;
    StepMeasure step;
    std::string gradients;
    std::vector<std::string> codecs;
    bool private_memory = false, gpt = false, bubbles = false;
    ModelMeasure model;
    PipelineMeasure pipeline;
    CheckpointMeasure checkpoints;
  };
  auto s = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand("bench", "Measure the training step of one case, or a collective by size");
  command->add_option("--out", s->out, "File for the result, JSON lines")->required();
  command->add_option("--case", s->name, "Such as lenet-32")->check(CLI::IsMember(kTrainCases));
  command->add_option("--guards", s->guards, "Turns of steps that look for nothing, for NaN, and that clip");
  command->add_option("--elastic", s->elastic, "Turns of steps that survive a death, and that do not");
  command->add_option("--snapshots", s->snapshots, "Turns of steps beside which state is taken, in several ways")
      ->excludes("--case");
  command->add_option("--checkpoints", s->checkpoints.dir, "Folder for checkpoints: what they cost")
      ->excludes("--case");
  command->add_option("--turns", s->checkpoints.turns, "Checkpoints beside steps")->capture_default_str();
  command->add_option("--width", s->checkpoints.width, "Of the model's hidden layers")->capture_default_str();
  command->add_option("--batch", s->checkpoints.batch, "Samples per worker and step")->capture_default_str();
  command->add_flag("--alone", s->step.alone, "As if there were no other rank");
  command->add_option("--codec", s->step.codec, "--case: of gradients between machines")->capture_default_str();
  command->add_option("--gradients", s->gradients, "What --codecs leave out of this model's")
      ->check(CLI::IsMember(kGradientModels));
  command->add_option("--codecs", s->codecs, "Separated by commas")->delimiter(',');
  command->add_option("--sizes", s->sizes, "Bytes, separated by commas")->delimiter(',')->excludes("--case");
  command->add_option("--collective", s->collective, "The one whose --sizes are measured")
      ->check(CLI::IsMember(kCollectives))
      ->capture_default_str();
  command->add_flag("--gpt", s->gpt, "A step of a GPT, divided over the ranks")->excludes("--case");
  add_model_measure(*command, s->model);
  command->add_option("--tensor", s->model.tensor, "Ranks that share each of its layers")->capture_default_str();
  command->add_option("--zero", s->model.zero, "Stage")->capture_default_str();
  add_pipeline_measure(*command, s->pipeline);
  command->add_flag("--bubbles", s->bubbles, "What the stages of a pipeline wait, by schedule")->needs("--pipeline");
  command->add_flag("--private", s->private_memory, "In memory of the caller's own");
  return [s, command] {
    if (!s->gradients.empty()) return measure_gradients(s->out, s->gradients, s->codecs);
    if (!s->sizes.empty()) return measure_collective(s->out, s->collective, s->sizes, s->private_memory);
    if (!s->checkpoints.dir.empty()) return measure_checkpoints(s->out, s->checkpoints);
    if (command->count("--pipeline") > 0) {
      s->pipeline.model = s->model;
      return s->bubbles ? measure_bubbles(s->out, s->pipeline) : measure_pipeline(s->out, s->pipeline);
    }
    if (s->gpt) return measure_model(s->out, s->model);
    if (s->snapshots > 0) return measure_snapshots(s->out, s->snapshots);
    if (s->elastic > 0) return measure_elastic(s->out, s->name, s->elastic);
    if (s->guards > 0) return measure_guards(s->out, s->name, s->guards);
    s->step.name = s->name;
    if (command->count("--steps") > 0) s->step.steps = s->model.steps;
    return measure_step(s->out, s->step);
  };
}

}  // namespace trireme::tools
