#pragma once
// Flags that `trireme bench` and the processes it starts have in common.
#include <CLI/CLI.hpp>

#include "bench.h"

namespace trireme::tools {

/// The model of `trireme bench model`: sizes, samples, steps.
void add_model_measure(CLI::App& command, ModelMeasure& model);

}  // namespace trireme::tools
