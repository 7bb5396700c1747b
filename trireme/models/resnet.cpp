#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <array>

#include <trireme/base/error.h>
#include <trireme/layers/recompute.h>
#include <trireme/models/resnet.h>
#include <trireme/models/scripted.h>

namespace trireme::models {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

nn::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// x + f(x), with a convolution of x where f changes its shape.
class Residual : public nn::Module, public Scripted {
 public:
  Residual(const char* name, int64_t in, int64_t out, int64_t stride) : nn::Module(name) {
    if (stride == 1 && in == out) return;
    downsample_ = nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out));
  }

  virtual Tensor forward(const Tensor& x) = 0;
  /// Of the branch: its weight scales all that the block adds.
  virtual nn::BatchNorm2d last_norm() const = 0;

 protected:
  /// In place where nobody else has seen a tensor: what a batch norm gives is no input of its backward pass.
  Tensor added(const Tensor& x, Tensor y) {
    y += downsample_ ? downsample_->forward(x) : x;
    return y.relu_();
  }
  /// Behind the branch's, as torchvision orders them.
  void register_downsample() {
    if (downsample_) register_module("downsample", downsample_);
  }
  std::string script_of(const std::string& branch) const {
    return "def forward(self, x: Tensor) -> Tensor:\n" + branch + "    return torch.relu(y + " +
           (downsample_ ? "self.downsample.forward(x)" : "x") + ")\n";
  }

 private:
  nn::Sequential downsample_{nullptr};
};

class BasicBlock : public Residual {
 public:
  static constexpr int64_t kExpansion = 1;
  BasicBlock(int64_t in, int64_t width, int64_t stride) : Residual("BasicBlock", in, width, stride) {
    conv1 = register_module("conv1", convolution(in, width, 3, stride));
    bn1 = register_module("bn1", nn::BatchNorm2d(width));
    conv2 = register_module("conv2", convolution(width, width, 3));
    bn2 = register_module("bn2", nn::BatchNorm2d(width));
    register_downsample();
  }
  Tensor forward(const Tensor& x) override { return added(x, bn2(conv2(bn1(conv1(x)).relu_()))); }
  nn::BatchNorm2d last_norm() const override { return bn2; }
  std::string script() const override {
    return script_of(
        "    y = torch.relu(self.bn1.forward(self.conv1.forward(x)))\n"
        "    y = self.bn2.forward(self.conv2.forward(y))\n");
  }

 private:
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
};

class Bottleneck : public Residual {
 public:
  static constexpr int64_t kExpansion = 4;
  Bottleneck(int64_t in, int64_t width, int64_t stride) : Residual("Bottleneck", in, kExpansion * width, stride) {
    conv1 = register_module("conv1", convolution(in, width, 1));
    bn1 = register_module("bn1", nn::BatchNorm2d(width));
    conv2 = register_module("conv2", convolution(width, width, 3, stride));
    bn2 = register_module("bn2", nn::BatchNorm2d(width));
    conv3 = register_module("conv3", convolution(width, kExpansion * width, 1));
    bn3 = register_module("bn3", nn::BatchNorm2d(kExpansion * width));
    register_downsample();
  }
  Tensor forward(const Tensor& x) override { return added(x, bn3(conv3(bn2(conv2(bn1(conv1(x)).relu_())).relu_()))); }
  nn::BatchNorm2d last_norm() const override { return bn3; }
  std::string script() const override {
    return script_of(
        "    y = torch.relu(self.bn1.forward(self.conv1.forward(x)))\n"
        "    y = torch.relu(self.bn2.forward(self.conv2.forward(y)))\n"
        "    y = self.bn3.forward(self.conv3.forward(y))\n");
  }

 private:
  nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
};

constexpr size_t kLayers = 4;
using Depths = std::array<int, kLayers>;  // blocks of each layer

class Net : public ResNet, public Scripted {
 public:
  explicit Net(const ResNetOptions& options) : ResNet("ResNet"), options_(options) {
    const bool small = options.small;
    conv1_ = register_module("conv1", convolution(options.channels, 64, small ? 3 : 7, small ? 1 : 2));
    bn1_ = register_module("bn1", nn::BatchNorm2d(64));
  }

