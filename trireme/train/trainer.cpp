#include <trireme/train/trainer.h>

#include <torch/torch.h>

#include <trireme/base/error.h>
#include <trireme/data/loader.h>
#include <trireme/models/models.h>
#include <trireme/parallel/parallel.h>
#include <trireme/train/memory_format.h>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace trireme::train {
namespace {

constexpr size_t kTestBatch = 500;
constexpr double kSecondsBetweenReports = 0.1;
constexpr int kStepsToTime = 20;  // before a straggler becomes slow

class Run {
 public:
  Run(World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop)
      : world_(world), options_(options), listener_(listener), stop_(stop), dtype_(options.dtype == "f64" ? torch::kFloat64 : torch::kFloat32) {
    check(options);
  }

  Result run() {
    if (world_.first()) introduce();
    const data::Splits splits = data::open(world_.local(), options_.data, {.label = options_.label, .seed = options_.seed});
    compare_data(splits);
    const data::Loader loader(splits.train, world_.rank(), world_.size(),
                              {.batch = options_.batch, .accumulate = options_.accumulate, .seed = options_.seed, .dtype = dtype_});
    mse_ = options_.loss == Loss::mse || (options_.loss == Loss::automatic && splits.train.task == data::Task::regress);
    if (!mse_ && splits.train.task == data::Task::regress)
      fail<InvalidArgument>("cross-entropy needs classes, but the labels of {} are not whole numbers from 0", splits.train.name);
    torch::manual_seed(options_.seed);
    net_ = models::make(options_.model, splits.train.shape, mse_ ? 1 : splits.train.classes);
    net_->to(dtype_);
    const bool channels_last = choose_format(splits.train);
    torch::manual_seed(options_.seed * 1000003 + static_cast<uint64_t>(world_.rank()));  // dropout differs between workers

    const auto steps = static_cast<int64_t>(loader.steps_per_epoch());
    Parallel train(world_, *net_, options_.optimizer,
                   {.sync = options_.sync,
                    .accumulate = options_.accumulate,
                    .schedule = {.kind = space::schedule_named(options_.schedule),
                                 .warmup = options_.warmup,
                                 .total = options_.max_steps > 0 ? options_.max_steps : steps * options_.epochs,
                                 .step_size = std::max<int64_t>(1, std::llround(options_.step_epochs * static_cast<double>(steps))),
                                 .gamma = options_.gamma},
                    .bucket_bytes = options_.bucket_bytes,
                    .overlap = options_.overlap,
                    .overlap_next = options_.overlap,
                    .channels_last = channels_last,
                    .stale = options_.stale,
                    .clip = options_.clip,
                    .seed = options_.seed});
    result_.parameters = train.exchange().layout().elements();
    if (world_.first())
      listener_.note(fmt::format("{}: {} parameters; {}: {} training and {} test samples; {} worker{}{}, sync {}, batch {} ({} steps an epoch)", options_.model,
                                 result_.parameters, options_.data, splits.train.count, splits.test.count, world_.size(), world_.size() == 1 ? "" : "s",
                                 servers_text(), exchange::name_of(options_.sync), options_.batch, steps));
    for (int epoch = 0; epoch < options_.epochs && !result_.stopped && !enough(); epoch++) {
      run_epoch(train, loader, epoch);
      evaluate(train, splits.test);
      if (world_.first()) listener_.epoch(result_.epochs.back());
    }
    result_.sha256 = train.sha256();
    if (!options_.save.empty()) {
      train.save(options_.save);
      result_.saved = std::filesystem::absolute(options_.save).string();
    }
    if (!train.lockstep()) result_.updates = all_updates_;
    if (world_.first()) result_.servers = train.statistics();
    return std::move(result_);
  }

 private:
  void introduce() {
    for (const std::string& warning : world_.warnings()) listener_.note("warning: " + warning);
    if (world_.launcher() != "trireme launch" || world_.machines() > 1)
      listener_.note(fmt::format("started by {}: {} ranks on {} machine{}; {}", world_.launcher(), world_.size(), world_.machines(),
                                 world_.machines() == 1 ? "" : "s", world_.engine()));
  }

  /// Machines read their own copies of the data: they must be the same.
  void compare_data(const data::Splits& splits) {
    if (world_.machines() == 1) return;
    int64_t first[2] = {static_cast<int64_t>(splits.train.count), static_cast<int64_t>(splits.test.count)};
    world_.comm().broadcast(first, 2, DType::i64, 0, "sizes of the data");
    if (static_cast<size_t>(first[0]) == splits.train.count && static_cast<size_t>(first[1]) == splits.test.count) return;
    fail<Mismatch>("{} on this machine (rank {}) has {} training and {} test samples, on rank 0's machine {} and {}. Copy the same files to all machines",
                   options_.data, world_.rank(), splits.train.count, splits.test.count, first[0], first[1]);
  }

