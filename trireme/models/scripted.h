#pragma once
// A module that says what it is in TorchScript, for models/torchscript.h. Not installed.
#include <string>

namespace trireme::models {

/// What a torch::nn::Module derives from too when its forward() is more than a layer or a row of layers.
class Scripted {
 public:
  virtual ~Scripted() = default;
  /// `def forward(self, x: Tensor) -> Tensor: …`, with children under the names that they have in the module.
  virtual std::string script() const = 0;
};

}  // namespace trireme::models
