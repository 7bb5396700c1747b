// `trireme checkpoint export`: this process becomes the worker, which knows the models.
#include <memory>

#include "become.h"
#include "commands.h"
#include "use_flags.h"

namespace trireme::tools {

Run add_export(CLI::App& checkpoint, const Invocation& invocation) {
  auto settings = std::make_shared<UseSettings>();
  add_export_flags(checkpoint, *settings);
  return [settings, invocation]() -> int {
    check_export(*settings);
    check_address_limit(invocation.worker);
    become_worker(invocation);
  };
}

}  // namespace trireme::tools
