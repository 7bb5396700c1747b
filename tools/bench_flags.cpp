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

}  // namespace trireme::tools
