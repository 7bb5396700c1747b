#include <fmt/ranges.h>

#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/language.h>

namespace trireme::models {

const std::vector<Entry>& catalogue() {
  static const std::vector<Entry> entries = {
      {"linear", "any", "one linear layer: linear or logistic regression"},
      {"mlp:W,W,…", "any", "linear layers with ReLU between; W are the hidden widths (mlp alone: 512,512)"},
      {"lenet", "1×28×28", "LeNet-5 with ReLU and average pooling, 61,706 parameters"},
      {"lenet-bn", "1×28×28", "the same with batch norm after each convolution, 61,750 parameters"},
      {"twoconv", "1×28×28", "the two-convolution net of MNIST tutorials, with dropout, 21,840 parameters"},
      {"resnet18", "images",
       "ResNet-18 with batch norm, for images of 8×8 and more; 3×3 stem up to 64×64, 11.2 million parameters"},
      {"resnet34", "images", "the same with 34 layers, 21.3 million parameters"},
      {"resnet50", "images", "the same with 50 layers in bottlenecks, 23.5 million parameters"},
      {"gpt:SIZE", "text",
       "language model, next tokens: tiny, small (gpt alone), medium, or layers=4,width=256,heads=4,…"},
      {"bert:SIZE", "text", "language model, masked tokens: sizes and settings as of gpt"},
  };
  return entries;
}

bool has_batch_norm(const std::string& spec) { return spec.ends_with("-bn") || spec.starts_with("resnet"); }

void check_name(const std::string& spec) {
  const auto stem = [](const std::string& name) { return name.substr(0, name.find(':')); };  // "mlp" of "mlp:512,512"
  std::vector<std::string> names;
  for (const Entry& entry : catalogue()) names.push_back(stem(entry.name));
  if (std::find(names.begin(), names.end(), stem(spec)) == names.end())
    fail<InvalidArgument>(
        "unknown model '{}'{}. There are {} (`trireme models`); any other is a few lines of C++: a torch::nn module "
        "and trireme::parallel()",
        spec, did_you_mean(spec, names), fmt::join(names, ", "));
  language_spec(spec);  // throws for settings that cannot be
}

}  // namespace trireme::models
