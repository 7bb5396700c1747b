#include <nlohmann/json.hpp>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/base/sha256.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/cluster/agreement.h>
#include <trireme/cluster/gather_metrics.h>
#include <trireme/cluster/launching/slate.h>
#include <trireme/data/loader.h>
#include <trireme/models/about.h>
#include <trireme/models/catalogue.h>
#include <trireme/models/load.h>
#include <trireme/models/models.h>
#include <trireme/parallel/parallel.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/diagnosis.h>
#include <trireme/train/guard.h>
#include <trireme/train/history.h>
#include <trireme/train/memory_format.h>
#include <trireme/train/trainer.h>

namespace trireme::train {
namespace {

constexpr size_t kTestBatch = 500;
constexpr double kSecondsBetweenReports = 0.1;
constexpr size_t kSpansInReport = 30;
constexpr double kLongestCheckpoint = 300;  // seconds, in the end
constexpr int kStepsToTime = 20;            // before a straggler becomes slow

class Run {
 public:
  Run(World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop)
      : world_(world),
        options_(options),
        listener_(listener),
        stop_(stop),
        count_(world.registry()),
        guard_(world, options, listener.note),
        dtype_(options.dtype == "f64" ? torch::kFloat64 : torch::kFloat32) {
    check(options);
  }

  /// Errors of libtorch's own have its words, and where they came up, without its stack of addresses.
  Result run() {
    try {
      return train();
    } catch (const c10::Error& error) {
      std::string text = error.what_without_backtrace();
      // "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't …": what failed stands behind
      if (text.starts_with("[enforce fail"))
        if (const size_t end = text.find(". ", text.find("] ")); end != std::string::npos) text = text.substr(end + 2);
      fail<Error>("libtorch, training {} on {} (worker {}, after {} steps): {}", options_.model, options_.data,
                  world_.rank(), position_, text.substr(0, text.find('\n')));
    }
  }

 private:
  Result train() {
    if (world_.first()) introduce();
    compare_options();
    const data::Splits splits = data::open(world_.local(), options_.data, data_options());
    compare_data(splits);
    for (size_t i = 0; world_.first() && i < splits.notes.size(); i++) listener_.note(splits.notes[i]);
    const data::Cut cut{splits.train.count, options_.batch, world_.size(), options_.parallel.accumulate};
    data::check(cut, splits.train.name);
    mse_ = options_.loss == Loss::mse || (options_.loss == Loss::automatic && splits.train.task == data::Task::regress);
    if (!mse_ && splits.train.task == data::Task::regress)
      fail<InvalidArgument>("cross-entropy needs classes, but the labels of {} are not whole numbers from 0",
                            splits.train.name);
    check_data(options_.stop, splits.test.count > 0, !mse_);
    torch::manual_seed(options_.seed);
    net_ = models::make(options_.model, splits.train.shape, mse_ ? 1 : splits.train.classes);
    net_->to(dtype_);
    if (options_.keeping.weights_only) take_weights();
    const bool channels_last = choose_format(splits.train);
    torch::manual_seed(options_.seed * 1000003 +
                       static_cast<uint64_t>(world_.rank()));  // dropout differs between workers

    const auto steps = static_cast<int64_t>(cut.steps());
    choose_epochs(splits, steps);
    if (splits.schema && mse_) loss_unit_ = splits.schema->deviation * splits.schema->deviation;
    Parallel train(world_, *net_, options_.optimizer, parallel_options(steps, channels_last));
    data::Feed feed(train, splits.train,
                    {.batch = options_.batch, .seed = options_.seed, .shuffle = options_.shuffle, .dtype = dtype_});
    result_.parameters = train.exchange().layout().elements();
    if (world_.first())
      listener_.note(fmt::format(
          "{}: {} parameters; {}: {} training and {} test samples; {} worker{}{}, sync {}, batch {} ({} steps an "
          "epoch)",
          options_.model, result_.parameters, options_.data, splits.train.count, splits.test.count, world_.size(),
          world_.size() == 1 ? "" : "s", servers_text(), exchange::name_of(asked().sync), options_.batch, steps));
    if (world_.first() && world_.size() > 1 && models::has_batch_norm(options_.model) &&
        !options_.parallel.sync_batch_norm)
      listener_.note(
          "batch norm: each worker uses the statistics of its own samples; --sync-batch-norm uses those of the whole "
          "batch");
    const Closing closing{checkpoints_};
    keep_checkpoints(train, feed, splits, channels_last);
    guard_.begin(Seconds(history_.time));
    if (owes_evaluation(splits, steps)) {  // it was stopped between an epoch and its figures
      evaluate(train, splits.test, Patience::until_stopped);
      if (world_.first() && !result_.stopped) listener_.epoch(result_.epochs.back());
    }
    for (int epoch = static_cast<int>(position_ / steps);
         epoch < epochs_ && !result_.stopped && !enough() && !guard_.ended(); epoch++) {
      try {
        run_epoch(train, feed, epoch);
      } catch (const NotFinite& error) {
        epoch = static_cast<int>(guard_.roll_back(error, position_) / steps) - 1;
        continue;
      }
      if (result_.stopped && guard_.was_stopped_here()) result_.stopped = false;
      if (!result_.stopped) evaluate(train, splits.test, Patience::until_stopped);
      if (world_.first() && !result_.stopped) listener_.epoch(result_.epochs.back());
      if (!result_.stopped) examine(mse_ ? 0 : splits.train.classes, epoch + 1 == epochs_ || enough());
      if (checkpoints_ && !result_.stopped && position_ % steps == 0) checkpoints_->epoch_ended(epoch, figures());
      if (!result_.stopped) guard_.after_epoch(losses(), position_);
      tell_of_checkpoints();
    }
    if (checkpoints_) checkpoints_->save_at(position_, figures());
    save(train, splits);
    if (result_.stopped) evaluate_stopped(train, splits.test);
    finish_checkpoints();
    result_.sha256 = train.sha256();
    if (!train.lockstep()) result_.updates = all_updates_;
    collect_metrics(train);
    result_.decisions = guard_.decisions();
    return std::move(result_);
  }

