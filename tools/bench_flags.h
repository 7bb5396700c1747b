#pragma once
// Flags that `trireme bench` and the processes it starts have in common.
#include <CLI/CLI.hpp>

#include "bench.h"

namespace trireme::tools {

/// The model of `trireme bench model`: sizes, samples, steps.
void add_model_measure(CLI::App& command, ModelMeasure& model);
/// What `trireme bench pipeline` asks its workers for.
void add_pipeline_measure(CLI::App& command, PipelineMeasure& pipeline);
/// The flags above, as words.
std::vector<std::string> words_of(const ModelMeasure& model);
std::vector<std::string> words_of(const PipelineMeasure& pipeline);

}  // namespace trireme::tools
