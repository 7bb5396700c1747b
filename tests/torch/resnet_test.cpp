// label: unit
// ResNets have torchvision's names and sizes, begin as they should, and are written as TorchScript bit by bit. What
// they compute is compared with PyTorch in tests/command/test_use.py.
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/models.h>
#include <trireme/models/resnet.h>
#include <trireme/models/torchscript.h>

namespace trireme::models {
namespace {

using torch::Tensor;

TEST(ResNet, HasAsManyParametersAsTorchvisions) {
  for (const auto& [depth, count] : {std::pair{18, 11'689'512}, {34, 21'797'672}, {50, 25'557'032}}) {
    const auto net = resnet(depth, {.classes = 1000, .small = false});
    int64_t parameters = 0;
    for (const Tensor& parameter : net->parameters()) parameters += parameter.numel();
    EXPECT_EQ(parameters, count) << depth;
  }
}

TEST(ResNet, NamesAreTorchvisions) {
  const auto names = resnet(18)->named_parameters().keys();
  const auto has = [](const std::vector<std::string>& all, const std::string& name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  };
  EXPECT_EQ(names.size(), 62u);
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 5),
            (std::vector<std::string>{"conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight",
                                      "layer1.0.bn1.weight"}));
  EXPECT_EQ(std::vector<std::string>(names.end() - 2, names.end()), (std::vector<std::string>{"fc.weight", "fc.bias"}));
  EXPECT_TRUE(has(names, "layer2.0.downsample.0.weight"));
  EXPECT_FALSE(has(names, "layer1.0.downsample.0.weight"));
  const auto deep = resnet(50);
  EXPECT_TRUE(has(deep->named_parameters().keys(), "layer1.0.downsample.1.bias"));
  EXPECT_TRUE(has(deep->named_parameters().keys(), "layer3.5.conv3.weight"));
  EXPECT_TRUE(has(deep->named_buffers().keys(), "layer4.2.bn3.running_var"));
}

TEST(ResNet, TakesImagesOfAnySize) {
  const auto net = resnet(18, {.channels = 2, .classes = 3});
  EXPECT_EQ(net->forward(torch::randn({2, 2, 8, 8})).sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(net->forward(torch::randn({2, 2, 9, 23})).sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(make("resnet18", {1, 65, 64}, 4)->module().named_parameters()["conv1.weight"].size(2), 7);
  EXPECT_EQ(make("resnet18", {1, 64, 64}, 4)->module().named_parameters()["conv1.weight"].size(2), 3);
  EXPECT_EQ(make("resnet34", {5, 80, 70}, 4)->forward(torch::randn({1, 5, 80, 70}).repeat({2, 1, 1, 1})).size(1), 4);
  EXPECT_TRUE(has_batch_norm("resnet34"));
}

TEST(ResNet, BeginsAsKaimingHeSays) {
  torch::manual_seed(1);
  const auto parameters = resnet(18)->named_parameters();
  EXPECT_NEAR(parameters["layer2.0.conv2.weight"].std().item<double>(), std::sqrt(2.0 / (128 * 9)), 5e-4);
  EXPECT_NEAR(parameters["layer2.0.downsample.0.weight"].std().item<double>(), std::sqrt(2.0 / 128), 5e-3);
  EXPECT_EQ(parameters["layer2.0.bn2.weight"].sum().item<double>(), 128);
  EXPECT_EQ(resnet(18, {.zero_gamma = true})->named_parameters()["layer2.0.bn2.weight"].sum().item<double>(), 0);
  EXPECT_EQ(resnet(50, {.zero_gamma = true})->named_parameters()["layer4.2.bn3.weight"].sum().item<double>(), 0);
}

TEST(ResNet, SectionsAreItsBlocks) {
  std::vector<std::string> names;
  for (const layers::Section& section : resnet(18)->sections()) names.push_back(section.name);
  EXPECT_EQ(names, (std::vector<std::string>{"stem", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0",
                                             "layer3.1", "layer4.0", "layer4.1", "head"}));
}

/// Gradients and buffers are the same; test_torch recomputes elsewhere.
TEST(ResNet, ComputesTwiceWithoutANoticeableDifference) {
  const auto run = [](bool again) {
    torch::manual_seed(1);
    const auto net = resnet(18, {.classes = 3, .recompute = again});
    net->forward(torch::randn({3, 3, 8, 8})).pow(2).sum().backward();
    std::vector<Tensor> all;
    for (const Tensor& parameter : net->parameters()) all.push_back(parameter.grad());
    for (const Tensor& buffer : net->buffers()) all.push_back(buffer);
    return all;
  };
  const auto plain = run(false), again = run(true);
  for (size_t i = 0; i < plain.size(); i++) EXPECT_TRUE(torch::equal(plain[i], again[i])) << i;
}

TEST(ResNet, IsWrittenAsTorchScript) {
  torch::manual_seed(1);
  for (const bool small : {true, false})
    for (const int depth : {18, 50}) {
      const auto net = resnet(depth, {.classes = 5, .small = small});
      const torch::NoGradGuard no_grad;
      for (auto& buffer : net->buffers())
        if (buffer.is_floating_point()) buffer.uniform_(0.5, 2);
      net->eval();
      std::stringstream bytes;
      to_torchscript(*net).save(bytes);
      torch::jit::Module module = torch::jit::load(bytes);
      const Tensor x = torch::randn({2, 3, 40, 33});
      EXPECT_TRUE(torch::equal(module.forward({x}).toTensor(), net->forward(x))) << depth << ' ' << small;
      std::vector<std::string> ours, theirs;
      for (const auto& item : net->named_parameters()) ours.push_back(item.key());
      for (const auto& item : module.named_parameters()) theirs.push_back(item.name);
      EXPECT_EQ(theirs, ours);
    }
}

TEST(ResNet, RefusesWhatIsNoImage) {
  const auto refused = [](const std::function<void()>& wrong, const std::string& says) {
    try {
      wrong();
      ADD_FAILURE() << says;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused([] { make("resnet18", {7, 8}, 3); }, "resnet18 takes images, channels × height × width, of at least 8×8");
  refused([] { make("resnet18", {3, 7, 8}, 3); }, "these samples are 3×7×8");
  refused([] { make("resnet18:3", {3, 8, 8}, 3); }, "unknown model 'resnet18:3'");
  refused([] { resnet(19); }, "there is no ResNet-19 here: 18, 34 and 50");
  refused([] { resnet(18, {.classes = 0}); }, "0 classes");
  refused([] { resnet(18)->forward(torch::zeros({1, 1, 8, 8})); }, "[batch, 3, height, width]");
}

}  // namespace
}  // namespace trireme::models
