// The shared exchange over several machines with a codec: pieces as messages.
#include <trireme/exchange/spread.h>

namespace trireme::exchange {

void Spread::depart_coded(size_t bucket, space::Range range) {
  const space::Bucket& b = buckets_[bucket];
  Trip& trip = trips_[bucket];
  trip.rest.begin = range.end;
  trip.travelling++;
  const bool tells = last(bucket) && local_.rank() == speaker_;
  const size_t number = (range.begin - slices_[bucket].begin) / piece_bytes(bucket);
  travelling_.push_back(
      {bucket, range,
       coding(bucket)->depart(bucket, number, gradients(), lane_flags_.subspan(b.first, b.last - b.first),
                              tells ? std::span<const double>(outcome_.told) : std::span<const double>(),
                              updater_->steps())});
}

/// The sum of all machines' parts, where this one's was.
void Spread::land_coded(const Piece& piece) {
  const space::Bucket& b = buckets_[piece.bucket];
  const bool tells = last(piece.bucket) && local_.rank() == speaker_;
  coding(piece.bucket)
      ->land(piece.bucket, (piece.range.begin - slices_[piece.bucket].begin) / piece_bytes(piece.bucket), gradients(),
             lane_flags_.subspan(b.first, b.last - b.first),
             tells ? std::span<double>(outcome_.told) : std::span<double>());
}

/// What was kept is about to be another's.
void Spread::begin_rewriting() {
  Shared::begin_rewriting();
  if (chooser_) chooser_->forget();
}

}  // namespace trireme::exchange
