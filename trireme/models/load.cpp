#include <fcntl.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/load.h>
#include <trireme/models/models.h>
#include <trireme/parallel/tensors.h>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;

// ---- the file ----

struct Stored {
  std::string name, type;
  std::vector<int64_t> shape;
  size_t begin = 0, end = 0;  // bytes of the file
};

/// The header and the bytes of a safetensors file.
class ModelFile {
 public:
  explicit ModelFile(const std::string& path) : path_(path), file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!file_) fail<IoError>("cannot open {}: {}", path, errno_text());
    uint64_t length = 0;
    const size_t size = fs::file_size(path);
    if (size < sizeof length) none("it has only {} bytes", size);
    read(&length, sizeof length, 0);
    if (length > size - sizeof length || length > kLongestHeader) none("a header of {} bytes does not fit in", length);
    std::string text(length, '\0');
    read(text.data(), length, sizeof length);
    try {
      parse(nlohmann::json::parse(text), sizeof length + length);
    } catch (const nlohmann::json::exception& error) {
      none("{}", error.what());
    }
    check(sizeof length + length, size);
  }

  const std::vector<Stored>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  const Stored* find(const std::string& name) const {
    const auto is = [&](const Stored& stored) { return stored.name == name; };
    const auto found = std::find_if(tensors_.begin(), tensors_.end(), is);
    return found == tensors_.end() ? nullptr : &*found;
  }

  /// As a tensor of this type and shape.
  torch::Tensor tensor(const Stored& stored, const torch::Tensor& like) const {
    if (const std::string wanted = format_name(like.scalar_type()); stored.type != wanted)
      fail<InvalidArgument>("{}: '{}' is of type {}, but {} is expected", path_, stored.name, stored.type, wanted);
    torch::Tensor tensor = torch::empty(like.sizes(), like.scalar_type());
    if (tensor.nbytes() != stored.end - stored.begin)
      none("'{}' has {} bytes, its shape needs {}", stored.name, stored.end - stored.begin, tensor.nbytes());
    read(tensor.data_ptr(), tensor.nbytes(), stored.begin);
    return tensor;
  }

 private:
  static constexpr uint64_t kLongestHeader = 100'000'000;  // of the format

  template <class... Args>
  [[noreturn]] void none(fmt::format_string<Args...> text, Args&&... args) const {
    fail<Corruption>("{} is damaged or no safetensors file: {}", path_, fmt::format(text, std::forward<Args>(args)...));
  }

  void parse(const nlohmann::json& header, size_t begin) {
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        metadata_ = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      const size_t from = entry.at("data_offsets").at(0), to = entry.at("data_offsets").at(1);
      tensors_.push_back({name, entry.at("dtype"), entry.at("shape"), begin + from, begin + to});
    }
  }

  /// The format has no holes and nothing behind the last tensor.
  void check(size_t begin, size_t size) {
    std::sort(tensors_.begin(), tensors_.end(), [](const Stored& a, const Stored& b) { return a.begin < b.begin; });
    for (const Stored& stored : tensors_) {
      if (stored.begin != begin || stored.end < begin) none("there is a hole before '{}'", stored.name);
      for (const int64_t extent : stored.shape)
        if (extent < 0) none("'{}' has an extent of {}", stored.name, extent);
      begin = stored.end;
    }
    if (begin != size) none("the header tells of {} bytes, the file has {}", begin, size);
  }

  void read(void* into, size_t bytes, size_t at) const {
    auto* next = static_cast<char*>(into);
    while (bytes > 0) {
      const ssize_t got = pread(file_.get(), next, bytes, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail<IoError>("cannot read {}: {}", path_, errno_text());
      if (got == 0) none("it ends too early");
      next += got, at += static_cast<size_t>(got), bytes -= static_cast<size_t>(got);
    }
  }

  std::string path_;
  Descriptor file_;
  std::vector<Stored> tensors_;
  std::map<std::string, std::string> metadata_;
};

// ---- which model it is ----

