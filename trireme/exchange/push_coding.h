#pragma once
// What a worker pushes to parameter servers on other machines, as messages of a codec.
#include <vector>

#include <trireme/exchange/coding.h>
#include <trireme/ps/client.h>

namespace trireme::exchange {

/// Each worker encodes its own gradients, with what was left out of them before: what it keeps for later is its own. A
/// chunk whose server is on this machine is pushed as it is. Used by the thread that trains.
class PushCoding {
 public:
  /// Of a job with a codec. `client` outlives it.
  PushCoding(const ps::Client& client, const Options& options, metrics::Registry* registry);

  /// A chunk's message, from the client's gradients. `step`: another one for each push, where codecs go by chance.
  std::span<const std::byte> encode(const ps::Chunk& chunk, int64_t step);
  /// Of a chunk that is pushed as it is: what was kept of it by another crew is added to its gradient.
  void add_rest(const ps::Chunk& chunk);
  /// The step is over, all of it was encoded, and it was applied or not.
  void settle(bool applied);
  compress::ErrorFeedback& feedback() { return codec_; }

 private:
  const ps::Client& client_;
  const uint64_t seed_;
  compress::ErrorFeedback codec_;
  std::vector<compress::Parcel> parcels_;         // by chunk
  std::vector<std::vector<std::byte>> messages_;  // by chunk; empty until it is encoded
  CodingMetrics count_;
};

}  // namespace trireme::exchange
