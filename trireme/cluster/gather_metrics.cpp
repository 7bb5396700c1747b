#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <trireme/cluster/gather_metrics.h>

namespace trireme::cluster {

std::vector<metrics::Snapshot> gather_metrics(comm::Communicator& comm, const metrics::Snapshot& mine) {
  std::string own = mine.encode();
  const auto ranks = static_cast<size_t>(comm.size());
  const auto size = static_cast<int64_t>(own.size());
  std::vector<int64_t> sizes(ranks);
  comm.all_gather(&size, sizes.data(), 1, DType::i64, "sizes of metrics");
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  own.resize(longest);
  std::string all(ranks * longest, '\0');
  comm.all_gather(own.data(), all.data(), longest, DType::u8, "metrics");
  std::vector<metrics::Snapshot> result;
  for (size_t rank = 0; rank < ranks; rank++)
    result.push_back(
        metrics::Snapshot::decode(std::string_view(all).substr(rank * longest, static_cast<size_t>(sizes[rank]))));
  return result;
}

}  // namespace trireme::cluster
