#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>

#include <trireme/base/process.h>

#include "interruption.h"

namespace trireme::cluster {
namespace {

constexpr double kLeastUse = 0.05;  // of a core: heartbeats and the like use less

/// "SIGINT" is what nobody types.
std::string name_of_signal(int signal) { return signal == SIGINT ? "" : fmt::format("SIG{}: ", sigabbrev_np(signal)); }

int signal_for(pid_t pid, int signal) {
  if (catches(pid, signal)) return signal;
  for (const int other : {SIGINT, SIGTERM, SIGHUP})
    if (catches(pid, other)) return other;
  return signal;
}

/// The rank whose model was saved last; nullptr: none was.
const Child* last_saved(const std::vector<Child>& children) {
  const Child* last = nullptr;
  for (const Child& child : children)
    if (child.slate.saved_at() > (last == nullptr ? 0 : last->slate.saved_at())) last = &child;
  return last;
}

}  // namespace

void ask_to_stop(pid_t group, int signal) {
  for (const pid_t pid : processes_of(group)) kill(pid, signal_for(pid, signal));
}

bool Headway::made() {
  uint64_t beats = 0;
  double cpu_seconds = 0;
  bool at_disk = false;
  for (const Child& child : children_) {
    beats += child.slate.beats();
    if (child.status) continue;
    const Activity activity = activity_of(child.pid);
    cpu_seconds += activity.cpu_seconds;
    at_disk = at_disk || activity.at_disk;
  }
  const double elapsed = Seconds(Clock::now() - std::exchange(looked_, Clock::now())).count();
  const double used = cpu_seconds - std::exchange(cpu_seconds_, cpu_seconds);  // below zero when one has ended
  return std::exchange(beats_, beats) != beats || used > kLeastUse * elapsed || at_disk;
}

std::string stop_sentence(int signal, const std::optional<std::string>& saves) {
  const std::string begin = name_of_signal(signal) + "stopping";
  if (!saves)
    return begin +
           ": the ranks were told, and may take their time. Ctrl-C again ends them at once, and what they have not "
           "saved is lost";
  if (saves->empty())
    return begin + " after this update. Nothing will be saved: there is no --save. Ctrl-C again ends at once";
  return fmt::format("{} after this update, then saving {}. Ctrl-C again ends at once, and the model is lost", begin,
                     *saves);
}

std::string lost_sentence(const std::vector<Child>& children, double asked_at, const std::optional<std::string>& saves,
                          bool at_once) {
  const std::string begin = at_once ? "ended at once: " : "";
  const auto nothing_lost = [&](const std::string& why) { return at_once ? begin + why : ""; };
  if (!saves && !at_once) return "";  // who knows what the program keeps, and where
  if (saves && saves->empty()) return nothing_lost("nothing was to be saved");
  int64_t updates = 0;
  for (const Child& child : children) updates = std::max(updates, child.slate.updates());
  const Child* last = last_saved(children);
  if (last != nullptr && (last->slate.saved_at() >= asked_at || last->slate.saved_updates() == last->slate.updates()))
    return nothing_lost(fmt::format("the model had been saved to {} before", last->slate.saved()));
  if (last != nullptr)
    return fmt::format("{}updates {} to {} of the model are lost: it was last saved to {} {:.0f} s before", begin,
                       last->slate.saved_updates() + 1, last->slate.updates(), last->slate.saved(),
                       slate_now() - last->slate.saved_at());
  if (updates > 0 || saves)
    return fmt::format("{}the model is lost, its {} update{} had not been saved", begin, updates,
                       updates == 1 ? "" : "s");
  return nothing_lost("what the ranks had not saved is lost");  // a program that does not train with this library
}

std::string unended(std::span<const Child> children) {
  std::vector<std::string> names;
  for (const Child& child : children)
    if (!child.status && !child.is_server) names.push_back(child.name);
  return fmt::format("{} {}", fmt::join(names, names.size() == 2 ? " and " : ", "), names.size() == 1 ? "has" : "have");
}

}  // namespace trireme::cluster
