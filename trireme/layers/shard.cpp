#include <fmt/ranges.h>
#include <fnmatch.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <typeinfo>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/layers/divided.h>
#include <trireme/layers/shard.h>
#include <trireme/layers/shard_kernel.h>

namespace trireme::layers {
namespace {

using torch::Tensor;
using torch::nn::EmbeddingImpl;
using torch::nn::LinearImpl;

/// In the registry in place of the layer that a member holds: the same parameters, and what they are parts of.
template <class Layer>
class Sharded : public Layer, public Divided {
 public:
  Sharded(const Layer& layer, const WeightCut& cut, std::vector<Division> divisions)
      : torch::nn::Module(static_cast<const torch::nn::Module&>(layer)),
        Layer(layer),
        divisions_(std::move(divisions)),
        known_(layer.weight, cut) {}

  std::vector<Division> divisions() const override { return divisions_; }
  std::shared_ptr<torch::nn::Module> clone(const torch::optional<torch::Device>& /*device*/) const override {
    fail<InvalidArgument>("a sharded module cannot be cloned: make another one, and shard() that");
  }

 private:
  std::vector<Division> divisions_;
  KnownWeight known_;
};

/// A layer that the table names.
struct Match {
  std::string name;
  std::shared_ptr<torch::nn::Module> layer;
  How how;

