#pragma once
// Measures how long a rank computes, hears the same of the others, and divides the samples of a step anew where that is
// worth it (balance.h). What ranks tell travels with their losses (Told): when a stint is over, one rank after another
// tells what it was, one in every step. All hear the same after the same update, so all change the shares together, and
// nobody waits for anybody. Not thread-safe.
#include <memory>
#include <span>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/exchange/balance.h>

namespace trireme::exchange {

class Balancer {
 public:
  struct Settings {
    bool divides = true;  // false: shares stay even, and stragglers are found
    size_t least = 1;     // samples of a rank: it has so many micro-batches
    Seconds stint{0.5};   // how long one is, at least; and kLeastSteps
  };
  static constexpr int kLeastSteps = 10;
  /// Numbers of a rank that are summed over all ranks in every step.
  static constexpr size_t kTold = 3;

  Balancer(const Settings& settings, int rank, int ranks) : settings_(settings), rank_(rank), ranks_(ranks) {}

  /// Steps have so many samples from now on. All ranks say so before the same step. With another number than before the
  /// shares are even again.
  void set_batch(size_t batch);
  size_t batch() const { return batch_; }
  /// There is another crew. All of its ranks say the same: what each knows of its speed (seconds_per_sample()), and the
  /// batch, which who comes anew does not know yet; 0: nobody does.
  void follow(int rank, std::span<const double> seconds_per_sample, size_t batch);
  /// This rank's, as all have heard of it last; 0: not yet.
  double seconds_per_sample() const { return seconds_per_sample_; }

  // In every step: tell(), hear() what all tell, add().

  void tell(std::span<double, kTold> numbers) const;
  void hear(std::span<const double, kTold> sums);
  void add(const Effort& effort);

  /// From the next step on, the same object until they change; null: even ones.
  const std::shared_ptr<const SampleShares>& shares() const { return shares_; }
  const Balance& balance() const { return balance_; }
  /// For those who are shown it.
  void set_names(std::vector<std::string> names) { balance_.names = std::move(names); }

 private:
  static constexpr int kUnsettled = 3;  // steps after a change that do not count: they are slower

  void begin_stints();
  void conclude();
  void use(const Division& division);
  bool can_divide() const { return settings_.divides && batch_ >= static_cast<size_t>(ranks_) * settings_.least; }
  SampleShares shares_now() const { return shares_ ? *shares_ : even_shares(batch_, ranks_); }

  Settings settings_;
  int rank_, ranks_;
  size_t batch_ = 0;  // 0: nobody has said so, and nothing is divided
  std::shared_ptr<const SampleShares> shares_;
  Balance balance_;
  double seconds_per_sample_ = 0;
  int named_ = -1;  // the straggler that is known already

  // Of the stint that is under way: of this rank.
  int unsettled_ = kUnsettled;  // steps still to leave out
  int64_t steps_ = 0;
  Effort sum_;
  bool over_ = false;  // all have found it long enough

  // The stint before, that ranks tell of.
  Effort mine_;
  Stint heard_;
  int teller_ = -1;  // who does in the next step; -1: nobody

  std::vector<Stint> stints_;  // since the shares changed
};

}  // namespace trireme::exchange
