// `trireme checkpoint export`.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include <trireme/models/torchscript.h>

#include "../commands.h"
#include "../use_flags.h"

namespace trireme::tools {
namespace {

int write_model(const UseSettings& settings) {
  const models::Loaded model = models::load(settings.from, settings.model);
  say_skipped(model.skipped, model.path);
  const bool script = settings.out.ends_with(".pt");
  script ? models::save_torchscript(model, settings.out) : models::save_safetensors(model, settings.out);
  fmt::print("{} written to {}{}\n", model.about.model, std::filesystem::absolute(settings.out).string(),
             script ? ": TorchScript, with forward() and predict()" : "");
  return 0;
}

}  // namespace

Run add_checkpoint_worker(CLI::App& app, const Invocation&) {
  CLI::App* command = app.add_subcommand("checkpoint", "Export a model");
  command->require_subcommand(1);
  auto settings = std::make_shared<UseSettings>();
  add_export_flags(*command, *settings);
  return [settings] {
    check_export(*settings);
    return write_model(*settings);
  };
}

}  // namespace trireme::tools
