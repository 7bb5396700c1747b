#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include <trireme/exchange/spread.h>
#include <trireme/space/kernels.h>

namespace trireme::exchange {
namespace {

/// One piece is reduced and updated while the next ones travel.
constexpr size_t kPieceBytes = 1 << 20;
/// The first step that follows a plan, and then every power of two: machines warm up, and may change later.
constexpr uint32_t kFirstPlan = 4;

/// Grows with the step, then with the pieces of it.
constexpr uint64_t landing(uint32_t step, uint32_t pieces) { return uint64_t{step} << 32 | pieces; }

}  // namespace

Spread::Spread(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
               const Options& options)
    : Shared(group, layout, optimizer, options,
             [&](space::Range bucket) {
               return group.lane != nullptr ? space::part_of(bucket, group.local.rank(), group.lanes) : space::Range{};
             }),
      all_(group.all),
      lane_(group.lane),
      lanes_(group.lanes),
      lane_flags_(layout_.size()),
      trips_(buckets_.size()),
      ready_seconds_(buckets_.size()) {
  traits_.patient = true;
  source_ = std::make_unique<OwnShare>(all_.rank(), all_.size());
  total_ = berth_->each("total", sizeof(Told), "what ranks of all machines tell");
  landings_ = berth_->each("landings", sizeof(Landings) * buckets_.size(), "which buckets have landed");
  // More flags than one opening takes are a collective of their own, for which depart() waits.
  for (const space::Bucket& b : buckets_)
    if (options_.backward_waits && b.last - b.first > comm::network::Communicator::kMostFlags) options_.overlap = false;
  while (space::part_of(buckets_.back().range, speaker_, lanes_).empty()) speaker_++;
  std::vector<Freight> freight(buckets_.size());  // ready at once, on a wire without a limit: in their order
  for (size_t b = 0; b < freight.size(); b++)
    freight[b] = {static_cast<double>(b), static_cast<double>(buckets_[b].range.size())};
  order_ = plan_order(freight, kPieceBytes, std::numeric_limits<double>::infinity());
  const int32_t lane = lane_ != nullptr ? local_.rank() : -1;
  lane_of_.resize(static_cast<size_t>(all_.size()));
  all_.all_gather(&lane, lane_of_.data(), 1, DType::i32, "the ranks' lanes");
}

Spread::~Spread() {
  for (const Piece& piece : travelling_) try {
      piece.sum->wait();
    } catch (...) {  // after an error all of them fail, and it was thrown before
    }
}

void Spread::publish() {
  before_writing();
  local_.barrier("before parameters come");
  if (local_.rank() == 0) lane_->broadcast(parameters(), layout_.bytes(), DType::u8, 0, "parameters");
  local_.barrier("parameters");
  complete();
}

void Spread::open() {
  Shared::open();
  std::fill(squares_.begin(), squares_.end(), 0.0);
  if (step_ >= kFirstPlan && std::has_single_bit(step_)) plan();
  if (std::has_single_bit(step_)) measure_anew();
  ready_ = departed_ = 0;
  landed_ = false;
  for (size_t b = 0; b < trips_.size(); b++) trips_[b] = {.rest = slices_[b]};
  opened_ = Clock::now();
}

void Spread::ready(size_t bucket) {
  ready_seconds_[bucket] += seconds_since(opened_);
  ready_ = bucket + 1;
  Shared::ready(bucket);
}

void Spread::proceed() {
  Shared::proceed();
  depart();
  while (!travelling_.empty() && unused(travelling_.front().bucket) && travelling_.front().sum->test()) land_first();
}

/// By the backward pass of any rank of this machine, see Traits::patient. The rounds of a step's buckets follow one
/// another.
bool Spread::unused(size_t bucket) {
  if (last(bucket)) return true;  // it left when all ranks had ended theirs
  if (bucket + 1 >= ready_) return false;
  const auto later = static_cast<uint32_t>(ready_ - 1 - (bucket + 1));
  return local_.rounds().all_arrived(last_round_ - later);
}

/// All ranks measure; the slowest decides, and all find the same order.
void Spread::plan() {
  double speed = std::numeric_limits<double>::max();  // of a rank that sends nothing
  const double seconds_since_then = lane_ == nullptr ? 0 : lane_->busy_seconds() - busy_seconds_;
  if (seconds_since_then > 0) speed = (lane_->carried_bytes() - carried_bytes_) / seconds_since_then;
  for (double& seconds : ready_seconds_) seconds /= step_ - measured_;
  all_.allreduce(ready_seconds_.data(), ready_seconds_.size(), DType::f64, Op::max, "when buckets are ready");
  all_.allreduce(&speed, 1, DType::f64, Op::min, "speed of the wire");
  std::vector<Freight> freight;
  for (size_t b = 0; b < buckets_.size(); b++)
    freight.push_back({ready_seconds_[b], static_cast<double>(buckets_[b].range.size()) / lanes_});
  order_ = plan_order(freight, kPieceBytes, speed);
}

void Spread::measure_anew() {
  std::fill(ready_seconds_.begin(), ready_seconds_.end(), 0.0);
  measured_ = step_;
  if (lane_ == nullptr) return;
  carried_bytes_ = lane_->carried_bytes();
  busy_seconds_ = lane_->busy_seconds();
}

void Spread::close() {
  while (!open_.empty()) {
    work_next();
    depart();
  }
  if (whole_first()) return close_clipped();
  await(buckets_.back().range);
  told_ = total();
}

/// All sums are needed before the first update. A slice and its lane's squares are the same on all machines, so is the
/// norm.
void Spread::close_clipped() {
  while (!travelling_.empty()) land_first();
  const auto update_sum = [&](size_t b) {
    const space::Source sum[] = {{gradients(), lane_flags_.data() + buckets_[b].first}};
    update(b, slices_[b], sum);
  };
  clip_together(update_sum, [&](size_t b) {
    if (!slices_[b].empty()) mark_landed(b);
  });
  land();
  told_ = total();
}

void Spread::await(space::Range part) {
  if (landed_) return;
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++)
    if (const space::Range here = intersect(part, buckets_[bucket].range); !here.empty()) await(bucket, here);
}

