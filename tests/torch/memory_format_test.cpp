// label: unit
// Where the measured choice of a memory format is remembered.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include <trireme/models/models.h>
#include <trireme/train/memory_format.h>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

class MemoryFormat : public testing::Test {
 protected:
  MemoryFormat() {
    std::string text = (fs::temp_directory_path() / "trireme-format-XXXXXX").string();
    folder_ = mkdtemp(text.data());
  }
  ~MemoryFormat() override { fs::remove_all(folder_); }

  FormatChoice choose(const fs::path& cache) {
    World world({0, 1, "", "alone"}, {});
    const models::Model net(models::lenet_bn(), data::Task::classify);
    std::vector<torch::Tensor> before;
    const auto tensors = [&] {
      std::vector<torch::Tensor> all = net->module().parameters();
      for (const torch::Tensor& buffer : net->module().buffers()) all.push_back(buffer);
      return all;
    };
    for (const torch::Tensor& tensor : tensors()) before.push_back(tensor.detach().clone());
    const FormatChoice choice = choose_memory_format(world, net, torch::randn({2, 1, 28, 28}),
                                                     torch::zeros({2}, torch::kInt64), "lenet-bn", cache.string());
    for (size_t i = 0; i < before.size(); i++) {
      EXPECT_TRUE(torch::equal(tensors()[i], before[i])) << "measuring leaves the model as it is";
      EXPECT_EQ(tensors()[i].strides(), before[i].strides());
    }
    return choice;
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(MemoryFormat, IsRemembered) {
  const FormatChoice first = choose(folder_ / "choices.json"), second = choose(folder_ / "choices.json");
  EXPECT_NE(first.reason.find("measured"), std::string::npos) << first.reason;
  EXPECT_NE(second.reason.find("as measured in an earlier run"), std::string::npos) << second.reason;
  EXPECT_EQ(first.channels_last, second.channels_last);
  EXPECT_EQ(files(), 1u);
}

TEST_F(MemoryFormat, ACacheThatIsAFolderOnlyCostsTheMeasurement) {
  fs::create_directory(folder_ / "choices.json");
  for (int i = 0; i < 2; i++) EXPECT_EQ(choose(folder_ / "choices.json").reason.find("earlier run"), std::string::npos);
  EXPECT_EQ(files(), 1u);  // and leaves nothing beside it
}

TEST_F(MemoryFormat, ACacheThatIsNoJsonIsReplaced) {
  std::ofstream(folder_ / "choices.json") << "[[[";
  choose(folder_ / "choices.json");
  EXPECT_NE(choose(folder_ / "choices.json").reason.find("earlier run"), std::string::npos);
}

}  // namespace
}  // namespace trireme::train