  std::string parent() const { return name.find('.') == name.npos ? "" : name.substr(0, name.rfind('.')); }
  std::string own() const { return name.substr(name.rfind('.') + 1); }  // npos + 1 is 0
  bool linear() const { return how != Vocab; }
  int dim() const { return how == Row ? 1 : 0; }
  Tensor weight() const {
    return linear() ? layer->as<torch::nn::Linear>()->weight : layer->as<torch::nn::Embedding>()->weight;
  }
};

using Modules = torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;

bool matches(const std::string& pattern, const std::string& name) {
  const std::string dotted = "." + name;
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 || fnmatch(pattern.c_str(), dotted.c_str(), 0) == 0;
}

const char* name_of(How how) {
  switch (how) {
    case Column:
      return "Column";
    case Row:
      return "Row";
    case Gathered:
      return "Gathered";
    default:
      return "Vocab";
  }
}

/// Exactly these: what a derived class does with its weight is its own affair.
bool fits(const torch::nn::Module& layer, How how) {
  return typeid(layer) == (how == Vocab ? typeid(EmbeddingImpl) : typeid(LinearImpl));
}

void check_kind(const std::string& name, const torch::nn::Module& layer, const Rule& rule) {
  if (dynamic_cast<const Divided*>(&layer) != nullptr) fail<InvalidArgument>("shard(): '{}' is divided already", name);
  if (!fits(layer, rule.how))
    fail<InvalidArgument>("shard(): '{}' is a {}; {} (pattern '{}') is for {} itself", name, layer.name(),
                          name_of(rule.how), rule.pattern,
                          rule.how == Vocab ? "torch::nn::Embedding" : "torch::nn::Linear");
  if (rule.how != Vocab) return;
  const auto& options = layer.as<torch::nn::Embedding>()->options;
  if (options.padding_idx() || options.max_norm() || options.scale_grad_by_freq())
    fail<InvalidArgument>(
        "shard(): '{}' has padding_idx, max_norm or scale_grad_by_freq, which need the whole vocabulary", name);
}

/// Layers in the order of their registration. Containers and layers without parameters are nobody's business.
std::vector<Match> matches_of(const Modules& modules, const std::vector<Rule>& table) {
  std::vector<Match> found;
  std::vector<bool> used(table.size());
  std::vector<std::string> names;
  for (const auto& item : modules) {
    if (item.value()->parameters(/*recurse=*/false).empty() || item.key().empty()) continue;
    names.push_back(item.key());
    const auto fitting = [&](const Rule& rule) { return matches(rule.pattern, item.key()); };
    const auto rule = std::find_if(table.begin(), table.end(), fitting);
    if (rule == table.end()) continue;
    check_kind(item.key(), *item.value(), *rule);
    used[static_cast<size_t>(rule - table.begin())] = true;
    found.push_back({item.key(), item.value(), rule->how});
  }
  for (size_t i = 0; i < table.size(); i++)
    if (!used[i])
      fail<InvalidArgument>("shard(): no layer is left for the pattern '{}'{}. The module has {}", table[i].pattern,
                            did_you_mean(table[i].pattern, names), fmt::join(names, ", "));
  return found;
}

/// A Column's outputs are parts; what makes one of them again is a Row of the same parent, behind it.
void check_pairs(const std::vector<Match>& found) {
  for (size_t i = 0; i < found.size(); i++) {
    const auto partner = [&](How how, size_t from, size_t to) {
      return std::any_of(found.begin() + static_cast<ptrdiff_t>(from), found.begin() + static_cast<ptrdiff_t>(to),
                         [&](const Match& other) { return other.how == how && other.parent() == found[i].parent(); });
    };
    if (found[i].how == Column && !partner(Row, i + 1, found.size()))
      fail<InvalidArgument>(
          "shard(): the Column '{}' has no Row behind it in '{}' that would put its parts together: add one to the "
          "table, or make it Gathered",
          found[i].name, found[i].parent());
    if (found[i].how == Row && !partner(Column, 0, i))
      fail<InvalidArgument>("shard(): the Row '{}' has no Column before it in '{}' that would give it parts",
                            found[i].name, found[i].parent());
  }
}

void check_extents(const std::vector<Match>& found, const TensorGroup& group) {
  for (const Match& one : found) {
    const char* const what = one.how == Row ? "inputs" : one.how == Vocab ? "vocabulary" : "outputs";
    group.share_of(fmt::format("shard(): '{}': {}", one.name, what), one.weight().size(one.dim()));
  }
}

/// Several layers may have one weight, such as an embedding and an output layer: all of them must be cut alike.
void check_ties(const Modules& modules, const std::vector<Match>& found) {
  for (const Match& one : found)
    for (const auto& item : modules)
      for (const auto& parameter : item.value()->named_parameters(/*recurse=*/false)) {
        if (!parameter.value().is_same(one.weight()) || item.value() == one.layer) continue;
        const auto same = [&](const Match& other) { return other.layer == item.value() && other.dim() == one.dim(); };
        if (std::none_of(found.begin(), found.end(), same))
          fail<InvalidArgument>("shard(): '{}' and '{}' have one weight: the table must cut it alike for both",
                                one.name, item.key());
      }
}

void keep_part(Tensor parameter, int dim, const TensorGroup& group) {
  parameter.mutable_grad().reset();
  parameter.set_data(group.part_of(parameter.detach(), dim).clone(torch::MemoryFormat::Contiguous));
}

/// Of its weight, unless that is a part already, and its bias.
std::shared_ptr<torch::nn::Module> cut_layer(const Match& one, const TensorGroup& group, bool weight_is_cut) {
  const WeightCut cut{group, one.dim(), one.how == Gathered};
  if (!weight_is_cut) keep_part(one.weight(), one.dim(), group);
  std::vector<Division> divisions{{"weight", one.dim(), group.rank(), group.size()}};
  if (!one.linear())
    return std::make_shared<Sharded<EmbeddingImpl>>(*one.layer->as<torch::nn::Embedding>(), cut, divisions);
  const LinearImpl& layer = *one.layer->as<torch::nn::Linear>();
  if (one.how == Column && layer.bias.defined()) {
    keep_part(layer.bias, 0, group);
    divisions.push_back({"bias", 0, group.rank(), group.size()});
  }
  return std::make_shared<Sharded<LinearImpl>>(layer, cut, divisions);
}

}  // namespace

void shard(torch::nn::Module& module, const TensorGroup& group, const std::vector<Rule>& table) {
  const Modules modules = module.named_modules("", /*include_self=*/false);
  const std::vector<Match> found = matches_of(modules, table);
  check_pairs(found);
  check_extents(found, group);
  check_ties(modules, found);
  if (group.alone()) return;

  const torch::NoGradGuard no_grad;
  std::map<const torch::nn::Module*, std::shared_ptr<torch::nn::Module>> exchanged;
  std::vector<Tensor> cut;
  for (const Match& one : found) {
    const auto is_this = [weight = one.weight()](const Tensor& other) { return other.is_same(weight); };
    auto& layer = exchanged[one.layer.get()];
    if (!layer) layer = cut_layer(one, group, std::any_of(cut.begin(), cut.end(), is_this));
    cut.push_back(one.weight());
    torch::nn::Module& parent = one.parent().empty() ? module : *modules[one.parent()];
    parent.replace_module(one.own(), layer);
  }
}

}  // namespace trireme::layers
