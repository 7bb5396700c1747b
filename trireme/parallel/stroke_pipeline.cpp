// A step of a rank that has a stage of a model: the schedule's forward and backward passes, then the update.
#include <torch/utils.h>

#include <cmath>

#include <trireme/parallel/impl.h>
#include <trireme/parallel/precision.h>

namespace trireme {

Step Parallel::Impl::step(double weight, const torch::Tensor& x, const torch::Tensor& y, const LossOf& loss) {
  if (!pipeline_)
    fail<InvalidArgument>(
        "a loss of output and targets is for a pipeline: this model's step() takes one without arguments");
  metrics::Laps laps(count_.spans, count_.timed);
  const StepLimit limit = limit_waits();
  follow_freezing();
  pipeline_->compare_samples(weight > 0 ? x.size(0) : 0);
  if (!begin(weight)) return {.number = updates_, .stop = true};
  open();
  last_ = true;
  if (weight > 0) run_schedule(weight, x, y, loss);
  laps.end("schedule", count_.backward_seconds);
  sum_shared();
  Step done = update();
  if (exchange_->outcome().went_ahead) count_.ahead.add();
  if (exchange_->outcome().taken_back) count_.taken_back.add();
  laps.end("exchange", count_.exchange_seconds);
  check_time(done);
  return done;
}

/// All ranks of a pipeline have the same samples, or all have none.
void Parallel::Impl::run_schedule(double weight, const torch::Tensor& x, const torch::Tensor& y, const LossOf& loss) {
  const auto batch = static_cast<int64_t>(x.size(0));
  if (batch != y.size(0)) fail<InvalidArgument>("a batch has {} samples and {} targets", batch, y.size(0));
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  expect_gradients();
  const auto passes = static_cast<int>(std::min<int64_t>(pipeline_->micro(), batch));
  backwards_left_.clear();
  for (const auto& [name, parameter] : parameters_)
    backwards_left_.push_back(passes * static_cast<int>(pipeline_->chunks_of(name).size()) +
                              (pipeline_->users(name).size() > 1 ? 1 : 0));  // and what other stages have of it
  pipeline_->run({.x = x,
                  .y = y,
                  .weight = weight,
                  .loss = loss,
                  .heard =
                      [&](double number, double part) {
                        loss_ += part * number;
                        if (watches() && !std::isfinite(number)) lose(number);
                        count_.micro_batches.add();
                      },
                  .in_forward =
                      [&](const std::function<void()>& pass) {
                        const InPrecision in(options_.precision);
                        pass();
                      },
                  .in_backward =
                      [&](const std::function<void()>& pass) {
                        const Collecting collecting(*this);
                        pass();
                      },
                  .done = [&](int chunk) { chunk_done(chunk); }});
}

/// The parameters of a chunk that wait for nothing more leave.
void Parallel::Impl::chunk_done(int chunk) {
  for (size_t slot : slots_of_chunk_[static_cast<size_t>(chunk)])
    if (--backwards_left_[slot] == 0 && trained_[slot]) passed(slot);
}

/// A tensor that several stages have, such as GPT's embedding, which is its output layer too. Stages that are done
/// first wait for the others here.
void Parallel::Impl::sum_shared() {
  for (size_t slot : shared_slots()) {
    const torch::Tensor sum = pipeline_->sum(parameters_[slot].name, filled_[slot] ? gradients_[slot] : torch::Tensor(),
                                             [&](const std::function<bool()>& enough) { exchange_->go_ahead(enough); });
    if (!sum.defined()) continue;
    gradients_[slot].copy_(sum);
    exchange_->flat().present(slot);
  }
}

}  // namespace trireme
