// A step of all ranks: forward, backward with gradients that leave bucket by bucket, update; and what is done about
// NaN.
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <trireme/cluster/launching/slate.h>
#include <trireme/parallel/impl.h>
#include <trireme/parallel/large_linear.h>
#include <trireme/parallel/not_finite.h>
#include <trireme/parallel/precision.h>

namespace trireme {
namespace {

void store(torch::Tensor& home, const torch::Tensor& gradient, bool add) {
  if (gradient.is_sparse()) return store(home, gradient.to_dense(), add);
  if (add)
    home.add_(gradient);
  else if (gradient.strides() == home.strides() && gradient.scalar_type() == home.scalar_type())
    std::memcpy(home.data_ptr(), gradient.data_ptr(), home.nbytes());
  else
    home.copy_(gradient);
}

}  // namespace

Step Parallel::Impl::step(double weight, const std::function<torch::Tensor()>& loss) {
  if (pipeline_)
    fail<InvalidArgument>(
        "a pipeline divides the batch itself: step(batch, loss), with a loss of the model's output and the targets");
  metrics::Laps laps(count_.spans, count_.timed);
  const StepLimit limit = limit_waits();
  follow_freezing();
  if (micro_ == 0 && !begin(weight)) return {.number = updates_, .stop = true};
  const bool last = micro_ + 1 == calls();
  call_ = micro_;
  if (!exchange_->traits().lockstep) weight *= group_.size();  // of its own samples, it has all
  if (statistics_) statistics_->begin(weight > 0);
  const auto start = Clock::now();
  away_ = 0;
  {
    const Gathering gathering(*this, last ? exchange::Pass::last : exchange::Pass::micro);
    if (weight > 0)
      backward(weight, loss, last, laps);
    else
      without_samples(last);
    if (gathering.gathers) arrivals_->check();
  }
  store_deferred();
  if (!turns_.empty() && !last) end_piece();
  computed_ = Clock::now();
  computing_ += Seconds(computed_ - start).count() - away_;
  micro_ = last ? 0 : micro_ + 1;
  if (!last) return {.number = updates_};
  Step done = update();
  count_effort(done);
  laps.end("exchange", count_.exchange_seconds);
  check_time(done);
  return done;
}

/// The part of the rate that this rank's update counts: its part of the step's samples, where gradients are applied
/// one by one. Of micro-batches only the first is known yet: the rate is what it lets expect, and the gradient makes
/// up for the difference (`seed_`), so that their product is right.
double Parallel::Impl::begin_share(double first_weight) {
  seed_ = 1;
  if (!exchange::in_shares(options_.exchange.sync, options_.exchange.rate, group_.size())) return 1;
  const double share = first_weight > 0 ? std::min(1.0, first_weight * options_.accumulate) : 1.0 / group_.size();
  seed_ = 1 / (share * group_.size());
  return share;
}

/// Other ranks' waits are over by now, or they have given up.
void Parallel::Impl::check_time(const Step& done) const {
  const WaitLimit& limit = options_.step_timeout;
  if (limit.timeout.count() <= 0) return;
  const std::string why = too_long(done.number, whole_.rank(), Clock::now() - began_, limit);
  if (!why.empty()) throw Timeout(why);
}

bool Parallel::Impl::begin(double first_weight) {
  if (options_.step_timeout.timeout.count() > 0) began_ = Clock::now();
  if (stop.load()) exchange_->source().want_stop();
  const bool lockstep = exchange_->traits().lockstep;  // there all stop by what they tell, after the same update
  if ((stopped_ && !lockstep) || !exchange_->begin(learning_rate() * begin_share(first_weight), leased_)) {
    stopped_ = true;
    return false;
  }
  missing_.assign(exchange_->flat().buckets().size(), 0);
  if (virtual_workers() > 0) take_turns();
  filled_.assign(gradients_.size(), false);
  next_bucket_ = 0;
  loss_ = computing_ = 0;
  lost_ = false;
  parts_sound_ = true;
  keep_buffers();
  return true;
}

/// All parameters of the last update are in place.
void Parallel::Impl::land() {
  if (!gathers()) arrivals_->dismiss();
  if (!exchange_->outcome().landed) exchange_->land();
  if (std::exchange(unchecked_, false) && !exchange_->outcome().sound) complain(loss_at_update_);
}

void Parallel::Impl::open() {
  const Away away(*this);
  land();
  exchange_->open();
}

/// The forward passes of other ranks may wait for what this rank has to land of other models, as its own would have
/// done.
void Parallel::Impl::without_samples(bool last) {
  for (exchange::Exchange* one : group_.attached<Trained>().exchanges)
    if (one != exchange_.get()) one->land();  // this one: in open(), or in the middle of an update
  if (gathers()) {
    if (statistics_)
      fail<InvalidArgument>(
          "rank {} has no samples here: with zero 3 and sync_batch_norm every rank needs some in every step. Choose a "
          "batch whose last one has samples for each rank, or leave one of them out",
          group_.rank());
    last_ = last;
    // As late as the others: it waits for them, and their forward passes for what this rank gathers.
    const auto open_first = [&] {
      if (micro_ == 0) open();
    };
    return exchange_->paging()->replay(open_first, [&] {
      if (next_bucket_ + 1 < missing_.size()) ready_next();
    });
  }
  if (micro_ == 0) open();
  if (statistics_) statistics_->follow();  // after open(): peers' forward passes wait for what lands there
}

torch::Tensor Parallel::Impl::forward(const std::function<torch::Tensor()>& loss) {
  const InPrecision in(options_.precision);
  try {
    if (!turns_.empty()) begin_piece();
    torch::Tensor value = loss();
    if (!turns_.empty()) check_buffers();
    return value.scalar_type() == torch::kBFloat16 ? value.to(torch::kFloat32) : value;
  } catch (const c10::Error& error) {  // libtorch looks at this rank's samples alone, before anybody else can
    if (!statistics_ || error.msg().find("more than 1 value per channel") == std::string::npos) throw;
    fail<InvalidArgument>(
        "rank {} has a single sample here, and libtorch's batch norm wants two values per channel of every rank, "
        "with sync_batch_norm too. Choose a batch whose last one has two samples for each rank, or leave that out",
        whole_.rank());
  }
}

void Parallel::Impl::backward(double weight, const std::function<torch::Tensor()>& loss, bool last,
                              metrics::Laps& laps) {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  const BatchStatistics::Use use(statistics_ ? &*statistics_ : nullptr);
  // To the end of backward, in which layers may be run again (layers/recompute.h).
  const WeightsFirst first(exchange_->traits().patient && options_.precision == Precision::f32 && turns_.empty());
  const torch::Tensor value = forward(loss);
  if (value.numel() != 1)
    fail<InvalidArgument>("the loss must be a single number, not a tensor of {} elements", value.numel());
  const auto number = value.item<double>();
  loss_ += weight * number;
  if (!turns_.empty()) exchange_->virtual_workers()->tell(piece(), weight * number);
  laps.end("forward", count_.forward_seconds);
  if (watches() && !std::isfinite(number)) lose(number);
  if (statistics_) statistics_->share();
  if (gathers()) arrivals_->check();
  if (micro_ == 0) open();
  last_ = last;
  follow_freezing();
  if (last) expect_gradients();
  const Collecting collecting(*this);
  std::optional<Placement::Use> placing;
  if (micro_ == 0 && places_gradients()) placing.emplace(*placement_);  // later micro-batches add to what is there
  value.backward(torch::full_like(value, weight * seed_));
  laps.end("backward", count_.backward_seconds);
  count_.micro_batches.add();
}

/// A gradient whose place is taken holds up its bucket. Where ranks wait in ready() for each other's sums, and this one
/// for others in the middle of its backward pass, these would be the same: so all gradients are copied there.
bool Parallel::Impl::places_gradients() const {
  const bool waits = model_ && options_.exchange.zero >= 2 && group_.machines() > 1;
  return !gathers() && !waits;
}

/// The last micro-batch's backward pass begins: these are the gradients that may come.
void Parallel::Impl::expect_gradients() {
  for (size_t slot = 0; slot < parameters_.size(); slot++) missing_[bucket_of_[slot]] += trained_[slot];
}

/// The backward pass has the gradient of a slot: into the flat space with it, and on with every bucket that is
/// complete, in order.
void Parallel::Impl::arrived(size_t slot) {
  if (!collecting_) return;
  torch::Tensor& gradient = parameters_[slot].tensor.mutable_grad();
  if (!gradient.defined()) return;
  if (pipeline_) return add_up(slot);
  if (lost_) return discard(slot);
  if (micro_ > 0 || !placement_->settle(slot, gradient)) {
    if (placement_->occupied(slot)) return defer(slot, std::move(gradient));
    keep(slot, gradient);
  }
  gradient.reset();
  filled_[seat_of(slot)] = true;
  exchange_->flat().present(slot, turns_.empty() ? 0 : turn().seat);
  passed(slot);
}

/// To what the same seat has from an earlier micro-batch, if it has something.
void Parallel::Impl::keep(size_t slot, const torch::Tensor& gradient) {
  const size_t at = seat_of(slot);
  store(gradients_[at], gradient, filled_[at]);
}

/// In a pipeline, where a slot's gradients come from several passes that are under way at a time.
void Parallel::Impl::add_up(size_t slot) {
  torch::Tensor& gradient = parameters_[slot].tensor.mutable_grad();
  if (!lost_) {
    store(gradients_[slot], gradient, filled_[slot]);
    filled_[slot] = true;
    exchange_->flat().present(slot);
  }
  gradient.reset();
}

/// Nothing of it goes into the update.
void Parallel::Impl::discard(size_t slot) {
  parameters_[slot].tensor.mutable_grad().reset();
  passed(slot);
}

/// On with every bucket that is complete, in order.
void Parallel::Impl::passed(size_t slot) {
  if (!turns_.empty()) fold(slot);
  if (!last_) return;
  missing_[bucket_of_[slot]]--;
  const size_t now = missing_.size() - (exchange_->traits().patient ? 1 : 0);
  while (next_bucket_ < now && missing_[next_bucket_] == 0) ready_next();
}

void Parallel::Impl::ready_next() {
  const space::Bucket& bucket = exchange_->flat().buckets()[next_bucket_];
  for (size_t slot = bucket.first; !turns_.empty() && slot < bucket.last; slot++) fold(slot);
  if (lost_ && skips()) spoil_bucket();
  if (next_bucket_ + 1 == missing_.size()) exchange_->tell(told_ = tell());
  if (elastic())
    exchange_->succession()->aim(
        {.updates = updates_ + 1, .position = clock_ + 1, .ledger = ledger_.in(own_.epoch)});
  const Away away(*this);
  exchange_->ready(next_bucket_++);
}

/// The model's graph has changed, and some other tensor lives where this gradient belongs. It will be gone after the
/// backward pass.
void Parallel::Impl::defer(size_t slot, torch::Tensor gradient) {
  placement_->give_up();
  deferred_.push_back({slot, std::move(gradient)});
}

void Parallel::Impl::store_deferred() {
  for (auto& [slot, gradient] : deferred_) {
    if (placement_->occupied(slot))
      fail<Error>(
          "a tensor that was made in the backward pass is kept beyond it, in memory that belongs to the gradient of "
          "'{}'; clone() what you keep",
          parameters_[slot].name);
    keep(slot, gradient);
    filled_[seat_of(slot)] = true;
    exchange_->flat().present(slot, turns_.empty() ? 0 : turn().seat);
  }
  deferred_.clear();
}

Step Parallel::Impl::update() {
  while (next_bucket_ < missing_.size()) ready_next();
  exchange_->close();
  if (!options_.overlap_next || skips()) exchange_->land();
  count_update();
  cluster::note_update();
  Step done{.updated = true, .loss = loss_, .number = updates_};
  if (exchange_->traits().lockstep)
    hear(done);
  else
    done.stop = exchange_->outcome().stopped;
  stopped_ = stopped_ || done.stop;
  if (skips() && !sound()) return skip(std::move(done));
  count_.updates.add();
  check_finite(done.loss);
  unchecked_ = !exchange_->outcome().landed;
  if (!exchange_->outcome().landed && !gathers()) arrivals_->expect();
  if (exchange_->state().updater() == nullptr)
    for (size_t slot = 0; slot < parameters_.size(); slot++)
      parameters_[slot].tensor.mutable_grad() =
          exchange_->flat().was_present(slot) ? gradients_[slot] : torch::Tensor();
  return done;
}

void Parallel::Impl::count_update() {
  updates_++;
  clock_++;
  leased_.reset();
  note_position();
}

/// All ranks' loss, and whether one of them wants to stop.
void Parallel::Impl::hear(Step& done) {
  if (exchange_->traits().tells)
    told_ = exchange_->outcome().told;
  else
    group_.comm().allreduce(told_.data(), told_.size(), DType::f64, Op::sum, "loss");
  const double samples = told_[exchange::kToldSamples], signs = told_[exchange::kToldSamples + 1];  // of one replica
  if (model_) hear_model();
  compare_signs(told_);
  done.loss = told_[0];
  done.stop = told_[1] > 0;
  change_ = told_[kChange] > 0;
  if (balancer_) balancer_->hear(exchange::told_of_stint(told_));
  if (elastic()) {
    ledger_ = exchange_->succession()->reached().ledger;
  } else {
    ledger_ = ledger_.in(own_.epoch);
    ledger_.add(samples, signs, !skips() || sound());
  }
}

/// The same of the ranks that have the other parts of the model, and whether their gradients were sound. All have seen
/// the same samples: the loss of the first that computes it counts, or one that is no number.
void Parallel::Impl::hear_model() {
  struct Heard {
    exchange::Told told;
    double sound;
  };
  const Heard mine{told_, exchange_->outcome().sound ? 1.0 : 0.0};
  std::vector<Heard> all(static_cast<size_t>(model_->size()));
  model_->comm().all_gather(&mine, all.data(), sizeof mine / sizeof(double), DType::f64, "what all parts tell");
  told_ = {};
  for (const Heard& part : all) {
    for (size_t i = 1; i < told_.size(); i++) told_[i] += part.told[i];
    parts_sound_ = parts_sound_ && part.sound != 0;
  }
  const auto lost =
      std::find_if(all.begin(), all.end(), [](const Heard& part) { return !std::isfinite(part.told[0]); });
  const auto last_stage = std::max_element(stages_.begin(), stages_.end()) - stages_.begin();  // the first of its ranks
  told_[0] = (lost == all.end() ? all[static_cast<size_t>(last_stage)] : *lost).told[0];
}

/// What a forward pass writes to them is to be taken back when its update is skipped.
void Parallel::Impl::keep_buffers() {
  if (!skips() && !elastic()) return;
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); i++)
    if (i == kept_buffers_.size())
      kept_buffers_.push_back(buffers_[i].tensor.detach().clone());
    else
      kept_buffers_[i].copy_(buffers_[i].tensor);
}

