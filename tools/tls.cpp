// `trireme tls`: certificates for jobs that span machines.
#include <fmt/format.h>

#include <memory>

#include <trireme/cluster/coordination/tls.h>

#include "commands.h"

namespace trireme::tools {

Run add_tls(CLI::App& app, const Invocation&) {
  struct Options {
    std::string action, folder;
    cluster::TlsOptions tls;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "tls", "Make the certificates with which the hosts of a job know each other: trireme tls init DIR");
  command
      ->add_option("action", options->action, "init: write an authority and a certificate for all hosts into a folder")
      ->required()
      ->check(CLI::IsMember({"init"}));
  command->add_option("folder", options->folder, "Where to; made if it is not there")->required();
  command->add_option("--days", options->tls.days, "How long they are valid")
      ->capture_default_str()
      ->check(CLI::Range(1, 36'500));
  command->add_flag("--force", options->tls.force,
                    "Replace certificates that are there: hosts with the old ones are shut out");
  command->footer(
      "Copy the folder without ca.key to all hosts of the job, and give it to the coordinator and to all members:\n"
      "  trireme tls init certificates\n"
      "  rsync -a --exclude ca.key certificates other-host:\n"
      "  trireme coordinator --ranks 4 --tls certificates\n"
      "Traffic is then encrypted, and nobody without a certificate of this folder is heard, token or not.");
  return [options] {
    cluster::make_certificates(options->folder, options->tls);
    fmt::print("wrote ca.pem, ca.key, node.pem and node.key to {}, valid for {} days\n", options->folder,
               options->tls.days);
    fmt::print("copy ca.pem, node.pem and node.key to the same place on all hosts, and give --tls {} on each\n",
               options->folder);
    return 0;
  };
}

}  // namespace trireme::tools