  void collect_metrics(Parallel& train) {
    const auto ranks = cluster::gather_metrics(world_.comm(), world_.registry().snapshot(kSpansInReport));
    if (!world_.first()) return;
    const auto servers = train.counted_by_servers();
    for (size_t i = 0; i < ranks.size(); i++) result_.counted.emplace_back(fmt::format("rank {}", i), ranks[i]);
    for (size_t i = 0; i < servers.size(); i++) result_.counted.emplace_back(fmt::format("server {}", i), servers[i]);
  }

  const exchange::Options& asked() const { return options_.parallel.exchange; }

  /// With what depends on data and model.
  ParallelOptions parallel_options(int64_t steps, bool channels_last) const {
    ParallelOptions options = options_.parallel;
    options.schedule.total = options_.most_steps() > 0 ? options_.most_steps() : steps * epochs_;
    options.schedule.step_size = std::max<int64_t>(1, std::llround(options_.step_epochs * static_cast<double>(steps)));
    options.exchange.seed = options_.seed;
    options.channels_last = channels_last;
    return options;
  }

  void introduce() {
    for (const std::string& warning : world_.warnings()) listener_.note("warning: " + warning);
    if (world_.launcher() != "trireme launch" || world_.machines() > 1)
      listener_.note(fmt::format("started by {}: {} ranks on {} machine{}; {}", world_.launcher(), world_.size(),
                                 world_.machines(), world_.machines() == 1 ? "" : "s", world_.engine()));
  }

  data::OpenOptions data_options() const {
    data::OpenOptions options{
        .seed = options_.seed, .label = options_.label, .normalize = options_.normalize, .test = options_.test};
    if (!data::is_csv(options_.data)) return options;
    if (options_.loss == Loss::mse) options.task = data::Task::regress;
    if (options_.loss == Loss::cross_entropy) options.task = data::Task::classify;
    return options;
  }

  void choose_epochs(const data::Splits& splits, int64_t steps) {
    epochs_ = options_.epochs.value_or(usual_epochs(splits.schema.has_value(), steps));
    if (options_.epochs || !splits.schema || !world_.first()) return;
    listener_.note(fmt::format("{} epochs of {} update{}: small data need many passes; --epochs sets their number",
                               epochs_, steps, steps == 1 ? "" : "s"));
  }

