#pragma once
// Residual networks of images: ResNet-18, 34 and 50.
//
//   auto net = models::resnet(18, {.channels = 3, .classes = 10});                   // for images of 8 × 8 to 64 × 64
//   auto net = models::resnet(50, {.classes = 1000, .small = false});                // for larger ones, ImageNet's
//
// Parameters and buffers have the names and shapes of torchvision's models, so weights can go either way. For small
// images the first layer is a 3 × 3 convolution without stride, and there is no max pool, as is usual for CIFAR.
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include <trireme/layers/sections.h>

namespace trireme::models {

struct ResNetOptions {
  int64_t channels = 3;     // of the images
  int64_t classes = 10;     // outputs
  bool small = true;        // images of up to 64 × 64 pixels
  bool zero_gamma = false;  // each block begins as the identity: the last batch norm's weights are 0
  bool recompute = false;   // blocks compute their activations again in the backward pass, and keep none
};

/// Sections: "stem", every block ("layer1.0"), and "head": pooling and the last linear layer.
class ResNet : public torch::nn::Module, public layers::Sectioned {
 public:
  using torch::nn::Module::Module;
  /// [batch, channels, height, width] → [batch, classes]; images of at least 8 × 8 (1 × 1 where `small` is not).
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

/// `depth`: 18, 34 or 50. Throws InvalidArgument for others. Weights are drawn as Kaiming He's.
std::shared_ptr<ResNet> resnet(int depth, const ResNetOptions& options = {});

}  // namespace trireme::models
