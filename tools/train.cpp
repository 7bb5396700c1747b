// `trireme train`: started by a person it launches itself once per worker; started by a launcher it is a worker.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/base/process.h>
#include <trireme/cluster/launcher.h>
#include <trireme/data/dataset.h>
#include <trireme/models/catalogue.h>
#include <trireme/train/trainer.h>
#include "commands.h"
#include "join_names.h"

namespace trireme::tools {
namespace {

constexpr double kLongestTimeout = 1e8;  // seconds; the clock counts nanoseconds

std::vector<std::string> progress_names() { return {"auto", "line", "plain", "none"}; }

std::atomic<bool> stop_requested{false};  // set by a signal handler: it has to be global

struct Settings {
  train::Options options;
  int workers = 0;
  int threads = 1;
  double timeout = 60;
  std::string optimizer = "momentum", sync = "shared", memory_format = "auto", loss = "auto", progress = "auto";
};

std::string clock_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string with_commas(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
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

int work(const Settings& settings) {
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { stop_requested.store(true); });
  Screen screen(settings.progress);
  World world = join({.timeout = Seconds(settings.timeout)});
  const train::Result result = train::run(world, settings.options, screen.listener(), stop_requested);
  if (!world.first()) return 0;
  std::string summary = fmt::format("{} {} updates in {:.1f} s of training",
                                    result.stopped ? "stopped on request after" : "done:", with_commas(static_cast<double>(result.updates)), result.seconds);
  if (!result.epochs.empty() && result.epochs.back().test_accuracy >= 0) summary += fmt::format(", test accuracy {:.4f}", result.epochs.back().test_accuracy);
  screen.say(summary);
  if (!result.saved.empty()) screen.say("model saved to " + result.saved);
  if (!settings.options.report.empty()) screen.say("report written to " + std::filesystem::absolute(settings.options.report).string());
  return 0;
}

std::string default_cache() {
  const char* folder = std::getenv("XDG_CACHE_HOME");
  if (folder != nullptr && *folder != 0) return std::string(folder) + "/trireme/choices.json";
  const char* home = std::getenv("HOME");
  return home == nullptr ? "" : std::string(home) + "/.cache/trireme/choices.json";
}

/// Texts to settings, before anything is started: a wrong name is one error, not one per worker.
void resolve(Settings& settings, const cluster::Place& place) {
  train::Options& o = settings.options;
  o.optimizer.kind = space::optimizer_named(settings.optimizer);
  o.sync = exchange::sync_named(settings.sync);
  o.memory_format = train::memory_format_named(settings.memory_format);
  o.loss = train::loss_named(settings.loss);
  train::check(o);
  models::check_name(o.model);
  data::check_exists(o.data);
  if (settings.workers == 0) settings.workers = place.size > 1 ? place.size : usable_cores();
  if (o.batch < static_cast<size_t>(settings.workers))
    fail<InvalidArgument>("--batch {} is smaller than the number of workers ({}); some would never have work. Use a batch of at least {} or fewer workers",
                          o.batch, settings.workers, settings.workers);
  if (!(settings.timeout > 0 && settings.timeout < kLongestTimeout))
    fail<InvalidArgument>("--timeout must be more than 0 and less than {} seconds, not {}", kLongestTimeout, settings.timeout);
  if (const auto& known = progress_names(); std::find(known.begin(), known.end(), settings.progress) == known.end())
    fail<InvalidArgument>("unknown --progress '{}'{}: {}", settings.progress, did_you_mean(settings.progress, known), join_names(known));
  if (settings.progress == "auto") settings.progress = isatty(1) != 0 ? "line" : "plain";
}

int launch_workers(const Settings& settings, const Invocation& invocation) {
  cluster::LaunchOptions options{.command = {invocation.program}, .ranks = settings.workers, .threads = settings.threads, .only_first = true};
  options.command.insert(options.command.end(), invocation.args.begin(), invocation.args.end());
  options.command.push_back("--progress=" + settings.progress);
  const cluster::LaunchResult result = cluster::launch(options);
  const bool spoke = result.first_failed == 0 && result.exit_code < 128;  // rank 0 has said itself why it ended
  if (result.first_failed >= 0 && !result.interrupted && !spoke) {
    print_error(result.reason);
    if (result.first_failed > 0)
      for (const std::string& line : result.last_lines) fmt::print(stderr, "  [{}] {}\n", result.first_failed, line);
  }
  return result.exit_code;
}

/// CLI11 takes -1 for a very large unsigned number, and its own checks talk of ranges from 2.2e-308.
CLI::Validator whole_number(long long least) {
  return CLI::Validator(
      [least](const std::string& text) {
        long long value = 0;
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool good = error == std::errc{} && stop == text.data() + text.size() && value >= least;
        return good ? "" : fmt::format("must be a whole number of at least {}, not '{}'", least, text);
      },
      "");
}

void add_flags(CLI::App& app, Settings& s) {
  train::Options& o = s.options;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->always_capture_default();
  app.add_option("MODEL", o.model, "A model (`trireme models` lists them), or a recipe FILE.toml with these flags as keys")->required();
  app.add_option("--data", o.data, "Data: fashion-mnist, mnist, synthetic[:COUNT], a folder of IDX files or with train.csv and test.csv, or a .csv file");
  app.add_option("--label", o.label, "CSV: name or number of the column to predict (default: the last)");
  app.add_option("--workers", s.workers, "Worker processes on this machine; 0: one per core")->check(whole_number(0));
  app.add_option("--batch", o.batch, "Samples per update, over all workers: the result does not depend on their number")->check(whole_number(1));
  app.add_option("--epochs", o.epochs, "Passes over the training set")->check(whole_number(0));
  app.add_option("--max-steps", o.max_steps, "Stop after this many updates; 0: no limit")->check(whole_number(0));
  app.add_option("--optimizer", s.optimizer, "One of: " + join_names(space::optimizer_names()));
  app.add_option("--lr", o.optimizer.lr, "Learning rate");
  app.add_option("--momentum", o.optimizer.momentum, "For momentum");
  app.add_flag("--nesterov", o.optimizer.nesterov, "Nesterov's variant of momentum");
  app.add_option("--beta1", o.optimizer.beta1, "For adam and adamw");
  app.add_option("--beta2", o.optimizer.beta2, "For adam and adamw");
  app.add_option("--epsilon", o.optimizer.epsilon, "For adagrad, adam and adamw (default: libtorch's)");
  app.add_option("--weight-decay", o.optimizer.weight_decay, "L2 term; decoupled in adamw");
  app.add_option("--schedule", o.schedule, "Of the learning rate: " + join_names(space::schedule_names()));
  app.add_option("--warmup", o.warmup, "Updates over which the learning rate rises to --lr")->check(whole_number(0));
  app.add_option("--step-epochs", o.step_epochs, "Schedule step: epochs between drops");
  app.add_option("--gamma", o.gamma, "Schedule step: factor of each drop");
  app.add_option("--accumulate", o.accumulate, "Micro-batches per update: less memory, the same result, one exchange")->check(whole_number(1));
  app.add_option("--sync", s.sync, "shared: workers update one shared copy of the parameters; allreduce: each has its own; central: all through worker 0");
  app.add_option("--seed", o.seed, "Of the initial parameters, the shuffling and dropout; the same seed and workers give the same bits")
      ->check(whole_number(0));
  app.add_option("--loss", s.loss, "One of: " + join_names(train::loss_names()));
  app.add_option("--dtype", o.dtype, "f32 or f64");
  app.add_option("--memory-format", s.memory_format,
                 "Of convolution weights: " + join_names(train::memory_format_names()) + "; auto measures once and remembers");
  app.add_option("--bucket-bytes", o.bucket_bytes, "Gradients travel in buckets of about this size")->check(whole_number(1));
  app.add_flag("--overlap,!--no-overlap", o.overlap, "Reduce complete buckets while the backward pass goes on");
  app.add_option("--threads", s.threads, "Compute threads per worker")->check(whole_number(1));
  app.add_option("--timeout", s.timeout, "Seconds to wait for another worker before giving up");
  app.add_option("--report", o.report, "Write a JSON report: loss, accuracy, samples/s and seconds by epoch, SHA-256 of the parameters");
  app.add_option("--save", o.save, "Write the trained model in safetensors format");
  app.add_option("--progress", s.progress, "One of: " + join_names(progress_names()) + "; auto is a line on a terminal");
  app.footer(
      "Examples:\n"
      "  trireme train lenet --data fashion-mnist --workers 2 --epochs 10 --lr 0.05 --save lenet.safetensors\n"
      "  trireme train mlp:256,128 --data my.csv --label price --optimizer adam --lr 1e-3\n"
      "  trireme train recipes/lenet.toml --epochs 2 --sync allreduce");
}

}  // namespace

Run add_train(CLI::App& app, const Invocation& invocation) {
  auto settings = std::make_shared<Settings>();
  settings->options.optimizer.lr = 0.05;
  settings->options.cache = default_cache();
  CLI::App* command = app.add_subcommand("train", "Train a model on this machine's cores, one process per worker");
  add_flags(*command, *settings);
  return [settings, invocation] {
    const cluster::Place place = cluster::place_here();
    resolve(*settings, place);
    const bool worker = place.launcher != "alone";
    if (worker && settings->workers != place.size) fail<InvalidArgument>("--workers {} but {} started {} ranks", settings->workers, place.launcher, place.size);
    return worker ? work(*settings) : launch_workers(*settings, invocation);
  };
}

}  // namespace trireme::tools
