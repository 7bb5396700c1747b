#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include <trireme/base/marks.h>
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
               return group.lane != nullptr ? space::part_of(bucket, group.local.rank(), group.lanes, grain_of(options))
                                            : space::Range{};
             }),
      all_(group.all),
      lane_(group.lane),
      lanes_(group.lanes),
      piece_bytes_(options.codes() && !options.chooses() ? Coding::piece_bytes(options, kPieceBytes) : kPieceBytes),
      trips_(buckets_.size()),
      ready_seconds_(buckets_.size()) {
  traits_.patient = true;
  total_ = berth_->each("total", sizeof(Told), "what ranks of all machines tell");
  flags_of_lanes_ = berth_->each("lane_flags", layout_.size(), "which parameters have gradients");
  lane_flags_ = {reinterpret_cast<uint8_t*>(flags_of_lanes_.parts[static_cast<size_t>(local_.rank())]), layout_.size()};
  landings_ = berth_->each("landings", sizeof(Landings) * buckets_.size(), "which buckets have landed");
  // More flags than one opening takes are a collective of their own, for which depart() waits.
  for (const space::Bucket& b : buckets_)
    if (options_.backward_waits != BackwardWaits::never && b.last - b.first > comm::network::Communicator::kMostFlags)
      options_.overlap = false;
  while (space::part_of(buckets_.back().range, speaker_, lanes_, grain_of(options_)).empty()) speaker_++;
  std::vector<Freight> freight(buckets_.size());  // ready at once, on a wire without a limit: in their order
  for (size_t b = 0; b < freight.size(); b++)
    freight[b] = {static_cast<double>(b), static_cast<double>(buckets_[b].range.size())};
  order_ = plan_order(freight, static_cast<double>(piece_bytes_), std::numeric_limits<double>::infinity());
  const int32_t lane = lane_ != nullptr ? local_.rank() : -1;
  lane_of_.resize(static_cast<size_t>(all_.size()));
  all_.all_gather(&lane, lane_of_.data(), 1, DType::i32, "the ranks' lanes");
  metrics::Registry* const registry = group.world != nullptr ? &group.world->registry() : nullptr;
  if (options_.chooses()) {
    chooser_.emplace(layout_, buckets_, slices_, options_, kPieceBytes, all_, lane_, registry);
    compression_ = &chooser_->compression();
  } else if (options_.codes() && lane_ != nullptr) {
    coding_.emplace(layout_, buckets_, slices_, options_, piece_bytes_, *lane_, registry);
  }
  if (options_.virtual_workers == 0 && !options_.codes()) return;
  int32_t machine = lane_ != nullptr ? lane_->rank() : 0;
  local_.broadcast(&machine, 1, DType::i32, 0, "this machine's number");
  machine_of_.resize(lane_of_.size());
  all_.all_gather(&machine, machine_of_.data(), 1, DType::i32, "the ranks' machines");
  if (options_.virtual_workers > 0) divide_machines();
}

void Spread::divide(const std::vector<Pieces>& runs) {
  land();  // what travels is divided as before
  Shared::divide(runs);
  divide_machines();
}

/// From runs(): the same on all ranks.
void Spread::divide_machines() {
  const int pieces = options_.virtual_workers;
  const int machines = 1 + *std::max_element(machine_of_.begin(), machine_of_.end());
  roots_on_.clear();
  tree_.clear();
  for (int machine = 0; machine < machines; machine++) {
    std::vector<Pieces> here;
    for (size_t rank = 0; rank < runs_.size(); rank++)
      if (machine_of_[rank] == machine) here.push_back(runs_[rank]);
    const std::vector<Pieces> roots = roots_of(pieces, here);
    if (machine == machine_of_[static_cast<size_t>(all_.rank())]) own_roots_ = roots;
    for (const Pieces& root : roots) tree_.push_back({root, tree_.size(), 1});
    roots_on_.push_back(roots.size());
  }
  by_root_ = machines != 2 || tree_.size() != 2;
  std::sort(tree_.begin(), tree_.end(),
            [](const MachineRoot& a, const MachineRoot& b) { return a.root.begin < b.root.begin; });
  std::vector<Pieces> nodes;
  for (const MachineRoot& one : tree_) nodes.push_back(one.root);
  const std::vector<uint8_t> adds = adds_over(pieces, nodes);
  for (size_t i = 0; i < adds.size(); i++) tree_[i].adds = adds[i];
  if (!by_root_) return;
  root_sums_.resize(own_roots_.size());
  for (auto& sums : root_sums_) sums = std::make_unique_for_overwrite<std::byte[]>(layout_.bytes());
  own_flags_.resize(buckets_.size());
  all_flags_.resize(buckets_.size());
  for (size_t b = 0; b < buckets_.size(); b++) {
    own_flags_[b].resize(own_roots_.size() * (buckets_[b].last - buckets_[b].first));
    all_flags_[b].resize(tree_.size() * (buckets_[b].last - buckets_[b].first));
  }
}