  /// What a saved model says of itself.
  std::map<std::string, std::string> metadata(const data::Splits& splits) const {
    models::About about{.model = options_.model,
                        .shape = splits.train.shape,
                        .outputs = mse_ ? 1 : splits.train.classes,
                        .task = mse_ ? data::Task::regress : data::Task::classify,
                        .dtype = options_.dtype,
                        .scale = splits.train.scale,
                        .seed = options_.seed,
                        .schema = splits.schema};
    if (splits.schema && splits.train.name == splits.test.name)  // one file, of which some rows are for testing
      about.split = {std::filesystem::path(splits.train.name).filename().string(),
                     splits.train.count + splits.test.count, splits.test.count, options_.seed};
    return models::metadata_of(about);
  }

  /// What the exchange cannot compare, and what ranks do together before there is one. Whoever was started with other
  /// flags hears it here.
  void compare_options() {
    exchange::Terms terms;
    const bool files = options_.data.find('/') != std::string::npos;  // each machine may have them elsewhere
    terms.add("model", options_.model).add("data", files ? "files" : options_.data).add("label", options_.label);
    terms.add("normalize", options_.normalize.value_or(true)).add("test", options_.test.value_or(-1));
    terms.add("batch", options_.batch);
    terms.add("epochs", options_.epochs.value_or(-1))
        .add("max_steps", options_.most_steps())
        .add("stop", name_of(options_.stop))
        .add("accumulate", options_.parallel.accumulate);
    terms.add("seed", options_.seed)
        .add("shuffle", options_.shuffle)
        .add("plain_mean", options_.plain_mean)
        .add("dtype", options_.dtype);
    terms.add("memory_format", memory_format_names()[static_cast<size_t>(options_.memory_format)]);
    terms.add("loss", loss_names()[static_cast<size_t>(options_.loss)])
        .add("save", options_.save.empty() ? "nothing" : "the model");
    exchange::agree(world_.comm(), "options", terms.text());
  }

  /// Machines read their own copies of the data: they must be the same. Other cells of a CSV file show in its schema,
  /// in means and categories.
  void compare_data(const data::Splits& splits) {
    if (world_.machines() == 1) return;
    const auto train = static_cast<int64_t>(splits.train.count), test = static_cast<int64_t>(splits.test.count);
    int64_t first[2] = {train, test};
    world_.comm().broadcast(first, 2, DType::i64, 0, "sizes of the data");
    if (first[0] != train || first[1] != test)
      fail<Mismatch>(
          "{} on this machine (rank {}) has {} training and {} test samples, on rank 0's machine {} and {}. Copy the "
          "same files to all machines",
          options_.data, world_.rank(), train, test, first[0], first[1]);
    Sha256 hash;
    const std::string schema = splits.schema ? data::to_json(*splits.schema) : "";
    hash.add(schema.data(), schema.size());
    const std::string mine = hash.finish();
    std::string theirs = mine;
    world_.comm().broadcast(theirs.data(), theirs.size(), DType::u8, 0, "columns of the data");
    if (theirs != mine)
      fail<Mismatch>(
          "{} on this machine (rank {}) has as many rows as on rank 0's machine, but other names, categories or "
          "numbers in them. Copy the same files to all machines",
          options_.data, world_.rank());
  }

  std::string servers_text() const {
    return world_.servers() == 0 ? ""
                                 : fmt::format(" and {} server{}", world_.servers(), world_.servers() == 1 ? "" : "s");
  }

  bool enough() const { return options_.most_steps() > 0 && position_ >= options_.most_steps(); }

  torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& y) const {
    return mse_ ? torch::mse_loss(output, y.to(output.dtype()).view_as(output))
                : torch::nn::functional::cross_entropy(output, y);
  }

  /// Of a run that goes on: as it was, so that bits stay the same. Collective.
  std::optional<bool> kept_format() {
    if (options_.keeping.resume.empty() || options_.keeping.weights_only) return std::nullopt;
    const std::string format = cluster::on_first(
        world_.comm(),
        [&] {
          const auto usable = checkpoint::Folder(checkpoint::system_files(), options_.keeping.from()).newest();
          const auto found = usable.entry.manifest->options.find("memory_format");
          return found == usable.entry.manifest->options.end() ? "" : found->second;
        },
        "the memory format of the checkpoint");
    return format.empty() ? std::nullopt : std::optional<bool>(format == "channels-last");
  }