  std::string servers_text() const { return world_.servers() == 0 ? "" : fmt::format(" and {} server{}", world_.servers(), world_.servers() == 1 ? "" : "s"); }

  bool enough() const { return options_.max_steps > 0 && position_ >= options_.max_steps; }

  torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& y) const {
    return mse_ ? torch::mse_loss(output, y.to(output.dtype()).view_as(output)) : torch::nn::functional::cross_entropy(output, y);
  }

  bool choose_format(const data::Dataset& set) {
    if (options_.memory_format != MemoryFormat::automatic) return options_.memory_format == MemoryFormat::channels_last;
    const size_t share = std::max<size_t>(1, options_.batch / static_cast<size_t>(world_.size()) / static_cast<size_t>(options_.accumulate));
    const auto order = data::epoch_order(std::min(share, set.count), 0, 0, false);
    const data::Batch batch = data::make_batch(set, order, 0, order.size(), dtype_);
    const FormatChoice choice = choose_memory_format(
        world_, net_, batch.x, [&](const torch::Tensor& output) { return loss_of(output, batch.y); }, options_.model, options_.cache);
    if (world_.first()) listener_.note(choice.reason);
    return choice.channels_last;
  }

  void run_epoch(Parallel& train, const data::Loader& loader, int number) {
    net_->train();
    EpochResult epoch{.epoch = number + 1};
    Pace pace;
    train.gives_work() ? take_pieces(train, loader, number, epoch, pace) : do_share(train, loader, number, epoch, pace);
    epoch.seconds = seconds_since(pace.start);
    if (!train.lockstep()) add_up(epoch, pace);
    result_.seconds += epoch.seconds;
    epoch.samples_per_second = static_cast<double>(pace.samples) / epoch.seconds;
    result_.epochs.push_back(epoch);
  }

  /// How far an epoch is.
  struct Pace {
    size_t steps = 0;    // done here
    size_t samples = 0;  // of all workers in lockstep, otherwise of this one
    Clock::time_point start = Clock::now(), reported = start;
  };

  /// The share that every worker has of every step.
  void do_share(Parallel& train, const data::Loader& loader, int number, EpochResult& epoch, Pace& pace) {
    data::Epoch batches = loader.epoch(number);
    for (data::Batch& batch : batches) {
      if (stop_.load()) train.request_stop();
      const Step done = step(train, batch);
      pace.samples += train.lockstep() ? 0 : batch.samples();
      if (done.updated) {
        position_++;
        if (train.lockstep()) pace.samples = std::min(loader.dataset().count, (pace.steps + 1) * options_.batch);
        stepped(done, epoch, pace, batches.steps(), pace.steps + 1);
      }
      result_.stopped = done.stop;
      if (done.stop || enough()) break;
    }
  }

  /// Pieces of steps, as long as there are some: fast workers do more of them.
  void take_pieces(Parallel& train, const data::Loader& loader, int number, EpochResult& epoch, Pace& pace) {
    const auto steps = static_cast<int64_t>(loader.steps_per_epoch()), first = number * steps, size = static_cast<int64_t>(world_.size());
    const int64_t wanted = options_.max_steps > 0 ? std::min(steps, options_.max_steps - first) : steps;
    const auto order = loader.order(number);
    ps::Work work;
    while (true) {
      if (stop_.load()) train.request_stop();
      work = train.take(number, first, wanted * size);
      if (work.what != ps::Work::piece) break;
      Step done;
      for (int micro = 0; micro < options_.accumulate; micro++) {
        const data::Batch batch = loader.batch(order, static_cast<size_t>(work.index / size), static_cast<int>(work.index % size), micro);
        pace.samples += batch.samples();
        done = step(train, batch);
      }
      stepped(done, epoch, pace, static_cast<size_t>(wanted), static_cast<size_t>(work.index / size) + 1);
    }
    position_ = first + wanted;
    result_.stopped = work.what == ps::Work::stopped;
  }

  Step step(Parallel& train, const data::Batch& batch) {
    const auto start = Clock::now();
    const double weight = options_.plain_mean && batch.weight > 0 ? 1.0 / (static_cast<double>(world_.size()) * options_.accumulate) : batch.weight;
    const Step done = train.step(weight, [&] {
      if (world_.rank() == options_.straggler && timed_ == kStepsToTime) std::this_thread::sleep_for(Seconds(usual_) * (options_.straggler_factor - 1));
      return loss_of(net_->forward(batch.x), batch.y);
    });
    if (timed_ < kStepsToTime && ++timed_ > 1) usual_ = usual_ == 0 ? seconds_since(start) : std::min(usual_, seconds_since(start));
    return done;
  }

