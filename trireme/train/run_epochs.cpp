// A run's epochs: steps, how far they are, and what the model is worth after each.
#include <torch/utils.h>

#include <array>
#include <cmath>
#include <limits>
#include <thread>

#include <trireme/cluster/launching/slate.h>
#include <trireme/data/masks.h>
#include <trireme/exchange/tree.h>
#include <trireme/train/diagnosis.h>
#include <trireme/train/run.h>

namespace trireme::train {
namespace {

constexpr double kSecondsBetweenReports = 0.1;
constexpr int kStepsToTime = 20;  // before a straggler becomes slow

/// Over the rows of a table of `columns`, in the order that gradients are summed in (exchange/tree.h).
template <size_t columns>
std::array<double, columns> summed(const std::vector<double>& table) {
  std::array<double, columns> sums{};
  for (size_t column = 0; column < columns; column++) {
    std::vector<double> rows;
    for (size_t at = column; at < table.size(); at += columns) rows.push_back(table[at]);
    sums[column] = exchange::sum_over(rows);
  }
  return sums;
}

}  // namespace

void Run::run_epochs(Parallel& train, data::Feed& feed, const data::Splits& splits) {
  while (settled_ < epochs_ && !result_.stopped && !guard_.ended()) {
    if (!owes_end_) {
      if (enough()) return;
      try {
        run_epoch(train, feed, static_cast<int>(settled_));
      } catch (const NotFinite& error) {
        settled_ = guard_.not_finite(error, position_) / steps_;
        continue;
      }
      owes_end_ = true;
    }
    if (result_.stopped && result_.closing.empty() && guard_.was_stopped_here()) result_.stopped = false;
    end_epoch(train, splits);
  }
}

/// What a trained epoch is worth, and what follows from it.
void Run::end_epoch(Parallel& train, const data::Splits& splits) {
  const int64_t epoch = settled_;
  if (!result_.stopped) audit(train, splits.train, result_.epochs.back());
  if (!result_.stopped) evaluate(train, splits.test, Patience::until_stopped);
  if (world_.first() && !result_.stopped) listener_.epoch(result_.epochs.back());
  if (!result_.stopped) examine(mse_ ? 0 : splits.train.classes, epoch + 1 == epochs_ || enough());
  if (checkpoints_ && !result_.stopped && position_ % steps_ == 0)
    checkpoints_->epoch_ended(static_cast<int>(epoch), figures());
  if (!result_.stopped) guard_.after_epoch(losses(), position_);
  tell_of_checkpoints();
  owes_end_ = false;
  if (result_.stopped) return;
  settled_ = epoch + 1;
  settle(train);
}

void Run::run_epoch(Parallel& train, data::Feed& feed, int number) {
  net_.train();
  Pace pace{.steps = std::exchange(history_.partial_steps, 0)};
  EpochResult& epoch = history_.partial;
  if (pace.steps == 0) epoch = {};
  epoch.epoch = number + 1;
  epoch.tokens = net_.is_language() ? static_cast<int64_t>(feed.dataset().elements()) : 0;
  epoch.has_test = false;
  epoch.test_accuracy = -1;
  const double before = epoch.seconds;  // of an earlier part of the run
  pace_ = &pace;
  const Leaving leaving{*this, pace, epoch, before};
  const auto first = number * static_cast<int64_t>(feed.steps_per_epoch());
  if (stop_.load()) train.request_stop();
  const int64_t left = options_.most_steps() > 0 ? options_.most_steps() - first : std::numeric_limits<int64_t>::max();
  data::Epoch batches = feed.epoch(number, {.end = static_cast<size_t>(left)});
  for (const data::Batch& batch : batches) {
    if (guard_.passes_over(first + static_cast<int64_t>(batch.step))) {
      if (batch.micro == 0) pass_over(train, feed, batch);
      continue;
    }
    const Step done = step(train, batch);
    if (done.regrouped) follow(train, done);
    tell_of_balance(train);
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
  result_.stopped = batches.stopped() || !result_.closing.empty();
  epoch.seconds = before + seconds_since(pace.start);
  if (!train.lockstep()) meet(train, epoch, pace);
  position_ = first + reached(train, batches, first);
  if (train.lockstep() && pace.steps == 0 && position_ > first && !result_.stopped)
    epoch.loss = std::nan("");  // all were skipped
  result_.seconds += epoch.seconds;
  epoch.samples_per_second = static_cast<double>(pace.samples) / epoch.seconds;
  if (!result_.stopped) set_progress(epoch, batches.steps(), batches.steps(), epoch.seconds);
  result_.epochs.push_back(epoch);
  stopped_steps_ = position_ < first + static_cast<int64_t>(feed.steps_per_epoch()) ? pace.steps : 0;
  pace_ = nullptr;
}

/// Its samples are in no step.
void Run::pass_over(Parallel& train, const data::Feed& feed, const data::Batch& batch) {
  const size_t count = feed.dataset().count;
  const auto order = data::epoch_order(count, options_.seed, batch.epoch, options_.shuffle);
  const size_t end = std::min(count, (batch.step + 1) * options_.batch);
  double samples = 0, signs = 0;
  for (size_t i = batch.step * options_.batch; i < end; i++) samples++, signs += data::sign_of(order[i]);
  train.leave_out(batch.epoch, samples, signs);
}

/// The crew has changed where ranks met in the middle of an epoch: it goes on counting.
Run::Leaving::~Leaving() {
  if (run.pace_ == nullptr) return;
  run.history_.partial_steps = pace.steps;
  epoch.seconds = before + seconds_since(pace.start);
  run.pace_ = nullptr;
}

/// Steps of the epoch, which begins with step `first`, that all ranks together have done. Collective when somebody has
/// stopped, but where the crew may change: there all are at the same step, and may have come to it in different ways.
int64_t Run::reached(const Parallel& train, const data::Epoch& batches, int64_t first) {
  auto steps = static_cast<int64_t>(result_.stopped ? batches.reached() : batches.steps());
  if (result_.stopped && train.elastic()) return position_ - first;
  if (result_.stopped) world_.comm().allreduce(&steps, 1, DType::i64, Op::max, "where they stopped");
  return steps;
}

Step Run::step(Parallel& train, const data::Batch& batch) {
  if (!mesh_ || mesh_->across("data").first()) count_.samples.add(static_cast<double>(batch.samples()));  // once
  const auto start = Clock::now();
  const double weight = options_.plain_mean && batch.weight > 0
                            ? 1.0 / (static_cast<double>(pieces()) * options_.parallel.accumulate)
                            : batch.weight;
  const auto dawdle = [&] {
    if (world_.rank() == options_.straggler && timed_ == kStepsToTime)
      std::this_thread::sleep_for(Seconds(usual_) * static_cast<double>(batch.samples()) *
                                  (options_.straggler_factor - 1));
  };
  train.count_samples(batch.epoch, static_cast<double>(batch.samples()), batch.signs);
  Step done;
  if (pipe_) {
    dawdle();
    done = train.step(weight, batch.x, batch.y,
                      [&](const torch::Tensor& last, const torch::Tensor& y) { return net_.loss_from(last, y); });
  } else {
    done = train.step(weight, [&] {
      dawdle();
      return net_.loss(batch.x, batch.y);
    });
  }
  time_step(done, batch, seconds_since(start));
  return done;
}

/// What a straggler computes is that of its passes; of a pipeline, where others compute meanwhile, the whole step.
void Run::time_step(const Step& done, const data::Batch& batch, double seconds) {
  if (timed_ == kStepsToTime) return;
  samples_ = done.regrouped ? 0 : samples_ + batch.samples();
  if (!pipe_) seconds = done.computing_seconds;
  if (seconds == 0) return;  // micro-batches are to follow
  if (samples_ > 0 && ++timed_ > 1) {
    const double one = seconds / static_cast<double>(samples_);
    usual_ = usual_ == 0 ? one : std::min(usual_, one);
  }
  samples_ = 0;
}

void Run::stepped(const Step& done, EpochResult& epoch, Pace& pace, size_t steps, size_t position) {
  epoch.loss += (done.loss * loss_unit_ - epoch.loss) / static_cast<double>(++pace.steps);
  result_.updates = done.number;
  if (seconds_since(pace.reported) > kSecondsBetweenReports) {
    pace.reported = Clock::now();
    set_progress(epoch, position, steps, seconds_since(pace.start));
    if (world_.first()) listener_.progress(count_);
  }
}

/// Who takes work has at most one step to end when others have none left.
void Run::meet(Parallel& train, EpochResult& epoch, Pace& pace) {
  if (!train.exchange().traits().gives_work) return add_up(epoch, pace);
  train.limited([&] { add_up(epoch, pace); });
}

/// Workers that went their own ways: the loss is the mean over all their steps, and the time that of the last. Also a
/// meeting before anybody evaluates.
void Run::add_up(EpochResult& epoch, Pace& pace) {
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

void Run::set_progress(const EpochResult& epoch, size_t step, size_t steps, double seconds) {
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

/// Of a run that somebody stopped: after the model is saved, and only if somebody will see the figures.
void Run::evaluate_stopped(Parallel& train, const data::Dataset& test) {
  if (options_.save.empty() && options_.report.empty()) return;
  if (world_.first() && !options_.save.empty() && test.count > 0)
    listener_.note(fmt::format("model saved to {}; evaluating it, which Ctrl-C ends", result_.saved));
  evaluate(train, test, Patience::to_the_end);
  if (world_.first()) listener_.epoch(result_.epochs.back());
}

/// Each worker measures its share of the test set; with virtual workers, theirs, whose sums are kept apart. When
/// somebody wants to stop and the model is not saved yet, all leave it at that.
void Run::evaluate(Parallel& train, const data::Dataset& test, Patience patience) {
  if (test.count == 0) return;
  const torch::NoGradGuard no_grad;
  net_.eval();
  const bool apart = asked().virtual_workers > 0;
  const exchange::Pieces mine = apart ? train.exchange().virtual_workers()->runs()[static_cast<size_t>(copy())]
                                      : exchange::Pieces{copy(), copy() + 1};
  const auto order = data::epoch_order(test.count, 0, 0, false);
  const size_t batch_size = data::batch_to_test(test);
  constexpr size_t kSums = 4;  // loss, hits, workers who want to stop, targets
  std::vector<double> all(kSums * static_cast<size_t>(apart ? pieces() : 1), 0.0);
  double* sums = all.data();  // of the share that is being measured
  const auto measure = [&](size_t begin, size_t end) {
    cluster::note_beat();
    const data::Batch batch = data::make_batch(test, order, begin, end, dtype_);
    const torch::Tensor output = output_of(batch.x);
    if (!output.defined()) return;  // another stage has it
    sums[0] += net_.loss_of(output, batch.y).item<double>() * static_cast<double>(batch.samples());
    if (mse_) return;
    sums[1] += static_cast<double>(output.argmax(-1).eq(batch.y).sum().item<int64_t>());
    sums[3] += static_cast<double>(batch.y.ne(data::kNoTarget).sum().item<int64_t>());
  };
  const size_t most = (test.count + static_cast<size_t>(copies()) - 1) / static_cast<size_t>(copies());
  const auto look_at = [&](data::Share share) {
    for (size_t done = 0; done < (gathers() ? most : share.end - share.begin); done += batch_size) {
      if (stops_evaluating(patience, done / batch_size)) break;
      const size_t begin = share.begin + done;
      if (begin < share.end)
        measure(begin, std::min(share.end, begin + batch_size));
      else
        net_.forward(data::make_batch(test, order, 0, 1, dtype_).x);  // others need what this worker has
    }
  };
  const auto look = [&] {
    for (int piece = mine.begin; piece < mine.end; piece++) {
      if (apart) sums = all.data() + kSums * static_cast<size_t>(piece);
      look_at(data::share_of(test.count, piece, pieces()));
    }
  };
  train.settled(look, gathers() ? Parallel::Looks::alike : Parallel::Looks::freely);
  if (patience == Patience::until_stopped && stop_.load()) sums[2] = 1;
  for (int i : {0, 1, 3}) sums[i] *= counts_results() ? 1 : 0;
  world_.comm().allreduce(all.data(), all.size(), DType::f64, Op::sum, "test results");
  const std::array<double, kSums> sum = summed<kSums>(all);
  if (sum[2] > 0) {
    result_.stopped = true;
    return;
  }
  EpochResult& epoch = result_.epochs.back();
  epoch.has_test = true;
  epoch.test_loss = sum[0] / static_cast<double>(test.count) * loss_unit_;
  if (!mse_) epoch.test_accuracy = sum[1] / sum[3];
}

/// Workers with parts of one model compute together, and so do all with ZeRO 3: they stop together.
bool Run::stops_evaluating(Patience patience, size_t batch) {
  constexpr size_t kBatchesUnderWay = 8;  // in a pipeline, where nobody meets in between
  if (patience == Patience::to_the_end || (pipe_ && batch % kBatchesUnderWay != 0)) return false;
  int32_t stop = stop_.load() ? 1 : 0;
  if (gathers())
    world_.comm().allreduce(&stop, 1, DType::i32, Op::max, "whether somebody stops");
  else if (mesh_)
    mesh_->across("data").comm().allreduce(&stop, 1, DType::i32, Op::max, "whether somebody stops");
  return stop != 0;
}

std::vector<EpochLoss> Run::losses() const {
  std::vector<EpochLoss> losses;
  for (const EpochResult& epoch : result_.epochs) {
    losses.push_back({.loss = epoch.loss});
    if (epoch.has_test) losses.back().test_loss = epoch.test_loss;
    if (epoch.test_accuracy >= 0) losses.back().test_accuracy = epoch.test_accuracy;
  }
  return losses;
}

/// Says once what is wrong with the losses; the result has what is wrong with them in the end.
void Run::examine(size_t classes, bool ended) {
  result_.warning = diagnose(losses(), {.classes = classes,
                                        .ended = ended,
                                        .lr = options_.optimizer.lr,
                                        .momentum = options_.optimizer.kind == space::Optimizer::momentum,
                                        .full_rate = asked().rate == exchange::Rate::full})
                        .sentence;
  if (!result_.warning.empty() && !std::exchange(warned_, true) && world_.first())
    listener_.note("warning: " + result_.warning);
}

}  // namespace trireme::train