void Parallel::Impl::return_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < kept_buffers_.size(); i++) buffers_[i].tensor.copy_(kept_buffers_[i]);
}

/// This rank's loss is no number, though its gradients may be some: with a NaN among them the exchange finds that the
/// step is not sound, on all ranks alike, and applies nothing of it.
void Parallel::Impl::spoil_bucket() {
  const space::Bucket& bucket = exchange_->flat().buckets()[next_bucket_];
  for (size_t slot = bucket.first; slot < bucket.last; slot++) {
    if (!gradients_[slot].is_floating_point() || gradients_[slot].numel() == 0) continue;
    gradients_[slot].fill_(std::nan(""));
    return exchange_->flat().present(slot);
  }
}

/// Nothing of the update was applied; what else the step has changed is as before.
Step Parallel::Impl::skip(Step done) {
  const torch::NoGradGuard no_grad;
  done.reason = explanation(loss_);
  return_buffers();
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  done.updated = false;
  done.skipped = true;
  done.number = --updates_;
  clock_--;
  count_.skipped.add();
  return done;
}

/// This rank's loss is no number. In lockstep it goes on to the end of the update, with nothing to give, so that all
/// ranks hear of it there.
void Parallel::Impl::lose(double number) {
  lost_ = true;
  if (exchange_->traits().lockstep || skips()) return;
  micro_ = 0;
  count_update();
  complain(number);
}

