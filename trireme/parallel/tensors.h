#pragma once
// A module's parameters and buffers as lists of named tensors, and their place in the flat space. Free functions: they
// block for nobody, and tensors are handles to what the module owns.
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <trireme/exchange/terms.h>
#include <trireme/layers/divided.h>
#include <trireme/space/layout.h>

namespace trireme {

struct Named {
  std::string name;
  torch::Tensor tensor;
};

/// Parameters or buffers in the order of registration; one that is registered twice (tied weights) once.
template <class Items>
std::vector<Named> distinct(const Items& items) {
  std::vector<Named> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : items)
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      result.push_back({item.key(), item.value()});
  return result;
}

/// The further names of what is registered twice, each with the name that distinct() has.
using Ties = std::vector<std::pair<std::string, std::string>>;

template <class Items>
void add_ties(const Items& items, Ties& ties) {
  std::unordered_map<const void*, std::string> first;
  for (const auto& item : items) {
    if (!item.value().defined()) continue;
    const auto [found, is_new] = first.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!is_new) ties.emplace_back(item.key(), found->second);
  }
}

/// Of a tensor's type, as safetensors calls it.
std::string format_name(torch::ScalarType type);

/// Throws InvalidArgument, with its name, for a parameter that wants gradients and has a type without any.
void check_trainable(const Named& parameter);

/// Which parameters are trained.
exchange::Terms freezing_of(const std::vector<Named>& parameters);

/// By the name that distinct() has for a parameter: of which larger tensor it is a part.
using Divisions = std::map<std::string, layers::Division>;

/// Throws InvalidArgument for tensors that cannot be trained here.
space::Layout layout_of(const std::vector<Named>& parameters, bool channels_last, const Divisions& divisions = {});

/// The tensor of a slot, in a flat vector that outlives it.
torch::Tensor view_of(const space::Slot& slot, std::byte* flat, torch::ScalarType type);

}  // namespace trireme
