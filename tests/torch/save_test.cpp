// label: multiproc
// What save() writes, read by a reader of this file's own.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>

#include <trireme/parallel/parallel.h>
#include <trireme/space/updater.h>

#include "ranks.h"

namespace trireme::test {
namespace {

struct Entry {
  std::string type;
  std::vector<int64_t> shape;
  std::string bytes;
};

size_t size_of_type(const std::string& type) {
  static const std::map<std::string, size_t> sizes = {{"BOOL", 1}, {"I8", 1},  {"U8", 1},  {"I16", 2}, {"F16", 2},
                                                      {"BF16", 2}, {"I32", 4}, {"F32", 4}, {"I64", 8}, {"F64", 8}};
  return sizes.at(type);
}

/// Checks what readers in the world check: the parts follow each other without a hole or an overlap, up to the end of
/// the file.
std::map<std::string, Entry> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string raw((std::istreambuf_iterator<char>(file)), {});
  uint64_t length = 0;
  std::memcpy(&length, raw.data(), sizeof length);
  const auto header = nlohmann::json::parse(raw.substr(8, length));
  const std::string data = raw.substr(8 + length);
  std::map<size_t, size_t> parts;
  std::map<std::string, Entry> entries;
  for (const auto& [name, item] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = item["data_offsets"][0], end = item["data_offsets"][1];
    parts[begin] = end;
    Entry entry{item["dtype"], item["shape"], data.substr(begin, end - begin)};
    size_t elements = 1;
    for (int64_t extent : entry.shape) elements *= static_cast<size_t>(extent);
    EXPECT_EQ(entry.bytes.size(), elements * size_of_type(entry.type)) << name;
    entries[name] = entry;
  }
  size_t next = 0;
  for (const auto& [begin, end] : parts) {
    EXPECT_EQ(begin, next);
    next = end;
  }
  EXPECT_EQ(next, data.size());
  EXPECT_EQ(parts.size(), entries.size());
  return entries;
}

template <class T>
std::vector<T> values(const Entry& entry) {
  std::vector<T> result(entry.bytes.size() / sizeof(T));
  std::memcpy(result.data(), entry.bytes.data(), entry.bytes.size());
  return result;
}

/// A file that is gone when the test ends.
struct Scratch {
  std::string path = (std::filesystem::temp_directory_path() / (job_name() + ".safetensors")).string();
  ~Scratch() { std::filesystem::remove(path); }
};

struct Counting : torch::nn::Module {
  Counting() {
    layer = register_module("layer", torch::nn::Linear(2, 1));
    register_buffer("seen", torch::tensor({true, false, true}));
    register_buffer("small", torch::tensor({-3, 100}, torch::kInt8));
    register_buffer("middle", torch::tensor({-300, 30000}, torch::kInt16));
    register_buffer("whole", torch::tensor({-70000}, torch::kInt32));
    register_buffer("bytes", torch::tensor({200, 3}, torch::kUInt8));
  }
  torch::nn::Linear layer{nullptr};
};

TEST(Save, BuffersAreWhatTheyAre) {
  const Scratch file;
  run_ranks(2, [&](World& world) {
    auto net = std::make_shared<Counting>();
    Parallel train(world, *net, space::sgd({.lr = 0.1}));
    train.step([&] { return net->layer->forward(torch::ones({1, 2})).sum(); });
    train.save(file.path);
  });
  const auto saved = read(file.path);
  EXPECT_EQ(saved.at("seen").type, "BOOL");
  EXPECT_EQ(saved.at("seen").bytes, std::string({1, 0, 1}));
  EXPECT_EQ(saved.at("small").type, "I8");
  EXPECT_EQ(values<int8_t>(saved.at("small")), (std::vector<int8_t>{-3, 100}));
  EXPECT_EQ(saved.at("middle").type, "I16");
  EXPECT_EQ(values<int16_t>(saved.at("middle")), (std::vector<int16_t>{-300, 30000}));
  EXPECT_EQ(saved.at("whole").type, "I32");
  EXPECT_EQ(values<int32_t>(saved.at("whole")), (std::vector<int32_t>{-70000}));
  EXPECT_EQ(saved.at("bytes").type, "U8");
  EXPECT_EQ(saved.at("layer.weight").type, "F32");
}

TEST(Save, BuffersThatDifferAreTheLargest) {
  const Scratch file;
  run_ranks(2, [&](World& world) {
    auto net = std::make_shared<Counting>();
    Parallel train(world, *net, space::sgd({.lr = 0.1}));
    net->named_buffers()["small"][0] = world.rank() == 1 ? 7 : -7;
    train.save(file.path);
  });
  EXPECT_EQ(values<int8_t>(read(file.path).at("small")), (std::vector<int8_t>{7, 100}));
}

/// A layer whose weight is another's.
struct OutputImpl : torch::nn::Module {
  explicit OutputImpl(torch::Tensor weight) : weight(register_parameter("weight", std::move(weight))) {}
  torch::Tensor forward(const torch::Tensor& x) const { return torch::matmul(x, weight.t()); }
  torch::Tensor weight;
};
TORCH_MODULE(Output);

/// An embedding and an output that are one matrix, and a counter with two names.
struct Tied : torch::nn::Module {
  Tied() {
    in = register_module("in", torch::nn::Embedding(5, 3));
    out = register_module("out", Output(in->weight));
    register_buffer("count", register_buffer("steps", torch::zeros({1}, torch::kInt64)));
  }
  torch::nn::Embedding in{nullptr};
  Output out{nullptr};
};

TEST(Save, TiedWeightsHaveAllTheirNames) {
  const Scratch file;
  run_ranks(2, [&](World& world) {
    auto net = std::make_shared<Tied>();
    Parallel train(world, *net, space::sgd({.lr = 0.1}));
    for (int step = 0; step < 3; step++)
      train.step([&] { return net->out->forward(net->in->forward(torch::tensor({1, 2}))).square().sum(); });
    train.save(file.path);
    const auto now = net->in->weight.detach();
    if (!world.first()) return;
    const auto saved = read(file.path);
    for (const char* name : {"in.weight", "out.weight"}) {
      ASSERT_TRUE(saved.contains(name)) << name;
      EXPECT_EQ(saved.at(name).shape, (std::vector<int64_t>{5, 3}));
      EXPECT_TRUE(torch::equal(torch::tensor(values<float>(saved.at(name))).view({5, 3}), now)) << name;
    }
    EXPECT_TRUE(saved.contains("steps") && saved.contains("count"));
    EXPECT_EQ(saved.size(), 4U);
  });
}

}  // namespace
}  // namespace trireme::test
