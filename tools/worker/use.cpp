// `trireme evaluate` and `trireme predict`.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/models/answers.h>

#include "../commands.h"
#include "../use_flags.h"
#include "../with_commas.h"

namespace trireme::tools {
namespace {

constexpr size_t kSmallTable = 30;  // classes that are shown one by one

void note(const std::string& text) { std::fputs((text + "\n").c_str(), stderr); }

models::Loaded load_model(const UseSettings& settings) {
  models::Loaded model = models::load(settings.from, settings.model);
  say_skipped(model.skipped, model.path);
  return model;
}

/// A line on the terminal that overwrites itself, when it takes longer than a moment.
class Meter {
 public:
  ~Meter() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
  }
  void operator()(size_t done, size_t all) {
    if (!terminal_ || seconds_since(last_) < (drawn_ ? 0.1 : 1.0)) return;
    last_ = Clock::now();
    drawn_ = true;
    std::fputs(fmt::format("\r\x1b[K{} of {} samples", with_commas(static_cast<double>(done)),
                           with_commas(static_cast<double>(all)))
                   .c_str(),
               stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  Clock::time_point last_ = Clock::now();
};

// ---- evaluate ----

double ratio(int64_t part, int64_t all) { return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all); }

std::string introduction(const models::Loaded& model, const models::Samples& samples) {
  const std::string version =
      model.about.version.empty() ? "" : fmt::format(", saved by trireme {}", model.about.version);
  return fmt::format("{}: {} parameters{}; {}", model.about.model, model.net.parameters(), version, samples.what);
}

/// "–" where there is nothing to divide by.
std::string part_text(int64_t part, int64_t all) {
  return all == 0 ? "     –" : fmt::format("{:.4f}", ratio(part, all));
}

void print_classes(const std::vector<models::ClassScore>& classes) {
  size_t width = 5;
  for (const models::ClassScore& score : classes) width = std::max(width, score.name.size());
  fmt::print("\n{:<{}}  {:>8}  {:>6}  {:>6}\n", "class", width, "samples", "found", "true");
  for (const models::ClassScore& score : classes)
    fmt::print("{:<{}}  {:>8}  {:>6}  {:>6}\n", score.name, width, score.samples, part_text(score.right, score.samples),
               part_text(score.right, score.answers));
}

void print_text(const models::Loaded& model, const models::Samples& samples, const models::Evaluation& result) {
  fmt::print("{}\n", introduction(model, samples));
  if (result.perplexity) {
    fmt::print("loss {:.4f}  perplexity {:.2f}  accuracy {:.4f} ({} tokens)\n", result.loss, *result.perplexity,
               *result.accuracy, with_commas(static_cast<double>(result.tokens)));
  } else if (result.accuracy) {
    fmt::print("loss {:.4f}  accuracy {:.4f}\n", result.loss, *result.accuracy);
    if (result.classes.size() <= kSmallTable) print_classes(result.classes);
  } else {
    fmt::print("loss {:.4f}  error {:.4g} (root of the mean square)  mean absolute error {:.4g}\n", result.loss,
               std::sqrt(result.loss), *result.absolute_error);
  }
}

void print_json(const models::Loaded& model, const models::Samples& samples, const UseSettings& settings,
                const models::Evaluation& result) {
  nlohmann::ordered_json json = {{"file", model.path},   {"model", model.about.model}, {"data", settings.data},
                                 {"what", samples.what}, {"samples", result.samples},  {"loss", result.loss}};
  if (result.perplexity) {
    json["perplexity"] = *result.perplexity;
    json["accuracy"] = *result.accuracy;
    json["tokens"] = result.tokens;
  } else if (result.accuracy) {
    json["accuracy"] = *result.accuracy;
    for (const models::ClassScore& score : result.classes)
      json["classes"].push_back({{"name", score.name},
                                 {"samples", score.samples},
                                 {"answers", score.answers},
                                 {"right", score.right},
                                 {"found", ratio(score.right, score.samples)},
                                 {"true", ratio(score.right, score.answers)}});
  } else {
    json["error"] = std::sqrt(result.loss);
    json["absolute_error"] = *result.absolute_error;
  }
  fmt::print("{}\n", json.dump(2));
}

int evaluate(const UseSettings& settings) {
  models::Loaded model = load_model(settings);
  const models::Samples samples =
      models::open_samples(model.about, settings.data, models::part_named(settings.part), models::Purpose::evaluate);
  for (const std::string& text : samples.notes) note(text);
  models::Evaluation result;
  {
    Meter meter;
    result = models::evaluate(model, samples, std::ref(meter));
  }
  settings.json ? print_json(model, samples, settings, result) : print_text(model, samples, result);
  return 0;
}

// ---- predict ----

/// A file that is there as a whole or not at all, or standard output.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path), temporary_(fmt::format("{}.{}.tmp", path, getpid())) {
    file_ = path.empty() ? stdout : std::fopen(temporary_.c_str(), "w");
    if (file_ == nullptr) fail<IoError>("cannot write {}: {}", path, errno_text());
  }
  ~Output() {
    if (path_.empty() || file_ == nullptr) return;
    std::fclose(file_);
    unlink(temporary_.c_str());
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void put(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) failed();
  }
  void finish() {
    if (std::fflush(file_) != 0) failed();
    if (path_.empty()) return;
    if (std::fclose(std::exchange(file_, nullptr)) != 0) failed();
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) failed();
  }

 private:
  [[noreturn]] void failed() const {
    fail<IoError>("cannot write {}: {}", path_.empty() ? "to standard output" : path_, errno_text());
  }
  std::string path_, temporary_;
  FILE* file_;
};

