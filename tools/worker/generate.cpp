// `trireme generate`.
#include <cstdio>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/models/generate.h>

#include "../commands.h"
#include "../use_flags.h"

namespace trireme::tools {
namespace {

/// At once: who reads along sees every token. False when nobody reads any more.
bool put(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

int write_text(const UseSettings& settings) {
  models::Loaded model = models::load(settings.from, settings.model);
  say_skipped(model.skipped, model.path);
  models::check_generates(model.about);
  const GenerateSettings& g = settings.generate;
  if (!put(g.prompt)) return 1;
  bool heard = true;
  models::generate(model, g.prompt, {.tokens = g.tokens, .temperature = g.temperature, .top = g.top, .seed = g.seed},
                   [&](const std::string& text) { return heard = put(text); });
  return heard && put("\n") ? 0 : 1;
}

}  // namespace

Run add_generate_worker(CLI::App& app, const Invocation&) {
  auto settings = std::make_shared<UseSettings>();
  add_generate_flags(app, *settings);
  return [settings] { return write_text(*settings); };
}

}  // namespace trireme::tools