/// The layer of "7.weight".
int layer_of(const std::string& name) {
  int number = -1;
  std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

/// The weight of the first layer, or the bias of the last one.
const Stored* outermost(const ModelFile& file, const char* ending, bool last) {
  const Stored* found = nullptr;
  for (const Stored& stored : file.tensors())
    if (stored.name.ends_with(ending) && layer_of(stored.name) >= 0 && !stored.shape.empty() &&
        (found == nullptr || (layer_of(stored.name) < layer_of(found->name)) != last))
      found = &stored;
  return found;
}

/// What the file does not say, its tensors do.
void complete(About& about, const ModelFile& file, const std::string& path) {
  const Stored *first = outermost(file, ".weight", false), *last = outermost(file, ".bias", true);
  if (first == nullptr || last == nullptr)
    fail<InvalidArgument>("{} has no layers as models of `trireme train` have: '0.weight', '0.bias', …", path);
  const bool flat = about.model.starts_with("linear") || about.model.starts_with("mlp");
  if (about.shape.empty()) about.shape = flat ? std::vector{first->shape.back()} : std::vector<int64_t>{1, 28, 28};
  if (about.outputs == 0) about.outputs = last->shape[0];
  if (first->type == "F64") about.dtype = "f64";
}

/// "1.weight [10, 784]"
std::string shown(const std::string& name, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", name, fmt::join(shape, ", "));
}

/// Parameters and buffers by name.
std::vector<std::pair<std::string, torch::Tensor>> state_of(const torch::nn::Sequential& net) {
  std::vector<std::pair<std::string, torch::Tensor>> state;
  for (const auto& item : net->named_parameters()) state.emplace_back(item.key(), item.value());
  for (const auto& item : net->named_buffers()) state.emplace_back(item.key(), item.value());
  return state;
}

void fill(const torch::nn::Sequential& net, const ModelFile& file, const std::string& what, const std::string& path) {
  const torch::NoGradGuard no_grad;
  std::vector<std::string> differ;
  const auto state = state_of(net);
  for (const auto& [name, tensor] : state) {
    const Stored* stored = file.find(name);
    if (stored == nullptr)
      differ.push_back(fmt::format("{} is missing", shown(name, tensor.sizes().vec())));
    else if (stored->shape != tensor.sizes().vec())
      differ.push_back(fmt::format("{} is [{}]", shown(name, tensor.sizes().vec()), fmt::join(stored->shape, ", ")));
  }
  for (const Stored& stored : file.tensors())
    if (std::none_of(state.begin(), state.end(), [&](const auto& item) { return item.first == stored.name; }))
      differ.push_back(fmt::format("{} is one too many", shown(stored.name, stored.shape)));
  constexpr size_t kMostShown = 4;
  const std::string more = differ.size() > kMostShown ? fmt::format("; and {} more", differ.size() - kMostShown) : "";
  if (differ.size() > kMostShown) differ.resize(kMostShown);
  if (!differ.empty())
    fail<InvalidArgument>("the tensors in {} are not those of {}: {}{}", path, what, fmt::join(differ, "; "), more);
  for (const auto& [name, tensor] : state) torch::Tensor(tensor).copy_(file.tensor(*file.find(name), tensor));
}

/// DIR/step-000100: 100.
long step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  long step = -1;
  if (name.starts_with("step-")) std::from_chars(name.data() + 5, name.data() + name.size(), step);
  return step;
}

}  // namespace