  bool choose_format(const data::Dataset& set) {
    if (options_.memory_format != MemoryFormat::automatic) return options_.memory_format == MemoryFormat::channels_last;
    if (const auto kept = kept_format()) return *kept;
    const size_t share = std::max<size_t>(
        1, options_.batch / static_cast<size_t>(world_.size()) / static_cast<size_t>(options_.parallel.accumulate));
    const auto order = data::epoch_order(std::min(share, set.count), 0, 0, false);
    const data::Batch batch = data::make_batch(set, order, 0, order.size(), dtype_);
    const FormatChoice choice = choose_memory_format(
        world_, net_, batch.x, [&](const torch::Tensor& output) { return loss_of(output, batch.y); }, options_.model,
        options_.cache);
    if (world_.first()) listener_.note(choice.reason);
    return choice.channels_last;
  }

  /// How far an epoch is.
  struct Pace {
    size_t steps = 0;    // done here
    size_t samples = 0;  // of all workers in lockstep, otherwise of this one
    Clock::time_point start = Clock::now(), reported = start;
  };

  void run_epoch(Parallel& train, data::Feed& feed, int number) {
    net_->train();
    Pace pace{.steps = std::exchange(history_.partial_steps, 0)};
    EpochResult& epoch = history_.partial;
    if (pace.steps == 0) epoch = {};
    epoch.epoch = number + 1;
    epoch.has_test = false;
    epoch.test_accuracy = -1;
    const double before = epoch.seconds;  // of an earlier part of the run
    pace_ = &pace;
    const auto first = number * static_cast<int64_t>(feed.steps_per_epoch());
    if (stop_.load()) train.request_stop();
    const int64_t left =
        options_.most_steps() > 0 ? options_.most_steps() - first : std::numeric_limits<int64_t>::max();
    data::Epoch batches = feed.epoch(number, {.end = static_cast<size_t>(left)});
    for (const data::Batch& batch : batches) {
      if (guard_.passes_over(first + static_cast<int64_t>(batch.step))) continue;
      const Step done = step(train, batch);
      if (!train.lockstep()) pace.samples += batch.samples();
      if (done.updated || done.skipped) {
        position_ = first + static_cast<int64_t>(batch.step) + 1;
        if (train.lockstep()) pace.samples = std::min(feed.dataset().count, (batch.step + 1) * options_.batch);
        if (done.updated) stepped(done, epoch, pace, batches.steps(), batch.step + 1);
        guard_.after_step(train, done, position_);
      }
      if (stop_.load()) train.request_stop();
      tell_of_checkpoints();
    }
    result_.stopped = batches.stopped();
    epoch.seconds = before + seconds_since(pace.start);
    if (!train.lockstep()) meet(train, epoch, pace);
    position_ = first + reached(batches);
    if (train.lockstep() && pace.steps == 0 && position_ > first && !result_.stopped)
      epoch.loss = std::nan("");  // all were skipped
    result_.seconds += epoch.seconds;
    epoch.samples_per_second = static_cast<double>(pace.samples) / epoch.seconds;
    if (!result_.stopped) set_progress(epoch, batches.steps(), batches.steps(), epoch.seconds);
    result_.epochs.push_back(epoch);
    stopped_steps_ = position_ < first + static_cast<int64_t>(feed.steps_per_epoch()) ? pace.steps : 0;
    pace_ = nullptr;
  }

  /// Steps of the epoch that all ranks together have done. Collective when somebody has stopped.
  int64_t reached(const data::Epoch& batches) {
    auto steps = static_cast<int64_t>(result_.stopped ? batches.reached() : batches.steps());
    if (result_.stopped) world_.comm().allreduce(&steps, 1, DType::i64, Op::max, "where they stopped");
    return steps;
  }