  template <class Block>
  void add_blocks(const Depths& depths) {
    int64_t in = 64;
    for (size_t layer = 0; layer < kLayers; layer++) {
      const int64_t width = int64_t{64} << layer;
      nn::Sequential blocks;
      for (int i = 0; i < depths[layer]; i++) {
        blocks->push_back(std::make_shared<Block>(in, width, i == 0 && layer > 0 ? 2 : 1));
        in = Block::kExpansion * width;
        blocks_.push_back({fmt::format("layer{}.{}", layer + 1, i), blocks->ptr<Block>(static_cast<size_t>(i))});
      }
      register_module(fmt::format("layer{}", layer + 1), blocks);
    }
    fc_ = register_module("fc", nn::Linear(in, options_.classes));
    draw();
  }

  Tensor forward(Tensor images) override {
    Tensor x = stem(images);
    for (size_t i = 0; i < blocks_.size(); i++) x = through(i, x);
    return head(x);
  }

  std::vector<layers::Section> sections() override {
    std::vector<layers::Section> all;
    all.push_back(layers::section("stem", {"conv1", "bn1"}, [this](const Tensor& images) { return stem(images); }));
    for (size_t i = 0; i < blocks_.size(); i++)
      all.push_back(
          layers::section(blocks_[i].name, {blocks_[i].name}, [this, i](const Tensor& x) { return through(i, x); }));
    all.push_back(layers::section("head", {"fc"}, [this](const Tensor& x) { return head(x); }));
    return all;
  }

  std::string script() const override {
    std::string text =
        "def forward(self, x: Tensor) -> Tensor:\n"
        "    x = torch.relu(self.bn1.forward(self.conv1.forward(x)))\n";
    if (!options_.small) text += "    x = torch.max_pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1], False)\n";
    for (size_t layer = 1; layer <= kLayers; layer++) text += fmt::format("    x = self.layer{}.forward(x)\n", layer);
    return text + "    return self.fc.forward(torch.flatten(torch.adaptive_avg_pool2d(x, [1, 1]), 1))\n";
  }

 private:
  struct Named {
    std::string name;
    std::shared_ptr<Residual> block;
  };

  /// Kaiming He's for convolutions; batch norms begin with 1 and 0 by themselves, and the last layer is torch's.
  void draw() {
    const torch::NoGradGuard no_grad;
    for (const auto& module : modules(/*include_self=*/false))
      if (auto* convolution = module->as<nn::Conv2d>())
        nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
    for (const Named& one : blocks_)
      if (options_.zero_gamma) one.block->last_norm()->weight.zero_();
  }

  Tensor stem(const Tensor& images) {
    check_images(images);
    const Tensor x = bn1_(conv1_(images)).relu_();
    return options_.small ? x : torch::max_pool2d(x, 3, 2, 1);
  }
  Tensor through(size_t number, const Tensor& x) const {
    const auto& block = blocks_[number].block;
    if (!options_.recompute || !is_training()) return block->forward(x);
    return recompute([block](const Tensor& input) { return block->forward(input); }, x, block->buffers());
  }
  Tensor head(const Tensor& x) { return fc_(torch::flatten(torch::adaptive_avg_pool2d(x, {1, 1}), 1)); }

  void check_images(const Tensor& images) const {
    const int64_t least = options_.small ? 8 : 1;
    if (images.dim() != 4 || images.size(1) != options_.channels || images.size(2) < least || images.size(3) < least)
      fail<InvalidArgument>("a ResNet takes images [batch, {}, height, width] of at least {}×{}, not {}",
                            options_.channels, least, least, c10::str(images.sizes()));
  }

  const ResNetOptions options_;
  nn::Conv2d conv1_{nullptr};
  nn::BatchNorm2d bn1_{nullptr};
  std::vector<Named> blocks_;
  nn::Linear fc_{nullptr};
};

}  // namespace

std::shared_ptr<ResNet> resnet(int depth, const ResNetOptions& options) {
  if (options.channels < 1 || options.classes < 1)
    fail<InvalidArgument>("a ResNet of {} channels and {} classes: at least 1 of each", options.channels,
                          options.classes);
  auto net = std::make_shared<Net>(options);
  if (depth == 18)
    net->add_blocks<BasicBlock>({2, 2, 2, 2});
  else if (depth == 34)
    net->add_blocks<BasicBlock>({3, 4, 6, 3});
  else if (depth == 50)
    net->add_blocks<Bottleneck>({3, 4, 6, 3});
  else
    fail<InvalidArgument>("there is no ResNet-{} here: 18, 34 and 50", depth);
  return net;
}

}  // namespace trireme::models
