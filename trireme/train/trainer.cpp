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

namespace trireme::train {
namespace {

constexpr size_t kTestBatch = 500;
constexpr double kSecondsBetweenReports = 0.1;

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
                    .channels_last = channels_last});
    result_.parameters = train.exchange().layout().elements();
    if (world_.first())
      listener_.note(fmt::format("{}: {} parameters; {}: {} training and {} test samples; {} worker{}, sync {}, batch {} ({} updates an epoch)", options_.model,
                                 result_.parameters, options_.data, splits.train.count, splits.test.count, world_.size(), world_.size() == 1 ? "" : "s",
                                 exchange::name_of(options_.sync), options_.batch, steps));
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

  bool enough() const { return options_.max_steps > 0 && result_.updates >= options_.max_steps; }

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
    data::Epoch batches = loader.epoch(number);
    const size_t samples = loader.dataset().count;
    size_t step = 0;
    const auto start = Clock::now();
    auto reported = start;
    for (data::Batch& batch : batches) {
      if (stop_.load()) train.request_stop();
      const Step done = train.step(batch, [&] { return loss_of(net_->forward(batch.x), batch.y); });
      if (!done.updated) continue;
      epoch.loss += (done.loss - epoch.loss) / static_cast<double>(++step);
      result_.updates = done.number;
      if (world_.first() && seconds_since(reported) > kSecondsBetweenReports) {
        reported = Clock::now();
        report_progress(epoch, step, batches.steps(), std::min(samples, step * options_.batch), seconds_since(start));
      }
      if (!std::isfinite(done.loss))
        fail<Error>("the loss became {} at update {} (epoch {}). Try a smaller learning rate than {}", std::isnan(done.loss) ? "NaN" : "infinite", done.number,
                    number + 1, options_.optimizer.lr);
      result_.stopped = done.stop;
      if (done.stop || enough()) break;
    }
    epoch.seconds = seconds_since(start);
    result_.seconds += epoch.seconds;
    epoch.samples_per_second = static_cast<double>(std::min(samples, step * options_.batch)) / epoch.seconds;
    result_.epochs.push_back(epoch);
  }

  void report_progress(const EpochResult& epoch, size_t step, size_t steps, size_t samples, double seconds) const {
    const double rate = static_cast<double>(samples) / seconds;
    const double steps_left = static_cast<double>(options_.epochs - epoch.epoch + 1) * static_cast<double>(steps) - static_cast<double>(step);
    listener_.progress({epoch.epoch, options_.epochs, step, steps, epoch.loss, rate, steps_left * seconds / static_cast<double>(step)});
  }

  /// Each worker measures its share of the test set.
  void evaluate(Parallel& train, const data::Dataset& test) {
    if (test.count == 0) return;
    const torch::NoGradGuard no_grad;
    train.sync_buffers();
    net_->eval();
    const data::Share share = data::share_of(test.count, world_.rank(), world_.size());
    const auto order = data::epoch_order(test.count, 0, 0, false);
    double sums[2] = {0, 0};  // loss, hits
    for (size_t begin = share.begin; begin < share.end; begin += kTestBatch) {
      const data::Batch batch = data::make_batch(test, order, begin, std::min(share.end, begin + kTestBatch), dtype_);
      const torch::Tensor output = net_->forward(batch.x);
      sums[0] += loss_of(output, batch.y).item<double>() * static_cast<double>(batch.samples());
      if (!mse_) sums[1] += static_cast<double>(output.argmax(1).eq(batch.y).sum().item<int64_t>());
    }
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
  if (!result.saved.empty()) report["saved"] = result.saved;
  return report.dump(2);
}

}  // namespace trireme::train