void fill(torch::nn::Module& module, const checkpoint::Checkpoint& checkpoint) {
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<std::string, torch::Tensor>> state;
  for (const auto& item : module.named_parameters()) state.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace_back(item.key(), item.value());
  const std::map<std::string, std::string> ties = checkpoint.ties();
  const auto find = [&](const std::string& name) {
    const auto tie = ties.find(name);
    return checkpoint.find(tie == ties.end() ? name : tie->second);
  };
  std::vector<std::string> differ;
  for (const auto& [name, tensor] : state) {
    const auto found = find(name);
    const std::string type = format_name(tensor.scalar_type());
    if (!found)
      differ.push_back(fmt::format("{} is not there", shown(name, tensor.sizes().vec())));
    else if (found.tensor->shape != tensor.sizes().vec() || found.tensor->type != type)
      differ.push_back(fmt::format("{} {} is {} [{}]", shown(name, tensor.sizes().vec()), type, found.tensor->type,
                                   fmt::join(found.tensor->shape, ", ")));
  }
  if (!differ.empty()) {
    const size_t all = differ.size();
    differ.resize(std::min<size_t>(all, 4));
    fail<InvalidArgument>("{} is of another model: {}{}", checkpoint.path(), fmt::join(differ, "; "),
                          all > differ.size() ? fmt::format("; and {} more", all - differ.size()) : "");
  }
  for (const auto& [name, tensor] : state) {
    const auto found = find(name);
    const std::vector<std::byte> bytes = found.file->read(*found.tensor);
    torch::Tensor rows = torch::empty(tensor.sizes(), tensor.options().memory_format(torch::MemoryFormat::Contiguous));
    std::memcpy(rows.data_ptr(), bytes.data(), bytes.size());
    torch::Tensor(tensor).copy_(rows);
  }
}

std::string model_file(const std::string& path) {
  if (!fs::exists(path)) fail<IoError>("there is no file or folder '{}'", path);
  if (!fs::is_directory(path)) return path;
  constexpr const char* kModel = "model.safetensors";
  if (fs::exists(fs::path(path) / kModel)) return (fs::path(path) / kModel).string();
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(path))
    if (step_of(entry.path()) > (newest.empty() ? -1 : step_of(newest)) && fs::exists(entry.path() / "manifest.json") &&
        fs::exists(entry.path() / kModel))
      newest = entry.path();
  if (newest.empty())
    fail<IoError>("there is no complete checkpoint in the folder {}: neither {} nor step-N/{} with its manifest.json",
                  path, kModel, kModel);
  return (newest / kModel).string();
}

Loaded load(const std::string& given, const std::string& model) {
  const std::string path = model_file(given);
  const ModelFile file(path);
  Loaded loaded;
  try {
    loaded.about = about_of(file.metadata());
  } catch (const Corruption& error) {
    fail<Corruption>("{} says of itself what cannot be: {}", path, error.what());
  }
  About& about = loaded.about;
  if (!model.empty() && !about.model.empty() && model != about.model)
    fail<InvalidArgument>("{} holds {}, not {}: leave the model's name out", path, about.model, model);
  if (about.model.empty()) about.model = model;
  if (about.model.empty())
    fail<InvalidArgument>(
        "{} does not say which model it is{}. If it is one of `trireme models`, give its name: --model lenet", path,
        about.producer.empty() ? ": another program has written it" : "");
  complete(about, file, path);
  loaded.net = make(about.model, about.shape, about.outputs);
  loaded.net->to(about.dtype == "f64" ? torch::kFloat64 : torch::kFloat32);
  fill(loaded.net, file,
       fmt::format("{} for samples of {} and {} output{}", about.model, fmt::join(about.shape, "×"), about.outputs,
                   about.outputs == 1 ? "" : "s"),
       path);
  if (about.schema && about.schema->inputs() != static_cast<size_t>(about.shape[0]))
    fail<Corruption>("{}: the columns make {} inputs, the model has {}", path, about.schema->inputs(), about.shape[0]);
  loaded.net->eval();
  return loaded;
}

void save_safetensors(const Loaded& model, const std::string& path) {
  std::vector<torch::Tensor> kept;
  std::vector<checkpoint::NamedTensor> tensors;
  for (const auto& [name, tensor] : state_of(model.net)) {
    kept.push_back(tensor.detach().contiguous());
    const torch::Tensor& values = kept.back();
    tensors.push_back(
        {name, format_name(values.scalar_type()), values.sizes().vec(), values.data_ptr(), values.nbytes()});
  }
  checkpoint::write_safetensors(path, tensors, metadata_of(model.about));
}

}  // namespace trireme::models
