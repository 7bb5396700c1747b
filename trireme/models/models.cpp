#include <fmt/ranges.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <charconv>

#include <trireme/base/error.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/language.h>
#include <trireme/models/models.h>
#include <trireme/models/resnet.h>
#include <trireme/parallel/large_linear.h>

namespace trireme::models {

namespace nn = torch::nn;

nn::Sequential linear(int64_t inputs, int64_t outputs) { return mlp({inputs, outputs}); }

nn::Sequential mlp(const std::vector<int64_t>& widths) {
  nn::Sequential net(nn::Flatten{});
  for (size_t i = 0; i + 1 < widths.size(); i++) {
    if (i > 0) net->push_back(nn::ReLU());
    net->push_back(LargeLinear(widths[i], widths[i + 1]));
  }
  return net;
}

nn::Sequential lenet(int64_t classes) {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 6, 5).padding(2)), nn::ReLU(), nn::AvgPool2d(2),  //
                        nn::Conv2d(6, 16, 5), nn::ReLU(), nn::AvgPool2d(2), nn::Flatten(),                //
                        nn::Linear(400, 120), nn::ReLU(), nn::Linear(120, 84), nn::ReLU(), nn::Linear(84, classes));
}

nn::Sequential lenet_bn(int64_t classes) {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 6, 5).padding(2)), nn::BatchNorm2d(6), nn::ReLU(),
                        nn::AvgPool2d(2),                                                                        //
                        nn::Conv2d(6, 16, 5), nn::BatchNorm2d(16), nn::ReLU(), nn::AvgPool2d(2), nn::Flatten(),  //
                        nn::Linear(400, 120), nn::ReLU(), nn::Linear(120, 84), nn::ReLU(), nn::Linear(84, classes));
}

nn::Sequential twoconv(int64_t classes) {
  return nn::Sequential(nn::Conv2d(1, 10, 5), nn::MaxPool2d(2), nn::ReLU(),                                      //
                        nn::Conv2d(10, 20, 5), nn::Dropout2d(0.5), nn::MaxPool2d(2), nn::ReLU(), nn::Flatten(),  //
                        nn::Linear(320, 50), nn::ReLU(), nn::Dropout(0.5), nn::Linear(50, classes));
}

namespace {

std::vector<int64_t> hidden_widths(const std::string& spec) {
  std::vector<int64_t> widths;
  const char* next = spec.data() + spec.find(':') + 1;
  const char* end = spec.data() + spec.size();
  while (true) {
    int64_t width = 0;
    const auto [stop, error] = std::from_chars(next, end, width);
    if (error != std::errc{} || width < 1 || (stop != end && *stop != ','))
      fail<InvalidArgument>("'{}': expected widths such as mlp:512,512", spec);
    widths.push_back(width);
    if (stop == end) return widths;
    next = stop + 1;
  }
}

template <class Options>
Options language_options(const LanguageSpec& spec, int64_t tokens, const MakeOptions& options) {
  return {.layers = spec.layers,
          .width = spec.width,
          .heads = spec.heads,
          .context = spec.context,
          .vocabulary = embedded(spec, tokens),
          .dropout = spec.dropout,
          .recompute = options.recompute,
          .sequence = options.sequence};
}

Model make_language(const std::string& name, const LanguageSpec& spec, const std::vector<int64_t>& shape,
                    int64_t tokens, const MakeOptions& options) {
  if (shape != std::vector<int64_t>{spec.context})
    fail<InvalidArgument>("{} takes texts of {} tokens at a time; these samples are {}", name, spec.context,
                          fmt::join(shape, "×"));
  if (spec.masked)
    return {bert(options.ranks, language_options<BertOptions>(spec, tokens, options)), data::Task::masked_token};
  return {gpt(options.ranks, language_options<GptOptions>(spec, tokens, options)), data::Task::next_token};
}

/// A residual network of so many layers: "resnet18".
Model make_resnet(const std::string& spec, const std::vector<int64_t>& shape, int64_t outputs,
                  const MakeOptions& options) {
  constexpr int64_t kLeast = 8, kMostOfSmall = 64;  // pixels
  if (shape.size() != 3 || shape[1] < kLeast || shape[2] < kLeast)
    fail<InvalidArgument>(
        "{} takes images, channels × height × width, of at least {}×{} pixels; these samples are {}. Try mlp", spec,
        kLeast, kLeast, fmt::join(shape, "×"));
  const ResNetOptions net{.channels = shape[0],
                          .classes = outputs,
                          .small = shape[1] <= kMostOfSmall && shape[2] <= kMostOfSmall,
                          .recompute = options.recompute};
  return {resnet(std::stoi(spec.substr(std::string("resnet").size())), net), options.task};
}

nn::Sequential make_net(const std::string& spec, const std::vector<int64_t>& shape, int64_t outputs) {
  int64_t inputs = 1;
  for (int64_t extent : shape) inputs *= extent;
  if (spec == "linear") return linear(inputs, outputs);
  if (spec == "mlp" || spec.starts_with("mlp:")) {
    std::vector<int64_t> widths = spec == "mlp" ? std::vector<int64_t>{512, 512} : hidden_widths(spec);
    widths.insert(widths.begin(), inputs);
    widths.push_back(outputs);
    return mlp(widths);
  }
  if (spec == "lenet" || spec == "lenet-bn" || spec == "twoconv") {
    if (shape != std::vector<int64_t>{1, 28, 28})
      fail<InvalidArgument>("{} takes images of 1×28×28; these samples are {}. Try mlp", spec, fmt::join(shape, "×"));
    return spec == "lenet" ? lenet(outputs) : spec == "lenet-bn" ? lenet_bn(outputs) : twoconv(outputs);
  }
  fail<InvalidArgument>("unknown model '{}': only mlp takes widths after a colon", spec);
}

}  // namespace

Model make(const std::string& spec, const std::vector<int64_t>& shape, int64_t outputs, const MakeOptions& options) {
  check_name(spec);
  if (const auto language = language_spec(spec)) return make_language(spec, *language, shape, outputs, options);
  if (!options.ranks.alone()) fail<InvalidArgument>("{} cannot be divided among tensor ranks: gpt and bert can", spec);
  if (spec == "resnet18" || spec == "resnet34" || spec == "resnet50") return make_resnet(spec, shape, outputs, options);
  return {make_net(spec, shape, outputs), options.task, options.recompute};
}

}  // namespace trireme::models
