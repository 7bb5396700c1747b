#include <algorithm>
#include <cmath>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/exchange/allreduce.h>
#include <trireme/exchange/central.h>
#include <trireme/exchange/coding.h>
#include <trireme/exchange/exchange.h>
#include <trireme/exchange/hogwild.h>
#include <trireme/exchange/local.h>
#include <trireme/exchange/servers.h>
#include <trireme/exchange/sharded.h>
#include <trireme/exchange/shared.h>
#include <trireme/exchange/spread.h>

namespace trireme::exchange {
namespace {

constexpr size_t kSmall = 1 << 16;  // bytes of a tensor that look() reads: biases, norms, small kernels

/// Where updates count as shares, the other workers' momentum moves the parameters until a gradient is applied. How far
/// is known in advance: in Nesterov's form the parameters are ahead by just that, and gradients are computed where they
/// will be applied (Hakimi et al., 2019, with a momentum per worker).
std::optional<space::UpdaterOptions> looking_ahead(std::optional<space::UpdaterOptions> optimizer,
                                                   const Options& options, int workers) {
  if (optimizer && optimizer->kind == space::Optimizer::momentum && in_shares(options.sync, options.rate, workers))
    optimizer->nesterov = true;
  return optimizer;
}

}  // namespace

Exchange::Exchange(space::Layout layout, const Options& options, const Traits& traits)
    : State(std::move(layout), options, traits) {
  // Rounds in which nothing is sent wait for arrivals alone, and whoever waits in its backward pass has arrived
  // wherever others can be. With the other exchanges a rank may wait for what a peer does when it comes by next, which
  // would be never.
  if (options_.backward_waits != BackwardWaits::never && options_.sync != Sync::shared) options_.overlap = false;
}

bool Exchange::begin(double lr, std::optional<int64_t> leased) {
  lr_ = lr;
  return begin_step(leased);
}

void Exchange::open() {
  land();
  for (int seat = 0; seat < seats(); seat++) std::fill_n(flags(seat), layout_.size(), uint8_t{0});
  outcome_.sound = true;
  seen_.reset();
  seen_in_sum_.reset();
  ahead_ = 0;
  outcome_.went_ahead = outcome_.taken_back = false;
  opened_++;
  if (updater_) updater_->begin_step(lr_);
  if (berth_) berth_->begin(updater_ ? updater_->steps() : opened_);
  if (!updater_) return;
  updater_->watch(watches() && !whole_first());  // a norm finds out before
}

void Exchange::update_all() {
  for (size_t i = 0; i < buckets_.size(); i++) {
    const space::Bucket& b = buckets_[i];
    const space::Source own[] = {{gradients(), flags() + b.first}};
    update(i, b.range, own);
  }
}

void Exchange::update(size_t bucket, space::Range range, std::span<const space::Source> sources) {
  const space::Bucket& b = buckets_[bucket];
  if (!update_present(*updater_, bucket, layout_, b.first, b.last, range, b.dtype, parameters(), sources))
    outcome_.sound = false;
}

bool Exchange::clip_here() {
  double squares = 0;
  for (const space::Bucket& b : buckets_) {
    const space::Source own[] = {{gradients(), flags() + b.first}};
    squares += space::squares_present(layout_, b.first, b.last, b.range, b.dtype, nullptr, own);
  }
  return clip_by(squares);
}

/// In the order of the parts, whatever the machines: every rank has the same bits.
double Exchange::of_all_parts(double squares) const {
  if (model_ == nullptr) return squares;
  std::vector<double> all(static_cast<size_t>(model_->size()));
  model_->all_gather(&squares, all.data(), 1, DType::f64, "the norm of all parts of the gradient");
  return std::accumulate(all.begin(), all.end(), 0.0);
}

/// From the squares of all parts; nothing: not to be applied.
std::optional<double> Exchange::factor_by(double squares) {
  if (!watches() || std::isfinite(squares)) return space::clip_factor(squares, options_.clip);
  outcome_.sound = false;
  return {};
}

bool Exchange::clip_by(double squares) {
  const std::optional<double> factor = factor_by(of_all_parts(squares));
  if (!factor) return false;
  if (updater_) return updater_->scale(*factor), true;
  for (size_t slot = 0; *factor < 1 && slot < layout_.size(); slot++)
    if (flags()[slot] != 0)
      space::kernels().scale(layout_[slot].dtype, gradients() + layout_[slot].range.begin, *factor,
                             layout_[slot].elements());
  return true;
}

bool Exchange::finite(size_t slot, space::Range part) const {
  const DType type = layout_[slot].dtype;
  if (part.empty() || (type != DType::f32 && type != DType::f64)) return true;
  for (int seat = 0; seat < seats(); seat++)
    if (flags(seat)[slot] != 0 &&
        !space::kernels().finite(type, gradients(seat) + part.begin, part.size() / size_of(type)))
      return false;
  return true;
}

void Exchange::look(size_t bucket, space::Range part) {
  const space::Bucket& b = buckets_[bucket];
  for (size_t slot = b.last; watches() && !seen_ && slot-- > b.first;)
    if (layout_[slot].range.size() <= kSmall && !finite(slot, intersect(part, layout_[slot].range))) seen_ = slot;
}

void Exchange::look_at_sum(size_t bucket, space::Range part) {
  const space::Bucket& b = buckets_[bucket];
  for (size_t slot = b.last; watches() && !seen_in_sum_ && slot-- > b.first;)
    if (const space::Range here = intersect(part, layout_[slot].range);
        !here.empty() && !space::kernels().finite(b.dtype, gradients() + here.begin, here.size() / size_of(b.dtype)))
      seen_in_sum_ = slot;
}

void Exchange::leave_all_out() {
  if (const std::optional<Flaw> found = flaw()) seen_ = found->slot;
  for (int seat = 0; seat < seats(); seat++) std::fill_n(flags(seat), layout_.size(), uint8_t{0});
}

std::optional<Flaw> Exchange::flaw() const {
  if (seen_) return Flaw{*seen_, true};
  std::optional<Flaw> in_sum;
  if (seen_in_sum_) in_sum = {*seen_in_sum_, false};
  if (!keeps_gradients()) return in_sum;
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++)
    for (size_t slot = buckets_[bucket].last; slot-- > buckets_[bucket].first;) {
      const space::Range all = layout_[slot].range, sums = intersect(all, summed(bucket));
      const space::Range before{all.begin, sums.empty() ? all.end : sums.begin},
          after{sums.empty() ? all.end : sums.end, all.end};
      if (!finite(slot, before) || !finite(slot, after)) return Flaw{slot, true};
      if (!in_sum && !finite(slot, sums)) in_sum = {slot, false};
    }
  return in_sum;
}

