#include <utility>

#include <trireme/exchange/balancer.h>

namespace trireme::exchange {

void Balancer::set_batch(size_t batch) {
  if (batch == batch_) return;
  batch_ = batch;
  shares_.reset();
  balance_.shares.clear();
  begin_stints();
}

void Balancer::follow(int rank, std::span<const double> seconds_per_sample, size_t batch) {
  rank_ = rank;
  ranks_ = static_cast<int>(seconds_per_sample.size());
  batch_ = batch;
  named_ = -1;
  shares_.reset();
  balance_.shares.clear();
  balance_.straggler.reset();
  balance_.last = {};
  begin_stints();
  if (!can_divide()) return;
  use(divide_anew(seconds_per_sample, batch_, settings_.least));
}

/// What was measured so far says nothing of what comes.
void Balancer::begin_stints() {
  unsettled_ = kUnsettled;
  steps_ = 0;
  sum_ = {};
  over_ = false;
  teller_ = -1;
  stints_.clear();
}

void Balancer::tell(std::span<double, kTold> numbers) const {
  const bool long_enough = steps_ >= kLeastSteps && sum_.computing + sum_.exchanging >= settings_.stint.count();
  numbers[0] = long_enough ? 1 : 0;
  numbers[1] = teller_ == rank_ ? mine_.computing : 0;
  numbers[2] = teller_ == rank_ ? mine_.exchanging : 0;
}

void Balancer::hear(std::span<const double, kTold> sums) {
  if (teller_ < 0) {
    over_ = sums[0] >= ranks_;
    return;
  }
  heard_.ranks.push_back({sums[1], sums[2]});
  if (++teller_ == ranks_) conclude();
}

void Balancer::add(const Effort& effort) {
  if (unsettled_ > 0) return void(unsettled_--);
  steps_++;
  sum_.computing += effort.computing;
  sum_.exchanging += effort.exchanging;
  if (!over_) return;
  const auto steps = static_cast<double>(steps_);
  mine_ = {sum_.computing / steps, sum_.exchanging / steps};
  heard_ = {.steps = steps_, .ranks = {}};
  teller_ = 0;
  over_ = false;
  steps_ = 0;
  sum_ = {};
}

/// All have told what the stint was.
void Balancer::conclude() {
  teller_ = -1;
  balance_.last = heard_;
  if (stints_.size() == kRemembered) stints_.erase(stints_.begin());
  stints_.push_back(heard_);
  if (const auto found = straggler_of(stints_); found && found->rank != named_) {
    named_ = found->rank;
    balance_.straggler = found;
    balance_.stragglers++;
  }
  if (batch_ == 0) return;
  const SampleShares shares = shares_now();
  seconds_per_sample_ = mine_.computing / static_cast<double>(shares[static_cast<size_t>(rank_)]);
  if (can_divide()) use(divide(stints_, shares, settings_.least));
}

void Balancer::use(const Division& division) {
  balance_.reason = division.reason;
  if (!division.changed) return;
  shares_ = std::make_shared<const SampleShares>(division.shares);
  balance_.shares = division.shares;
  balance_.changes++;
  begin_stints();
}

}  // namespace trireme::exchange
