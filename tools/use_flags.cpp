#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include <trireme/base/error.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/samples.h>
#include <trireme/train/options.h>

#include "join_names.h"
#include "use_flags.h"

namespace trireme::tools {
namespace {

constexpr const char* kFrom =
    "A model that `trireme train --save` has written (.safetensors), a folder of checkpoints, of which the newest is "
    "taken, or one checkpoint: DIR/step-…";

void add_model_flags(CLI::App& command, UseSettings& s) {
  command.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command.add_option("FILE|DIR", s.from, kFrom)->required();
  command.add_option("--model", s.model,
                     "Which of `trireme models` it is, for files that do not say: those of programs of your own");
}

void add_threads_flag(CLI::App& command, UseSettings& s) {
  command.add_option("--threads", s.threads, "Threads to compute with; 0: one per core")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void add_data_flags(CLI::App& command, UseSettings& s, const std::string& parts) {
  command
      .add_option("--data", s.data,
                  "Data as for `trireme train` (docs/data.md): a name, a folder, a .csv file with the columns that the "
                  "model was trained on, text:FILE for a language model")
      ->required();
  command.add_option("--part", s.part, "Which samples: " + join_names(models::part_names()) + ". " + parts)
      ->capture_default_str();
  add_threads_flag(command, s);
}

bool ends_as(const std::string& path, std::initializer_list<const char*> endings) {
  for (const char* ending : endings)
    if (path.ends_with(ending)) return true;
  return false;
}

void check_from(const UseSettings& s) {
  if (!std::filesystem::exists(s.from)) fail<IoError>("there is no file or folder '{}'", s.from);
  if (!s.model.empty()) models::check_name(s.model);
}

}  // namespace

CLI::App* add_evaluate_flags(CLI::App& app, UseSettings& s) {
  CLI::App* command =
      app.add_subcommand("evaluate", "Measure a trained model: loss, accuracy and the classes one by one");
  add_model_flags(*command, s);
  add_data_flags(*command, s,
                 "auto: the test part; of a single CSV file or a text, what training kept for testing if the model was "
                 "trained on it, otherwise all");
  command->add_flag("--json", s.json, "One JSON object instead of text");
  command->footer(
      "Classes: the loss is the mean cross-entropy; of each class, found is the part of its samples that the model "
      "finds, and\n"
      "true the part of its answers that are right. Numbers: the error is the root of the mean square, in the label's "
      "own unit.\n"
      "Text: the perplexity is e to the loss, the number of tokens among which a guess would be as good.\n"
      "Examples:\n"
      "  trireme evaluate lenet.safetensors --data fashion-mnist\n"
      "  trireme evaluate flowers.safetensors --data flowers.csv --json\n"
      "  trireme evaluate gpt.safetensors --data text:book.txt");
  return command;
}

CLI::App* add_predict_flags(CLI::App& app, UseSettings& s) {
  CLI::App* command = app.add_subcommand("predict", "Write what a trained model says to samples, as CSV");
  add_model_flags(*command, s);
  add_data_flags(*command, s, "auto: all rows of a CSV file, the test part of other data");
  command->add_option("--out", s.out, "File to write (default: standard output)");
  command->add_flag("--all-classes", s.all_classes, "A column with the probability of every class, too");
  command->footer(
      "One row for each sample, in their order: its number from 0, the class by name and its probability, or the "
      "number "
      "in\n"
      "the label's own unit; and the label, if the data have one. CSV files need no label; a file of images such as\n"
      "t10k-images-idx3-ubyte.gz needs none either.\n"
      "Examples:\n"
      "  trireme predict flowers.safetensors --data new.csv --out predictions.csv\n"
      "  trireme predict lenet.safetensors --data fashion-mnist --all-classes");
  return command;
}

CLI::App* add_generate_flags(CLI::App& app, UseSettings& s) {
  GenerateSettings& g = s.generate;
  CLI::App* command = app.add_subcommand("generate", "Write text with a language model (gpt), token by token");
  add_model_flags(*command, s);
  command->add_option("--prompt", g.prompt, "The text to go on with; none: the beginning of a line");
  command->add_option("--tokens", g.tokens, "How many tokens to add: characters, for a model of bytes")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--temperature", g.temperature,
                   "How bold: 0 always takes the likeliest token, 1 follows the model's probabilities")
      ->capture_default_str();
  command->add_option("--top", g.top, "Choose among so many of the likeliest tokens; 0: among all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", g.seed, "Another one gives another text, the same one the same")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_threads_flag(*command, s);
  command->footer(
      "Prints the prompt and what follows it, as it is made. The model sees as many of the last tokens as its context\n"
      "has, so a text may be longer than that. Bytes that are no UTF-8 are printed as \xef\xbf\xbd.\n"
      "Examples:\n"
      "  trireme train gpt:tiny --data text:book.txt --save gpt.safetensors\n"
      "  trireme generate gpt.safetensors --prompt \"It was\" --tokens 200 --temperature 0.8\n"
      "  trireme generate runs/gpt --prompt \"It was\" --top 20 --seed 7");
  return command;
}

CLI::App* add_export_flags(CLI::App& checkpoint, UseSettings& s) {
  CLI::App* command =
      checkpoint.add_subcommand("export", "Write a model as TorchScript (.pt) or as one .safetensors file");
  add_model_flags(*command, s);
  command->add_option("--out", s.out, "FILE.pt, which Python's torch.jit.load runs, or FILE.safetensors")->required();
  command->footer(
      "The ending says the format. docs/using-a-model.md says what inputs the exported module expects.\n"
      "Examples:\n"
      "  trireme checkpoint export lenet.safetensors --out lenet.pt\n"
      "  trireme checkpoint export runs/a --out lenet.pt");
  return command;
}

void check_use(const UseSettings& s) {
  check_from(s);
  models::part_named(s.part);
  train::check_writable(s.out);
}

void check_generate(const UseSettings& s) {
  check_from(s);
  if (!(s.generate.temperature >= 0 && std::isfinite(s.generate.temperature)))
    fail<InvalidArgument>("--temperature must be a number from 0 (always the likeliest token), not {:g}",
                          s.generate.temperature);
}

void check_export(const UseSettings& s) {
  check_from(s);
  if (!ends_as(s.out, {".pt", ".safetensors"}))
    fail<InvalidArgument>("--out {}: the ending says the format, .pt (TorchScript) or .safetensors", s.out);
  train::check_writable(s.out);
}

void say_skipped(const std::vector<std::string>& skipped, const std::string& taken) {
  if (!skipped.empty()) fmt::print(stderr, "warning: {}; {} is taken instead\n", fmt::join(skipped, "; "), taken);
}

}  // namespace trireme::tools