namespace {

std::unique_ptr<Exchange> make(const Group& group, const space::Layout& layout,
                               const std::optional<space::UpdaterOptions>& optimizer, const Options& options) {
  switch (options.sync.kind) {
    case Sync::shared:
      if (group.one_machine()) return std::make_unique<Shared>(group, layout, *optimizer, options);
      if (options.zero > 0 && options.elastic)
        fail<InvalidArgument>(
            "with ZeRO (zero {}) across machines a lost one takes its part of the state with it: leave out zero, or "
            "let a loss end the job (--on-failure stop of `trireme launch` or `train`)",
            options.zero);
      if (options.zero > 0) return std::make_unique<Sharded>(group, layout, *optimizer, options);
      return std::make_unique<Spread>(group, layout, *optimizer, options);
    case Sync::allreduce:
      return std::make_unique<Allreduce>(group, layout, optimizer, options);
    case Sync::central:
      return std::make_unique<Central>(group, layout, *optimizer, options);
    case Sync::server:
    case Sync::async:
    case Sync::stale:
    case Sync::trylock:
    case Sync::round_robin:
      return std::make_unique<Servers>(group, layout, *optimizer, options);
    case Sync::hogwild:
      return std::make_unique<Hogwild>(group, layout, *optimizer, options);
    case Sync::local:
    case Sync::elastic:
    case Sync::diloco:
      return std::make_unique<Local>(group, layout, *optimizer, options);
  }
  fail<InvalidArgument>("unknown sync mode");
}

}  // namespace

std::unique_ptr<Exchange> make_exchange(const Group& group, const space::Layout& layout,
                                        const std::optional<space::UpdaterOptions>& asked, const Options& options) {
  agree(group.all, "settings", terms_of(layout).add(terms_of(asked)).add(terms_of(options)).text());
  const auto optimizer = looking_ahead(asked, options, group.all.size());
  if (layout.size() == 0) fail<InvalidArgument>("the model has no parameters");
  check(options);
  check_coding(options, layout, group.one_machine(), group.model != nullptr);
  if (options.virtual_workers > 0) check_runs(options.virtual_workers, group.all.size());
  if (!optimizer && options.sync != Sync::allreduce)
    fail<InvalidArgument>("sync '{}' updates the parameters itself; with an optimizer of your own use 'allreduce'",
                          name_of(options.sync));
  if (options.sync.needs_servers() && (group.world == nullptr || group.world->servers() == 0))
    fail<InvalidArgument>(
        "sync '{}' needs parameter servers: start the job with `trireme launch --servers 1 …` (or `trireme train "
        "--servers 1 …`), or set TRIREME_SERVERS where "
        "you start servers yourself",
        name_of(options.sync));
  if (group.world != nullptr && group.world->servers() > 0 && !options.sync.takes_servers()) keep_on_roll(*group.world);
  std::unique_ptr<Exchange> exchange = make(group, layout, optimizer, options);
  exchange->model_ = group.model;
  exchange->post();
  return exchange;
}

}  // namespace trireme::exchange
