#include <algorithm>

#include <trireme/cluster/site.h>

namespace trireme::cluster {

void Site::add(const std::shared_ptr<Listener>& group) {
  std::exception_ptr cause;
  {
    const Lock lock(mutex_);
    std::erase_if(groups_, [](const auto& other) { return other.expired(); });
    groups_.push_back(group);
    if (group->epoch() < failed_before_) cause = cause_;
  }
  if (cause) group->interrupt(cause);
}

std::vector<std::shared_ptr<Site::Listener>> Site::groups() {
  const Lock lock(mutex_);
  std::vector<std::shared_ptr<Listener>> result;
  for (const auto& group : groups_)
    if (auto alive = group.lock()) result.push_back(std::move(alive));
  return result;
}

void Site::interrupt_before(uint64_t epoch, const std::exception_ptr& cause) noexcept {
  {
    const Lock lock(mutex_);
    if (epoch <= failed_before_) return;
    failed_before_ = epoch;
    cause_ = cause;
  }
  for (const auto& group : groups())
    if (group->epoch() < epoch) group->interrupt(cause);
}

std::exception_ptr Site::cause_of(uint64_t epoch) {
  const Lock lock(mutex_);
  return epoch < failed_before_ ? cause_ : nullptr;
}

void Site::note_cause(std::string_view text, bool victim) noexcept {
  for (const auto& group : groups()) group->note_cause(text, victim);
}

}  // namespace trireme::cluster
