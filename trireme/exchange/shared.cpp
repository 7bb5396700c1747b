#include <cstring>
#include <numeric>

#include <trireme/exchange/shared.h>
#include <trireme/space/kernels.h>

namespace trireme::exchange {

using comm::shm::Fingerprint;
using comm::shm::Kind;
using comm::shm::kPrivate;

Shared::Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
               const Options& options)
    : Shared(group, layout, optimizer, options,
             [&](space::Range bucket) { return space::part_of(bucket, group.local.rank(), group.local.size()); }) {}

Shared::Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
               const Options& options, const std::function<space::Range(space::Range)>& slice_of)
    : Exchange(layout, options, {.shared = true, .tells = true}), local_(group.local) {
  squares_.resize(buckets_.size());
  any_.resize(layout_.size());
  for (const space::Bucket& bucket : buckets_) {
    slices_.push_back(slice_of(bucket.range));
    name_hashes_.push_back(space::hash_text(bucket.name));
  }
  rounds_of_.resize(buckets_.size());
  // Parameters and state are there once for all ranks of the machine.
  const bool divided = options_.zero > 0 && !group.one_machine();
  berth_.emplace(group.all, local_, layout_.fingerprint());
  std::byte* const parameters =
      berth_->one("parameters", layout_.bytes(), "the model's parameters", slices_, divided && options_.zero == 3);
  gradients_ = berth_->each("gradients", layout_.bytes(), "the ranks' gradients", options_.zero >= 2);
  flags_ = berth_->each("flags", layout_.size(), "the gradients' flags");
  notes_ = berth_->each("notes", sizeof(Note), "the ranks' losses");
  updater_.emplace(optimizer, slices_, local_.size() > 1,
                   berth_->state(optimizer.kind, layout_, buckets_, slices_, true, divided));
  flat_ = {parameters, gradients_of(local_.rank()), flags_of(local_.rank())};
  source_ = std::make_unique<OwnShare>(local_.rank(), local_.size());
}

Shared::~Shared() { before_writing(); }

void Shared::publish() {
  local_.barrier("parameters");
  complete();
}

void Shared::open() {
  Exchange::open();
  step_++;
  worked_ = given_back_ = 0;
}

void Shared::ready(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  while (open_.size() >= comm::shm::kAhead / 2) work_next();
  const Fingerprint what{.kind = Kind::step,
                         .dtype = b.dtype,
                         .part = static_cast<uint32_t>(bucket),
                         .count = b.range.size(),
                         .name = name_hashes_[bucket]};
  if (last(bucket)) note_of(local_.rank()).told = mine_;
  last_round_ = rounds_of_[bucket] = local_.rounds().arrive(what, kPrivate, b.name);
  open_.push_back({bucket, last_round_});
  if (options_.overlap) proceed();
}

void Shared::work_arrived() {
  while (!open_.empty() && local_.rounds().all_arrived(open_.front().round)) work_next();
}

void Shared::proceed() {
  work_arrived();
  if (whole_first()) return;
  for (; given_back_ < buckets_.size() && can_give_back(given_back_); given_back_++)
    give_back_gradients(buckets_[given_back_].range);
}

/// The last one's are with all others, in close(). After a flaw they stay: whose it is will be asked.
bool Shared::can_give_back(size_t bucket) const {
  return options_.zero >= 2 && given_back_ < worked_ && !last(bucket) &&
         local_.rounds().all_finished(rounds_of_[bucket]) && sound_here();
}

void Shared::give_back_gradients(space::Range range) {
  const space::Range pages = whole_pages(range);
  if (const auto offset = local_.segment().offset_of(gradients()); offset && !pages.empty())
    local_.segment().give_back(*offset + pages.begin, pages.size());
}

void Shared::close() {
  while (!open_.empty()) work_next();
  if (!whole_first()) {
    complete();
    local_.rounds().await_finished(last_round_);
    sound_ = sound_here();
    if (options_.zero >= 2 && sound_) give_back_gradients({0, round_up(layout_.bytes(), kPage)});
    return;
  }
  clip_together([&](size_t b) { update_gathered(b); }, [](size_t) {});
  complete();
  local_.barrier("updated");
  if (options_.zero >= 2 && sound_) give_back_gradients({0, round_up(layout_.bytes(), kPage)});
}

bool Shared::sound_here() const {
  for (int rank = 0; rank < local_.size(); rank++)
    if (note_of(rank).flawed == step_) return false;
  return true;
}

