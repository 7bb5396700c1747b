#pragma once
// The flags of the commands that use a trained model. `trireme` checks them; `trireme-worker` reads them again and does
// the work.
#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tools {

/// Of `generate`.
struct GenerateSettings {
  std::string prompt;
  int64_t tokens = 200, top = 0;
  double temperature = 0.8;
  uint64_t seed = 1;
};

struct UseSettings {
  std::string from;           // FILE or DIR
  std::string model;          // where the file does not say; "": it does
  std::string data;           //
  std::string part = "auto";  // see models::Part
  std::string out;            // predict: "" is standard output
  int threads = 0;            // 0: one per core
  bool json = false;          // evaluate
  bool all_classes = false;   // predict: a column for every class
  GenerateSettings generate{};
};

CLI::App* add_evaluate_flags(CLI::App& app, UseSettings& settings);
CLI::App* add_predict_flags(CLI::App& app, UseSettings& settings);
CLI::App* add_generate_flags(CLI::App& app, UseSettings& settings);
CLI::App* add_export_flags(CLI::App& checkpoint, UseSettings& settings);

/// What shows without libtorch: throws for names, files and folders that are not there, and for an output that cannot
/// be written.
void check_use(const UseSettings& settings);
/// The same for `generate`.
void check_generate(const UseSettings& settings);
/// The same for `checkpoint export`.
void check_export(const UseSettings& settings);
/// A remark on standard error when newer checkpoints than `taken` were of no use.
void say_skipped(const std::vector<std::string>& skipped, const std::string& taken);

}  // namespace trireme::tools
