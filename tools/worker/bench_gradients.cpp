// What codecs leave out of real gradients: of small models that have been trained for some steps.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cmath>
#include <fstream>
#include <random>

#include <trireme/base/error.h>
#include <trireme/cluster/world.h>
#include <trireme/compress/codec.h>
#include <trireme/data/dataset.h>
#include <trireme/models/models.h>
#include <trireme/models/transformer.h>

#include "../bench.h"

namespace trireme::tools {
namespace {

constexpr int kTrained = 60;    // steps before
constexpr int kMessages = 20;   // steps whose gradients are taken
constexpr int64_t kBatch = 32;  // samples of a step
constexpr int64_t kContext = 64;

/// Words of which few are frequent, as in any language: bytes.
std::vector<uint8_t> made_up_text(size_t bytes) {
  std::mt19937_64 random(1);
  std::vector<std::string> words;
  for (int i = 0; i < 400; i++) {
    std::string& word = words.emplace_back();
    for (uint64_t letters = 2 + random() % 7; letters > 0; letters--) word += static_cast<char>('a' + random() % 26);
  }
  std::vector<uint8_t> text;
  while (text.size() < bytes) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    const std::string& word = words[static_cast<size_t>(std::pow(400.0, u)) - 1];
    text.insert(text.end(), word.begin(), word.end());
    text.push_back(random() % 9 == 0 ? '.' : ' ');
  }
  return text;
}

/// A model and what it learns.
struct Learner {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(std::mt19937_64&)> loss;  // of a batch
  std::string data;
};

Learner image_learner(World& world, const std::string& model) {
  const std::string name = [] {
    try {
      data::check_exists("fashion-mnist");
      return "fashion-mnist";
    } catch (const Error&) {
      return "synthetic:4000";
    }
  }();
  const data::Dataset set = data::open(world.local(), name).train;
  auto net = model == "lenet" ? models::lenet() : models::mlp({784, 512, 512, 10});
  return {net.ptr(),
          [net, set](std::mt19937_64& random) mutable {
            torch::Tensor x = torch::empty({kBatch, 1, 28, 28}), y = torch::empty({kBatch}, torch::kInt64);
            const auto type = set.dtype == DType::u8 ? torch::kUInt8 : torch::kFloat32;
            for (int64_t i = 0; i < kBatch; i++) {
              const size_t sample = random() % set.count;
              auto* const at = const_cast<std::byte*>(set.inputs) + sample * set.sample_bytes();
              x[i].copy_(torch::from_blob(at, {1, 28, 28}, type));
              y[i] = set.labels[sample];
            }
            return torch::nn::functional::cross_entropy(net->forward(x.mul_(set.scale)), y);
          },
          name};
}

Learner text_learner() {
  const auto net = models::gpt({.layers = 2, .width = 128, .heads = 4, .context = kContext});
  const auto text = std::make_shared<std::vector<uint8_t>>(made_up_text(200000));
  return {net,
          [net, text](std::mt19937_64& random) {
            torch::Tensor tokens = torch::empty({kBatch, kContext + 1}, torch::kInt64);
            for (int64_t i = 0; i < kBatch; i++) {
              const size_t begin = random() % (text->size() - static_cast<size_t>(kContext) - 1);
              for (int64_t t = 0; t <= kContext; t++)
                tokens[i][t] = static_cast<int64_t>((*text)[begin + static_cast<size_t>(t)]);
            }
            return net->loss(tokens.narrow(1, 0, kContext), tokens.narrow(1, 1, kContext));
          },
          "a made-up text"};
}

/// A gradient of several steps; tensors of one dimension are not compressed, and are not here.
struct Captured {
  std::vector<std::pair<size_t, size_t>> shapes;  // rows and columns of each tensor
  std::vector<std::vector<float>> steps;          // all tensors, one behind another
};

Captured capture(Learner& learner) {
  torch::optim::AdamW optimizer(learner.module->parameters(), torch::optim::AdamWOptions(1e-3));
  std::mt19937_64 random(2);
  Captured captured;
  for (int step = 0; step < kTrained + kMessages; step++) {
    optimizer.zero_grad();
    learner.loss(random).backward();
    if (step >= kTrained) {
      std::vector<float>& flat = captured.steps.emplace_back();
      captured.shapes.clear();
      for (const torch::Tensor& parameter : learner.module->parameters()) {
        if (parameter.dim() < 2 || !parameter.grad().defined()) continue;
        const torch::Tensor gradient = parameter.grad().contiguous();
        const auto* const at = gradient.data_ptr<float>();
        const auto count = static_cast<size_t>(gradient.numel()), rows = static_cast<size_t>(gradient.size(0));
        flat.insert(flat.end(), at, at + count);
        captured.shapes.emplace_back(rows, count / rows);
      }
    }
    optimizer.step();
  }
  return captured;
}

/// As the exchange cuts tensors.
std::vector<compress::Strip> strips_of(const Captured& captured, bool by_matrix) {
  constexpr size_t kStrip = size_t{64} << 10;
  std::vector<compress::Strip> strips;
  size_t place = 0;
  for (const auto& [rows, columns] : captured.shapes) {
    if (by_matrix) strips.push_back({place * sizeof(float), rows, columns, 0});
    for (size_t begin = 0; !by_matrix && begin < rows * columns; begin += kStrip)
      strips.push_back({(place + begin) * sizeof(float), 1, std::min(kStrip, rows * columns - begin), 0});
    place += rows * columns;
  }
  return strips;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// The length of what is left out, as a part of the length of all.
double left_out(const std::vector<float>& wanted, const std::vector<float>& sent) {
  std::vector<float> off(wanted.size());
  for (size_t i = 0; i < off.size(); i++) off[i] = wanted[i] - sent[i];
  return std::sqrt(dot(off, off) / dot(wanted, wanted));
}

nlohmann::ordered_json errors_of(const Captured& captured, const std::string& codec) {
  const compress::Spec spec = compress::spec_named(codec);
  const std::vector<compress::Strip> strips = strips_of(captured, spec.by_matrix());
  const size_t count = captured.steps[0].size();
  compress::ErrorFeedback feedback(compress::make_codec(spec, true), count * sizeof(float));
  std::vector<float> given(count, 0), sent(count, 0), first;
  size_t bytes = 0;
  std::vector<std::byte> message;
  for (size_t step = 0; step < captured.steps.size(); step++) {
    const std::vector<float>& gradient = captured.steps[step];
    for (size_t i = 0; i < count; i++) given[i] += gradient[i];
    for (compress::Strip strip : strips) {
      strip.seed = (step + 1) * 0x9e3779b97f4a7c15 + strip.place;
      message.resize(feedback.bytes(strip));
      feedback.encode(strip, gradient.data() + strip.place / sizeof(float), message);
      feedback.add(strip, message, sent.data() + strip.place / sizeof(float));
      if (step == 0) bytes += message.size();
    }
    if (step == 0) first = sent;
  }
  const std::vector<float>& one = captured.steps[0];
  return {{"codec", codec},
          {"elements", count},
          {"fewer_bytes", static_cast<double>(count * sizeof(float)) / static_cast<double>(bytes)},
          {"left_out", left_out(one, first)},
          {"cosine", dot(one, first) / std::sqrt(dot(one, one) * dot(first, first))},
          {"left_out_of_20", left_out(given, sent)}};
}

}  // namespace

int measure_gradients(const std::string& out, const std::string& model, const std::vector<std::string>& codecs) {
  World world({0, 1, "", "alone"}, {});
  torch::manual_seed(0);
  Learner learner = model == "gpt" ? text_learner() : image_learner(world, model);
  const Captured captured = capture(learner);
  std::ofstream file(out, std::ios::app);
  for (const std::string& codec : codecs) {
    nlohmann::ordered_json line = errors_of(captured, codec);
    line["data"] = learner.data;
    file << line.dump() << '\n';
  }
  return 0;
}

}  // namespace trireme::tools
