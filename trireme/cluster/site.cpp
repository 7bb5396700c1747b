#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include <trireme/base/areas.h>
#include <trireme/cluster/site.h>
#include <trireme/comm/shm/rounds.h>

namespace trireme::cluster {

std::vector<int> machines_in(const Facts& facts, const Crew& crew) {
  if (!crew.machines.empty()) return crew.machines;
  std::vector<int> machines;
  for (int rank : crew.ranks) machines.push_back(facts.machine_of.at(static_cast<size_t>(rank)));
  return machines;
}

size_t claim_control(Segment& segment, const Crew& crew, int ranks) {
  constexpr const char* kPurpose = "a group's control block";
  const std::string name = crew.name + "/" + (crew.newcomer ? kNewcomerMemory : kGroupMemory) + "control";
  const size_t bytes = comm::shm::Rounds::bytes(ranks);
  Areas areas(segment);
  const bool named = areas.room_for(name, crew.epoch) && !areas.find(name, crew.epoch);
  return named ? areas.add(name, {0, bytes, 1, crew.epoch}, kPurpose).offset : areas.claim(bytes, kPurpose);
}

std::string machine_of(const Segment& segment) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat file {};
  fstat(segment.descriptor(), &file);
  return fmt::format("{}/{}/{}", boot, file.st_dev, file.st_ino);
}

void Site::note(const std::string& text) {
  const Lock lock(mutex_);
  notes_.push_back(text);
}

std::vector<std::string> Site::take_notes() {
  const Lock lock(mutex_);
  return std::exchange(notes_, {});
}

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

void Site::leave_behind(std::shared_ptr<Listener> connection) {
  const Lock lock(mutex_);
  left_behind_.push_back(std::move(connection));
}

void Site::end_connections() {
  std::vector<std::shared_ptr<Listener>> all;
  const Lock lock(mutex_);
  left_behind_.swap(all);
}

void Site::note_cause(std::string_view text, bool victim) noexcept {
  for (const auto& group : groups()) group->note_cause(text, victim);
}

}  // namespace trireme::cluster
