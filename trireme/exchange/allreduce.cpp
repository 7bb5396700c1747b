#include <trireme/exchange/allreduce.h>

#include <algorithm>
#include <cstring>

namespace trireme::exchange {

Allreduce::Allreduce(const Group& group, const space::Layout& layout, const std::optional<space::UpdaterOptions>& optimizer, const Options& options)
    : Exchange(layout, options), group_(group.all), local_rank_(group.local.rank()), parameters_(space::Arena::of_process(layout_.bytes())) {
  gradients_ = group.local.allocate(layout_.bytes(), "the ranks' gradients");
  flags_ = group.local.allocate(layout_.size(), "the gradients' flags");
  std::vector<space::Range> all;
  for (const space::Bucket& bucket : buckets_) all.push_back(bucket.range);
  if (optimizer) updater_.emplace(*optimizer, all);
}

void Allreduce::publish_parameters() { group_.broadcast(parameters(), layout_.bytes(), DType::u8, 0, "initial parameters"); }

void Allreduce::ready(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  zero_absent(layout_, b, flags(), gradients());
  open_.push_back(group_.start_allreduce(gradients() + b.range.begin, b.range.size() / size_of(b.dtype), b.dtype, Op::sum, b.name));
  while (options_.overlap && !open_.empty() && open_.front()->test()) open_.pop_front();
}

void Allreduce::close() {
  for (; !open_.empty(); open_.pop_front()) open_.front()->wait();
  group_.allreduce(flags(), layout_.size(), DType::u8, Op::max, "which parameters have gradients");
  if (!updater_) return;
  update_all();
}

void zero_absent(const space::Layout& layout, const space::Bucket& bucket, const uint8_t* flags, std::byte* gradients) {
  for (size_t slot = bucket.first; slot < bucket.last; slot++)
    if (flags[slot] == 0) std::memset(gradients + layout[slot].range.begin, 0, layout[slot].range.size());
}

}  // namespace trireme::exchange
