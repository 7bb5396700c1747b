#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <trireme/base/error.h>
#include <trireme/models/language.h>
#include <trireme/models/load.h>
#include <trireme/models/models.h>
#include <trireme/parallel/tensors.h>

namespace trireme::models {
namespace {

using Found = checkpoint::Checkpoint::Found;
using Stored = std::map<std::string, Found>;  // tensors by name
using State = std::vector<std::pair<std::string, torch::Tensor>>;

// ---- which model it is ----

/// The layer of "7.weight".
int layer_of(const std::string& name) {
  int number = -1;
  std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

/// The weight of the first layer, or the bias of the last one.
const checkpoint::StoredTensor* outermost(const Stored& stored, const char* ending, bool last) {
  const checkpoint::StoredTensor* best = nullptr;
  int layer = -1;
  for (const auto& [name, found] : stored) {
    const int here = layer_of(name);
    if (!name.ends_with(ending) || here < 0 || found.tensor->shape.empty()) continue;
    if (best == nullptr || (here < layer) != last) best = found.tensor, layer = here;
  }
  return best;
}

/// A language model's file says all of it but the type of its tensors.
void complete_language(About& about, const Stored& stored, const std::string& path) {
  if (about.outputs == 0 || about.shape.size() != 1 || !about.tokenizer)
    fail<InvalidArgument>(
        "{} does not say how its tokens are made: a language model is saved with metadata_of(), as `trireme train` "
        "does",
        path);
  if (about.tokenizer->vocabulary() != about.outputs)
    fail<Corruption>("{}: the tokenizer has {} tokens, the model {}", path, about.tokenizer->vocabulary(),
                     about.outputs);
  if (!stored.empty() && stored.begin()->second.tensor->type == "F64") about.dtype = "f64";
}

/// A ResNet's first and last layer have names. Images as usual for what they look at: ImageNet's, MNIST's or CIFAR's.
void complete_resnet(About& about, const Stored& stored, const std::string& path) {
  const auto first = stored.find("conv1.weight"), last = stored.find("fc.bias");
  if (first == stored.end() || last == stored.end() || first->second.tensor->shape.size() != 4)
    fail<InvalidArgument>("{} has no layers as a ResNet has: 'conv1.weight', 'fc.bias', …", path);
  const std::vector<int64_t>& shape = first->second.tensor->shape;
  const int64_t pixels = shape[3] == 7 ? 224 : shape[1] == 1 ? 28 : 32;
  if (about.shape.empty()) about.shape = {shape[1], pixels, pixels};
  if (about.outputs == 0) about.outputs = last->second.tensor->shape[0];
  if (first->second.tensor->type == "F64") about.dtype = "f64";
}

/// What the file does not say, its tensors do.
void complete(About& about, const Stored& stored, const std::string& path) {
  if (language_spec(about.model)) return complete_language(about, stored, path);
  if (about.model.starts_with("resnet")) return complete_resnet(about, stored, path);
  const auto *first = outermost(stored, ".weight", false), *last = outermost(stored, ".bias", true);
  if (first == nullptr || last == nullptr)
    fail<InvalidArgument>("{} has no layers as models of `trireme train` have: '0.weight', '0.bias', …", path);
  const bool flat = about.model.starts_with("linear") || about.model.starts_with("mlp");
  if (about.shape.empty()) about.shape = flat ? std::vector{first->shape.back()} : std::vector<int64_t>{1, 28, 28};
  if (about.outputs == 0) about.outputs = last->shape[0];
  if (first->type == "F64") about.dtype = "f64";
}

/// Throws unless it is known which model it is.
About about_at(const checkpoint::Tensors& from, const std::string& model) {
  About about;
  try {
    about = about_of(from.metadata());
  } catch (const Corruption& error) {
    fail<Corruption>("{} says of itself what cannot be: {}", from.path, error.what());
  }
  if (!model.empty() && !about.model.empty() && model != about.model)
    fail<InvalidArgument>("{} holds {}, not {}: leave the model's name out", from.path, about.model, model);
  if (about.model.empty()) about.model = model;
  if (about.model.empty())
    fail<InvalidArgument>(
        "{} does not say which model it is{}. If it is one of `trireme models`, give its name: --model lenet",
        from.path, about.producer.empty() ? ": another program has written it" : "");
  return about;
}

// ---- its tensors ----

/// Parameters and buffers by name.
State state_of(const torch::nn::Module& module) {
  State state;
  for (const auto& item : module.named_parameters()) state.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace_back(item.key(), item.value());
  return state;
}

/// "F32[10,784]"
std::string shown(const std::string& type, const std::vector<int64_t>& shape) {
  return fmt::format("{}[{}]", type, fmt::join(shape, ","));
}

/// A sentence for each tensor that is not in both as it should be.
std::vector<std::string> differences(const State& state, const Stored& stored) {
  std::vector<std::string> differ;
  for (const auto& [name, tensor] : state) {
    const std::string wanted = shown(format_name(tensor.scalar_type()), tensor.sizes().vec());
    const auto found = stored.find(name);
    if (found == stored.end())
      differ.push_back(fmt::format("{} {} is missing", name, wanted));
    else if (const auto* there = found->second.tensor; shown(there->type, there->shape) != wanted)
      differ.push_back(fmt::format("{} {} is {}", name, wanted, shown(there->type, there->shape)));
  }
  for (const auto& [name, found] : stored)
    if (std::none_of(state.begin(), state.end(), [&](const auto& item) { return item.first == name; }))
      differ.push_back(fmt::format("{} {} is one too many", name, shown(found.tensor->type, found.tensor->shape)));
  return differ;
}

void read_into(torch::Tensor tensor, const Found& found) {
  const torch::Tensor rows = torch::empty(tensor.sizes(), tensor.scalar_type());
  found.file->read(*found.tensor, 0, {static_cast<std::byte*>(rows.data_ptr()), rows.nbytes()});
  tensor.copy_(rows);
}

}  // namespace

void fill(torch::nn::Module& module, const checkpoint::Tensors& from, const std::string& what) {
  const torch::NoGradGuard no_grad;
  const State state = state_of(module);
  const Stored stored = from.model();
  std::vector<std::string> differ = differences(state, stored);
  constexpr size_t kMostShown = 4;
  const std::string more = differ.size() > kMostShown ? fmt::format("; and {} more", differ.size() - kMostShown) : "";
  if (differ.size() > kMostShown) differ.resize(kMostShown);
  if (!differ.empty())
    fail<InvalidArgument>("the tensors in {} are not those of {}: {}{}", from.path, what, fmt::join(differ, "; "),
                          more);
  for (const auto& [name, tensor] : state) read_into(tensor, stored.at(name));
}

Loaded load(const std::string& path, const std::string& model) {
  if (!std::filesystem::exists(path)) fail<IoError>("there is no file or folder '{}'", path);
  const auto from = checkpoint::Tensors::open(checkpoint::system_files(), path, true);
  Loaded loaded{.about = about_at(from, model), .path = from.path, .skipped = from.skipped};
  About& about = loaded.about;
  complete(about, from.model(), from.path);
  loaded.net = make(about.model, about.shape, about.outputs, {.task = about.task});
  loaded.net.module().to(about.dtype == "f64" ? torch::kFloat64 : torch::kFloat32);
  fill(*loaded.net, from,
       fmt::format("{} for samples of {} and {} output{}", about.model, fmt::join(about.shape, "×"), about.outputs,
                   about.outputs == 1 ? "" : "s"));
  if (about.schema && about.schema->inputs() != static_cast<size_t>(about.shape[0]))
    fail<Corruption>("{}: the columns make {} inputs, the model has {}", from.path, about.schema->inputs(),
                     about.shape[0]);
  loaded.net.eval();
  return loaded;
}

void save_safetensors(const Loaded& model, const std::string& path) {
  std::vector<torch::Tensor> kept;
  std::vector<checkpoint::NamedTensor> tensors;
  for (const auto& [name, tensor] : state_of(*model.net)) {
    kept.push_back(tensor.detach().contiguous());
    const torch::Tensor& values = kept.back();
    tensors.push_back(
        {name, format_name(values.scalar_type()), values.sizes().vec(), values.data_ptr(), values.nbytes()});
  }
  checkpoint::write_safetensors(path, tensors, metadata_of(model.about));
}

}  // namespace trireme::models
