#include <ATen/SequenceNumber.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_set>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/layers/as_before.h>
#include <trireme/layers/cut.h>

namespace trireme::layers {
namespace {

using torch::Tensor;
using torch::autograd::Node;

constexpr int kWarmUp = 1, kRounds = 5;  // passes: as many on every rank

/// While one lives, libtorch's random numbers may change; afterwards they go on as before.
struct SameRandom {
  SameRandom() = default;
  ~SameRandom() { set_random_state(before); }
  SameRandom(const SameRandom&) = delete;
  SameRandom& operator=(const SameRandom&) = delete;
  const Tensor before = random_state();
};

/// As the next part gets it: a leaf of a graph of its own.
Tensor leaf(const Tensor& tensor) { return tensor.detach().requires_grad_(tensor.requires_grad()); }

Carried as_leaves(const Carried& carried) {
  Carried leaves{leaf(carried.x)};
  for (const auto& [name, tensor] : carried.kept) leaves.kept[name] = leaf(tensor);
  return leaves;
}

/// Those that need a gradient.
std::vector<Tensor> tensors_of(const Carried& carried) {
  std::vector<Tensor> all;
  if (carried.x.requires_grad()) all.push_back(carried.x);
  for (const auto& [name, tensor] : carried.kept)
    if (tensor.requires_grad()) all.push_back(tensor);
  return all;
}

/// When each section began, by the numbers that nodes of the graph get in turn.
struct History {
  std::vector<std::pair<uint64_t, std::string>> begins{};

  const std::string& section_of(uint64_t node) const {
    const auto after = std::find_if(begins.begin(), begins.end(), [&](const auto& one) { return one.first > node; });
    return (after == begins.begin() ? after : after - 1)->second;
  }
};

/// A section, and what of the module it may use.
class Probe {
 public:
  Probe(const torch::nn::Module& whole, const Section& section, const Used& used) : whole_(whole), section_(section) {
    const auto parameters = whole.named_parameters();
    for (const std::string& name : used.parameters)
      if (parameters[name].requires_grad()) parameters_.push_back(parameters[name]);
  }

  /// Runs it, forward and backward.
  Carried pass(const Carried& before, const std::function<Tensor(const Tensor&)>& last, History& history) const {
    const Carried input = as_leaves(before);
    history.begins.emplace_back(at::sequence_number::peek(), section_.name);
    Carried named = input;
    named.section = section_.name;
    Carried output = section_.run(std::move(named));
    Carried end = output;
    if (last) end.x = last(end.x);
    const std::vector<Tensor> outputs = tensors_of(end);
    std::vector<Tensor> inputs = tensors_of(input);
    check(outputs, inputs, history);
    inputs.insert(inputs.end(), parameters_.begin(), parameters_.end());
    if (outputs.empty() || inputs.empty()) return output;
    std::vector<Tensor> gradients;
    for (const Tensor& tensor : outputs) gradients.push_back(torch::ones_like(tensor));
    torch::autograd::grad(outputs, inputs, gradients, /*retain_graph=*/c10::nullopt, /*create_graph=*/false,
                          /*allow_unused=*/true);
    return output;
  }

 private:
  static bool among(const std::vector<Tensor>& tensors, const Tensor& one) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& other) { return other.is_same(one); });
  }

  /// Everything that its graph ends in has to be its own.
  void check(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs, const History& history) const {
    std::unordered_set<Node*> seen;
    std::vector<Node*> next;
    for (const Tensor& output : outputs)
      if (output.grad_fn()) next.push_back(output.grad_fn().get());
    while (!next.empty()) {
      Node* const node = next.back();
      next.pop_back();
      if (node == nullptr || !seen.insert(node).second) continue;
      if (const auto* end = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
        if (!among(inputs, end->variable) && !among(parameters_, end->variable)) refuse_leaf(end->variable);
      } else if (node->sequence_nr() < history.begins.back().first) {
        fail<InvalidArgument>(
            "{} cannot be cut before section '{}': it computes with a tensor of section '{}' ({}) that is not carried "
            "to "
            "it. keep() the tensor there, and take() it here",
            kind_of(whole_), section_.name, history.section_of(node->sequence_nr()), node->name());
      }
      for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
    }
  }

  [[noreturn]] void refuse_leaf(const Tensor& variable) const {
    for (const auto& item : whole_.named_parameters())
      if (item.value().is_same(variable))
        fail<InvalidArgument>("section '{}' of {} computes with '{}', which it does not name: add it to `uses`",
                              section_.name, kind_of(whole_), item.key());
    fail<InvalidArgument>(
        "section '{}' of {} computes with a tensor {} that needs a gradient and is no parameter of the module: "
        "register_parameter() it",
        section_.name, kind_of(whole_), c10::str(variable.sizes()));
  }

  const torch::nn::Module& whole_;
  const Section& section_;
  std::vector<Tensor> parameters_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<double> measure(const torch::nn::Module& whole, const std::vector<Section>& sections, const Tensor& example,
                            const std::function<Tensor(const Tensor&)>& last) {
  const std::vector<Used> used = used_by(whole, sections);
  std::vector<Probe> probes;
  for (size_t i = 0; i < sections.size(); i++) probes.emplace_back(whole, sections[i], used[i]);
  const SameBuffers buffers(whole.buffers());
  const SameRandom random;
  const torch::AutoGradMode with_graph(true);
  std::vector<std::vector<double>> times(sections.size());
  for (int round = 0; round < kWarmUp + kRounds; round++) {
    Carried carried{example};
    History history;
    for (size_t i = 0; i < sections.size(); i++) {
      const auto start = Clock::now();
      carried = probes[i].pass(carried, i + 1 == sections.size() ? last : nullptr, history);
      if (round >= kWarmUp) times[i].push_back(seconds_since(start));
    }
  }
  std::vector<double> medians;
  for (const auto& of_section : times) medians.push_back(median(of_section));
  return medians;
}

}  // namespace trireme::layers
