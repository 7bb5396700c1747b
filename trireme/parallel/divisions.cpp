#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/parallel/divisions.h>

namespace trireme {
namespace {

std::string first_name(const std::string& name, const Ties& ties) {
  const auto tie = std::find_if(ties.begin(), ties.end(), [&](const auto& pair) { return pair.first == name; });
  return tie == ties.end() ? name : tie->second;
}

bool same(const layers::Division& a, const layers::Division& b) {
  return a.dim == b.dim && a.index == b.index && a.count == b.count;
}

std::string describe(const layers::Division& one) {
  return fmt::format("part {} of {} along dim {}", one.index, one.count, one.dim);
}

}  // namespace

Divisions divisions_of(const torch::nn::Module& module, const Ties& ties) {
  Divisions all;
  const auto add = [&](const std::string& path, const torch::nn::Module& layer) {
    const auto* const divided = dynamic_cast<const layers::Divided*>(&layer);
    if (divided == nullptr) return;
    const auto own = layer.named_parameters(false);
    for (const layers::Division& one : divided->divisions()) {
      const std::string name = path.empty() ? one.parameter : path + "." + one.parameter;
      if (!own.contains(one.parameter))
        fail<InvalidArgument>("a layer says that '{}' is {} of a larger tensor, and has no such parameter", name,
                              describe(one));
      if (one.count == 1) continue;
      const auto [found, added] = all.emplace(first_name(name, ties), one);
      if (!added && !same(found->second, one))
        fail<InvalidArgument>("'{}' is {} and {} of a larger tensor: layers that share it must divide it alike", name,
                              describe(found->second), describe(one));
    }
  };
  add("", module);
  for (const auto& item : module.named_modules("", false)) add(item.key(), *item.value());
  return all;
}

}  // namespace trireme
