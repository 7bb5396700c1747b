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

/// What its codecs keep is a machine's: its lanes have a part each. Of what travels as it is that is nothing.
state::OwnerMap Spread::owners() const {
  state::OwnerMap map = Shared::owners();
  for (int rank = 0; rank < all_.size() && options_.codes(); rank++)
    for (size_t bucket = 0; bucket < buckets_.size(); bucket++)
      for (const space::Range& part :
           state::slot_parts(layout_, buckets_[bucket].first, buckets_[bucket].last, share_of(rank, bucket).updated))
        map.add(state::of_worker(machine_of_[static_cast<size_t>(rank)], state::kResidual), part, rank);
  return map;
}

std::vector<state::Part> Spread::parts() {
  std::vector<state::Part> parts = Shared::parts();
  for (size_t bucket = 0; bucket < buckets_.size() && coding_; bucket++)
    for (const space::Range& part :
         state::slot_parts(layout_, buckets_[bucket].first, buckets_[bucket].last, slices_[bucket]))
      parts.push_back({state::of_worker(lane_->rank(), state::kResidual), part, coding_->residual(part)});
  return parts;
}

void Spread::begin_rewriting() {
  Shared::begin_rewriting();
  if (coding_) coding_->forget();
}

}  // namespace trireme::exchange
