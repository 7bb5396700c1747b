#pragma once
// The zoo. Most models of images and rows are ordinary torch::nn::Sequentials; ResNets are in resnet.h, language models
// in transformer.h.
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <vector>

#include <trireme/models/model.h>

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

struct MakeOptions {
  data::Task task = data::Task::classify;  // classify or regress; of a language model the name says it
  layers::TensorGroup ranks{};             // among whom a language model is divided: a Mesh or a Group; default: nobody
  bool recompute = false;                  // activations are computed again in the backward pass instead of kept
  bool sequence = false;                   // see GptOptions
};

/// A model by name for samples of `shape` and `outputs` classes or values: linear, mlp:512,512 (hidden widths; mlp
/// alone is mlp:512,512), lenet, lenet-bn, twoconv, for images of any size resnet18, resnet34 and resnet50 (resnet.h);
/// and for a text of `outputs` tokens and samples of its context gpt and bert (models/language.h). Throws
/// InvalidArgument with the nearest name, or when the shape does not fit.
Model make(const std::string& spec, const std::vector<int64_t>& shape, int64_t outputs,
           const MakeOptions& options = {});

}  // namespace trireme::models
