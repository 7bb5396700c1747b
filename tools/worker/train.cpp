// A worker of `trireme train`.
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/train/trainer.h>
#include "../commands.h"
#include "../train_flags.h"
#include "../with_commas.h"

namespace trireme::tools {
namespace {

std::atomic<bool> stop_requested{false};  // set by a signal handler: it has to be global

std::string clock_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

/// Draws the run on the terminal; with `line`, a progress line that overwrites itself.
class Screen {
 public:
  explicit Screen(const std::string& mode) : line_(mode == "line"), silent_(mode == "none") {}

  train::Listener listener() {
    return {.note = [this](const std::string& text) { say(text); },
            .progress = [this](const train::Progress& p) { progress(p); },
            .epoch = [this](const train::EpochResult& e) { epoch(e); }};
  }

  void say(const std::string& text) {
    if (silent_) return;
    erase();
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }

 private:
  void progress(const train::Progress& p) {
    epochs_ = p.epochs;
    if (!line_ || silent_) return;
    constexpr int kWidth = 16;
    const int filled = static_cast<int>(kWidth * p.step / p.steps);
    fmt::print("\r\x1b[Kepoch {}/{} [{:<{}}] {}/{}  loss {:.4f}  {} samples/s  ETA {}", p.epoch, p.epochs, std::string(static_cast<size_t>(filled), '='),
               kWidth, p.step, p.steps, p.loss, with_commas(p.samples_per_second), clock_text(p.seconds_left));
    std::fflush(stdout);
    drawn_ = true;
  }

  void epoch(const train::EpochResult& e) {
    std::string text = fmt::format("epoch {}  loss {:.4f}", e.epoch, e.loss);
    if (e.has_test) text += fmt::format("  test loss {:.4f}", e.test_loss);
    if (e.test_accuracy >= 0) text += fmt::format("  test accuracy {:.4f}", e.test_accuracy);
    say(text + fmt::format("  {} samples/s  {:.2f} s", with_commas(e.samples_per_second), e.seconds));
  }

  void erase() {
    if (drawn_) fmt::print("\r\x1b[K");
    drawn_ = false;
  }

  bool line_, silent_, drawn_ = false;
  int epochs_ = 0;
};

int work(const TrainSettings& settings) {
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { stop_requested.store(true); });
  Screen screen(settings.progress);
  World world = join({.timeout = Seconds(settings.timeout), .heartbeat_limit = Seconds(settings.hosts.heartbeat_limit), .engine = settings.engine});
  const train::Result result = train::run(world, settings.options, screen.listener(), stop_requested);
  if (!world.first()) return 0;
  std::string summary = fmt::format("{} {} updates in {:.1f} s of training",
                                    result.stopped ? "stopped on request after" : "done:", with_commas(static_cast<double>(result.updates)), result.seconds);
  if (!result.epochs.empty() && result.epochs.back().test_accuracy >= 0) summary += fmt::format(", test accuracy {:.4f}", result.epochs.back().test_accuracy);
  screen.say(summary);
  if (!result.saved.empty()) screen.say("model saved to " + result.saved);
  if (!settings.options.report.empty() && !settings.quiet_report)
    screen.say("report written to " + std::filesystem::absolute(settings.options.report).string());
  return 0;
}

}  // namespace

Run add_train_worker(CLI::App& app, const Invocation&) {
  auto settings = std::make_shared<TrainSettings>();
  add_train_flags(app, *settings);
  return [settings] {
    const cluster::Place place = cluster::place_here();
    resolve(*settings, place);
    if (settings->workers != place.size) fail<InvalidArgument>("--workers {} but {} started {} ranks", settings->workers, place.launcher, place.size);
    return work(*settings);
  };
}

}  // namespace trireme::tools