  Step step(Parallel& train, const data::Batch& batch) {
    count_.samples.add(static_cast<double>(batch.samples()));
    const auto start = Clock::now();
    const double weight = options_.plain_mean && batch.weight > 0
                              ? 1.0 / (static_cast<double>(world_.size()) * options_.parallel.accumulate)
                              : batch.weight;
    const Step done = train.step(weight, [&] {
      if (world_.rank() == options_.straggler && timed_ == kStepsToTime)
        std::this_thread::sleep_for(Seconds(usual_) * (options_.straggler_factor - 1));
      return loss_of(net_->forward(batch.x), batch.y);
    });
    if (timed_ < kStepsToTime && ++timed_ > 1)
      usual_ = usual_ == 0 ? seconds_since(start) : std::min(usual_, seconds_since(start));
    return done;
  }

  void stepped(const Step& done, EpochResult& epoch, Pace& pace, size_t steps, size_t position) {
    epoch.loss += (done.loss * loss_unit_ - epoch.loss) / static_cast<double>(++pace.steps);
    result_.updates = done.number;
    if (seconds_since(pace.reported) > kSecondsBetweenReports) {
      pace.reported = Clock::now();
      set_progress(epoch, position, steps, seconds_since(pace.start));
      if (world_.first()) listener_.progress(count_);
    }
  }

  /// Who takes work has at most one step to end when others have none left.
  void meet(Parallel& train, EpochResult& epoch, Pace& pace) {
    if (!train.exchange().traits().gives_work) return add_up(epoch, pace);
    train.limited([&] { add_up(epoch, pace); });
  }

  /// Workers that went their own ways: the loss is the mean over all their steps, and the time that of the last. Also a
  /// meeting before anybody evaluates.
  void add_up(EpochResult& epoch, Pace& pace) {
    double sums[4] = {epoch.loss * static_cast<double>(pace.steps), static_cast<double>(pace.steps),
                      static_cast<double>(pace.samples), static_cast<double>(result_.updates)};
    double longest[2] = {epoch.seconds, result_.stopped ? 1.0 : 0.0};
    world_.comm().allreduce(sums, 4, DType::f64, Op::sum, "the workers' epochs");
    world_.comm().allreduce(longest, 2, DType::f64, Op::max, "the longest epoch");
    epoch.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
    epoch.seconds = longest[0];
    pace.samples = static_cast<size_t>(sums[2]);
    result_.stopped = longest[1] > 0;
    all_updates_ = static_cast<int64_t>(sums[3]);
  }

  void set_progress(const EpochResult& epoch, size_t step, size_t steps, double seconds) {
    const auto done = static_cast<double>(step), all = static_cast<double>(steps);
    const double steps_left = static_cast<double>(epochs_ - epoch.epoch + 1) * all - done;
    count_.epoch.set(epoch.epoch);
    count_.epochs.set(epochs_);
    count_.epoch_step.set(done);
    count_.epoch_steps.set(all);
    count_.loss.set(epoch.loss);
    count_.samples_per_second.set(static_cast<double>(step * options_.batch) / seconds);
    count_.seconds_left.set(steps_left * seconds / done);
  }

  // ---- checkpoints ----

  /// They end before what they are of.
  struct Closing {
    std::optional<Checkpoints>& checkpoints;
    ~Closing() { checkpoints.reset(); }
  };

  /// Ranks begin with the parameters and buffers of a checkpoint, and with nothing else of it.
  void take_weights() {
    cluster::on_first(
        world_.comm(),
        [&] {
          const auto from = checkpoint::Tensors::open(checkpoint::system_files(), options_.keeping.from(), true);
          for (const std::string& skipped : from.skipped) listener_.note("warning: " + skipped);
          models::fill(*net_, from);
          listener_.note(fmt::format("begins with the weights of {}; optimizer and data begin anew", from.path));
          return std::string();
        },
        "the weights to begin with");
  }

  /// By what the best one is told.
  std::string best_figure(const data::Splits& splits) const {
    if (splits.test.count == 0) return "loss";
    return mse_ ? "test_loss" : "test_accuracy";
  }

