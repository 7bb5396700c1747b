#include <algorithm>
#include <cstring>

#include <trireme/exchange/allreduce.h>

namespace trireme::exchange {

Allreduce::Allreduce(const Group& group, const space::Layout& layout,
                     const std::optional<space::UpdaterOptions>& optimizer, const Options& options)
    : Exchange(layout, options, {}), group_(group.all) {
  berth_.emplace(group.all, group.local, layout_.fingerprint());
  vectors_ = own_vectors(group.local.rank());
  source_ = std::make_unique<OwnShare>(group_.rank(), group_.size());
  if (optimizer)
    updater_.emplace(*optimizer, bucket_ranges(), false,
                     berth_->state(optimizer->kind, layout_, buckets_, bucket_ranges(), false));
  if (options_.codes()) coded_.emplace(group, layout_, buckets_, options_, gradients(), flags());
}

Allreduce::~Allreduce() { before_writing(); }

void Allreduce::publish() {
  before_writing();
  group_.broadcast(parameters(), layout_.bytes(), DType::u8, 0, "initial parameters");
  complete();
}

void Allreduce::ready(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  zero_absent(layout_, b, flags(), gradients());
  look(bucket, b.range);
  if (bucket == 0) squares_ = 0;
  if (coded_) {
    coded_->start(bucket, updater_ ? updater_->steps() : opened_);
    return options_.overlap ? coded_->proceed() : void();
  }
  open_.push_back({bucket, group_.start_allreduce(gradients() + b.range.begin, b.range.size() / size_of(b.dtype),
                                                  b.dtype, Op::sum, b.name)});
  while (options_.overlap && !open_.empty() && open_.front().sum->test()) take_sum();
}

void Allreduce::take_sum() {
  open_.front().sum->wait();
  const size_t bucket = open_.front().bucket;
  open_.pop_front();
  look_at_sum_of(bucket);
}

/// What is to be known of the sum is found out while it is in a cache. Every rank has the same.
void Allreduce::look_at_sum_of(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  if (b.dtype != DType::f32 && b.dtype != DType::f64) return;
  const void* const sum[] = {gradients() + b.range.begin};
  const size_t count = b.range.size() / size_of(b.dtype);
  const space::Source all[] = {{gradients(), nullptr}};
  if (whole_first()) squares_ += space::squares_present(layout_, b.first, b.last, b.range, b.dtype, nullptr, all);
  const bool leaves = !whole_first() && !updater_;  // to an optimizer of the user's, which does not look
  if (leaves && watches() && !space::kernels().finite(b.dtype, sum[0], count)) outcome_.sound = false;
}

void Allreduce::close() {
  while (!open_.empty()) take_sum();
  if (coded_) {
    coded_->finish();
    for (size_t bucket = 0; bucket < buckets_.size(); bucket++) look_at_sum_of(bucket);
  }
  group_.allreduce(flags(), layout_.size(), DType::u8, Op::max, "which parameters have gradients");
  if ((!whole_first() || clip_by(squares_)) && updater_) update_all();
  if (coded_) coded_->settle(outcome_.sound);
  complete();
}

void zero_absent(const space::Layout& layout, const space::Bucket& bucket, const uint8_t* flags, std::byte* gradients) {
  for (size_t slot = bucket.first; slot < bucket.last; slot++)
    if (flags[slot] == 0) std::memset(gradients + layout[slot].range.begin, 0, layout[slot].range.size());
}

/// Copies, everywhere.
Exchange::Share Allreduce::share_of(int /*rank*/, size_t bucket) const {
  return {.parameters = buckets_[bucket].range, .updated = buckets_[bucket].range};
}

}  // namespace trireme::exchange
