#include <cstring>

#include <trireme/ps/coded.h>

namespace trireme::ps {

compress::Parcel parcel_of(const Job& job, const Chunk& chunk, const compress::Codec& codec) {
  return compress::plan_parcel(job.layout, chunk.first, chunk.last, chunk.range,
                               {codec, job.codec.by_matrix(), job.codec_excludes});
}

Decoder::Decoder(const Job& job, const std::vector<Chunk>& chunks)
    : chunks_(chunks), codec_(compress::make_codec(job.codec, true)) {
  for (const Chunk& chunk : chunks) parcels_.push_back(parcel_of(job, chunk, *codec_));
}

std::shared_ptr<std::byte> Decoder::decode(uint32_t chunk, std::span<const std::byte> message) {
  const space::Range range = chunks_[chunk].range;
  std::shared_ptr<std::byte> gradient = blocks_.take(range.size());
  std::memset(gradient.get(), 0, range.size());
  for (const compress::Parcel::Item& item : parcels_[chunk].items)
    compress::add(item, *codec_, message, gradient.get() - range.begin);
  return gradient;
}

}  // namespace trireme::ps
