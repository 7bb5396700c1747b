// What `trireme doctor` cannot see without libtorch.
#include <fmt/format.h>

#include <trireme/train/trainer.h>

#include "../commands.h"

namespace trireme::tools {

Run add_describe(CLI::App& app, const Invocation&) {
  app.add_subcommand("describe", "Print the version of libtorch");
  return [] {
    fmt::print("libtorch {}\n", train::torch_description());
    return 0;
  };
}

}  // namespace trireme::tools
