#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cmath>
#include <unordered_set>
#include <utility>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/layers/as_before.h>
#include <trireme/layers/recompute.h>
#include <trireme/layers/sections.h>

namespace trireme {
namespace {

using torch::Tensor;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Part = std::function<Tensor(const Tensor&)>;

thread_local bool second_run = false;

/// What else a run depends on.
struct Surroundings {
  bool autocast = at::autocast::is_cpu_enabled();
  at::ScalarType type = at::autocast::get_autocast_cpu_dtype();
  Tensor random = layers::random_state();
};

/// While one lives, this thread has them again, and is in a second run.
class Again {
 public:
  explicit Again(const Surroundings& first) : run_(std::exchange(second_run, true)) { enter(first); }
  ~Again() {
    enter(now_);
    second_run = run_;
  }
  Again(const Again&) = delete;
  Again& operator=(const Again&) = delete;

 private:
  static void enter(const Surroundings& surroundings) {
    at::autocast::set_cpu_enabled(surroundings.autocast);
    at::autocast::set_autocast_cpu_dtype(surroundings.type);
    layers::set_random_state(surroundings.random);
  }
  const Surroundings now_;
  const bool run_;
};

/// Autocast remembers casts of parameters, as parts of a graph that then belongs to two runs: not here.
class NoCache {
 public:
  NoCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoCache(const NoCache&) = delete;
  NoCache& operator=(const NoCache&) = delete;

 private:
  const bool before_ = at::autocast::is_autocast_cache_enabled();
};

/// The input as a leaf of a graph of the part's own.
Tensor leaf_of(const Tensor& x) { return x.detach().requires_grad_(x.requires_grad()); }

/// The parameters that a part has used: the leaves of its graph, whose oldest node has the number `first`.
variable_list parameters_of(const Tensor& output, const Tensor& input, uint64_t first) {
  variable_list parameters;
  std::unordered_set<Node*> seen;
  std::vector<Node*> next{output.grad_fn().get()};
  while (!next.empty()) {
    Node* const node = next.back();
    next.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      if (!leaf->variable.is_same(input)) parameters.push_back(leaf->variable);
    } else if (node->sequence_nr() < first) {
      fail<InvalidArgument>(
          "recompute(): the function uses a tensor with a gradient that was computed before it ({}). Make it from the "
          "function's argument, or compute it inside",
          node->name());
    }
    for (const Edge& edge : node->next_edges()) next.push_back(edge.function.get());
  }
  return parameters;
}

/// In the graph instead of all nodes of a part.
class Recomputed final : public Node {
 public:
  Recomputed(Part part, const Tensor& x, variable_list parameters, Surroundings first)
      : part_(std::move(part)),
        x_(x, /*is_output=*/false),
        parameters_(std::move(parameters)),
        first_(std::move(first)) {
    add_next_edge(x.requires_grad() ? torch::autograd::impl::gradient_edge(x) : Edge());
    for (const Tensor& parameter : parameters_) add_next_edge(torch::autograd::impl::gradient_edge(parameter));
  }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!torch::GradMode::is_enabled(), "recompute() has no second derivatives");
    if (!gradients[0].defined()) return variable_list(num_outputs());
    const torch::AutoGradMode with_graph(true);
    const Tensor x = leaf_of(x_.unpack());
    const Tensor y = run(x);
    variable_list wanted = parameters_;
    if (x.requires_grad()) wanted.push_back(x);
    variable_list found = torch::autograd::grad({y}, wanted, {std::move(gradients[0])}, /*retain_graph=*/c10::nullopt,
                                                /*create_graph=*/false, /*allow_unused=*/true);
    Tensor of_x;
    if (x.requires_grad()) {
      of_x = std::move(found.back());
      found.pop_back();
    }
    found.insert(found.begin(), std::move(of_x));
    return found;
  }

  void release_variables() override {
    x_.reset_data();
    parameters_.clear();
    part_ = nullptr;
  }

  std::string name() const override { return "Recomputed"; }

 private:
  Tensor run(const Tensor& x) const {
    TORCH_CHECK(part_, "backward() through recompute() a second time: the first one has to be told retain_graph");
    const Again again(first_);
    const NoCache none;
    return part_(x);
  }

  Part part_;
  torch::autograd::SavedVariable x_;
  variable_list parameters_;
  const Surroundings first_;
};

/// The part, which in a second run leaves the buffers as they are.
Part changing_once(const Part& part, const variable_list& buffers) {
  if (buffers.empty()) return part;
  return [part, buffers](const Tensor& input) {
    if (!second_run) return part(input);
    const layers::SameBuffers as_before(buffers);
    return part(input);
  };
}

/// What comes in is needed once more: a first layer that would change it gets a copy.
Tensor run_layers(torch::nn::SequentialImpl& net, size_t begin, size_t end, Tensor x) {
  if (begin < end && layers::works_in_place(*net.ptr(begin))) x = x.clone();
  for (size_t i = begin; i < end; i++) x = (net.begin() + static_cast<ptrdiff_t>(i))->forward<Tensor>(x);
  return x;
}

}  // namespace

torch::Tensor recompute(const std::function<torch::Tensor(const torch::Tensor&)>& f, const torch::Tensor& x) {
  if (!torch::GradMode::is_enabled()) return f(x);
  Surroundings first;
  const uint64_t number = at::sequence_number::peek();
  const Tensor input = leaf_of(x);
  const NoCache none;
  const Tensor output = f(input);
  if (!output.requires_grad()) return output;
  variable_list parameters = parameters_of(output, input, number);
  const auto node = std::make_shared<Recomputed>(f, x, std::move(parameters), std::move(first));
  Tensor y = output.detach();
  torch::autograd::set_history(y, node);
  return y;
}

torch::Tensor recompute(const std::function<torch::Tensor(const torch::Tensor&)>& f, const torch::Tensor& x,
                        const std::vector<torch::Tensor>& buffers) {
  return recompute(changing_once(f, buffers), x);
}

torch::Tensor recompute(torch::nn::SequentialImpl& net, const torch::Tensor& x) {
  const size_t layers = net.size();
  const auto parts = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(layers))));
  Tensor y = x;
  for (size_t part = 0; part < parts; part++) {
    const size_t begin = part * layers / parts, end = (part + 1) * layers / parts;
    variable_list buffers;
    for (size_t i = begin; i < end; i++)
      for (const Tensor& buffer : net.ptr(i)->buffers()) buffers.push_back(buffer);
    const Part run =
        changing_once([&net, begin, end](const Tensor& input) { return run_layers(net, begin, end, input); }, buffers);
    y = part + 1 < parts ? recompute(run, y) : run(y);
  }
  return y;
}

bool recomputing() { return second_run; }

}  // namespace trireme
