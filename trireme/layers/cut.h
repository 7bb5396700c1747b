#pragma once
// Where a model is cut into parts of about the same cost: a pure choice, apart from measuring.
//
//   Cut two = cut(net, 2, {.example = batch.x});              // a Sequential of any depth, or a Sectioned module
//   Cut two = cut(mesh, net, 2, {.example = batch.x});        // the same on all ranks of a mesh: measured by one
//   Cut two = cut(net, 2, {.points = {"blocks.3"}});          // where the user says
//   Cut two = cut(net, {{"down", {"down1"}, …}, …}, 2);       // any module, with the user's own sections
//   Carried carried = two.parts[1].run(two.parts[0].run({x}));
//
// Parts are rows of sections (sections.h): stages × chunks of a pipeline, in the order in which they run. One after the
// other in a process they are the model, bit by bit. Places depend on nothing but the sections and their costs.
// Measured costs differ between ranks, so that ranks of a mesh cut by those of one.
#include <torch/nn/pimpl.h>

#include <memory>

#include <trireme/cluster/mesh.h>
#include <trireme/layers/sections.h>

namespace trireme::layers {

/// A row of sections.
struct Part {
  std::string name;                   // of the first section: "blocks.2"
  std::vector<std::string> sections;  // names
  /// As that of a section. The last part's throws InvalidArgument when something is left that nobody has taken.
  std::function<Carried(Carried)> run;
  std::vector<std::string> parameters, buffers;  // names in the whole module, each tensor under its first
};

struct Cut {
  std::shared_ptr<torch::nn::Module> whole;
  std::vector<Part> parts;
  std::vector<double> cost;  // of each part, in the unit of the sections' costs
  /// Parameters that several parts use, such as an embedding that is the output layer too: name → numbers of parts.
  std::map<std::string, std::vector<size_t>> shared;
  std::string reason;  // a sentence: where, and why
};

struct CutOptions {
  /// Sections before which to cut, one less than parts. A Sequential inside of another stands for its first layer.
  /// None: where the costliest part is cheapest.
  std::vector<std::string> points{};
  /// Of each section, in any unit. None: measured with the example, or else the number of parameters, and 1.
  std::vector<double> costs{};
  /// An input of the model, as large as a micro-batch.
  torch::Tensor example{};
  /// What is computed from the last section's x, such as the loss; it is measured with that section.
  std::function<torch::Tensor(const torch::Tensor&)> last{};
  /// Each part runs by about √n groups of its n sections that keep no activations (recompute.h), for modules that do
  /// not so by themselves. Such a group must not keep() what it does not take itself (InvalidArgument).
  bool recompute = false;
};

/// Seconds that each section takes for a forward and a backward pass: the median of a few. The module's parameters,
/// gradients, buffers and libtorch's random numbers stay as they are. Tensor ranks have to call it together.
/// Throws InvalidArgument when a section computes with a parameter that it does not name, or with an earlier section's
/// tensor that is not carried to it: such a model cannot be cut there.
std::vector<double> measure(const torch::nn::Module& whole, const std::vector<Section>& sections,
                            const torch::Tensor& example,
                            const std::function<torch::Tensor(const torch::Tensor&)>& last = {});

/// Numbers of the sections with which parts begin, 0 first, for contiguous parts whose largest sum of costs is least;
/// among those, the sum of squares is least. Each part gets one at least of the sections that `counts` says true of
/// (all by default). Empty where there are too few. A pure function.
std::vector<size_t> balance(const std::vector<double>& costs, size_t parts, const std::vector<bool>& counts = {});

/// Not collective. Throws InvalidArgument with a sentence: too many parts, a part without parameters, a point that is
/// no section, a module whose sections nobody knows.
Cut cut(const std::shared_ptr<torch::nn::Module>& whole, int parts, const CutOptions& options = {});
/// Any module, with the user's sections.
Cut cut(const std::shared_ptr<torch::nn::Module>& whole, const std::vector<Section>& sections, int parts,
        const CutOptions& options = {});

/// Collective among the mesh, whose ranks all cut at the same places: the first rank measures, with those that divide
/// its layers along "tensor", and gives its costs to all. Throws Mismatch where ranks ask for something else; an error
/// of measuring is one of all ranks.
Cut cut(const Mesh& mesh, const std::shared_ptr<torch::nn::Module>& whole, int parts, const CutOptions& options = {});
Cut cut(const Mesh& mesh, const std::shared_ptr<torch::nn::Module>& whole, const std::vector<Section>& sections,
        int parts, const CutOptions& options = {});

/// The same of torch's holders, such as torch::nn::Sequential.
template <class Impl>
Cut cut(const torch::nn::ModuleHolder<Impl>& whole, int parts, const CutOptions& options = {}) {
  return cut(std::shared_ptr<torch::nn::Module>(whole.ptr()), parts, options);
}
template <class Impl>
Cut cut(const torch::nn::ModuleHolder<Impl>& whole, const std::vector<Section>& sections, int parts,
        const CutOptions& options = {}) {
  return cut(std::shared_ptr<torch::nn::Module>(whole.ptr()), sections, parts, options);
}
template <class Impl>
Cut cut(const Mesh& mesh, const torch::nn::ModuleHolder<Impl>& whole, int parts, const CutOptions& options = {}) {
  return cut(mesh, std::shared_ptr<torch::nn::Module>(whole.ptr()), parts, options);
}
template <class Impl>
Cut cut(const Mesh& mesh, const torch::nn::ModuleHolder<Impl>& whole, const std::vector<Section>& sections, int parts,
        const CutOptions& options = {}) {
  return cut(mesh, std::shared_ptr<torch::nn::Module>(whole.ptr()), sections, parts, options);
}

}  // namespace trireme::layers
