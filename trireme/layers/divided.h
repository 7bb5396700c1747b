#pragma once
// Layers whose parameters are parts of larger ones.
//
// A tensor-parallel layer keeps a slice of each large matrix: rows or columns of it, or a part of a vocabulary. To
// whoever saves, hashes, counts or compares a model, what counts is the whole matrix, as the ordinary layer has it. A
// module that keeps slices says so by deriving from Divided, and says of what: nobody else needs to know its type.
#include <string>
#include <vector>

namespace trireme::layers {

/// Part `index` of `count` of a larger tensor, which is cut along `dim` into equal parts, in the order of ranks.
struct Division {
  std::string parameter;  // its name in the module that says so: "weight"
  int dim = 0;
  int index = 0, count = 1;
};

/// What a torch::nn::Module derives from too when it keeps parts of parameters. Found by walking named_modules().
class Divided {
 public:
  virtual ~Divided() = default;
  /// Of the module's own parameters, without those of its children. None: all are whole, and alike on all ranks.
  virtual std::vector<Division> divisions() const = 0;
};

}  // namespace trireme::layers
