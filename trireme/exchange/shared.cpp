#include <trireme/exchange/shared.h>

namespace trireme::exchange {

using comm::shm::Fingerprint;
using comm::shm::Kind;
using comm::shm::kPrivate;

Shared::Shared(comm::shm::Communicator& local, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options)
    : Shared(local, layout, optimizer, options, [&](space::Range bucket) { return space::part_of(bucket, local.rank(), local.size()); }) {}

Shared::Shared(comm::shm::Communicator& local, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options,
               const std::function<space::Range(space::Range)>& slice_of)
    : Exchange(layout, options), local_(local) {
  // One copy of the parameters for all ranks of the machine: each brings an equal part of the room.
  const size_t ranks = static_cast<size_t>(local_.size());
  parameters_ = local_.allocate((layout_.bytes() + ranks - 1) / ranks, "the model's parameters");
  gradients_ = local_.allocate(layout_.bytes(), "the ranks' gradients");
  flags_ = local_.allocate(layout_.size(), "the gradients' flags");
  told_board_ = local_.allocate(sizeof(Told), "the ranks' losses");
  for (const space::Bucket& bucket : buckets_) {
    slices_.push_back(slice_of(bucket.range));
    name_hashes_.push_back(space::hash_text(bucket.name));
  }
  updater_.emplace(optimizer, slices_, ranks > 1);
}

void Shared::publish_parameters() { local_.barrier("parameters"); }

void Shared::ready(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  while (open_.size() >= comm::shm::kAhead / 2) work_next();
  const Fingerprint what{.kind = Kind::step, .dtype = b.dtype, .part = static_cast<uint32_t>(bucket), .count = b.range.size(), .name = name_hashes_[bucket]};
  if (last(bucket)) told_by(local_.rank()) = mine_;
  last_round_ = local_.rounds().arrive(what, kPrivate, b.name);
  open_.push_back({bucket, last_round_});
  if (options_.overlap) proceed();
}

void Shared::proceed() {
  while (!open_.empty() && local_.rounds().all_arrived(open_.front().round)) work_next();
}

void Shared::close() {
  while (!open_.empty()) work_next();
  local_.rounds().await_finished(last_round_);
}

void Shared::work_next() {
  const Open next = open_.front();
  local_.rounds().await_arrivals(next.round);
  if (last(next.bucket)) hear_machine();
  work(next.bucket);
  local_.rounds().finish(next.round);
  open_.pop_front();
}

/// What the ranks of this machine tell, in their order.
void Shared::hear_machine() {
  told_ = {};
  for (int rank = 0; rank < local_.size(); rank++)
    for (size_t i = 0; i < told_.size(); i++) told_[i] += told_by(rank)[i];
}

void Shared::work(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  std::vector<space::Source> sources;
  for (int rank = 0; rank < local_.size(); rank++) sources.push_back({gradients_of(rank), flags_of(rank) + b.first});
  update_present(*updater_, bucket, layout_, b.first, b.last, slices_[bucket], b.dtype, parameters(), sources);
}

}  // namespace trireme::exchange
