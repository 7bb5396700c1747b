// A worker of `trireme train`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/cluster/agreement.h>
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
            .progress = [this](const train::TrainMetrics& now) { progress(now); },
            .epoch = [this](const train::EpochResult& e) { epoch(e); }};
  }

  void say(const std::string& text) {
    if (silent_) return;
    erase();
    put(text + "\n");
  }

 private:
  void progress(const train::TrainMetrics& now) {
    if (!line_ || silent_) return;
    constexpr int kWidth = 16;
    const double step = now.epoch_step.value(), steps = now.epoch_steps.value();
    put(fmt::format("\r\x1b[Kepoch {:.0f}/{:.0f} [{:<{}}] {:.0f}/{:.0f}  loss {:.4f}  {} samples/s  ETA {}",
                    now.epoch.value(), now.epochs.value(), std::string(static_cast<size_t>(kWidth * step / steps), '='),
                    kWidth, step, steps, now.loss.value(), with_commas(now.samples_per_second.value()),
                    clock_text(now.seconds_left.value())));
    drawn_ = true;
  }

  void epoch(const train::EpochResult& e) {
    std::string text = fmt::format("epoch {}  loss {:.4f}", e.epoch, e.loss);
    if (e.has_test) text += fmt::format("  test loss {:.4f}", e.test_loss);
    if (e.has_test && e.tokens > 0) text += fmt::format("  perplexity {:.2f}", e.test_perplexity());
    if (e.test_accuracy >= 0) text += fmt::format("  test accuracy {:.4f}", e.test_accuracy);
    text += e.tokens > 0
                ? fmt::format("  {} tokens/s", with_commas(e.samples_per_second * static_cast<double>(e.tokens)))
                : fmt::format("  {} samples/s", with_commas(e.samples_per_second));
    say(text + fmt::format("  {:.2f} s", e.seconds));
  }

  void erase() {
    if (drawn_) put("\r\x1b[K");
    drawn_ = false;
  }

  /// A terminal that is gone must not end the run: the model is still to be saved.
  static void put(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    std::clearerr(stdout);
  }

  bool line_, silent_, drawn_ = false;
};

/// All three are a wish to stop, unless one is ignored, as under nohup.
void take_signals() {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action.sa_handler = [](int) { stop_requested.store(true); };
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);  // nobody reads our output any more: the run goes on
}

/// Flags that ranks of one job may have different values of.
bool may_differ(const std::string& name) {
  return name == "--threads" || name == "--progress" || name == "--quiet-report" || name == "--restarts";
}

/// What this rank was asked to do, as its command line or recipe says it.
cluster::Terms terms_of(const CLI::App& command, const train::Options& options, bool one_machine) {
  cluster::Terms terms;
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0 && !may_differ(option->get_name()))
      terms.emplace_back(option->get_name(), fmt::format("{}", fmt::join(option->results(), " ")));
  std::error_code none;
  if (one_machine && std::filesystem::exists(options.data, none))
    terms.emplace_back("data of", std::filesystem::weakly_canonical(options.data, none).string());
  return terms;
}

std::string advice_for(const World& world) {
  return fmt::format(
      "ranks of one job have the same command line{}",
      world.place().job_is_common
          ? ". If these are two jobs that met by mistake, give each a MASTER_PORT or TRIREME_JOB of its own"
          : "");
}

/// As a shell has to be given it.
std::string quoted(const std::string& text) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%^";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string inside;
  for (const char one : text) inside += one == '\'' ? std::string("'\\''") : std::string(1, one);
  return "'" + inside + "'";
}

/// The line to type: as it was, and --resume.
std::string resuming(const CLI::App& command, const train::Result& result) {
  std::string text = "trireme train";
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || may_differ(name) || name.starts_with("--resume")) continue;
    for (const std::string& given : option->results()) {
      text += option->get_positional()          ? " " + quoted(given)
              : option->get_expected_max() == 0 ? " " + name
                                                : fmt::format(" {} {}", name, quoted(given));
    }
  }
  return text + (result.resumed.empty() || command.count("--checkpoint") > 0 ? " --resume latest" : "");
}

int work(const TrainSettings& settings, const CLI::App& command) {
  take_signals();
  Screen screen(settings.progress);
  World world =
      join({.timeout = Seconds(settings.timeout),
            .timeout_setting = "--timeout",
            .heartbeat_limit = Seconds(settings.hosts.heartbeat_limit),
            .engine = settings.engine,
            .on_loss = settings.elasticity.elastic() ? cluster::OnLoss::change_crew : cluster::OnLoss::end_job});
  const cluster::Terms terms = terms_of(command, settings.options, world.machines() == 1);
  const train::Result result = train::run(world, settings.options, screen.listener(), stop_requested,
                                          [&] { cluster::compare_terms(world.comm(), terms, advice_for(world)); });
  if (!world.first()) return 0;
  std::string summary = fmt::format("{} {} updates in {:.1f} s of training",
                                    !result.closing.empty() ? "stopped, as too few workers are left, after"
                                    : result.stopped        ? "stopped on request after"
                                                            : "done:",
                                    with_commas(static_cast<double>(result.updates)), result.seconds);
  if (!result.epochs.empty() && result.epochs.back().test_accuracy >= 0)
    summary += fmt::format(", test accuracy {:.4f}", result.epochs.back().test_accuracy);
  if (!result.epochs.empty() && result.epochs.back().has_test && result.epochs.back().tokens > 0)
    summary += fmt::format(", perplexity {:.2f}", result.epochs.back().test_perplexity());
  if (!result.epochs.empty() && result.epochs.back().has_test && result.epochs.back().test_accuracy < 0)
    summary += fmt::format(", test error {:.4g} (root of the mean square)", std::sqrt(result.epochs.back().test_loss));
  screen.say(summary);
  if (!result.saved.empty()) screen.say("model saved to " + result.saved);
  if (!settings.options.report.empty() && !settings.quiet_report)
    screen.say("report written to " + std::filesystem::absolute(settings.options.report).string());
  if (result.stopped && !result.checkpoint.empty())
    screen.say(fmt::format("to go on with {}: {}", result.checkpoint, resuming(command, result)));
  return 0;
}

}  // namespace

Run add_train_worker(CLI::App& app, const Invocation&) {
  auto settings = std::make_shared<TrainSettings>();
  const CLI::App* command = add_train_flags(app, *settings);
  return [settings, command] {
    const cluster::Place place = cluster::place_here();
    resolve(*settings, place);
    if (settings->workers != place.size)
      fail<InvalidArgument>("--workers {} but {} started {} ranks", settings->workers, place.launcher, place.size);
    return work(*settings, *command);
  };
}

}  // namespace trireme::tools
