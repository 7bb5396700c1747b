#pragma once
// Trained models, back from their files and into the files of others.
#include <torch/nn/modules/container/sequential.h>

#include <string>

#include <trireme/checkpoint/reader.h>
#include <trireme/models/about.h>

namespace trireme::models {

struct Loaded {
  torch::nn::Sequential net{nullptr};  // with the saved parameters and buffers, in eval mode
  About about;                         // complete: what the file did not say is told by its tensors
};

/// A model of the zoo from a .safetensors file, or from a folder of checkpoints: the newest one. `model`: which it is,
/// where the file does not say, as with Parallel::save() without metadata. Blocks on the file. Throws IoError,
/// Corruption for a file that is damaged or none, and InvalidArgument when its tensors are not those of the model.
Loaded load(const std::string& path, const std::string& model = "");

/// Parameters and buffers of any module, from a checkpoint. Throws InvalidArgument that names the tensors which the
/// checkpoint has not, or has with another shape; nothing has changed then.
void fill(torch::nn::Module& module, const checkpoint::Checkpoint& checkpoint);

/// The file that load() reads for a path: itself, or of a folder the newest checkpoint's. Throws IoError when there is
/// none.
std::string model_file(const std::string& path);

/// Writes parameters, buffers and what the model says of itself; `path` is the old file or the whole new one. Throws
/// IoError.
void save_safetensors(const Loaded& model, const std::string& path);

}  // namespace trireme::models
