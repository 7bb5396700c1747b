// `trireme evaluate`, `predict` and `generate`: what can be checked is checked, then this process becomes the worker.
#include <memory>

#include "become.h"
#include "commands.h"
#include "use_flags.h"

namespace trireme::tools {
namespace {

Run run_in_worker(CLI::App* (*add)(CLI::App&, UseSettings&), void (*check)(const UseSettings&), CLI::App& app,
                  const Invocation& invocation) {
  auto settings = std::make_shared<UseSettings>();
  add(app, *settings);
  return [settings, check, invocation]() -> int {
    check(*settings);
    check_address_limit(invocation.worker);
    if (settings->threads > 0) set_threads(settings->threads);
    become_worker(invocation);
  };
}

}  // namespace

Run add_evaluate(CLI::App& app, const Invocation& invocation) {
  return run_in_worker(add_evaluate_flags, check_use, app, invocation);
}

Run add_predict(CLI::App& app, const Invocation& invocation) {
  return run_in_worker(add_predict_flags, check_use, app, invocation);
}

Run add_generate(CLI::App& app, const Invocation& invocation) {
  return run_in_worker(add_generate_flags, check_generate, app, invocation);
}

}  // namespace trireme::tools
