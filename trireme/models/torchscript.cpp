#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <fstream>
#include <functional>

#include <trireme/base/error.h>
#include <trireme/models/language_script.h>
#include <trireme/models/scripted.h>
#include <trireme/models/torchscript.h>

namespace trireme::models {
namespace {

namespace nn = torch::nn;
namespace jit = torch::jit;
using layers::kind_of;
constexpr int kFloat32 = 6, kFloat64 = 7;  // dtypes, as TorchScript numbers them

// ---- how layers are written ----

std::string list(at::IntArrayRef numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }
const char* flag(bool value) { return value ? "True" : "False"; }

/// With a point or an exponent: without, it would be a whole number.
std::string decimal(double value) {
  const std::string text = fmt::format("{:.17g}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string conv2d(const nn::Conv2dImpl& layer) {
  const auto& o = layer.options;
  const auto* padding = c10::get_if<torch::ExpandingArray<2>>(&o.padding());
  if (padding == nullptr || !c10::get_if<torch::enumtype::kZeros>(&o.padding_mode()))
    fail<InvalidArgument>("a convolution whose padding is not a number of zeros cannot be exported yet");
  return fmt::format("torch.conv2d(x, self.weight, {}, {}, {}, {}, {})", o.bias() ? "self.bias" : "None",
                     list(*o.stride()), list(**padding), list(*o.dilation()), o.groups());
}

template <class BatchNorm>
std::string batch_norm(const BatchNorm& layer) {
  const auto& o = layer.options;
  if (!o.momentum() || !o.track_running_stats())
    fail<InvalidArgument>("batch norm without a momentum or running statistics cannot be exported yet");
  return fmt::format("torch.batch_norm(x, {}, self.running_mean, self.running_var, self.training, {}, {}, False)",
                     o.affine() ? "self.weight, self.bias" : "None, None", decimal(*o.momentum()), decimal(o.eps()));
}

std::string max_pool2d(const nn::MaxPool2dImpl& layer) {
  const auto& o = layer.options;
  return fmt::format("torch.max_pool2d(x, {}, {}, {}, {}, {})", list(*o.kernel_size()), list(*o.stride()),
                     list(*o.padding()), list(*o.dilation()), flag(o.ceil_mode()));
}

std::string avg_pool2d(const nn::AvgPool2dImpl& layer) {
  const auto& o = layer.options;
  return fmt::format("torch.avg_pool2d(x, {}, {}, {}, {}, {}, {})", list(*o.kernel_size()), list(*o.stride()),
                     list(*o.padding()), flag(o.ceil_mode()), flag(o.count_include_pad()),
                     o.divisor_override() ? std::to_string(*o.divisor_override()) : "None");
}

/// The expression that a layer makes of x; "" for a layer of another kind.
using Rule = std::function<std::string(const nn::Module&)>;

template <class Layer, class Write>
Rule rule(const Write& write) {
  return [write](const nn::Module& module) -> std::string {
    const auto* layer = dynamic_cast<const Layer*>(&module);
    return layer == nullptr ? "" : write(*layer);
  };
}

/// One line for each kind of layer.
const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      rule<nn::LinearImpl>([](const auto& l) {
        return fmt::format("torch.linear(x, self.weight, {})", l.options.bias() ? "self.bias" : "None");
      }),
      rule<nn::Conv2dImpl>(conv2d),
      rule<nn::BatchNorm1dImpl>(batch_norm<nn::BatchNorm1dImpl>),
      rule<nn::BatchNorm2dImpl>(batch_norm<nn::BatchNorm2dImpl>),
      rule<nn::MaxPool2dImpl>(max_pool2d),
      rule<nn::AvgPool2dImpl>(avg_pool2d),
      rule<nn::FlattenImpl>([](const auto& l) {
        return fmt::format("torch.flatten(x, {}, {})", l.options.start_dim(), l.options.end_dim());
      }),
      rule<nn::DropoutImpl>(
          [](const auto& l) { return fmt::format("torch.dropout(x, {}, self.training)", decimal(l.options.p())); }),
      rule<nn::Dropout2dImpl>([](const auto& l) {
        return fmt::format("torch.feature_dropout(x, {}, self.training)", decimal(l.options.p()));
      }),
      rule<nn::ReLUImpl>([](const auto&) { return "torch.relu(x)"; }),
      rule<nn::TanhImpl>([](const auto&) { return "torch.tanh(x)"; }),
      rule<nn::SigmoidImpl>([](const auto&) { return "torch.sigmoid(x)"; }),
  };
  return all;
}

// ---- modules ----

class Writer {
 public:
  explicit Writer(std::string name) : name_(std::move(name)), unit_(std::make_shared<jit::CompilationUnit>()) {}

  jit::Module container(const nn::SequentialImpl& net) {
    jit::Module module = fresh(name_.empty() ? kind_of(net) : name_);
    std::string source = "def forward(self, x: Tensor) -> Tensor:\n";
    for (const auto& child : net.named_children()) {
      module.register_module(child.key(), any(*child.value()));
      source += fmt::format("    x = getattr(self, \"{}\").forward(x)\n", child.key());
    }
    module.define(source + "    return x\n");
    return module;
  }

  /// A module that says how it is written, a row of layers, or a layer.
  jit::Module any(const nn::Module& part) {
    if (layers::is_row(part)) return Writer(unit_).container(dynamic_cast<const nn::SequentialImpl&>(part));
    const auto* scripted = dynamic_cast<const Scripted*>(&part);
    if (scripted == nullptr) return layer(part);
    jit::Module module = with_tensors(part);
    for (const auto& child : part.named_children()) module.register_module(child.key(), any(*child.value()));
    module.define(scripted->script());
    return module;
  }