/// In the order of buckets and ranks, so that the bits do not depend on what came first.
void Shared::clip_together(const OfBucket& update, const OfBucket& settled) {
  double squares = std::accumulate(squares_.begin(), squares_.end(), 0.0);
  norm_group().allreduce(&squares, 1, DType::f64, Op::sum, "the norm of the gradient");
  clip_and_update(squares, update, settled);
}

/// Between machines sums are not there before close().
void Shared::go_ahead(const std::function<bool()>& enough) {
  if (!whole_first() || traits_.patient) return;
  work_arrived();
  const double squares = std::accumulate(squares_.begin(), squares_.begin() + static_cast<ptrdiff_t>(worked_), 0.0);
  update_ahead(
      squares, worked_, [&](size_t b) { update_gathered(b); }, enough);
}

void Shared::work_next() {
  const Open next = open_.front();
  local_.rounds().await_arrivals(next.round);
  if (last(next.bucket)) hear_machine();
  work(next.bucket);
  local_.rounds().finish(next.round);
  worked_ = next.bucket + 1;
  open_.pop_front();
}

/// What the ranks of this machine tell, in their order.
void Shared::hear_machine() {
  told_ = {};
  for (int rank = 0; rank < local_.size(); rank++)
    for (size_t i = 0; i < told_.size(); i++) told_[i] += note_of(rank).told[i];
}

void Shared::work(size_t bucket) {
  if (whole_first()) return gather(bucket);
  update_slice(bucket, slices_[bucket], sources_of(bucket));
}

void Shared::update_slice(size_t bucket, space::Range range, std::span<const space::Source> sources) {
  update(bucket, range, sources);
  if (!sound_) note_flaw();
}

std::vector<space::Source> Shared::sources_of(size_t bucket) const {
  std::vector<space::Source> sources;
  for (int rank = 0; rank < local_.size(); rank++)
    sources.push_back({gradients_of(rank), flags_of(rank) + buckets_[bucket].first});
  return sources;
}

/// The slice's sum over ranks, into this rank's own gradients: nobody else reads them there. What is not finite stays
/// as it is, so that the rank who had it finds it; where nobody looks, nothing is written, and the update sums once
/// more.
void Shared::gather(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  squares_[bucket] = space::squares_present(layout_, b.first, b.last, slices_[bucket], b.dtype,
                                            watches() ? gradients() : nullptr, sources_of(bucket));
  for (size_t slot = b.first; slot < b.last; slot++) {
    any_[slot] = 0;
    for (int rank = 0; rank < local_.size(); rank++) any_[slot] |= flags_of(rank)[slot];
  }
}

void Shared::update_gathered(size_t bucket) {
  const space::Source sum[] = {{gradients(), any_.data() + buckets_[bucket].first}};
  update(bucket, slices_[bucket], watches() ? std::span<const space::Source>(sum) : sources_of(bucket));
}

/// The gradients of a slot in this machine. True when every rank has one.
bool Shared::sources_of(size_t slot, std::vector<const std::byte*>& sources) const {
  sources.clear();
  for (int rank = 0; rank < local_.size(); rank++)
    if (flags_of(rank)[slot] != 0) sources.push_back(gradients_of(rank));
  return sources.size() == static_cast<size_t>(local_.size());
}

void Shared::sum_here(size_t bucket, space::Range slice, uint8_t* any) {
  const space::Bucket& b = buckets_[bucket];
  const auto sum = [&](space::Range range, const std::vector<const std::byte*>& sources) {
    if (range.empty()) return;
    std::byte* own = gradients() + range.begin;
    if (sources.size() == 1 && sources[0] == gradients())
      return;  // a rank that is alone on its machine: the sum is there
    if (sources.empty()) return void(std::memset(own, 0, range.size()));
    std::vector<const void*> from;
    from.reserve(sources.size());
    for (const std::byte* source : sources) from.push_back(source + range.begin);
    void* const outs[] = {own};
    space::kernels().reduce(b.dtype, Op::sum, outs, 1, from.data(), static_cast<int>(from.size()),
                            range.size() / size_of(b.dtype));
  };
  std::vector<const std::byte*> sources;
  bool everybody = true;
  for (size_t slot = b.first; slot < b.last; slot++) {
    everybody = sources_of(slot, sources) && everybody;
    any[slot] = sources.empty() ? 0 : 1;
  }
  if (everybody) return sum(slice, sources);
  for (size_t slot = b.first; slot < b.last; slot++) {
    sources_of(slot, sources);
    sum(intersect(slice, layout_[slot].range), sources);
  }
}

Exchange::Share Shared::share_of(int rank, size_t bucket) const {
  const space::Range slice = space::part_of(buckets_[bucket].range, rank, local_.size());
  return {.parameters = slice, .updated = slice};
}

}  // namespace trireme::exchange
