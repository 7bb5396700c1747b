#pragma once
// A small model whose layers are divided over a group, and the same as an ordinary one. The layers are written here, in
// the plainest way, so that what is tested does not depend on the library's.
#include <torch/torch.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/group.h>
#include <trireme/layers/divided.h>

namespace trireme::test {

inline std::mutex making;  // libtorch's generator is one for all threads

/// Sums over the group where it says so, and passes through elsewhere.
template <bool forward_sums>
struct Join : torch::autograd::Function<Join<forward_sums>> {
  static torch::Tensor sum(const torch::Tensor& x, const Group* group) {
    torch::Tensor whole = x.contiguous().clone();
    if (group != nullptr)
      group->comm().allreduce(whole.data_ptr(), static_cast<size_t>(whole.numel()), DType::f64, Op::sum, "a layer");
    return whole;
  }
  static const Group* group_in(torch::autograd::AutogradContext* context) {
    return reinterpret_cast<const Group*>(context->saved_data["group"].toInt());
  }
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, int64_t group) {
    context->saved_data["group"] = group;
    return forward_sums ? sum(x, group_in(context)) : x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {forward_sums ? gradients[0] : sum(gradients[0], group_in(context)), torch::Tensor()};
  }
};

struct Part {
  const Group* group = nullptr;  // null: the ordinary layer
  int index() const { return group == nullptr ? 0 : group->rank(); }
  int count() const { return group == nullptr ? 1 : group->size(); }
  int64_t handle() const { return reinterpret_cast<int64_t>(group); }
  torch::Tensor of(const torch::Tensor& whole, int64_t dim) const {
    const int64_t size = whole.size(dim) / count();
    return whole.narrow(dim, index() * size, size).clone();
  }
};

/// Rows of the weight, and of the bias, on each rank.
struct Column : torch::nn::Module, layers::Divided {
  Column(int64_t in, int64_t out, Part its_part) : part(its_part) {
    torch::nn::Linear whole(torch::nn::LinearOptions(in, out));
    whole->to(torch::kFloat64);
    weight = register_parameter("weight", part.of(whole->weight.detach(), 0));
    bias = register_parameter("bias", part.of(whole->bias.detach(), 0));
  }
  std::vector<layers::Division> divisions() const override {
    return {{"weight", 0, part.index(), part.count()}, {"bias", 0, part.index(), part.count()}};
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::linear(Join<false>::apply(x, part.handle()), weight, bias);
  }
  Part part;
  torch::Tensor weight, bias;
};

/// Columns of the weight on each rank; all have the bias.
struct Row : torch::nn::Module, layers::Divided {
  Row(int64_t in, int64_t out, Part its_part) : part(its_part) {
    torch::nn::Linear whole(torch::nn::LinearOptions(in, out));
    whole->to(torch::kFloat64);
    weight = register_parameter("weight", part.of(whole->weight.detach(), 1));
    bias = register_parameter("bias", whole->bias.detach().clone());
  }
  std::vector<layers::Division> divisions() const override { return {{"weight", 1, part.index(), part.count()}}; }
  torch::Tensor forward(const torch::Tensor& x) {
    return Join<true>::apply(torch::linear(x, weight), part.handle()) + bias;
  }
  Part part;
  torch::Tensor weight, bias;
};

struct DividedNet : torch::nn::Module {
  static constexpr int64_t kIn = 7, kHidden = 24, kOut = 3;
  explicit DividedNet(const Group* group = nullptr, uint64_t seed = 5) {
    const std::lock_guard lock(making);
    torch::manual_seed(seed);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kIn})));
    in = register_module("in", std::make_shared<Column>(kIn, kHidden, Part{group}));
    out = register_module("out", std::make_shared<Row>(kHidden, kIn, Part{group}));
    head = register_module("head", torch::nn::Linear(kIn, kOut));
    seen = register_buffer("seen", torch::zeros({2}, torch::kFloat64));
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head->forward(x + out->forward(torch::gelu(in->forward(norm->forward(x)))));
  }
  torch::nn::LayerNorm norm{nullptr};
  std::shared_ptr<Column> in;
  std::shared_ptr<Row> out;
  torch::nn::Linear head{nullptr};
  torch::Tensor seen;
};

}  // namespace trireme::test
