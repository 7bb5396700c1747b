#pragma once
// The sub-commands of `trireme` and `trireme-worker`. Each adds itself to the command line and runs when chosen; the
// return value is the exit code.
#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::tools {

using Run = std::function<int()>;

/// What main() was given.
struct Invocation {
  std::string program;                         // path of this executable
  std::string worker;                          // path of the program that loads libtorch
  std::vector<std::string> args;               // after the program's name, recipes already replaced by their flags
  std::vector<std::string> rest;               // launch, chaos: what stands after "--"
  std::map<std::string, std::string> origins;  // "recipe.toml, line 3" by "--epochs": flags that a recipe has set
};

using AddCommand = std::function<Run(CLI::App&, const Invocation&)>;

/// Parses argv and runs the chosen command; the exit code. Errors are printed.
int run_command(int argc, char** argv, const std::map<std::string, AddCommand>& commands);

Run add_train(CLI::App& app, const Invocation& invocation);
Run add_compare(CLI::App& app, const Invocation& invocation);
Run add_launch(CLI::App& app, const Invocation& invocation);
Run add_join(CLI::App& app, const Invocation& invocation);
Run add_coordinator(CLI::App& app, const Invocation& invocation);
Run add_tls(CLI::App& app, const Invocation& invocation);
Run add_serve(CLI::App& app, const Invocation& invocation);
Run add_ctl(CLI::App& app, const Invocation& invocation);
Run add_chaos(CLI::App& app, const Invocation& invocation);
Run add_bench(CLI::App& app, const Invocation& invocation);
Run add_bench_ps(CLI::App& bench, const Invocation& invocation);  // a sub-command of that
Run add_bench_checkpoint(CLI::App& bench, const Invocation& invocation);
Run add_bench_model(CLI::App& bench, const Invocation& invocation);
Run add_bench_pipeline(CLI::App& bench, const Invocation& invocation);
Run add_bench_elastic(CLI::App& bench, const Invocation& invocation);
Run add_bench_balance(CLI::App& bench, const Invocation& invocation);
Run add_bench_compress(CLI::App& bench, const Invocation& invocation);
Run add_evaluate(CLI::App& app, const Invocation& invocation);
Run add_predict(CLI::App& app, const Invocation& invocation);
Run add_generate(CLI::App& app, const Invocation& invocation);
Run add_checkpoint(CLI::App& app, const Invocation& invocation);
Run add_export(CLI::App& checkpoint, const Invocation& invocation);  // a sub-command of that
Run add_models(CLI::App& app, const Invocation& invocation);
Run add_doctor(CLI::App& app, const Invocation& invocation);
Run add_tune(CLI::App& app, const Invocation& invocation);
Run add_schedule(CLI::App& app, const Invocation& invocation);

// Of trireme-worker.
Run add_train_worker(CLI::App& app, const Invocation& invocation);
Run add_bench_worker(CLI::App& app, const Invocation& invocation);
Run add_tune_worker(CLI::App& app, const Invocation& invocation);
Run add_evaluate_worker(CLI::App& app, const Invocation& invocation);
Run add_predict_worker(CLI::App& app, const Invocation& invocation);
Run add_generate_worker(CLI::App& app, const Invocation& invocation);
Run add_checkpoint_worker(CLI::App& app, const Invocation& invocation);
Run add_describe(CLI::App& app, const Invocation& invocation);

/// "recipe.toml, line 3: " for a flag that stands there and not on the command line; otherwise "".
std::string place_of(const std::string& flag, const Invocation& invocation);

/// The text of a terminal command's error, for the user: "trireme: …".
void print_error(const std::string& text);

}  // namespace trireme::tools
