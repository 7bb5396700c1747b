#pragma once
// Gradients that come from other machines as messages of a codec: what both ends know without telling.
#include <memory>
#include <vector>

#include <trireme/compress/parcel.h>
#include <trireme/ps/job.h>
#include <trireme/ps/network/blocks.h>
#include <trireme/ps/plan.h>

namespace trireme::ps {

/// A chunk's message.
compress::Parcel parcel_of(const Job& job, const Chunk& chunk, const compress::Codec& codec);

/// A server's end. One thread at a time.
class Decoder {
 public:
  /// Of a job with a codec. `chunks` outlive it.
  Decoder(const Job& job, const std::vector<Chunk>& chunks);
  /// Of a chunk's message.
  size_t bytes(uint32_t chunk) const { return parcels_[chunk].bytes; }
  /// The gradient that a message stands for: as long as the chunk, at an address aligned as the chunk is. Throws
  /// Corruption.
  std::shared_ptr<std::byte> decode(uint32_t chunk, std::span<const std::byte> message);

 private:
  const std::vector<Chunk>& chunks_;
  std::unique_ptr<compress::Codec> codec_;
  std::vector<compress::Parcel> parcels_;  // by chunk
  network::Blocks blocks_;
};

}  // namespace trireme::ps
