// `trireme doctor`: what is found on this machine, what is missing, and how to get it.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <trireme/base/blas.h>
#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/base/segment.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/space/kernels.h>

#include "commands.h"
#include "peers.h"
#include "preflight.h"

namespace trireme::tools {
namespace {

int problems = 0;

void found(const char* what, const std::string& text) { fmt::print("  ok       {:<16} {}\n", what, text); }
void optional_missing(const char* what, const std::string& remedy) {
  fmt::print("  missing  {:<16} optional; {}\n", what, remedy);
}
void problem(const char* what, const std::string& text) {
  fmt::print("  PROBLEM  {:<16} {}\n", what, text);
  problems++;
}

void check_shared_memory() {
  try {
    auto segment = Segment::create();
    *segment->map(0, kPage, "a test") = std::byte{1};
    found("shared memory", fmt::format("memfd works; {:.1f} GiB of memory available",
                                       static_cast<double>(available_memory()) / (1 << 30)));
  } catch (const Error& error) {
    problem("shared memory", error.what());
  }
}

void check_processes() {
  open_process(getpid())
      ? found("process watch", "pidfd works: a dead rank is noticed at once")
      : problem("process watch", "pidfd_open failed (" + errno_text() +
                                     "): a dead rank is noticed only at the deadline. Use Linux 5.3 or newer");
}

void check_environment() {
  try {
    const cluster::Place place = cluster::place_here();
    found("launcher", place.launcher == "alone"
                          ? "none: this process is alone"
                          : fmt::format("{}: rank {} of {}", place.launcher, place.rank, place.size));
  } catch (const Error& error) {
    problem("launcher", error.what());
  }
}

/// Asks the program that loads it.
void check_libtorch(const std::string& worker) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(("'" + worker + "' describe 2>&1").c_str(), "r"), pclose);
  std::string text(200, 0);
  text.resize(pipe ? fread(text.data(), 1, text.size(), pipe.get()) : 0);
  text = text.substr(0, text.find('\n'));
  text.starts_with("libtorch ") ? found("libtorch", text.substr(9))
                                : problem("libtorch", fmt::format("{} does not run: {}", worker, text));
}

/// As trireme's workers get it: main() has set the variable where that helps.
void check_openblas() {
  const std::string core = openblas_core(true);
  const char* const set = std::getenv("OPENBLAS_CORETYPE");
  if (core.empty()) return;
  if (const std::string better = better_openblas_core(core, vector_units()); !better.empty())
    return problem(
        "OpenBLAS",
        fmt::format("uses kernels for {}: with OPENBLAS_CORETYPE={} matrix products are several times faster", core,
                    better));
  found(
      "OpenBLAS",
      fmt::format(
          "kernels for {}{}", core,
          set == nullptr
              ? ""
              : fmt::format(": OPENBLAS_CORETYPE={}, which programs that are started without trireme need too", set)));
}

int look_here(const std::string& worker) {
  problems = 0;
  fmt::print("trireme {}\n", TRIREME_VERSION);
  const auto cores = usable_cores();
  found("cores", fmt::format("{} usable{}", cores, cores < 2 ? ": two workers will share it" : ""));
  std::string variants;
  for (const space::Kernels* variant : space::runnable_kernels())
    variants += (variants.empty() ? "" : ", ") + std::string(variant->name);
  found("kernels", fmt::format("{} (this processor runs: {})", space::kernels().name, variants));
  check_libtorch(worker);
  check_openblas();
  check_shared_memory();
  check_processes();
  check_environment();
  std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
      ? found("fashion-mnist", "/usr/share/datasets/fashion-mnist")
      : optional_missing("fashion-mnist", "apt-get install dataset-fashion-mnist");
  for (const Peer& peer : peers())
    peer.available() ? found(peer.title, peer.purpose) : optional_missing(peer.title, peer.remedy);
  fmt::print("{}\n", problems == 0 ? "ready to train" : fmt::format("{} problem(s) above", problems));
  return problems == 0 ? 0 : 1;
}

}  // namespace

Run add_doctor(CLI::App& app, const Invocation& invocation) {
  struct Settings {
    HostsFlags hosts;
    bool probe = false;
  };
  auto s = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Say what is found on this machine or on several hosts, what is missing and what to do about it");
  add_hosts_flags(*command, s->hosts);
  command->add_flag("--probe", s->probe)->group("");  // what it starts on each host
  command->footer(
      "With --hosts: can they be reached, is the same version there, do their clocks agree, and how fast are they "
      "connected? Every pair in both directions.\n"
      "Exit code 0: nothing is wrong.\n"
      "Example:\n"
      "  trireme doctor --hosts a,b,c");
  return [s, command, invocation] {
    if (s->probe) return preflight_probe();
    refuse_without_hosts(*command, s->hosts);
    return s->hosts.given() ? preflight(s->hosts, invocation.program) : look_here(invocation.worker);
  };
}

}  // namespace trireme::tools
