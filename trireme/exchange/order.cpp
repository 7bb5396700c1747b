#include <algorithm>
#include <cmath>

#include <trireme/exchange/order.h>

namespace trireme::exchange {

std::vector<uint32_t> plan_order(std::span<const Freight> buckets, double piece_bytes, double bytes_per_second) {
  std::vector<size_t> left;  // pieces, by bucket
  size_t total = 0;
  for (const Freight& bucket : buckets)
    total += left.emplace_back(static_cast<size_t>(std::max(1.0, std::ceil(bucket.bytes / piece_bytes))));
  std::vector<uint32_t> order;
  order.reserve(total);
  size_t first = 0;  // buckets before this one have been sent
  double now = 0;
  while (order.size() < total) {
    while (left[first] == 0) first++;
    now = std::max(now, buckets[first].ready);  // the others are ready later still
    size_t next = first;
    for (size_t b = first; b < buckets.size() && buckets[b].ready <= now; b++)
      if (left[b] > 0) next = b;
    left[next]--;
    order.push_back(static_cast<uint32_t>(next));
    now += std::min(piece_bytes, buckets[next].bytes) / bytes_per_second;
  }
  return order;
}

}  // namespace trireme::exchange
