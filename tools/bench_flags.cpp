#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench_flags.h"

namespace trireme::tools {

void add_model_measure(CLI::App& command, ModelMeasure& model) {
  const auto add = [&](const char* name, int64_t& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  add("--layers", model.layers, "Of the model");
  add("--model-width", model.width, "Of the model");
  add("--heads", model.heads, "Of the model");
  add("--context", model.context, "Tokens of a sample");
  add("--samples", model.batch, "Of a step, over all workers");
  command.add_option("--steps", model.steps, "Timed steps of a round")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
}

void add_pipeline_measure(CLI::App& command, PipelineMeasure& pipeline) {
  command.add_option("--pipeline", pipeline.subject, "A step of it in stages, one for each rank")
      ->check(CLI::IsMember(kPipelineSubjects));
  command.add_option("--schedules", pipeline.schedules, "Separated by commas; none: not in stages")->delimiter(',');
  command.add_option("--micro", pipeline.micro, "Numbers of micro-batches, separated by commas")->delimiter(',');
  command.add_option("--sleep-ms", pipeline.sleep_ms, "Of a stage's forward pass that sleeps");
  command.add_option("--clip", pipeline.clip, "Norm above which gradients are scaled down");
  command.add_flag("--waits", pipeline.waits, "Updates wait for the norm of all stages");
  command.add_flag("--channels-last", pipeline.channels_last, "Convolutions' weights as N, H, W, C");
}

std::vector<std::string> words_of(const ModelMeasure& model) {
  return {fmt::format("--layers={}", model.layers), fmt::format("--model-width={}", model.width),
          fmt::format("--heads={}", model.heads),   fmt::format("--context={}", model.context),
          fmt::format("--samples={}", model.batch), fmt::format("--steps={}", model.steps)};
}

std::vector<std::string> words_of(const PipelineMeasure& pipeline) {
  std::vector<std::string> words = words_of(pipeline.model);
  words.push_back("--pipeline=" + pipeline.subject);
  words.push_back(fmt::format("--schedules={}", fmt::join(pipeline.schedules, ",")));
  words.push_back(fmt::format("--micro={}", fmt::join(pipeline.micro, ",")));
  words.push_back(fmt::format("--sleep-ms={}", pipeline.sleep_ms));
  words.push_back(fmt::format("--clip={}", pipeline.clip));
  if (pipeline.waits) words.emplace_back("--waits");
  if (pipeline.channels_last) words.emplace_back("--channels-last");
  return words;
}

}  // namespace trireme::tools
