#include <trireme/exchange/shared.h>

#include <algorithm>

namespace trireme::exchange {

using comm::shm::Fingerprint;
using comm::shm::Kind;
using comm::shm::kPrivate;

Shared::Shared(comm::shm::Communicator& group, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options)
    : Exchange(layout, options), group_(group) {
  // One copy of the parameters for all ranks: each brings an equal part of the room.
  const size_t ranks = static_cast<size_t>(group.size());
  parameters_ = group.allocate((layout_.bytes() + ranks - 1) / ranks, "the model's parameters");
  gradients_ = group.allocate(layout_.bytes(), "the ranks' gradients");
  flags_ = group.allocate(layout_.size(), "the gradients' flags");
  for (const space::Bucket& bucket : buckets_) {
    slices_.push_back(space::part_of(bucket.range, group.rank(), group.size()));
    name_hashes_.push_back(space::hash_text(bucket.name));
  }
  updater_.emplace(optimizer, slices_);
}

void Shared::publish_parameters() { group_.barrier("initial parameters"); }

void Shared::ready(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  if (open_.size() >= comm::shm::kAhead / 2) complete_first();
  const Fingerprint what{.kind = Kind::step, .dtype = b.dtype, .part = static_cast<uint32_t>(bucket), .count = b.range.size(), .name = name_hashes_[bucket]};
  last_round_ = group_.rounds().arrive(what, kPrivate, b.name);
  open_.push_back({bucket, last_round_});
  if (!options_.overlap) return;
  while (!open_.empty() && group_.rounds().all_arrived(open_.front().round)) complete_first();
}

void Shared::finish() {
  while (!open_.empty()) complete_first();
  group_.rounds().await_finished(last_round_);
}

void Shared::complete_first() {
  const Open first = open_.front();
  group_.rounds().await_arrivals(first.round);
  update_slice(first.bucket);
  group_.rounds().finish(first.round);
  open_.pop_front();
}

void Shared::update_slice(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  const space::Range slice = slices_[bucket];
  std::vector<const std::byte*> sources;
  const auto gather = [&](size_t slot) {
    sources.clear();
    for (int rank = 0; rank < group_.size(); rank++)
      if (flags_of(rank)[slot] != 0) sources.push_back(gradients_.parts[static_cast<size_t>(rank)]);
    return sources.size() == static_cast<size_t>(group_.size());
  };
  bool everybody = true;
  for (size_t slot = b.first; slot < b.last; slot++) everybody = gather(slot) && everybody;
  if (everybody) return updater_->update(bucket, slice, b.dtype, parameters(), sources);
  for (size_t slot = b.first; slot < b.last; slot++) {  // somebody has no gradient for some slot
    gather(slot);
    updater_->update(bucket, intersect(slice, layout_[slot].range), b.dtype, parameters(), sources);
  }
}

}  // namespace trireme::exchange
