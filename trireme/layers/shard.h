#pragma once
// Divides the layers of a module that exists.
//
//   shard(*net, mesh, {{"*.mlp.in", Column}, {"*.mlp.out", Row}, {"tokens", Vocab}});
//
// A user's forward() calls typed members, so layers cannot be exchanged for others. But all that torch::nn::Linear and
// torch::nn::Embedding do ends in a few operators of libtorch, and their weights are tensors that members and registry
// share. shard() leaves the layers where they are, and a rank's part in place of each weight; kernels in front of the
// operators know such weights (shard_kernel.h), and do what ColumnLinear, RowLinear and VocabEmbedding do. Any module
// can be divided so, however its layers are held: as members, in a Sequential, by torch::linear(x, layer->weight). Who
// uses a weight by yet another operator (torch::einsum) sees the part alone.
#include <string>
#include <vector>

#include <trireme/layers/tensor_group.h>

namespace trireme::layers {

enum How {
  Column,    // torch::nn::Linear: outputs are divided; a Row of the same parent must come behind it
  Row,       // torch::nn::Linear: inputs are divided, outputs summed
  Gathered,  // torch::nn::Linear: as Column, and every rank gets all outputs and has the whole bias
  Vocab,     // torch::nn::Embedding: the vocabulary is divided
};

struct Rule {
  std::string pattern;  // of dotted names; * stands for anything, dots too, and "*.in" is also "in" itself
  How how;
};

/// The first rule that matches a layer counts. Every rank of the group calls it with the same module, table and
/// parameters; not collective. From now on the module has this rank's parts and says so (divided.h). Throws
/// InvalidArgument, and has changed nothing, when a rule matches no layer or one of another kind, when a Column has no
/// Row behind it or a Row no Column before it, and when something cannot be divided. With a rank alone it only checks.
/// A divided module cannot be cloned.
void shard(torch::nn::Module& module, const TensorGroup& group, const std::vector<Rule>& table);

}  // namespace trireme::layers
