#include <torch/nn/modules/linear.h>

#include <trireme/layers/collectives.h>
#include <trireme/layers/linear.h>

namespace trireme::layers {
namespace {

using torch::Tensor;

struct Drawn {
  Tensor weight, bias;
};

/// All of the layer, on every rank: what each keeps does not depend on how many there are.
template <class Options>
Drawn draw_linear(int64_t inputs, int64_t outputs, const Options& options) {
  if (options.deviation == 0) {
    const torch::nn::Linear whole(torch::nn::LinearOptions(inputs, outputs).bias(options.bias));
    return {whole->weight.detach(), options.bias ? whole->bias.detach() : Tensor()};
  }
  return {torch::empty({outputs, inputs}).normal_(0, options.deviation),
          options.bias ? torch::zeros({outputs}) : Tensor()};
}

/// Its own memory: the whole is given back.
Tensor kept_part(const Tensor& whole, int64_t dim, const TensorGroup& group) {
  return group.alone() ? whole : group.part_of(whole, dim).clone(torch::MemoryFormat::Contiguous);
}

}  // namespace

ColumnLinearImpl::ColumnLinearImpl(int64_t inputs, int64_t outputs, const TensorGroup& group,
                                   const ColumnOptions& options)
    : torch::nn::Module("ColumnLinear"), group_(group), options_(options) {
  group_.share_of("outputs", outputs);
  const Drawn drawn = draw_linear(inputs, outputs, options);
  weight = register_parameter("weight", kept_part(drawn.weight, 0, group_));
  if (options.bias) bias = register_parameter("bias", kept_part(drawn.bias, 0, group_));
}

torch::Tensor ColumnLinearImpl::forward(const Tensor& input) {
  const Tensor output = inner(enter(input, group_, options_.sequence));
  return options_.gather_output ? gather(output, -1, group_) : output;
}

torch::Tensor ColumnLinearImpl::inner(const Tensor& input) { return torch::linear(input, weight, bias); }

std::vector<Division> ColumnLinearImpl::divisions() const {
  if (group_.alone()) return {};
  std::vector<Division> list{{"weight", 0, group_.rank(), group_.size()}};
  if (options_.bias) list.push_back({"bias", 0, group_.rank(), group_.size()});
  return list;
}

RowLinearImpl::RowLinearImpl(int64_t inputs, int64_t outputs, const TensorGroup& group, const RowOptions& options)
    : torch::nn::Module("RowLinear"), group_(group), options_(options) {
  group_.share_of("inputs", inputs);
  const Drawn drawn = draw_linear(inputs, outputs, options);
  weight = register_parameter("weight", kept_part(drawn.weight, 1, group_));
  if (options.bias) bias = register_parameter("bias", drawn.bias);
}

torch::Tensor RowLinearImpl::forward(const Tensor& input) {
  if (group_.alone()) return torch::linear(input, weight, bias);
  Tensor output = leave(torch::linear(input, weight), group_, options_.sequence);
  if (bias.defined()) output = output.add_(used_on_part(bias, group_, options_.sequence));
  return output;
}

std::vector<Division> RowLinearImpl::divisions() const {
  if (group_.alone()) return {};
  return {{"weight", 1, group_.rank(), group_.size()}};
}

}  // namespace trireme::layers