Spread::~Spread() {
  for (const Piece& piece : travelling_)
    for (const auto* work : {&piece.sum, &piece.flags, &piece.told}) try {
        if (*work) (*work)->wait();
      } catch (...) {  // after an error all of them fail, and it was thrown before
      }
}

void Spread::publish() {
  before_writing();
  local_.barrier("before parameters come");
  if (local_.rank() == 0) lane_->broadcast(parameters(), layout_.bytes(), DType::u8, 0, "parameters");
  local_.barrier("parameters");
  if (transaction_ && !std::exchange(began_, true)) begin_crew();
  complete();
}

void Spread::open() {
  Shared::open();
  if (chooser_) chooser_->begin_step();
  std::fill(squares_.begin(), squares_.end(), 0.0);
  if (step_ >= kFirstPlan && std::has_single_bit(step_)) plan();
  if (std::has_single_bit(step_)) measure_anew();
  ready_ = departed_ = 0;
  outcome_.landed = false;
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
  if (coding_) speed /= coding_->carried();
  if (chooser_) speed /= chooser_->carried();
  for (double& seconds : ready_seconds_) seconds /= step_ - measured_;
  all_.allreduce(ready_seconds_.data(), ready_seconds_.size(), DType::f64, Op::max, "when buckets are ready");
  all_.allreduce(&speed, 1, DType::f64, Op::min, "speed of the wire");
  std::vector<Freight> freight;
  for (size_t b = 0; b < buckets_.size(); b++)
    freight.push_back({ready_seconds_[b], static_cast<double>(buckets_[b].range.size()) / lanes_});
  order_ = plan_order(freight, static_cast<double>(piece_bytes_), speed);
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
  if (sums_first()) return close_whole();
  await(buckets_.back().range);
  outcome_.told = total();
}

/// All sums are needed before the first update. A slice and its lane's squares are the same on all machines, so is the
/// norm.
void Spread::close_whole() {
  while (!travelling_.empty()) land_first();
  const auto settled = [&](size_t b) {
    if (!slices_[b].empty()) mark_landed(b);
  };
  if (transaction_) {
    const bool applies = !whole_first() || clip_by(squares_together());
    if (local_.rank() == speaker_) total() = outcome_.told;
    mark("sums: here");
    local_.barrier("sums are here");
    outcome_.told = total();
    update_whole(applies);
    for (size_t b = 0; b < buckets_.size(); b++) settled(b);
  } else {
    clip_and_update(
        squares_together(), [&](size_t b) { update_gathered(b); }, settled);
  }
  land();
  outcome_.told = total();
}

std::vector<space::Source> Spread::sources_on(int rank, size_t bucket) {
  const auto number = static_cast<size_t>(rank);
  const auto* flags = reinterpret_cast<const uint8_t*>(flags_of_lanes_.parts[number]);
  return {{gradients_of(rank), flags + buckets_[bucket].first}};
}

/// Each lane brings its slices, by a machine of its own choice among those who have them: so several send at a time.
void Spread::bring(bool has, std::span<int64_t> steps) {
  if (lane_ != nullptr) {
    const uint8_t own = has ? 1 : 0;
    std::vector<uint8_t> machines(static_cast<size_t>(lane_->size()));
    lane_->all_gather(&own, machines.data(), 1, DType::u8, "which machines have the state");
    std::vector<int> sources;
    for (int machine = 0; machine < lane_->size(); machine++)
      if (machines[static_cast<size_t>(machine)] != 0) sources.push_back(machine);
    if (sources.size() < machines.size()) {
      const int from = sources[static_cast<size_t>(local_.rank()) % sources.size()];
      std::vector<std::byte*> vectors = state_.vectors;
      vectors.insert(vectors.begin(), parameters());
      for (size_t b = 0; b < buckets_.size(); b++)
        for (std::byte* vector : vectors)
          if (!slices_[b].empty()) {
            mark("bring: bucket", b);
            lane_->broadcast(vector + slices_[b].begin, slices_[b].size(), DType::u8, from, buckets_[b].name);
          }
      if (local_.rank() == 0) lane_->broadcast(steps.data(), steps.size_bytes(), DType::u8, sources[0], "steps");
    }
  }
  mark("bring: done");
  local_.barrier("the state of other machines");
}

