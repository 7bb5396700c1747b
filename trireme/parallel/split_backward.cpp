#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include <trireme/parallel/split_backward.h>

namespace trireme {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr size_t kMostLeaves = 4;  // of a node whose weights may wait: an operator's weight and bias

void execute(const edge_list& roots, const variable_list& gradients, bool keep, const edge_list& leaves = {}) {
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, keep, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, leaves);
}

/// What comes into a node while the first part runs.
struct Kept {
  bool armed = true;
  variable_list gradients;
};

class Keep final : public torch::autograd::FunctionPreHook {
 public:
  explicit Keep(std::shared_ptr<Kept> to) : to_(std::move(to)) {}
  variable_list operator()(const variable_list& gradients) override {
    if (to_->armed) to_->gradients = gradients;
    return gradients;
  }

 private:
  std::shared_ptr<Kept> to_;
};

/// A graph below some roots: which nodes lead to the inputs, and which leaves are below each of the others.
class Graph {
 public:
  Graph(const edge_list& roots, const std::vector<torch::Tensor>& inputs) {
    for (const torch::Tensor& input : inputs) is_input_.insert(torch::autograd::impl::grad_accumulator(input).get());
    for (const Edge& root : roots)
      if (root.is_valid()) visit(root.function);
  }

  struct Leaves {
    std::vector<std::shared_ptr<Node>> nodes;
    bool matrices = false;  // there is one among them
  };
  bool leads_to_input(const Node* node) const { return leads_.at(node); }
  const std::vector<std::shared_ptr<Node>>& nodes() const { return order_; }

  /// Those below some edges that no way to an input passes.
  Leaves leaves_beside(const edge_list& edges) const {
    Leaves found;
    std::set<const Node*> seen;
    std::vector<std::shared_ptr<Node>> next;
    const auto add = [&](const Edge& edge) {
      if (edge.is_valid() && !leads_to_input(edge.function.get()) && seen.insert(edge.function.get()).second)
        next.push_back(edge.function);
    };
    for (const Edge& edge : edges) add(edge);
    while (!next.empty()) {
      const std::shared_ptr<Node> one = std::move(next.back());
      next.pop_back();
      if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(one.get())) {
        found.nodes.push_back(one);
        found.matrices = found.matrices || leaf->variable.dim() >= 2;
      }
      for (const Edge& edge : one->next_edges()) add(edge);
    }
    return found;
  }

 private:
  /// Depth first, without recursion: graphs are as deep as models. A node follows all that it leads to.
  void visit(const std::shared_ptr<Node>& root) {
    std::vector<std::pair<std::shared_ptr<Node>, size_t>> path;
    const auto enter = [&](const std::shared_ptr<Node>& node) {
      if (leads_.emplace(node.get(), is_input_.count(node.get()) > 0).second) path.emplace_back(node, 0);
    };
    enter(root);
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next < node->num_outputs()) {
        const Edge& edge = node->next_edge(next++);
        if (edge.is_valid()) enter(edge.function);
        continue;
      }
      bool leads = leads_[node.get()];
      for (const Edge& edge : node->next_edges()) leads = leads || (edge.is_valid() && leads_[edge.function.get()]);
      leads_[node.get()] = leads;
      order_.push_back(node);
      path.pop_back();
    }
  }

  std::set<const Node*> is_input_;
  std::unordered_map<const Node*, bool> leads_;
  std::vector<std::shared_ptr<Node>> order_;
};

}  // namespace

struct SplitBackward::State {
  edge_list roots;
  variable_list gradients;  // where nothing leads to an input: of the outputs, for later
  edge_list first;          // leaves of the first part
  struct Left {
    std::shared_ptr<Node> node;
    std::shared_ptr<Kept> kept;
    edge_list leaves;
  };
  std::vector<Left> left;
  bool all_later = true;
};

SplitBackward::SplitBackward(edge_list roots, const std::vector<torch::Tensor>& inputs)
    : state_(std::make_unique<State>()) {
  state_->roots = std::move(roots);
  const Graph graph(state_->roots, inputs);
  std::map<const Node*, int> ways;  // by leaf: from how many nodes it is reached
  std::vector<std::pair<std::shared_ptr<Node>, Graph::Leaves>> beside;
  beside.emplace_back(nullptr, graph.leaves_beside(state_->roots));
  for (const auto& leaf : beside.front().second.nodes) ways[leaf.get()]++;
  for (const std::shared_ptr<Node>& node : graph.nodes()) {
    if (!graph.leads_to_input(node.get())) continue;
    state_->all_later = false;
    Graph::Leaves leaves = graph.leaves_beside(node->next_edges());
    for (const auto& leaf : leaves.nodes) ways[leaf.get()]++;
    if (!leaves.nodes.empty()) beside.emplace_back(node, std::move(leaves));
  }
  if (state_->all_later) return;
  for (const torch::Tensor& input : inputs)
    state_->first.emplace_back(torch::autograd::impl::grad_accumulator(input), 0);
  std::set<const Node*> listed;
  for (auto& [node, leaves] : beside) {
    const bool alone =
        std::all_of(leaves.nodes.begin(), leaves.nodes.end(), [&](const auto& leaf) { return ways[leaf.get()] == 1; });
    edge_list edges;
    for (const auto& leaf : leaves.nodes) edges.emplace_back(leaf, 0);
    if (node && alone && leaves.matrices && leaves.nodes.size() <= kMostLeaves) {
      auto kept = std::make_shared<Kept>();
      node->add_pre_hook(std::make_unique<Keep>(kept));
      state_->left.push_back({node, kept, std::move(edges)});
      continue;
    }
    for (const Edge& edge : edges)
      if (listed.insert(edge.function.get()).second) state_->first.push_back(edge);
  }
}

SplitBackward::~SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;

size_t SplitBackward::left() const { return state_->left.size(); }

void SplitBackward::inputs(variable_list gradients) {
  if (state_->all_later) {
    state_->gradients = std::move(gradients);
    return;
  }
  execute(state_->roots, gradients, /*keep=*/true, state_->first);
  for (State::Left& one : state_->left) one.kept->armed = false;
}

void SplitBackward::weights() {
  if (state_->all_later) return run_backward(state_->roots, state_->gradients);
  for (State::Left& one : state_->left) {
    edge_list roots;
    variable_list gradients;
    for (size_t i = 0; i < one.kept->gradients.size(); i++) {
      if (!one.kept->gradients[i].defined()) continue;
      roots.emplace_back(one.node, static_cast<uint32_t>(i));
      gradients.push_back(one.kept->gradients[i]);
    }
    if (!roots.empty()) execute(roots, gradients, /*keep=*/false, one.leaves);
    one = {};  // with what it has saved
  }
}

void run_backward(const edge_list& roots, const variable_list& gradients) { execute(roots, gradients, false); }

}  // namespace trireme
