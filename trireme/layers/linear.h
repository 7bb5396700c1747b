#pragma once
// Linear layers divided among tensor ranks: y = x Aᵀ + b.
//
//   ColumnLinear   outputs are divided: rank r has rows r of A (columns of Aᵀ) and of b, and gives its part of y
//   RowLinear      inputs are divided: rank r has columns r of A; it takes its part of x, and y is the sum over ranks
//
// A row layer behind a column layer needs no exchange between them, whatever is done element by element: one sum in the
// forward pass, one in the backward pass. Without a group each is torch::nn::Linear: the same parameters, the same
// numbers. Parameters of all ranks together are those of torch::nn::Linear with the same seed.
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <trireme/layers/divided.h>
#include <trireme/layers/tensor_group.h>

namespace trireme::layers {

struct ColumnOptions {
  bool bias = true;
  /// Every rank gets all of y, and goes on with it alike.
  bool gather_output = false;
  /// Weights are drawn from a normal distribution with this deviation, biases are zero. 0: as torch::nn::Linear does.
  double deviation = 0;
  /// Activations outside a column and a row layer, [batch, time, …], are split among ranks along time.
  bool sequence = false;
};

struct RowOptions {
  bool bias = true;
  double deviation = 0;
  bool sequence = false;
};

/// `outputs` must be divisible by the number of ranks (InvalidArgument).
class ColumnLinearImpl : public torch::nn::Module, public Divided {
 public:
  ColumnLinearImpl(int64_t inputs, int64_t outputs, const TensorGroup& group = {}, const ColumnOptions& options = {});
  /// `input`: all of x, the same on all ranks; or this rank's part of the sequence.
  torch::Tensor forward(const torch::Tensor& input);
  /// Behind enter() (collectives.h), where several layers share one.
  torch::Tensor inner(const torch::Tensor& input);
  std::vector<Division> divisions() const override;

  torch::Tensor weight, bias;

 private:
  TensorGroup group_;
  ColumnOptions options_;
};
TORCH_MODULE(ColumnLinear);

/// `inputs` must be divisible by the number of ranks (InvalidArgument). The bias is whole on every rank.
class RowLinearImpl : public torch::nn::Module, public Divided {
 public:
  RowLinearImpl(int64_t inputs, int64_t outputs, const TensorGroup& group = {}, const RowOptions& options = {});
  /// `input`: this rank's part of x.
  torch::Tensor forward(const torch::Tensor& input);
  std::vector<Division> divisions() const override;

  torch::Tensor weight, bias;

 private:
  TensorGroup group_;
  RowOptions options_;
};
TORCH_MODULE(RowLinear);

}  // namespace trireme::layers