  /// A language model, or a part of it.
  jit::Module language(const nn::Module& part, const LanguageSpec& spec) {
    jit::Module module = with_tensors(part);
    for (const auto& child : part.named_children())
      module.register_module(script_name(child.key()), language(*child.value(), spec));
    if (const std::string source = language_script(kind_of(part), spec); !source.empty()) module.define(source);
    return module;
  }

 private:
  explicit Writer(std::shared_ptr<jit::CompilationUnit> unit) : unit_(std::move(unit)) {}

  /// With copies of the layer's own parameters and buffers, under the layer's name.
  jit::Module with_tensors(const nn::Module& layer) {
    jit::Module module = fresh(kind_of(layer));
    for (const auto& item : layer.named_parameters(false))
      module.register_parameter(item.key(), item.value().detach().clone(at::MemoryFormat::Contiguous).requires_grad_(),
                                false);
    for (const auto& item : layer.named_buffers(false))
      module.register_buffer(item.key(), item.value().detach().clone(at::MemoryFormat::Contiguous));
    return module;
  }

  jit::Module fresh(const std::string& name) {
    jit::Module module(c10::QualifiedName("__torch__." + name), unit_, /*shouldMangle=*/true);
    module.register_attribute("training", c10::BoolType::get(), false);
    return module;
  }

  jit::Module layer(const nn::Module& layer) {
    std::string expression;
    for (size_t i = 0; i < rules().size() && expression.empty(); i++) expression = rules()[i](layer);
    if (expression.empty())
      fail<InvalidArgument>(
          "a layer of the kind {} cannot be exported as TorchScript yet: it needs a line in "
          "trireme/models/torchscript.cpp. "
          "Export .safetensors",
          layer.name());
    jit::Module module = with_tensors(layer);
    module.define(fmt::format("def forward(self, x: Tensor) -> Tensor:\n    return {}\n", expression));
    return module;
  }

  std::string name_;  // of the outermost module; "": that of its kind
  std::shared_ptr<jit::CompilationUnit> unit_;
};

// ---- from values as they stand in data to answers ----

void add_constant(jit::Module& module, const char* name, const std::vector<double>& values) {
  module.register_attribute(name, c10::TensorType::get(), torch::tensor(values, torch::kFloat64));
}

/// Numbers as they stand in a file, NaN where one is missing, and categories as 1 and 0: what Schema::encode() does.
/// Every input x becomes (x - input_mean) / input_deviation.
std::string input_of_columns(jit::Module& module, const data::Schema& schema, int dtype) {
  std::vector<double> mean, deviation, missing;
  for (const data::Column& column : schema.columns)
    for (size_t i = 0; i < column.inputs(); i++) {
      const bool scales = column.kind == data::Column::Kind::number && schema.normalised;
      mean.push_back(scales ? column.mean : 0);
      deviation.push_back(scales ? column.deviation : 1);
      missing.push_back(column.kind == data::Column::Kind::number ? double{static_cast<float>(column.mean)} : 0);
    }
  add_constant(module, "input_mean", mean);
  add_constant(module, "input_deviation", deviation);
  add_constant(module, "input_if_missing", missing);
  // Twice through f32, as in training.
  return fmt::format(
      "    x = x.to({0}).to({1})\n"
      "    x = torch.where(torch.isnan(x), self.input_if_missing, x)\n"
      "    x = ((x - self.input_mean) / self.input_deviation).to({0}).to({2})\n",
      kFloat32, kFloat64, dtype);
}

/// "Lenet_bn" of lenet-bn, "Mlp" of mlp:64.
std::string class_name(const std::string& model) {
  std::string name = model.substr(0, model.find(':'));
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  if (!name.empty()) name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

}  // namespace

jit::Module to_torchscript(const nn::Sequential& net, const std::string& name) { return Writer(name).container(*net); }

jit::Module to_torchscript(const nn::Module& net) { return Writer("").any(net); }

jit::Module to_torchscript(const Loaded& model) {
  const About& about = model.about;
  if (const auto spec = language_spec(about.model)) {
    jit::Module module = Writer("").language(*model.net, *spec);
    module.define(fmt::format(
        "def predict(self, x: Tensor) -> Tensor:\n    return torch.softmax(self.forward(x)[:, :, :{}].to({}), -1)\n",
        about.outputs, kFloat64));
    return module;
  }
  const int dtype = about.dtype == "f64" ? kFloat64 : kFloat32;
  jit::Module module = model.net.sequential() ? to_torchscript(model.net.sequential(), class_name(about.model))
                                              : to_torchscript(*model.net);
  std::string source = "def predict(self, x: Tensor) -> Tensor:\n";
  source += about.schema ? input_of_columns(module, *about.schema, dtype)
                         : fmt::format("    x = x.to({}) * {}\n", dtype, decimal(about.scale));
  source += fmt::format("    x = self.forward(x).to({})\n", kFloat64);
  if (about.task == data::Task::classify)
    source += "    return torch.softmax(x, 1)\n";
  else
    source +=
        fmt::format("    return torch.flatten(x) * {} + {}\n", decimal(about.schema ? about.schema->deviation : 1),
                    decimal(about.schema ? about.schema->mean : 0));
  module.define(source);
  return module;
}

void save_torchscript(const Loaded& model, const std::string& path) {
  const jit::Module module = to_torchscript(model);
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  std::ofstream file(temporary, std::ios::binary);
  if (!file) fail<IoError>("cannot write {}: {}", path, errno_text());
  try {
    module.save(file, {{"trireme.json", nlohmann::json(metadata_of(model.about)).dump(1)}});
    if (!file.flush()) fail<IoError>("cannot write {}: {}", path, errno_text());
    if (std::rename(temporary.c_str(), path.c_str()) != 0) fail<IoError>("cannot rename to {}: {}", path, errno_text());
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace trireme::models
