// Updates ahead of the norm that they are clipped by: see Options::ahead.
//
// Ranks that have other stages of the model end their backward passes at other times. Who is done first would wait for
// the others' part of the norm; instead it updates bucket by bucket as if nothing had to be clipped, keeps what it
// overwrites, and stops when the norm is there. What is updated from then on is right, and nothing has to be kept.
#include <cmath>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/exchange/exchange.h>

namespace trireme::exchange {

std::vector<std::string> ahead_names() { return {"never", "idle", "always"}; }

Ahead ahead_named(const std::string& name) {
  const auto names = ahead_names();
  for (size_t i = 0; i < names.size(); i++)
    if (names[i] == name) return static_cast<Ahead>(i);
  fail<InvalidArgument>("'{}' does not say when updates may begin ahead of their norm{}: never, idle or always", name,
                        did_you_mean(name, names));
}

/// As far as `squares`, a part of the norm's, can tell. A run that is clipped in every step would take back every one:
/// what was wrong the last time is not tried.
bool Exchange::may_guess(double squares) const {
  if (model_ == nullptr || !updater_ || options_.ahead == Ahead::never) return false;
  if (options_.ahead == Ahead::idle && !would_hold_) return false;
  return std::isfinite(squares) && space::clip_factor(squares, options_.clip) == 1;
}

void Exchange::update_ahead(double squares, size_t end, const OfBucket& update, const std::function<bool()>& known) {
  if (!may_guess(squares)) return;
  if (!outcome_.went_ahead) updater_->begin_guess(options_.ahead_bytes);
  outcome_.went_ahead = true;
  for (; ahead_ < end && updater_->can_guess(ahead_); ahead_++) {
    if (options_.ahead != Ahead::always && known()) return;
    update(ahead_);
  }
}

void Exchange::clip_and_update(double squares, const OfBucket& update, const OfBucket& settled) {
  std::vector<double> all(model_ == nullptr ? 1 : static_cast<size_t>(model_->size()), squares);
  if (model_ != nullptr) {
    const comm::Started gathering =
        model_->start_all_gather(&squares, all.data(), 1, DType::f64, "the norm of all parts of the gradient");
    update_ahead(squares, buckets_.size(), update, [&] { return gathering->test(); });
    gathering->wait();
  }
  // In the order of the parts, whatever the machines: every rank has the same bits.
  const std::optional<double> factor = factor_by(std::accumulate(all.begin(), all.end(), 0.0));
  would_hold_ = factor == 1.0;
  outcome_.went_ahead = ahead_ > 0;
  outcome_.taken_back = outcome_.went_ahead && !would_hold_;
  if (outcome_.taken_back) {
    updater_->take_back();
    ahead_ = 0;
  }
  updater_->confirm();
  if (factor) updater_->scale(*factor);
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++) {
    if (factor && bucket >= ahead_) update(bucket);
    settled(bucket);
  }
}

}  // namespace trireme::exchange