void Spread::await(space::Range part) {
  if (outcome_.landed) return;
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
  if (outcome_.landed) return;
  mark("land: begun");
  while (!travelling_.empty()) land_first();
  complete();
  await({0, layout_.bytes()});
  outcome_.landed = true;
  mark("land: ended");
  if (!whole_first()) outcome_.sound = sound_here();
  if (coding_) coding_->settle(outcome_.sound);
  if (chooser_) chooser_->settle(outcome_.sound);
}

void Spread::work(size_t bucket) {
  if (slices_[bucket].empty()) return mark_landed(bucket);
  look(bucket, slices_[bucket]);
  if (by_root_)
    sum_roots(bucket);
  else
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

/// Each root of this machine, in memory of its own.
void Spread::sum_roots(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  const size_t slots = b.last - b.first;
  for (size_t i = 0; i < own_roots_.size(); i++) {
    const auto inside = [&](const Seated& one) {
      return own_roots_[i].begin <= one.root.begin && one.root.end <= own_roots_[i].end;
    };
    const auto first = std::find_if(seated().begin(), seated().end(), inside);
    const std::vector<space::Source> sources =
        sources_of(bucket, {first, std::find_if_not(first, seated().end(), inside)});
    for (size_t slot = 0; slot < slots; slot++)
      own_flags_[bucket][i * slots + slot] = std::any_of(
          sources.begin(), sources.end(), [&](const space::Source& source) { return source.present[slot] != 0; });
    space::sum_present(layout_, b.first, b.last, slices_[bucket], b.dtype, root_sums_[i].get(), sources);
  }
}

/// This machine's roots go to all others, theirs come here.
void Spread::depart_roots(size_t bucket, space::Range range, bool first) {
  const space::Bucket& b = buckets_[bucket];
  const size_t slots = b.last - b.first, machines = roots_on_.size(), elements = range.size() / size_of(b.dtype);
  Piece piece{bucket, range, nullptr};
  std::vector<size_t> flags(machines), data(machines);
  for (size_t machine = 0; machine < machines; machine++) {
    flags[machine] = roots_on_[machine] * slots;
    data[machine] = roots_on_[machine] * elements;
  }
  if (first)
    piece.flags =
        lane_->start_all_gather(own_flags_[bucket].data(), all_flags_[bucket].data(), flags, DType::u8, b.name);
  if (first && last(bucket) && local_.rank() == speaker_) {
    all_told_.assign(outcome_.told.begin(), outcome_.told.end());
    const std::vector<double> losses = piece_losses();
    all_told_.insert(all_told_.end(), losses.begin(), losses.end());
    piece.told = lane_->start_allreduce(all_told_.data(), all_told_.size(), DType::f64, Op::sum, "losses of pieces");
  }
  piece.own.resize(own_roots_.size() * range.size());
  piece.all.resize(tree_.size() * range.size());
  for (size_t i = 0; i < own_roots_.size(); i++)
    std::memcpy(piece.own.data() + i * range.size(), root_sums_[i].get() + range.begin, range.size());
  piece.sum = lane_->start_all_gather(piece.own.data(), piece.all.data(), data, b.dtype, b.name);
  travelling_.push_back(std::move(piece));
}

/// A piece's part of all roots, in the tree.
std::vector<space::Source> Spread::land_roots(Piece& piece) {
  const space::Bucket& b = buckets_[piece.bucket];
  const size_t slots = b.last - b.first;
  if (piece.flags) {
    piece.flags->wait();
    for (size_t slot = 0; slot < slots; slot++) {
      lane_flags_[b.first + slot] = 0;
      for (size_t i = 0; i < tree_.size(); i++)
        lane_flags_[b.first + slot] |= all_flags_[piece.bucket][i * slots + slot];
    }
  }
  if (piece.told) {
    piece.told->wait();
    std::copy_n(all_told_.begin(), outcome_.told.size(), outcome_.told.begin());
    outcome_.told[0] = sum_over(std::span<const double>(all_told_).subspan(outcome_.told.size()));
  }
  std::vector<space::Source> sources;
  for (const auto& [root, place, adds] : tree_)
    sources.push_back({piece.all.data() + place * piece.range.size() - piece.range.begin,
                       all_flags_[piece.bucket].data() + place * slots, adds});
  return sources;
}

void Spread::depart_piece(size_t bucket) {
  Trip& trip = trips_[bucket];
  if (trip.rest.empty()) return;  // another lane's slice has a piece more
  mark("piece: departs", bucket);
  if (by_root_) {
    const bool first = trip.rest.begin == slices_[bucket].begin;
    const space::Range range{trip.rest.begin, std::min(trip.rest.end, trip.rest.begin + piece_bytes_)};
    trip.rest.begin = range.end;
    trip.travelling++;
    return depart_roots(bucket, range, first);
  }
  const space::Range piece{trip.rest.begin, std::min(trip.rest.end, trip.rest.begin + piece_bytes(bucket))};
  if (coding(bucket) != nullptr) return depart_coded(bucket, piece);
  const space::Bucket& b = buckets_[bucket];
  std::span<uint8_t> flags;
  std::span<double> sums;
  if (trip.rest.begin == slices_[bucket].begin) {  // the first piece carries what the bucket has besides
    flags = {lane_flags_.data() + b.first, b.last - b.first};
    if (chooser_) chooser_->add_rest(bucket, gradients(), flags);
    if (flags.size() > lane_->kMostFlags)
      lane_->allreduce(std::exchange(flags, {}).data(), b.last - b.first, DType::u8, Op::max, b.name);
    if (last(bucket) && local_.rank() == speaker_) sums = outcome_.told;
  }
  trip.rest.begin = piece.end;
  trip.travelling++;
  travelling_.push_back({bucket, piece,
                         lane_->start_allreduce(gradients() + piece.begin, piece.size() / size_of(b.dtype), b.dtype,
                                                Op::sum, {.flags = flags, .sums = sums}, b.name)});
}

void Spread::land_first() {
  mark("piece: awaited", travelling_.front().bucket);
  travelling_.front().sum->wait();
  mark("piece: landed", travelling_.front().bucket);
  Piece piece = std::move(travelling_.front());
  travelling_.pop_front();
  const space::Bucket& b = buckets_[piece.bucket];
  std::vector<space::Source> sum = {{gradients(), lane_flags_.data() + b.first}};
  if (by_root_) sum = land_roots(piece);
  if (coding(piece.bucket) != nullptr) land_coded(piece);
  Trip& trip = trips_[piece.bucket];
  trip.travelling--;
  if (squares_by_block()) {
    if (by_root_) space::sum_present(layout_, b.first, b.last, piece.range, b.dtype, gradients(), sum);
    return count_squares(piece.bucket, piece.range, lane_flags_.data());
  }
  if (whole_first())
    squares_[piece.bucket] +=
        space::squares_present(layout_, b.first, b.last, piece.range, b.dtype, by_root_ ? gradients() : nullptr, sum);
  else if (transaction_ && by_root_)
    space::sum_present(layout_, b.first, b.last, piece.range, b.dtype, gradients(), sum);
  if (sums_first()) return;
  update_slice(piece.bucket, piece.range, sum);
  trip.landed++;
  mark_landed(piece.bucket, trip.travelling == 0 && trip.rest.empty() ? kAllPieces : trip.landed);
}

void Spread::mark_landed(size_t bucket, uint32_t pieces) {
  if (pieces == kAllPieces && last(bucket) && local_.rank() == speaker_) total() = outcome_.told;
  landings(local_.rank(), bucket).store(landing(step_, pieces));
  local_.rounds().ring();
}

/// What of a part is in a rank's slice, whose pieces land in their order. A rank with an empty slice has landed when it
/// has worked: it reads what others tell.
bool Spread::landed_on(int rank, size_t bucket, space::Range part) const {
  const space::Range slice =
      rank < lanes_ ? space::part_of(buckets_[bucket].range, rank, lanes_, grain_of(options_)) : space::Range{};
  const space::Range wanted = intersect(part, slice);
  if (wanted.empty() && !slice.empty()) return true;
  const size_t pieces = slice.empty() || wanted.end == slice.end
                            ? kAllPieces
                            : (wanted.end - slice.begin + piece_bytes(bucket) - 1) / piece_bytes(bucket);
  return static_cast<int64_t>(landings(rank, bucket).load() - landing(step_, static_cast<uint32_t>(pieces))) >= 0;
}

/// Every machine has all of it.
Exchange::Share Spread::share_of(int rank, size_t bucket) const {
  const int lane = lane_of_[static_cast<size_t>(rank)];
  if (lane < 0) return {};
  const space::Range slice = space::part_of(buckets_[bucket].range, lane, lanes_, grain_of(options_));
  return {.parameters = slice, .updated = slice};
}

}  // namespace trireme::exchange
