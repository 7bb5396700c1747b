#include <trireme/train/guard.h>

namespace trireme::train {
namespace {

constexpr size_t kMostKept = 1000;  // decisions

StopOptions stops_of(const Options& options) {
  StopOptions stop = options.stop;
  stop.steps = options.most_steps();
  return stop;
}

std::string sentence_of(const Decision& d, int64_t skipped) {
  switch (d.kind) {
    case Decision::skip:
      return fmt::format("update skipped ({} so far): {}", skipped, d.reason);
    case Decision::rollback:
      return fmt::format("going back to the newest checkpoint: {}", d.reason);
    default:
      return fmt::format("stopping after {} update{} ({}): {}", d.step, d.step == 1 ? "" : "s", d.policy, d.reason);
  }
}

}  // namespace

Guard::Guard(World& world, const Options& options, std::function<void(const std::string&)> say)
    : world_(world),
      stop_(stops_of(options)),
      nan_{.on_nan = options.parallel.exchange.on_nan},
      step_timeout_(options.parallel.step_timeout),
      say_(std::move(say)) {}

void Guard::begin(Seconds before) {
  start_ = Clock::now();
  before_ = before;
}

void Guard::note(const Decision& decision, bool aloud) {
  if (!world_.first()) return;
  if (decisions_.size() < kMostKept) decisions_.push_back(decision);
  if (aloud) say_(sentence_of(decision, skipped_));
}

void Guard::after_step(Parallel& train, const Step& done, int64_t position) {
  if (done.skipped) return skipped(done, position);
  if (done.updated) in_a_row_ = 0;
  if (!stop_.time || asked_ || !done.updated || !world_.first()) return;
  const Decision decision = decide_stop({.step = position, .seconds = seconds()}, {}, {.time = stop_.time});
  if (!decision) return;
  note(decision);
  asked_ = true;
  train.request_stop();
}

/// In lockstep all ranks come here with the same numbers, and decide the same.
void Guard::skipped(const Step& done, int64_t position) {
  in_a_row_++;
  skipped_++;
  const Decision decision =
      decide_nan({.step = position, .what = done.reason, .in_a_row = in_a_row_, .in_all = skipped_}, nan_);
  note(decision, decision.kind == Decision::stop || worth_a_line(skipped_));
  if (decision.kind == Decision::stop)
    fail<NotFinite>("{}. Look for such numbers in the data, clip gradients (clip), or try a smaller learning rate",
                    decision.reason);
}

void Guard::after_epoch(std::span<const EpochLoss> epochs, int64_t position) {
  if (ended_ || !stop_.any()) return;
  uint8_t ended = 0;
  if (world_.first()) {
    const Decision decision = decide_stop({.step = position, .seconds = seconds(), .epoch_ended = true}, epochs, stop_);
    if (decision) note(decision);
    ended = decision ? 1 : 0;
  }
  world_.comm().broadcast(&ended, 1, DType::u8, 0, "whether a policy ends the run");
  ended_ = ended != 0;
}

bool Guard::was_stopped_here() {
  if (!stop_.time) return false;
  uint8_t asked = asked_ ? 1 : 0;
  world_.comm().broadcast(&asked, 1, DType::u8, 0, "whether a policy stopped the run");
  if (asked != 0) ended_ = true;
  return asked != 0;
}

int64_t Guard::not_finite(const NotFinite& error, int64_t position) {
  if (nan_.on_nan == exchange::OnNan::skip) throw error;  // of too many, as skipped() has decided
  const std::string text = error.what();
  NanHistory history{.step = position, .what = first_sentence(text)};
  if (nan_.on_nan == exchange::OnNan::rollback) {
    history.in_all = ++rolled_back_;
    history.checkpoint = roll_back_.can && roll_back_.can();
  }
  const Decision decision = decide_nan(history, nan_);
  note(decision);
  if (decision.kind != Decision::rollback) fail<NotFinite>("{}{}", decision.reason, text.substr(history.what.size()));
  const int64_t step = roll_back_.go();
  passed_over_.insert(position);
  return step;
}

void Guard::ends_with(const std::string& error, int64_t position) {
  if (step_timeout_.timeout.count() <= 0) return;
  const Decision decision = decide_timeout(position, error, step_timeout_.setting);
  if (decision) note(decision);
}

}  // namespace trireme::train
