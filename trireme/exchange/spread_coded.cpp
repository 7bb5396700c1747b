// The shared exchange over several machines with a codec: pieces as messages, and what is kept of them as state.
#include <trireme/exchange/spread.h>

namespace trireme::exchange {

void Spread::depart_coded(size_t bucket, space::Range range) {
  const space::Bucket& b = buckets_[bucket];
  Trip& trip = trips_[bucket];
  trip.rest.begin = range.end;
  trip.travelling++;
  const bool tells = last(bucket) && local_.rank() == speaker_;
  const size_t number = (range.begin - slices_[bucket].begin) / piece_bytes_;
  travelling_.push_back(
      {bucket, range,
       coding_->depart(bucket, number, gradients(), lane_flags_.subspan(b.first, b.last - b.first),
                       tells ? std::span<const double>(told_) : std::span<const double>(), updater_->steps())});
}

/// The sum of all machines' parts, where this one's was.
void Spread::land_coded(const Piece& piece) {
  const space::Bucket& b = buckets_[piece.bucket];
  const bool tells = last(piece.bucket) && local_.rank() == speaker_;
  coding_->land(piece.bucket, (piece.range.begin - slices_[piece.bucket].begin) / piece_bytes_, gradients(),
                lane_flags_.subspan(b.first, b.last - b.first), tells ? std::span<double>(told_) : std::span<double>());
}

/// Of a slice, what travels encoded.
std::vector<space::Range> Spread::coded_parts(size_t bucket, space::Range slice) const {
  std::vector<space::Range> parts;
  for (size_t slot = buckets_[bucket].first; slot < buckets_[bucket].last; slot++)
    if (const space::Range part = intersect(layout_[slot].range, slice);
        !part.empty() && is_coded(layout_[slot], options_))
      parts.push_back(part);
  return parts;
}

state::OwnerMap Spread::owners() const {
  state::OwnerMap map = Shared::owners();
  for (int rank = 0; rank < all_.size() && options_.codes(); rank++)
    for (size_t bucket = 0; bucket < buckets_.size(); bucket++)
      for (const space::Range& part : coded_parts(bucket, share_of(rank, bucket).updated))
        map.add(state::of_worker(rank, state::kResidual), part, rank);
  return map;
}

std::vector<state::Part> Spread::parts() {
  std::vector<state::Part> parts = Shared::parts();
  for (size_t bucket = 0; bucket < buckets_.size() && coding_; bucket++)
    for (const space::Range& part : coded_parts(bucket, slices_[bucket]))
      parts.push_back({state::of_worker(all_.rank(), state::kResidual), part, coding_->residual(part)});
  return parts;
}

void Spread::begin_rewriting() {
  Shared::begin_rewriting();
  if (coding_) coding_->forget();
}

}  // namespace trireme::exchange
