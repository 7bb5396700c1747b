#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/data/loader.h>
#include <trireme/data/masks.h>
#include <trireme/models/answers.h>

namespace trireme::models {
namespace {

torch::Dtype dtype_of(const About& about) { return about.dtype == "f64" ? torch::kFloat64 : torch::kFloat32; }

/// Calls visit(first, batch, outputs).
template <class Visit>
void for_each_batch(Loaded& model, const Samples& samples, const Visit& visit) {
  const torch::NoGradGuard no_grad;
  model.net.eval();
  const size_t batch_size = data::batch_to_test(samples.set);
  for (size_t begin = 0; begin < samples.chosen.size(); begin += batch_size) {
    const size_t end = std::min(samples.chosen.size(), begin + batch_size);
    const data::Batch batch = data::make_batch(samples.set, samples.chosen, begin, end, dtype_of(model.about));
    visit(begin, batch, model.net.forward(batch.x));
  }
}

/// The label's own unit, per output of 1.
double unit_of(const About& about) { return about.schema ? about.schema->deviation : 1; }

class Scores {
 public:
  explicit Scores(const About& about) : about_(about), counts_(torch::zeros({3, about.outputs}, torch::kInt64)) {}

  void add(const torch::Tensor& outputs, const torch::Tensor& y) {
    const auto rows = static_cast<double>(outputs.size(0));
    loss_ += torch::nn::functional::cross_entropy(outputs, y).item<double>() * rows;
    const torch::Tensor said = outputs.argmax(1);
    const auto count = [&](const torch::Tensor& classes) { return torch::bincount(classes, {}, about_.outputs); };
    counts_[0] += count(y);
    counts_[1] += count(said);
    counts_[2] += count(y.masked_select(said.eq(y)));
  }

  void write(Evaluation& result) const {
    const auto at = [&](int64_t row, int64_t i) { return counts_[row][i].item<int64_t>(); };
    int64_t right = 0;
    for (int64_t i = 0; i < about_.outputs; i++) {
      result.classes.push_back({about_.class_name(i), at(0, i), at(1, i), at(2, i)});
      right += at(2, i);
    }
    result.loss = loss_ / static_cast<double>(result.samples);
    result.accuracy = static_cast<double>(right) / static_cast<double>(result.samples);
  }

 private:
  const About& about_;
  torch::Tensor counts_;  // samples, answers and right ones of each class
  double loss_ = 0;
};

void evaluate_classes(Loaded& model, const Samples& samples, const OnAnswered& progress, Evaluation& result) {
  Scores scores(model.about);
  for_each_batch(model, samples, [&](size_t first, const data::Batch& batch, const torch::Tensor& outputs) {
    scores.add(outputs, batch.y);
    progress(first + batch.samples(), result.samples);
  });
  scores.write(result);
}

void evaluate_numbers(Loaded& model, const Samples& samples, const OnAnswered& progress, Evaluation& result) {
  double squares = 0, absolutes = 0;
  for_each_batch(model, samples, [&](size_t first, const data::Batch& batch, const torch::Tensor& outputs) {
    const torch::Tensor wrong = outputs - batch.y.to(outputs.dtype()).view_as(outputs);
    squares += wrong.square().sum(torch::kFloat64).item<double>();
    absolutes += wrong.abs().sum(torch::kFloat64).item<double>();
    progress(first + batch.samples(), result.samples);
  });
  const double unit = unit_of(model.about), count = static_cast<double>(result.samples);
  result.loss = squares / count * unit * unit;
  result.absolute_error = absolutes / count * unit;
}

void evaluate_tokens(Loaded& model, const Samples& samples, const OnAnswered& progress, Evaluation& result) {
  double loss = 0;
  int64_t right = 0;
  for_each_batch(model, samples, [&](size_t first, const data::Batch& batch, const torch::Tensor& outputs) {
    loss += model.net.loss_of(outputs, batch.y).item<double>() * static_cast<double>(batch.samples());
    right += outputs.argmax(-1).eq(batch.y).sum().item<int64_t>();
    result.tokens += batch.y.ne(data::kNoTarget).sum().item<int64_t>();
    progress(first + batch.samples(), result.samples);
  });
  result.loss = loss / static_cast<double>(result.samples);  // all samples have as many targets
  result.accuracy = static_cast<double>(right) / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
}

}  // namespace

torch::Tensor answers_of(const About& about, const torch::Tensor& outputs) {
  if (about.task != data::Task::regress) return outputs.to(torch::kFloat64).softmax(-1);
  const torch::Tensor numbers = outputs.to(torch::kFloat64).flatten();
  return about.schema ? numbers * about.schema->deviation + about.schema->mean : numbers;
}

Evaluation evaluate(Loaded& model, const Samples& samples, const OnAnswered& progress) {
  if (!samples.labelled) fail<InvalidArgument>("{} have no labels to compare with", samples.what);
  Evaluation result{.samples = samples.chosen.size()};
  if (data::is_text(model.about.task))
    evaluate_tokens(model, samples, progress, result);
  else if (model.about.task == data::Task::classify)
    evaluate_classes(model, samples, progress, result);
  else
    evaluate_numbers(model, samples, progress, result);
  return result;
}

void answer(Loaded& model, const Samples& samples, const std::function<void(size_t, const torch::Tensor&)>& visit) {
  for_each_batch(model, samples, [&](size_t first, const data::Batch&, const torch::Tensor& outputs) {
    visit(first, answers_of(model.about, outputs));
  });
}

}  // namespace trireme::models
