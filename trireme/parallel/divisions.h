#pragma once
// Which parameters of a module are parts of larger ones, as its layers say (layers/divided.h). Not installed.
#include <torch/nn/module.h>

#include <trireme/parallel/tensors.h>

namespace trireme {

/// Those with more than one part. `ties` are the module's. Throws InvalidArgument, with the name, when a layer speaks
/// of a parameter that it does not have, or two layers say different things of one.
Divisions divisions_of(const torch::nn::Module& module, const Ties& ties);

}  // namespace trireme
