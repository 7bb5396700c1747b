#pragma once
// In which order the buckets of a step travel between machines.
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::exchange {

/// A bucket as the wire sees it. Buckets are in the order in which their gradients become ready, which is the opposite
/// of the order in which the next forward pass needs their parameters.
struct Freight {
  double ready = 0;  // seconds after some moment
  double bytes = 0;
};

/// Which bucket's next piece to send, piece by piece: whenever the wire is free, of those that are ready by then the
/// one that is needed first. A wire that is faster than the backward pass gives the order of readiness; a slow one lets
/// first layers overtake what has been waiting.
std::vector<uint32_t> plan_order(std::span<const Freight> buckets, double piece_bytes, double bytes_per_second);

}  // namespace trireme::exchange
