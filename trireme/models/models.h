#pragma once
// The zoo. Every model is an ordinary torch::nn::Sequential.
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <vector>

namespace trireme::models {

/// y = Wx + b on the flattened input.
torch::nn::Sequential linear(int64_t inputs, int64_t outputs);
/// Linear layers of these widths with ReLU between them, on the flattened input: {784, 512, 512, 10}.
torch::nn::Sequential mlp(const std::vector<int64_t>& widths);
/// LeNet-5 with ReLU and average pooling, for 28 × 28 images of one channel.
torch::nn::Sequential lenet(int64_t classes = 10);
/// The same with batch norm between each convolution and its ReLU.
torch::nn::Sequential lenet_bn(int64_t classes = 10);
/// The two-convolution net of many MNIST tutorials: conv 10 and 20, dropout, two linear layers.
torch::nn::Sequential twoconv(int64_t classes = 10);

/// A model by name for samples of `shape` and `outputs` classes or values: linear, mlp:512,512 (hidden widths; mlp
/// alone is mlp:512,512), lenet, lenet-bn, twoconv. Throws InvalidArgument with the nearest name, or when the shape
/// does not fit.
torch::nn::Sequential make(const std::string& spec, const std::vector<int64_t>& shape, int64_t outputs);

}  // namespace trireme::models
