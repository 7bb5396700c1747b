#pragma once
// Trained models, back from their files and into the files of others.
#include <torch/nn/module.h>

#include <string>

#include <trireme/checkpoint/compare.h>
#include <trireme/models/about.h>
#include <trireme/models/model.h>

namespace trireme::models {

struct Loaded {
  Model net;                           // with the saved parameters and buffers, in eval mode
  About about;                         // complete: what the file did not say is told by its tensors
  std::string path{};                  // of the file or the checkpoint that was read
  std::vector<std::string> skipped{};  // sentences: which newer checkpoints are of no use, and why
};

/// A model of the zoo from a .safetensors file, a checkpoint, or a folder of them: the newest one that is whole, by its
/// hashes. `model`: which it is, where the file does not say, as with Parallel::save() without metadata. Blocks on the
/// files. Throws IoError, Corruption for a file that is damaged or none, and InvalidArgument when its tensors are not
/// those of the model or a folder has no checkpoint of use.
Loaded load(const std::string& path, const std::string& model = "");

/// Parameters and buffers of any module, from a file or a checkpoint. `what` names the module in messages. Throws
/// InvalidArgument that names the tensors which one of them has and the other has not, or with another type or shape;
/// nothing has changed then.
void fill(torch::nn::Module& module, const checkpoint::Tensors& from, const std::string& what = "this model");

/// Writes parameters, buffers and what the model says of itself; `path` is the old file or the whole new one. Throws
/// IoError.
void save_safetensors(const Loaded& model, const std::string& path);

}  // namespace trireme::models
