#include <algorithm>

#include <trireme/exchange/lane_sum.h>

namespace trireme::exchange {
namespace {

constexpr size_t kCodedPiece = 1 << 20;  // one is decoded while the next ones travel

}  // namespace

LaneSum::LaneSum(const Group& group, const space::Layout& layout, const std::vector<space::Bucket>& buckets,
                 const Options& options, std::byte* gradients, uint8_t* flags)
    : local_(group.local),
      buckets_(buckets),
      gradients_(gradients),
      flags_(flags),
      lanes_(group.lanes),
      piece_bytes_(Coding::piece_bytes(options, kCodedPiece)),
      machines_(static_cast<size_t>(group.all.size())),
      lane_of_(machines_.size()) {
  const int32_t lane = group.lane != nullptr ? local_.rank() : -1;
  int32_t machine = group.lane != nullptr ? group.lane->rank() : 0;
  local_.broadcast(&machine, 1, DType::i32, 0, "this machine's number");
  group.all.all_gather(&lane, lane_of_.data(), 1, DType::i32, "the ranks' lanes");
  group.all.all_gather(&machine, machines_.data(), 1, DType::i32, "the ranks' machines");
  if (group.lane == nullptr) return;
  std::vector<space::Range> slices;
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++) slices.push_back(slice(local_.rank(), bucket));
  coding_.emplace(layout, buckets_, slices, options, piece_bytes_, *group.lane,
                  group.world != nullptr ? &group.world->registry() : nullptr);
}

LaneSum::~LaneSum() {
  const auto end = [](const comm::Started& work) {
    if (work) try {
        work->wait();
      } catch (...) {  // after an error all of them fail, and it was thrown before
      }
  };
  for (const Trip& trip : trips_) {
    end(trip.sum);
    end(trip.flags);
    for (const comm::Started& piece : trip.pieces) end(piece);
  }
}

space::Range LaneSum::slice(int lane, size_t bucket) const {
  if (lane < 0 || lane >= lanes_) return {buckets_[bucket].range.begin, buckets_[bucket].range.begin};
  return space::part_of(buckets_[bucket].range, lane, lanes_);
}

space::Range LaneSum::slice_of(int rank, size_t bucket) const {
  return slice(lane_of_[static_cast<size_t>(rank)], bucket);
}

/// Of this machine's ranks: elements.
std::vector<size_t> LaneSum::counts(size_t bucket) const {
  std::vector<size_t> all;
  for (int rank = 0; rank < local_.size(); rank++) all.push_back(slice(rank, bucket).size() / sizeof(float));
  return all;
}

std::span<uint8_t> LaneSum::flags_of(size_t bucket) const {
  return {flags_ + buckets_[bucket].first, buckets_[bucket].last - buckets_[bucket].first};
}

void LaneSum::start(size_t bucket, int64_t step) {
  const space::Bucket& b = buckets_[bucket];
  Trip& trip = trips_.emplace_back(Trip{bucket, step, {}, {}, false, {}});
  if (local_.size() == 1) return;
  trip.sum = local_.start_reduce_scatter(gradients_ + b.range.begin, gradients_ + slice(local_.rank(), bucket).begin,
                                         counts(bucket), DType::f32, Op::sum, b.name);
  trip.flags = local_.start_allreduce(flags_of(bucket).data(), flags_of(bucket).size(), DType::u8, Op::max, b.name);
}

void LaneSum::proceed() {
  for (Trip& trip : trips_) {
    if (trip.departed) continue;
    if ((trip.sum && !trip.sum->test()) || (trip.flags && !trip.flags->test())) return;
    depart(trip);
  }
}

void LaneSum::depart(Trip& trip) {
  trip.departed = true;
  const space::Range all = slice(local_.rank(), trip.bucket);
  for (size_t piece = 0, begin = all.begin; begin < all.end; piece++, begin += std::min(all.end - begin, piece_bytes_))
    trip.pieces.push_back(coding_->depart(trip.bucket, piece, gradients_, flags_of(trip.bucket), {}, trip.step));
}

void LaneSum::land(Trip& trip) {
  for (size_t piece = 0; piece < trip.pieces.size(); piece++) {
    trip.pieces[piece]->wait();
    coding_->land(trip.bucket, piece, gradients_, flags_of(trip.bucket), {});
  }
}

void LaneSum::finish() {
  for (Trip& trip : trips_) {
    if (trip.departed) continue;
    if (trip.sum) trip.sum->wait();
    if (trip.flags) trip.flags->wait();
    depart(trip);
  }
  std::vector<comm::Started> gathered;
  for (Trip& trip : trips_) {
    land(trip);
    const space::Bucket& b = buckets_[trip.bucket];
    if (local_.size() > 1)
      gathered.push_back(local_.start_all_gather(gradients_ + slice(local_.rank(), trip.bucket).begin,
                                                 gradients_ + b.range.begin, counts(trip.bucket), DType::f32, b.name));
  }
  for (const comm::Started& one : gathered) one->wait();
  trips_.clear();
}

void LaneSum::settle(bool applied) {
  if (coding_) coding_->settle(applied);
}

}  // namespace trireme::exchange
