#pragma once
// Models as rows of sections, which is what a pipeline is cut from.
//
// A section is a part of a model that runs after the one before it. What it needs of earlier ones comes through a
// Carried: the tensor x, and besides it whatever a section has kept for a later one (a skip connection). What is kept
// is carried along over any number of sections, also from rank to rank, until it is taken.
//
//   struct Net : torch::nn::Module, layers::Sectioned {
//     std::vector<layers::Section> sections() override {
//       return {{"down", {"down"}, [this](layers::Carried c) { c.keep("wide", c.x = down(c.x)); return c; }},
//               {"deep", {"deep", "scale"}, [this](layers::Carried c) { c.x = deep(c.x) * scale; return c; }},
//               layers::section("up", {"up"}, …)};
//     }
//   };
//
// A torch::nn::Sequential has its layers as sections without saying so, and so has a Nested inside of it.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::layers {

/// What goes from one section to the next.
struct Carried {
  torch::Tensor x;
  std::map<std::string, torch::Tensor> kept{};
  std::string section{};  // which runs: for messages

  /// For a later section. Throws InvalidArgument where one of this name is still kept.
  void keep(const std::string& name, const torch::Tensor& tensor);
  /// What was kept, which is gone afterwards. Throws InvalidArgument where it was not.
  torch::Tensor take(const std::string& name);
};

struct Section {
  std::string name;
  /// What it computes with: names of submodules, parameters and buffers in the whole module ("blocks.0", "tokens").
  std::vector<std::string> uses;
  /// May draw random numbers, change buffers and call recompute(). Must not change x or what is kept in place: others
  /// may still read them. What it refers to has to live as long as the section.
  std::function<Carried(Carried)> run;
};

/// One that takes a tensor and gives a tensor.
Section section(std::string name, std::vector<std::string> uses,
                std::function<torch::Tensor(const torch::Tensor&)> run);

/// What a torch::nn::Module derives from too when it knows its sections. forward() is all of them in order, but for
/// what the module says it does with the last one's x.
class Sectioned {
 public:
  virtual ~Sectioned() = default;
  /// They refer to the module, which has to outlive them.
  virtual std::vector<Section> sections() = 0;
};

/// A torch::nn::Sequential that can be a layer of another one, which libtorch's own cannot.
struct NestedImpl : torch::nn::SequentialImpl {
  using torch::nn::SequentialImpl::SequentialImpl;
  torch::Tensor forward(const torch::Tensor& x) { return torch::nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Nested);

/// Whether it is a torch::nn::Sequential or Nested. Other classes derived from Sequential may do more than their
/// layers.
bool is_row(const torch::nn::Module& module);

/// Those of a Sectioned module, or the layers of a Sequential or Nested. What is in one of these and is Nested or
/// Sectioned itself comes as its own sections, under its name: "3.0". A layer that works in place belongs to the
/// section before it. Throws InvalidArgument for other modules.
std::vector<Section> sections_of(torch::nn::Module& module);

/// Names of tensors in a whole module.
struct Used {
  std::vector<std::string> parameters, buffers;
};
/// What each section uses. A parameter with several names goes by its first. Throws InvalidArgument for a name that
/// there is not, and for a parameter that no section uses.
std::vector<Used> used_by(const torch::nn::Module& whole, const std::vector<Section>& sections);

/// A layer that changes its input. A leaf that needs a gradient cannot be changed in place, and a part's input is one.
bool works_in_place(const torch::nn::Module& layer);

/// "Sequential" of torch::nn::SequentialImpl.
std::string kind_of(const torch::nn::Module& module);

}  // namespace trireme::layers