  void keep_checkpoints(Parallel& train, data::Feed& feed, const data::Splits& splits, bool channels_last) {
    const KeepOptions& k = options_.keeping;
    if (!k.dir.empty()) {
      const std::string figure = best_figure(splits);
      checkpoints_.emplace(
          train, feed,
          CheckpointsOptions{.dir = k.dir,
                             .every = k.every,
                             .keep = k.keep,
                             .keep_best = k.best ? figure : "",
                             .higher_is_better = figure == "test_accuracy",
                             .metadata = metadata(splits),
                             .options = {{"model", options_.model},
                                         {"data", options_.data},
                                         {"seed", fmt::format("{}", options_.seed)},
                                         {"lr", fmt::format("{:.17g}", options_.optimizer.lr)},
                                         {"memory_format", channels_last ? "channels-last" : "default"}},
                             .describe = [this](SaveNote& note) { describe(note); }});
      guard_.set_roll_back([this, k]() -> std::optional<int64_t> {
        checkpoints_->finish(Seconds(60));
        if (checkpoint::Folder(checkpoint::system_files(), k.dir).list().empty()) return std::nullopt;
        take_up(checkpoints_->resume(k.dir));
        return position_;
      });
      for (const std::string& remark : checkpoints_->remarks())
        if (world_.first()) listener_.note(remark);
    }
    if (k.resume.empty() || k.weights_only) return;
    Place place;
    take_up(checkpoints_ ? checkpoints_->resume(k.from()) : go_on_from(train, feed, k.from(), place));
    if (position_ >= static_cast<int64_t>(feed.steps_per_epoch()) * epochs_ && world_.first())
      listener_.note(
          fmt::format("all {} epochs were trained already: --epochs says how many there are to be", epochs_));
  }

  /// The run is where the checkpoint was made.
  void take_up(const Loaded& loaded) {
    result_.resumed = loaded.path;
    position_ = loaded.manifest.step;
    if (const auto updates = loaded.manifest.scalars.find(state::kStep); updates != loaded.manifest.scalars.end())
      result_.updates = updates->second;
    const auto found = loaded.manifest.options.find("history");
    history_ = History::parse(found == loaded.manifest.options.end() ? "" : found->second);
    result_.epochs = history_.epochs;
    result_.seconds = history_.seconds;
    if (!world_.first()) return;
    for (const std::string& sentence : loaded.skipped) listener_.note("warning: " + sentence);
    listener_.note(fmt::format("goes on with {}: step {}, epoch {}", loaded.path, loaded.manifest.step,
                               loaded.manifest.epoch + 1));
    if (!loaded.remark.empty()) listener_.note(loaded.remark);
  }

  bool owes_evaluation(const data::Splits& splits, int64_t steps) const {
    return splits.test.count > 0 && !result_.resumed.empty() && position_ % steps == 0 && !result_.epochs.empty() &&
           !result_.epochs.back().has_test;
  }

  void describe(SaveNote& note) const {
    History now = history_;
    now.epochs = result_.epochs;
    now.seconds = result_.seconds;
    now.time = guard_.seconds();
    now.partial_steps = pace_ == nullptr ? stopped_steps_ : pace_->steps;
    if (pace_ == nullptr) now.partial = {};
    if (stopped_steps_ > 0) {  // the last one has not ended
      now.partial = now.epochs.back();
      now.epochs.pop_back();
    }
    note.more["history"] = now.json();
    if (pace_ != nullptr) note.metrics["loss"] = history_.partial.loss;
  }

  /// Of the last epoch.
  std::map<std::string, double> figures() const {
    std::map<std::string, double> all;
    if (result_.epochs.empty()) return all;
    const EpochResult& last = result_.epochs.back();
    all["loss"] = last.loss;
    if (last.has_test) all["test_loss"] = last.test_loss;
    if (last.test_accuracy >= 0) all["test_accuracy"] = last.test_accuracy;
    return all;
  }

  void tell_of_checkpoints() {
    if (!checkpoints_ || !world_.first()) return;
    for (const Saved& saved : checkpoints_->news()) {
      if (!saved.error.empty())
        listener_.note(fmt::format("warning: there is no checkpoint of step {}: {}", saved.step, saved.error));
      else
        listener_.note(fmt::format("checkpoint {}: {:.1f} MB in {:.2f} s", saved.path,
                                   static_cast<double>(saved.bytes) / 1e6, saved.seconds));
    }
  }

