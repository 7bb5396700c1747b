#pragma once
// A lane's slices as messages of a codec where machines divide them among them: each machine is sent its own part
// alone.
#include <vector>

#include <trireme/exchange/coding.h>

namespace trireme::exchange {

/// As Coding, but each machine encodes what it has of every machine's part, and gets messages of its own part from all.
/// What is left out of all parts is kept where they came from: a vector as long as the slices, which nobody divides.
class PartCoding {
 public:
  /// `parts`: by bucket and machine, the same on all machines of the lane. Not collective.
  PartCoding(const space::Layout& layout, std::span<const space::Bucket> buckets,
             const std::vector<std::vector<space::Range>>& parts, const Options& options,
             comm::network::Communicator& lane, metrics::Registry* registry);

  /// Goes on its way from `gradients`, which may change from then on, with `flags` of the bucket's slots, and `told`,
  /// if this lane carries that.
  comm::Started depart(size_t bucket, const std::byte* gradients, std::span<const uint8_t> flags,
                       std::span<const double> told, int64_t step);
  /// When it is here: the sum of this machine's part, flags of all machines and the sums of what they tell.
  void land(size_t bucket, std::byte* gradients, std::span<uint8_t> flags, std::span<double> told);
  /// The step is over, and was applied or not.
  void settle(bool applied);
  compress::ErrorFeedback& feedback() { return codec_; }

 private:
  struct Trip {
    std::vector<compress::Parcel> parcels;      // by machine
    std::vector<size_t> sends, receives;        // bytes, by machine
    std::vector<std::byte> outgoing, incoming;  // messages, one after another
  };
  comm::network::Communicator& lane_;
  const uint64_t seed_;
  compress::ErrorFeedback codec_;
  std::vector<Trip> trips_;         // by bucket
  std::vector<std::string> names_;  // by bucket
  CodingMetrics count_;
};

}  // namespace trireme::exchange
