// `trireme checkpoint`: what can be done with saved models and checkpoints.
#include "commands.h"

namespace trireme::tools {

Run add_checkpoint(CLI::App& app, const Invocation& invocation) {
  CLI::App* command = app.add_subcommand("checkpoint", "Look at saved models and checkpoints, and export them");
  command->require_subcommand(1);
  return add_export(*command, invocation);
}

}  // namespace trireme::tools