/// A cell: in quotes where it has to be.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n#") == std::string::npos && !text.empty()) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

/// One line for each sample.
class Table {
 public:
  Table(const models::About& about, const models::Samples& samples, bool all_classes, Output& out)
      : about_(about), samples_(samples), all_classes_(all_classes), out_(out) {
    for (int64_t i = 0; classes() && i < about.outputs; i++) names_.push_back(cell(about.class_name(i)));
    std::string header = classes() ? "sample,prediction,probability" : "sample,prediction";
    if (samples.labelled) header += ",label";
    for (int64_t i = 0; all_classes && i < about.outputs; i++) header += "," + cell("p:" + about.class_name(i));
    out.put(header + "\n");
  }

  void add(size_t first, const torch::Tensor& answers) {
    const torch::Tensor rows = answers.contiguous().view({answers.size(0), -1});
    std::string text;
    for (int64_t i = 0; i < rows.size(0); i++)
      line(samples_.chosen[first + static_cast<size_t>(i)], rows.data_ptr<double>() + i * rows.size(1), rows.size(1),
           text);
    out_.put(text);
  }

 private:
  bool classes() const { return about_.task == data::Task::classify; }

  void line(uint32_t sample, const double* row, int64_t width, std::string& text) const {
    const int64_t best = std::max_element(row, row + width) - row;
    if (classes())
      text += fmt::format("{},{},{:.9g}", sample, names_[static_cast<size_t>(best)], row[best]);
    else
      text += fmt::format("{},{:.9g}", sample, row[0]);
    if (samples_.labelled) text += "," + label(sample);
    for (int64_t i = 0; all_classes_ && i < width; i++) text += fmt::format(",{:.9g}", row[i]);
    text += "\n";
  }

  /// "" where it is missing.
  std::string label(uint32_t sample) const {
    const data::Dataset& set = samples_.set;
    if (set.task == data::Task::classify)
      return set.labels[sample] < 0 ? "" : cell(about_.class_name(set.labels[sample]));
    if (std::isnan(set.targets[sample])) return "";
    return fmt::format("{:.7g}", double{set.targets[sample]} * about_.schema->deviation + about_.schema->mean);
  }

  const models::About& about_;
  const models::Samples& samples_;
  bool all_classes_;
  Output& out_;
  std::vector<std::string> names_;
};

int predict(const UseSettings& settings) {
  models::Loaded model = load_model(settings);
  if (settings.all_classes && model.about.task == data::Task::regress)
    fail<InvalidArgument>("--all-classes: {} predicts a number and has no classes", settings.from);
  const models::Samples samples =
      models::open_samples(model.about, settings.data, models::part_named(settings.part), models::Purpose::predict);
  for (const std::string& text : samples.notes) note(text);
  Output out(settings.out);
  {
    Meter meter;
    Table table(model.about, samples, settings.all_classes, out);
    models::answer(model, samples, [&](size_t first, const torch::Tensor& answers) {
      table.add(first, answers);
      meter(first + static_cast<size_t>(answers.size(0)), samples.chosen.size());
    });
  }
  out.finish();
  if (!settings.out.empty())
    fmt::print("{}: {}; written to {}\n", model.about.model, samples.what,
               std::filesystem::absolute(settings.out).string());
  return 0;
}

}  // namespace

Run add_evaluate_worker(CLI::App& app, const Invocation&) {
  auto settings = std::make_shared<UseSettings>();
  add_evaluate_flags(app, *settings);
  return [settings] { return evaluate(*settings); };
}

Run add_predict_worker(CLI::App& app, const Invocation&) {
  auto settings = std::make_shared<UseSettings>();
  add_predict_flags(app, *settings);
  return [settings] { return predict(*settings); };
}

}  // namespace trireme::tools
