// `trireme models`: the zoo.
#include <fmt/format.h>

#include <trireme/models/catalogue.h>

#include "commands.h"

namespace trireme::tools {

Run add_models(CLI::App& app, const Invocation&) {
  app.add_subcommand("models", "List the models that `trireme train` knows");
  return [] {
    fmt::print("{:<12} {:<10} {}\n", "MODEL", "INPUT", "WHAT IT IS");
    for (const models::Entry& entry : models::catalogue())
      fmt::print("{:<12} {:<10} {}\n", entry.name, entry.input, entry.description);
    fmt::print("\nIn C++, any torch::nn::Module can be trained: see examples/.\n");
    return 0;
  };
}

}  // namespace trireme::tools
