#pragma once
// Models whose training in stages `trireme bench pipeline` measures: real ones, and one whose layers sleep instead of
// computing, so that more stages than cores wait for nothing but each other.
#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include <trireme/layers/cut.h>
#include <trireme/parallel/pipeline.h>

#include "../bench.h"

namespace trireme::tools {

struct PipelineSubject {
  std::shared_ptr<torch::nn::Module> net;
  std::vector<layers::Section> sections;
  torch::Tensor x, y;  // a batch
  LossOf loss;
  std::function<torch::Tensor()> whole_loss{};  // of the batch and the ordinary model; none of one that sleeps
};

/// The same numbers on all ranks. `parts`: into how many it will be cut, which is how many layers the one that sleeps
/// has.
PipelineSubject make_subject(const PipelineMeasure& what, int64_t samples, int stages, int parts);

}  // namespace trireme::tools