  void stepped(const Step& done, EpochResult& epoch, Pace& pace, size_t steps, size_t position) {
    epoch.loss += (done.loss - epoch.loss) / static_cast<double>(++pace.steps);
    result_.updates = done.number;
    if (world_.first() && seconds_since(pace.reported) > kSecondsBetweenReports) {
      pace.reported = Clock::now();
      report_progress(epoch, position, steps, seconds_since(pace.start));
    }
    if (!std::isfinite(done.loss))
      fail<Error>("the loss became {} at update {} (epoch {}). Try a smaller learning rate than {}", std::isnan(done.loss) ? "NaN" : "infinite", done.number,
                  epoch.epoch, options_.optimizer.lr);
  }

  /// Workers that went their own ways: the loss is the mean over all their steps, and the time that of the last. Also a meeting before anybody evaluates.
  void add_up(EpochResult& epoch, Pace& pace) {
    double sums[4] = {epoch.loss * static_cast<double>(pace.steps), static_cast<double>(pace.steps), static_cast<double>(pace.samples),
                      static_cast<double>(result_.updates)};
    double longest[2] = {epoch.seconds, result_.stopped ? 1.0 : 0.0};
    world_.comm().allreduce(sums, 4, DType::f64, Op::sum, "the workers' epochs");
    world_.comm().allreduce(longest, 2, DType::f64, Op::max, "the longest epoch");
    epoch.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
    epoch.seconds = longest[0];
    pace.samples = static_cast<size_t>(sums[2]);
    result_.stopped = longest[1] > 0;
    all_updates_ = static_cast<int64_t>(sums[3]);
  }

  void report_progress(const EpochResult& epoch, size_t step, size_t steps, double seconds) const {
    const double rate = static_cast<double>(step * options_.batch) / seconds;
    const double steps_left = static_cast<double>(options_.epochs - epoch.epoch + 1) * static_cast<double>(steps) - static_cast<double>(step);
    listener_.progress({epoch.epoch, options_.epochs, step, steps, epoch.loss, rate, steps_left * seconds / static_cast<double>(step)});
  }

  /// Each worker measures its share of the test set.
  void evaluate(Parallel& train, const data::Dataset& test) {
    if (test.count == 0) return;
    const torch::NoGradGuard no_grad;
    net_->eval();
    const data::Share share = data::share_of(test.count, world_.rank(), world_.size());
    const auto order = data::epoch_order(test.count, 0, 0, false);
    double sums[2] = {0, 0};  // loss, hits
    train.settled([&] {
      for (size_t begin = share.begin; begin < share.end; begin += kTestBatch) {
        const data::Batch batch = data::make_batch(test, order, begin, std::min(share.end, begin + kTestBatch), dtype_);
        const torch::Tensor output = net_->forward(batch.x);
        sums[0] += loss_of(output, batch.y).item<double>() * static_cast<double>(batch.samples());
        if (!mse_) sums[1] += static_cast<double>(output.argmax(1).eq(batch.y).sum().item<int64_t>());
      }
    });
    world_.comm().allreduce(sums, 2, DType::f64, Op::sum, "test results");
    EpochResult& epoch = result_.epochs.back();
    epoch.has_test = true;
    epoch.test_loss = sums[0] / static_cast<double>(test.count);
    if (!mse_) epoch.test_accuracy = sums[1] / static_cast<double>(test.count);
  }

  World& world_;
  const Options& options_;
  const Listener& listener_;
  const std::atomic<bool>& stop_;
  torch::Dtype dtype_;
  torch::nn::Sequential net_{nullptr};
  bool mse_ = false;
  int64_t position_ = 0;     // steps of the run that are done; where workers take pieces, those of finished epochs
  int64_t all_updates_ = 0;  // where workers go their own ways: of all of them
  int timed_ = 0;            // steps, as far as kStepsToTime
  double usual_ = 0;         // seconds of the quickest of them
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
  return fmt::format("{}, oneDNN {}", TORCH_VERSION, at::globalContext().userEnabledMkldnn() && at::hasMKLDNN() ? "on" : "off");
}

std::string report_json(const Options& options, int workers, const Result& result) {
  nlohmann::ordered_json report = {{"model", options.model},
                                   {"data", options.data},
                                   {"workers", workers},
                                   {"batch", options.batch},
                                   {"accumulate", options.accumulate},
                                   {"sync", exchange::name_of(options.sync)},
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
  if (result.servers)
    report["servers"] = {{"staleness_mean", result.servers->staleness_mean},
                         {"staleness_max", result.servers->staleness_max},
                         {"age_max", result.servers->age_max},
                         {"updates", result.servers->updates},
                         {"held", result.servers->held},
                         {"dropped", result.servers->dropped}};
  if (!result.saved.empty()) report["saved"] = result.saved;
  return report.dump(2);
}

}  // namespace trireme::train