  /// Until the last one is complete; of a run that somebody has stopped, not longer than the grace.
  void finish_checkpoints() {
    if (!checkpoints_) return;
    const Deadline deadline{Seconds(result_.stopped ? options_.keeping.grace : kLongestCheckpoint)};
    bool done = false;
    do {
      cluster::note_beat();
      done = checkpoints_->finish(std::min(deadline.left(), Seconds(0.5)));
    } while (!done && !deadline.passed() && checkpoints_->busy());
    tell_of_checkpoints();
    if (!world_.first()) return;
    result_.checkpoint = checkpoints_->newest();
    if (done && options_.save.empty()) cluster::note_saved(result_.checkpoint);  // nothing is lost
    if (!done)
      listener_.note(fmt::format("warning: the last checkpoint is not complete{}",
                                 result_.checkpoint.empty() ? "" : "; the newest that is, is " + result_.checkpoint));
  }

  void save(Parallel& train, const data::Splits& splits) {
    if (options_.save.empty()) return;
    if (result_.stopped && world_.first())
      listener_.note(fmt::format("stopped after {} updates; saving the model to {}", result_.updates, options_.save));
    train.save(options_.save, metadata(splits));
    result_.saved = std::filesystem::absolute(options_.save).string();
  }

  /// Of a run that somebody stopped: after the model is saved, and only if somebody will see the figures.
  void evaluate_stopped(Parallel& train, const data::Dataset& test) {
    if (options_.save.empty() && options_.report.empty()) return;
    if (world_.first() && !options_.save.empty() && test.count > 0)
      listener_.note(fmt::format("model saved to {}; evaluating it, which Ctrl-C ends", result_.saved));
    evaluate(train, test, Patience::to_the_end);
    if (world_.first()) listener_.epoch(result_.epochs.back());
  }

  enum class Patience { until_stopped, to_the_end };

  /// Each worker measures its share of the test set. When somebody wants to stop and the model is not saved yet, all
  /// leave it at that.
  void evaluate(Parallel& train, const data::Dataset& test, Patience patience) {
    if (test.count == 0) return;
    const torch::NoGradGuard no_grad;
    net_->eval();
    const data::Share share = data::share_of(test.count, world_.rank(), world_.size());
    const auto order = data::epoch_order(test.count, 0, 0, false);
    double sums[3] = {0, 0, 0};  // loss, hits, workers who want to stop
    train.settled([&] {
      for (size_t begin = share.begin; begin < share.end; begin += kTestBatch) {
        if (patience == Patience::until_stopped && stop_.load()) break;
        cluster::note_beat();
        const data::Batch batch = data::make_batch(test, order, begin, std::min(share.end, begin + kTestBatch), dtype_);
        const torch::Tensor output = net_->forward(batch.x);
        sums[0] += loss_of(output, batch.y).item<double>() * static_cast<double>(batch.samples());
        if (!mse_) sums[1] += static_cast<double>(output.argmax(1).eq(batch.y).sum().item<int64_t>());
      }
    });
    if (patience == Patience::until_stopped && stop_.load()) sums[2] = 1;
    world_.comm().allreduce(sums, 3, DType::f64, Op::sum, "test results");
    if (sums[2] > 0) {
      result_.stopped = true;
      return;
    }
    EpochResult& epoch = result_.epochs.back();
    epoch.has_test = true;
    epoch.test_loss = sums[0] / static_cast<double>(test.count) * loss_unit_;
    if (!mse_) epoch.test_accuracy = sums[1] / static_cast<double>(test.count);
  }

  std::vector<EpochLoss> losses() const {
    std::vector<EpochLoss> losses;
    for (const EpochResult& epoch : result_.epochs) {
      losses.push_back({.loss = epoch.loss});
      if (epoch.has_test) losses.back().test_loss = epoch.test_loss;
      if (epoch.test_accuracy >= 0) losses.back().test_accuracy = epoch.test_accuracy;
    }
    return losses;
  }

