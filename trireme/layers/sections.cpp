#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <typeinfo>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/layers/sections.h>

namespace trireme::layers {
namespace {

using torch::Tensor;
using torch::nn::AnyModule;
using torch::nn::SequentialImpl;

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

bool is_or_in(const std::string& name, const std::string& module) {
  return name == module || name.starts_with(module + ".");
}

void glue(Section& first, const Section& second) {
  first.uses.insert(first.uses.end(), second.uses.begin(), second.uses.end());
  first.run = [one = first.run, two = second.run](Carried carried) { return two(one(std::move(carried))); };
}

/// Of a module inside of another one.
std::vector<Section> under(const std::string& name, std::vector<Section> sections) {
  for (Section& section : sections) {
    section.name = joined(name, section.name);
    for (std::string& use : section.uses) use = joined(name, use);
  }
  return sections;
}

bool has_sections(const torch::nn::Module& module) {
  return is_row(module) || dynamic_cast<const Sectioned*>(&module) != nullptr;
}

std::vector<Section> layers_of(SequentialImpl& net) {
  std::vector<Section> all;
  const auto names = net.named_children().keys();
  for (size_t i = 0; i < net.size(); i++) {
    AnyModule layer = *(net.begin() + static_cast<ptrdiff_t>(i));
    if (has_sections(*layer.ptr())) {
      for (Section& inner : under(names[i], sections_of(*layer.ptr()))) all.push_back(std::move(inner));
      continue;
    }
    Section one = section(names[i], {names[i]}, [layer](const Tensor& x) mutable { return layer.forward<Tensor>(x); });
    if (works_in_place(*layer.ptr()) && !all.empty())
      glue(all.back(), one);
    else
      all.push_back(std::move(one));
  }
  return all;
}

/// All names of a module's tensors, and of each tensor the first.
class Names {
 public:
  explicit Names(const torch::OrderedDict<std::string, Tensor>& tensors) {
    std::map<const c10::TensorImpl*, std::string> first;
    for (const auto& item : tensors)
      names_.emplace_back(item.key(), first.try_emplace(item.value().unsafeGetTensorImpl(), item.key()).first->second);
  }

  /// Whether there are any in `use`, which are added to `found` if they are not there yet.
  bool add(const std::string& use, std::vector<std::string>& found) const {
    bool any = false;
    for (const auto& [name, first] : names_) {
      if (!is_or_in(name, use)) continue;
      any = true;
      if (std::find(found.begin(), found.end(), first) == found.end()) found.push_back(first);
    }
    return any;
  }

  /// name and first name
  const std::vector<std::pair<std::string, std::string>>& all() const { return names_; }

 private:
  std::vector<std::pair<std::string, std::string>> names_;
};

void check_every_parameter_is_used(const torch::nn::Module& whole, const Names& parameters,
                                   const std::vector<Used>& used) {
  for (const auto& [name, first] : parameters.all())
    if (std::none_of(used.begin(), used.end(), [&, first = first](const Used& one) {
          return std::find(one.parameters.begin(), one.parameters.end(), first) != one.parameters.end();
        }))
      fail<InvalidArgument>(
          "no section of {} uses its parameter '{}', which no part would train: name it, or the module that it is in, "
          "in the `uses` of the section that computes with it",
          kind_of(whole), name);
}

}  // namespace

void Carried::keep(const std::string& name, const Tensor& tensor) {
  if (!kept.emplace(name, tensor).second)
    fail<InvalidArgument>("section '{}' keeps '{}', which is kept already and was not taken: use another name", section,
                          name);
}

torch::Tensor Carried::take(const std::string& name) {
  const auto found = kept.find(name);
  if (found == kept.end()) {
    std::vector<std::string> there;
    for (const auto& item : kept) there.push_back(item.first);
    fail<InvalidArgument>("section '{}' takes '{}', which no section before it has kept{}. There is {}", section, name,
                          did_you_mean(name, there),
                          there.empty() ? "nothing" : fmt::format("{}", fmt::join(there, ", ")));
  }
  Tensor tensor = std::move(found->second);
  kept.erase(found);
  return tensor;
}

Section section(std::string name, std::vector<std::string> uses, std::function<Tensor(const Tensor&)> run) {
  return {std::move(name), std::move(uses), [run = std::move(run)](Carried carried) {
            carried.x = run(carried.x);
            return carried;
          }};
}

/// Layers print the setting.
bool works_in_place(const torch::nn::Module& layer) {
  std::ostringstream text;
  layer.pretty_print(text);
  return text.str().find("inplace=true") != std::string::npos;
}

bool is_row(const torch::nn::Module& module) {
  return typeid(module) == typeid(SequentialImpl) || typeid(module) == typeid(NestedImpl);
}

std::vector<Section> sections_of(torch::nn::Module& module) {
  if (auto* sectioned = dynamic_cast<Sectioned*>(&module)) return sectioned->sections();
  if (is_row(module)) return layers_of(dynamic_cast<SequentialImpl&>(module));
  fail<InvalidArgument>(
      "{0} is neither a Sequential nor Sectioned, and nobody knows where it can be cut: say where it can be cut, with "
      "a "
      "list of sections (cut(net, {{{{\"first\", {{\"conv1\"}}, …}}, …}}, parts)), or derive {0} from "
      "trireme::layers::Sectioned too",
      kind_of(module));
}

std::vector<Used> used_by(const torch::nn::Module& whole, const std::vector<Section>& sections) {
  const Names parameters(whole.named_parameters()), buffers(whole.named_buffers());
  const std::vector<std::string> modules = whole.named_modules("", /*include_self=*/false).keys();
  std::vector<Used> all;
  for (const Section& section : sections) {
    Used& used = all.emplace_back();
    for (const std::string& use : section.uses) {
      const bool has_parameters = parameters.add(use, used.parameters), has_buffers = buffers.add(use, used.buffers);
      if (has_parameters || has_buffers || std::find(modules.begin(), modules.end(), use) != modules.end()) continue;
      std::vector<std::string> names = modules;
      for (const auto& item : parameters.all()) names.push_back(item.first);
      fail<InvalidArgument>("section '{}' uses '{}', and {} has no module, parameter or buffer of this name{}",
                            section.name, use, kind_of(whole), did_you_mean(use, names));
    }
  }
  check_every_parameter_is_used(whole, parameters, all);
  return all;
}

std::string kind_of(const torch::nn::Module& module) {
  std::string name = module.name();
  name = name.substr(name.rfind(':') + 1);
  return name.ends_with("Impl") ? name.substr(0, name.size() - 4) : name;
}

}  // namespace trireme::layers