void Spread::await(size_t bucket, space::Range part) {
  while (!landed_on(local_.rank(), bucket, part)) land_first();
  for (int step = 1; step < local_.size(); step++) {
    const int peer = (local_.rank() + step) % local_.size();
    // A peer may need what travels here before it can go on to this bucket: land that first, and only then sleep.
    while (!landed_on(peer, bucket, part) && !travelling_.empty()) land_first();
    local_.rounds().await(
        peer, [&] { return landed_on(peer, bucket, part); },
        [&] { return fmt::format("the parameters of '{}'", buckets_[bucket].name); });
  }
}

void Spread::land() {
  if (landed_) return;
  while (!travelling_.empty()) land_first();
  complete();
  await({0, layout_.bytes()});
  landed_ = true;
  if (!whole_first()) sound_ = sound_here();
}

void Spread::work(size_t bucket) {
  if (slices_[bucket].empty()) return mark_landed(bucket);
  look(bucket, slices_[bucket]);
  sum_here(bucket, slices_[bucket], lane_flags_.data());
  trips_[bucket].reduced = true;
}

/// As far as the order goes: a bucket that is not ready holds up those that come after it.
void Spread::depart() {
  for (; departed_ < order_.size(); departed_++) {
    const size_t bucket = order_[departed_];
    if (slices_[bucket].empty()) continue;
    if (!trips_[bucket].reduced) return;
    depart_piece(bucket);
  }
}

void Spread::depart_piece(size_t bucket) {
  Trip& trip = trips_[bucket];
  if (trip.rest.empty()) return;  // another lane's slice has a piece more
  const space::Bucket& b = buckets_[bucket];
  std::span<uint8_t> flags;
  std::span<double> sums;
  if (trip.rest.begin == slices_[bucket].begin) {  // the first piece carries what the bucket has besides
    flags = {lane_flags_.data() + b.first, b.last - b.first};
    if (flags.size() > lane_->kMostFlags)
      lane_->allreduce(std::exchange(flags, {}).data(), b.last - b.first, DType::u8, Op::max, b.name);
    if (last(bucket) && local_.rank() == speaker_) sums = told_;
  }
  const space::Range piece{trip.rest.begin, std::min(trip.rest.end, trip.rest.begin + kPieceBytes)};
  trip.rest.begin = piece.end;
  trip.travelling++;
  travelling_.push_back({bucket, piece,
                         lane_->start_allreduce(gradients() + piece.begin, piece.size() / size_of(b.dtype), b.dtype,
                                                Op::sum, {.flags = flags, .sums = sums}, b.name)});
}

void Spread::land_first() {
  travelling_.front().sum->wait();
  const Piece piece = std::move(travelling_.front());
  travelling_.pop_front();
  const space::Bucket& b = buckets_[piece.bucket];
  const space::Source sum[] = {{gradients(), lane_flags_.data() + b.first}};
  Trip& trip = trips_[piece.bucket];
  trip.travelling--;
  if (whole_first()) {
    squares_[piece.bucket] += space::squares_present(layout_, b.first, b.last, piece.range, b.dtype, nullptr, sum);
    return;
  }
  update_slice(piece.bucket, piece.range, sum);
  trip.landed++;
  mark_landed(piece.bucket, trip.travelling == 0 && trip.rest.empty() ? kAllPieces : trip.landed);
}

void Spread::mark_landed(size_t bucket, uint32_t pieces) {
  if (pieces == kAllPieces && last(bucket) && local_.rank() == speaker_) total() = told_;
  landings(local_.rank(), bucket).store(landing(step_, pieces));
  local_.rounds().ring();
}

/// What of a part is in a rank's slice, whose pieces land in their order. A rank with an empty slice has landed when it
/// has worked: it reads what others tell.
bool Spread::landed_on(int rank, size_t bucket, space::Range part) const {
  const space::Range slice = rank < lanes_ ? space::part_of(buckets_[bucket].range, rank, lanes_) : space::Range{};
  const space::Range wanted = intersect(part, slice);
  if (wanted.empty() && !slice.empty()) return true;
  const size_t pieces = slice.empty() || wanted.end == slice.end
                            ? kAllPieces
                            : (wanted.end - slice.begin + kPieceBytes - 1) / kPieceBytes;
  return static_cast<int64_t>(landings(rank, bucket).load() - landing(step_, static_cast<uint32_t>(pieces))) >= 0;
}

/// Every machine has all of it.
Exchange::Share Spread::share_of(int rank, size_t bucket) const {
  const int lane = lane_of_[static_cast<size_t>(rank)];
  if (lane < 0) return {};
  const space::Range slice = space::part_of(buckets_[bucket].range, lane, lanes_);
  return {.parameters = slice, .updated = slice};
}

}  // namespace trireme::exchange
