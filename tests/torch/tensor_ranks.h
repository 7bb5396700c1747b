#pragma once
// What tests of divided models share: the same random numbers for all ranks, and whole tensors out of parts.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>

#include <trireme/layers/divided.h>
#include <trireme/layers/tensor_group.h>

#include "ranks.h"

namespace trireme::test {

inline std::mutex random_numbers;  // libtorch's are the process's, and ranks are threads here

/// What `make` makes of random numbers from `seed`, while nobody else draws.
template <class Make>
auto seeded(uint64_t seed, const Make& make) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(seed);
  return make();
}

inline torch::Tensor random(uint64_t seed, torch::IntArrayRef sizes) {
  return seeded(seed, [&] { return torch::randn(sizes, torch::kFloat64); });
}

inline torch::Tensor random_tokens(uint64_t seed, int64_t end, torch::IntArrayRef sizes) {
  return seeded(seed, [&] { return torch::randint(0, end, sizes, torch::kInt64); });
}

/// By name, the parameters of the whole model or their gradients. Collective.
using Tensors = std::map<std::string, torch::Tensor>;
inline Tensors whole(const torch::nn::Module& module, const layers::TensorGroup& group, bool gradients) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor tensor = gradients ? item.value().grad() : item.value().detach();
    EXPECT_TRUE(tensor.defined()) << item.key();
    tensors[item.key()] = tensor;
  }
  for (const auto& item : module.named_modules())
    if (const auto* divided = dynamic_cast<const layers::Divided*>(item.value().get()))
      for (const layers::Division& part : divided->divisions()) {
        EXPECT_EQ(part.index, group.rank());
        EXPECT_EQ(part.count, group.size());
        torch::Tensor& tensor = tensors.at(item.key().empty() ? part.parameter : item.key() + "." + part.parameter);
        tensor = group.all_gather(tensor, part.dim);
      }
  return tensors;
}

inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return a.sizes() == b.sizes() ? (a - b).abs().max().item<double>() : 1e9;
}

inline void expect_close(const Tensors& ours, const Tensors& theirs, double tolerance = 1e-12) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) {
    ASSERT_TRUE(ours.contains(name)) << name;
    const double size = std::max(1.0, tensor.abs().max().item<double>());
    EXPECT_LE(distance(ours.at(name), tensor), tolerance * size) << name;
  }
}

}  // namespace trireme::test
