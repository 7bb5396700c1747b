#include <algorithm>
#include <cctype>

#include <trireme/base/error.h>
#include <trireme/parallel/tensors.h>
#include <trireme/torch/compat.h>

namespace trireme {

using torch_compat::dtype_of;

std::string format_name(torch::ScalarType type) {
  switch (type) {
    case torch::kBool:
      return "BOOL";
    case torch::kInt8:
      return "I8";
    case torch::kInt16:
      return "I16";
    default: {
      std::string name(trireme::name_of(dtype_of(type)));
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
      return name;
    }
  }
}

void check_trainable(const Named& parameter) {
  const DType type = dtype_of(parameter.tensor.scalar_type());
  if (parameter.tensor.requires_grad() && type != DType::f32 && type != DType::f64)
    fail<InvalidArgument>("parameter '{}' has type {}; parameters must be f32 or f64", parameter.name,
                          trireme::name_of(type));
}

exchange::Terms freezing_of(const std::vector<Named>& parameters) {
  exchange::Terms terms;
  for (const auto& [name, tensor] : parameters)
    terms.add(fmt::format("requires_grad of {}", name), tensor.requires_grad() ? "true" : "false (frozen)");
  return terms;
}

namespace {

space::Cut cut_of(const Named& parameter, const layers::Division& division) {
  space::Cut cut{division.dim, division.index, division.count, parameter.tensor.sizes().vec()};
  if (cut.dim < 0 || cut.dim >= parameter.tensor.dim())
    fail<InvalidArgument>("parameter '{}' has {} dims, and is said to be cut along dim {}", parameter.name,
                          parameter.tensor.dim(), cut.dim);
  cut.whole[static_cast<size_t>(cut.dim)] *= cut.count;
  return cut;
}

}  // namespace

space::Layout layout_of(const std::vector<Named>& parameters, bool channels_last, const Divisions& divisions) {
  std::vector<space::Slot> slots;
  for (const Named& parameter : parameters) {
    const auto& [name, tensor] = parameter;
    if (!tensor.device().is_cpu())
      fail<InvalidArgument>("parameter '{}' is on {}; only CPU tensors can be trained here", name,
                            tensor.device().str());
    check_trainable(parameter);
    slots.push_back(
        {name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), channels_last && tensor.dim() == 4, {}});
    if (const auto division = divisions.find(name); division != divisions.end())
      slots.back().cut = cut_of(parameter, division->second);
  }
  return space::Layout(std::move(slots));
}

torch::Tensor view_of(const space::Slot& slot, std::byte* flat, torch::ScalarType type) {
  void* data = flat + slot.range.begin;
  if (!slot.channels_last) return torch::from_blob(data, slot.shape, type);
  const auto& s = slot.shape;
  return torch::from_blob(data, {s[0], s[2], s[3], s[1]}, type).permute({0, 3, 1, 2});
}

}  // namespace trireme
