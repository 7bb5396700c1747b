#include <algorithm>
#include <cstring>
#include <numeric>

#include <trireme/exchange/part_coding.h>

namespace trireme::exchange {

PartCoding::PartCoding(const space::Layout& layout, std::span<const space::Bucket> buckets,
                       const std::vector<std::vector<space::Range>>& parts, const Options& options,
                       comm::network::Communicator& lane, metrics::Registry* registry)
    : lane_(lane),
      seed_(options.seed),
      codec_(codec_for(options), layout.bytes(), options.on_nan == OnNan::skip),
      trips_(buckets.size()),
      count_(registry) {
  const compress::Packing packing{codec_, by_matrix(options), options.codec_excludes};
  const auto own = static_cast<size_t>(lane_.rank());
  for (size_t b = 0; b < buckets.size(); b++) {
    names_.push_back(buckets[b].name);
    Trip& trip = trips_[b];
    for (const space::Range& part : parts[b]) {
      trip.parcels.push_back(plan_parcel(layout, buckets[b].first, buckets[b].last, part, packing,
                                         beside_bytes(buckets[b].last - buckets[b].first)));
      trip.sends.push_back(trip.parcels.back().bytes);
    }
    trip.receives.assign(parts[b].size(), trip.sends[own]);
    trip.outgoing.resize(std::accumulate(trip.sends.begin(), trip.sends.end(), size_t{0}));
    trip.incoming.resize(trip.receives.size() * trip.sends[own]);
  }
}

comm::Started PartCoding::depart(size_t bucket, const std::byte* gradients, std::span<const uint8_t> flags,
                                 std::span<const double> told, int64_t step) {
  Trip& trip = trips_[bucket];
  {
    const Timed timed(count_.seconds, count_.timed);
    std::byte* at = trip.outgoing.data();
    for (compress::Parcel& parcel : trip.parcels) {
      put_beside({at, parcel.bytes}, flags, told);
      compress::encode(parcel, codec_, gradients, flags, compress::seed_of(seed_, step, lane_.rank()),
                       {at, parcel.bytes});
      for (const compress::Parcel::Item& item : parcel.items)
        count_.before_bytes.add(static_cast<double>(item.range.size()));
      at += parcel.bytes;
    }
    count_.after_bytes.add(static_cast<double>(trip.outgoing.size()));
  }
  return lane_.start_all_to_all(trip.outgoing.data(), trip.incoming.data(), trip.sends, trip.receives, DType::u8,
                                names_[bucket]);
}

void PartCoding::land(size_t bucket, std::byte* gradients, std::span<uint8_t> flags, std::span<double> told) {
  const Timed timed(count_.seconds, count_.timed);
  Trip& trip = trips_[bucket];
  const compress::Parcel& own = trip.parcels[static_cast<size_t>(lane_.rank())];
  const auto message = [&](int machine) {
    return std::span<const std::byte>(trip.incoming).subspan(static_cast<size_t>(machine) * own.bytes, own.bytes);
  };
  std::fill(flags.begin(), flags.end(), uint8_t{0});
  std::fill(told.begin(), told.end(), 0.0);
  for (int machine = 0; machine < lane_.size(); machine++) add_beside(message(machine), flags, told);
  for (const compress::Parcel::Item& item : own.items) {
    std::memset(gradients + item.range.begin, 0, item.range.size());
    for (int machine = 0; machine < lane_.size(); machine++) compress::add(item, codec_, message(machine), gradients);
  }
}

void PartCoding::settle(bool applied) {
  codec_.settle(applied);
  count_.show(codec_.balance());
}

}  // namespace trireme::exchange
