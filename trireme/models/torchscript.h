#pragma once
// Trained models as TorchScript, which Python's torch.jit.load and torch::jit::load run without this library.
//
// The program is written from the structure of the module: every layer becomes a submodule under the name it has here,
// with its parameters and buffers, so the exported state_dict() has the keys of the safetensors file (but for `in` of
// language models, which is `in_`). A new kind of layer is one line in torchscript.cpp, or of a language model in
// language_script.cpp; a module whose forward() is more than a row of layers says itself how it is written (Scripted).
// Besides `forward` there is `predict`, from values as they stand in data to answers: docs/using-a-model.md says what
// both expect.
#include <torch/csrc/jit/api/module.h>

#include <string>

#include <trireme/models/load.h>

namespace trireme::models {

/// In eval mode, with copies of the parameters. `forward` alone. Throws InvalidArgument for a layer of a kind that is
/// not known here, and for settings of a layer that are not.
torch::jit::Module to_torchscript(const torch::nn::Sequential& net, const std::string& name = "Model");
/// The same of a module that is of the zoo, such as a ResNet, but no language model.
torch::jit::Module to_torchscript(const torch::nn::Module& net);

/// With `predict`.
torch::jit::Module to_torchscript(const Loaded& model);

/// Writes it, with what the model says of itself as extra file trireme.json: the metadata of the safetensors file as
/// one JSON object of strings. `path` is the old file or the whole new one. Throws IoError.
void save_torchscript(const Loaded& model, const std::string& path);

}  // namespace trireme::models