  /// Says once what is wrong with the losses; the result has what is wrong with them in the end.
  void examine(size_t classes, bool ended) {
    result_.warning = diagnose(losses(), {.classes = classes,
                                          .ended = ended,
                                          .lr = options_.optimizer.lr,
                                          .momentum = options_.optimizer.kind == space::Optimizer::momentum,
                                          .full_rate = asked().rate == exchange::Rate::full})
                          .sentence;
    if (!result_.warning.empty() && !std::exchange(warned_, true) && world_.first())
      listener_.note("warning: " + result_.warning);
  }

  World& world_;
  const Options& options_;
  const Listener& listener_;
  const std::atomic<bool>& stop_;
  TrainMetrics count_;
  Guard guard_;
  torch::Dtype dtype_;
  torch::nn::Sequential net_{nullptr};
  bool mse_ = false;
  int epochs_ = 0;
  double loss_unit_ = 1;        // what a loss of 1 means in the unit of the label, squared
  History history_;             // of what was before, and of the epoch that is under way
  const Pace* pace_ = nullptr;  // of the epoch that is under way
  size_t stopped_steps_ = 0;    // of an epoch that was left in the middle
  std::optional<Checkpoints> checkpoints_;
  int64_t position_ = 0;     // steps of the run that are done; within an epoch, as far as this worker knows
  int64_t all_updates_ = 0;  // where workers go their own ways: of all of them
  int timed_ = 0;            // steps, as far as kStepsToTime
  double usual_ = 0;         // seconds of the quickest of them
  bool warned_ = false;
  Result result_;
};

}  // namespace

Result run(World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop) {
  Result result = Run(world, options, listener, stop).run();
  if (world.first() && !options.report.empty()) {
    std::ofstream file(options.report);
    file << report_json(options, world.size(), result) << '\n';
    if (!file.flush()) fail<IoError>("cannot write the report {}: {}", options.report, errno_text());
  }
  return result;
}

std::string torch_description() {
  return fmt::format("{}, oneDNN {}", TORCH_VERSION,
                     at::globalContext().userEnabledMkldnn() && at::hasMKLDNN() ? "on" : "off");
}

std::string report_json(const Options& options, int workers, const Result& result) {
  nlohmann::ordered_json report = {{"model", options.model},
                                   {"data", options.data},
                                   {"workers", workers},
                                   {"threads", at::get_num_threads()},
                                   {"batch", options.batch},
                                   {"accumulate", options.parallel.accumulate},
                                   {"sync", exchange::name_of(options.parallel.exchange.sync)},
                                   {"rate", exchange::name_of(options.parallel.exchange.rate)},
                                   {"optimizer", space::name_of(options.optimizer.kind)},
                                   {"lr", options.optimizer.lr},
                                   {"seed", options.seed},
                                   {"parameters", result.parameters},
                                   {"updates", result.updates},
                                   {"stopped", result.stopped},
                                   {"seconds", result.seconds},
                                   {"sha256", result.sha256}};
  report["epochs"] = nlohmann::ordered_json::array();
  for (const EpochResult& epoch : result.epochs) {
    nlohmann::ordered_json row = {{"epoch", epoch.epoch}, {"loss", epoch.loss}};
    if (epoch.has_test) row["test_loss"] = epoch.test_loss;
    if (epoch.test_accuracy >= 0) row["test_accuracy"] = epoch.test_accuracy;
    row["samples_per_second"] = epoch.samples_per_second;
    row["seconds"] = epoch.seconds;
    report["epochs"].push_back(row);
  }
  report["metrics"] = nlohmann::ordered_json::object();
  for (const auto& [member, counted] : result.counted)
    report["metrics"][member] = nlohmann::ordered_json::parse(counted.json());
  report["decisions"] = nlohmann::ordered_json::array();
  for (const Decision& decision : result.decisions)
    report["decisions"].push_back({{"step", decision.step},
                                   {"policy", decision.policy},
                                   {"decision", name_of(decision.kind)},
                                   {"reason", decision.reason}});
  if (!result.warning.empty()) report["warning"] = result.warning;
  if (!result.saved.empty()) report["saved"] = result.saved;
  if (!result.checkpoint.empty()) report["checkpoint"] = result.checkpoint;
  if (!result.resumed.empty()) report["resumed"] = result.resumed;
  return report.dump(2);
}

}  // namespace trireme::train
