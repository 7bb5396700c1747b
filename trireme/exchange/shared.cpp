#include <trireme/exchange/shared.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include <trireme/space/kernels.h>

namespace trireme::exchange {
namespace {

/// Of a slice on its way between machines: one piece is reduced and updated while the next ones travel.
constexpr size_t kPieceBytes = 1 << 20;

}  // namespace

using comm::shm::Fingerprint;
using comm::shm::Kind;
using comm::shm::kPrivate;

Shared::Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options)
    : Exchange(layout, options), local_(group.local), lane_(group.lane), one_machine_(group.one_machine()), lane_flags_(layout_.size()) {
  // One copy of the parameters for all ranks of the machine: each brings an equal part of the room.
  const size_t ranks = static_cast<size_t>(local_.size());
  parameters_ = local_.allocate((layout_.bytes() + ranks - 1) / ranks, "the model's parameters");
  gradients_ = local_.allocate(layout_.bytes(), "the ranks' gradients");
  flags_ = local_.allocate(layout_.size(), "the gradients' flags");
  boards_ = local_.allocate(sizeof(Board), "the ranks' losses");
  while (!one_machine_ && space::part_of(buckets_.back().range, speaker_, group.lanes).empty()) speaker_++;
  for (const space::Bucket& bucket : buckets_) {
    slices_.push_back(local_.rank() < group.lanes ? space::part_of(bucket.range, local_.rank(), group.lanes) : space::Range{});
    name_hashes_.push_back(space::hash_text(bucket.name));
  }
  updater_.emplace(optimizer, slices_);
}

void Shared::publish_parameters() {
  if (!one_machine_ && local_.rank() == 0) lane_->broadcast(parameters(), layout_.bytes(), DType::u8, 0, "parameters");
  local_.barrier("parameters");
}

void Shared::ready(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  while (open_.size() >= comm::shm::kAhead / 2) complete_next();
  const Fingerprint what{.kind = Kind::step, .dtype = b.dtype, .part = static_cast<uint32_t>(bucket), .count = b.range.size(), .name = name_hashes_[bucket]};
  if (last(bucket)) board_of(local_.rank()).mine = mine_;
  last_round_ = local_.rounds().arrive(what, kPrivate, b.name);
  open_.push_back({bucket, last_round_});
  if (options_.overlap) proceed();
}

/// What can be done without waiting.
void Shared::proceed() {
  while (under_way_ < open_.size() && local_.rounds().all_arrived(open_[under_way_].round)) begin_first_waiting();
  const auto next_is_there = [](const Open& open) { return open.pieces.empty() || open.pieces.front().second->test(); };
  while (under_way_ > 0 && next_is_there(open_.front())) complete_next();
}

void Shared::finish() {
  while (!one_machine_ && under_way_ < open_.size()) begin_first_waiting();  // the wire before the rest
  while (!open_.empty()) complete_next();
  local_.rounds().await_finished(last_round_);
  if (!one_machine_) told_ = board_of(speaker_).total;
}

/// This rank's part of a bucket as far as its own machine goes: with one machine that is all.
void Shared::begin_first_waiting() {
  Open& open = open_[under_way_++];
  local_.rounds().await_arrivals(open.round);
  if (last(open.bucket)) hear_machine();
  if (one_machine_) {
    update_from_local(open.bucket);
  } else if (lane_ != nullptr && !slices_[open.bucket].empty()) {
    begin_lane(open);
  }
}

/// What the ranks of this machine tell, in their order.
void Shared::hear_machine() {
  told_ = {};
  for (int rank = 0; rank < local_.size(); rank++)
    for (size_t i = 0; i < told_.size(); i++) told_[i] += board_of(rank).mine[i];
}

void Shared::begin_lane(Open& open) {
  const space::Bucket& b = buckets_[open.bucket];
  reduce_local(open.bucket);
  std::span<uint8_t> flags(lane_flags_.data() + b.first, b.last - b.first);
  if (flags.size() > lane_->kMostFlags) lane_->allreduce(std::exchange(flags, {}).data(), b.last - b.first, DType::u8, Op::max, b.name);
  std::span<double> sums;
  if (last(open.bucket) && local_.rank() == speaker_) sums = told_;
  for (space::Range rest = slices_[open.bucket]; !rest.empty();) {
    const space::Range piece{rest.begin, std::min(rest.end, rest.begin + kPieceBytes)};
    open.pieces.emplace_back(piece, lane_->start_allreduce(gradients() + piece.begin, piece.size() / size_of(b.dtype), b.dtype, Op::sum,
                                                           {.flags = std::exchange(flags, {}), .sums = std::exchange(sums, {})}, b.name));
    rest.begin = piece.end;
  }
}

/// The next piece of the first bucket; the last one finishes the bucket's round.
void Shared::complete_next() {
  if (under_way_ == 0) begin_first_waiting();
  Open& first = open_.front();
  if (!first.pieces.empty()) {
    auto [piece, sum] = std::move(first.pieces.front());
    first.pieces.pop_front();
    sum->wait();
    update_from_lane(first.bucket, piece);
    if (!first.pieces.empty()) return;
    if (last(first.bucket) && local_.rank() == speaker_) board_of(speaker_).total = told_;
  }
  local_.rounds().finish(first.round);
  open_.pop_front();
  under_way_--;
}

/// The gradients of a slot in this machine. True when every rank has one.
bool Shared::sources_of(size_t slot, std::vector<const std::byte*>& sources) const {
  sources.clear();
  for (int rank = 0; rank < local_.size(); rank++)
    if (flags_of(rank)[slot] != 0) sources.push_back(gradients_.parts[static_cast<size_t>(rank)]);
  return sources.size() == static_cast<size_t>(local_.size());
}

void Shared::update_from_local(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  std::vector<space::Source> sources;
  for (int rank = 0; rank < local_.size(); rank++) sources.push_back({gradients_.parts[static_cast<size_t>(rank)], flags_of(rank) + b.first});
  update_present(*updater_, bucket, layout_, b.first, b.last, slices_[bucket], b.dtype, parameters(), sources);
}

/// The slice's sum over this machine, into this rank's own gradients: nobody else reads them there.
void Shared::reduce_local(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  const auto sum = [&](space::Range range, const std::vector<const std::byte*>& sources) {
    if (range.empty()) return;
    std::byte* own = gradients() + range.begin;
    if (sources.empty()) return void(std::memset(own, 0, range.size()));
    std::vector<const void*> from;
    from.reserve(sources.size());
    for (const std::byte* source : sources) from.push_back(source + range.begin);
    void* const outs[] = {own};
    space::kernels().reduce(b.dtype, Op::sum, outs, 1, from.data(), static_cast<int>(from.size()), range.size() / size_of(b.dtype));
  };
  std::vector<const std::byte*> sources;
  bool everybody = true;
  for (size_t slot = b.first; slot < b.last; slot++) {
    everybody = sources_of(slot, sources) && everybody;
    lane_flags_[slot] = sources.empty() ? 0 : 1;
  }
  if (everybody) return sum(slices_[bucket], sources);
  for (size_t slot = b.first; slot < b.last; slot++) {
    sources_of(slot, sources);
    sum(intersect(slices_[bucket], layout_[slot].range), sources);
  }
}

void Shared::update_from_lane(size_t bucket, space::Range piece) {
  const space::Bucket& b = buckets_[bucket];
  const space::Source sum[] = {{gradients(), lane_flags_.data() + b.first}};
  update_present(*updater_, bucket, layout_, b.first, b.last, piece, b.dtype, parameters(), sum);
}

}  // namespace trireme::exchange