/// After an update: what all ranks know by now. What lands later is checked when it has.
void Parallel::Impl::check_finite(double loss) {
  loss_at_update_ = loss_;
  if (!watches()) return;
  const bool lost = !std::isfinite(loss);
  if (lost) exchange_->land();
  if (lost || (exchange_->outcome().landed && !sound())) complain(loss_);
}

/// In lockstep the same on all ranks. Collective then.
std::string Parallel::Impl::explanation(double loss) {
  const bool together = exchange_->traits().lockstep;
  auto flaw = exchange_->flaw();
  if (flaw) flaw->slot = model_slot_[flaw->slot];
  const Finding mine = finding_of(loss, flaw);
  std::vector<Finding> all(together ? static_cast<size_t>(whole_.size()) : 1, mine);
  if (together) whole_.comm().all_gather(&mine, all.data(), sizeof mine / sizeof(double), DType::f64, "who has NaN");
  return explain(all, together ? 0 : group_.rank(), updates_, [&](size_t slot) { return all_[slot].name; });
}

/// Throws, and in lockstep the same on all ranks. Collective then.
void Parallel::Impl::complain(double loss) {
  fail<NotFinite>("{}. Look for such numbers in the data, clip gradients (clip), or try a smaller learning rate{}",
                  explanation(loss), lr_ > 0 ? fmt::format(" than {:g}", lr_) : "");
}

}  // namespace trireme
