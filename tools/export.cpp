// `trireme checkpoint export`: a checkpoint's model as one file of tensors; for all else this process becomes the
// worker, which knows the models.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include <trireme/checkpoint/compare.h>
#include <trireme/checkpoint/reader.h>

#include "become.h"
#include "commands.h"
#include "use_flags.h"

namespace trireme::tools {
namespace {

/// Of any program's model, without libtorch.
int export_tensors(const UseSettings& s) {
  using checkpoint::system_files;
  const checkpoint::Tensors tensors = checkpoint::Tensors::open(system_files(), s.from, true);
  say_skipped(tensors.skipped, tensors.path);
  export_model(system_files(), *tensors.checkpoint, s.out);
  fmt::print("{}: {} tensors of step {}\n", s.out, tensors.model().size(), tensors.checkpoint->manifest().step);
  return 0;
}

}  // namespace

Run add_export(CLI::App& checkpoint, const Invocation& invocation) {
  auto settings = std::make_shared<UseSettings>();
  add_export_flags(checkpoint, *settings);
  return [settings, invocation]() -> int {
    check_export(*settings);
    if (std::filesystem::is_directory(settings->from) && settings->out.ends_with(checkpoint::kSuffix))
      return export_tensors(*settings);
    check_address_limit(invocation.worker);
    become_worker(invocation);
  };
}

}  // namespace trireme::tools
