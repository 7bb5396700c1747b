#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/comm/hierarchical/topology.h>

namespace trireme::comm::hierarchical {

Topology::Topology(const std::vector<int>& machine_of) {
  for (size_t rank = 0; rank < machine_of.size(); rank++) {
    const int machine = machine_of[rank];
    if (machine < 0 || static_cast<size_t>(machine) >= machine_of.size())
      fail<InvalidArgument>("rank {} is on machine {} of a job of {} ranks", rank, machine, machine_of.size());
    if (static_cast<size_t>(machine) >= ranks_.size()) ranks_.resize(static_cast<size_t>(machine) + 1);
    auto& there = ranks_[static_cast<size_t>(machine)];
    places_.push_back({machine, static_cast<int>(there.size())});
    there.push_back(static_cast<int>(rank));
  }
  const auto [least, most] = std::minmax_element(ranks_.begin(), ranks_.end(),
                                                 [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (ranks_.empty() || least->empty()) fail<InvalidArgument>("machine {} has no ranks", least - ranks_.begin());
  lanes_ = static_cast<int>(least->size());
  largest_ = static_cast<int>(most->size());
}

}  // namespace trireme::comm::hierarchical
