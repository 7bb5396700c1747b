#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <tuple>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/base/unix_socket.h>
#include <trireme/cluster/doors.h>
#include <trireme/cluster/status_door.h>

namespace trireme::cluster {
namespace {

constexpr size_t kRoomForHead = 1024;
constexpr char kDoors[] = "status/";

// ---- an answer: a message for each member, and the end of the connection ----

/// "JOB KIND RANK PROCESS AGE HOST", a line, then the snapshot.
std::string message_of(const MemberMetrics& of) {
  const std::string host = of.member.host.substr(0, kRoomForHead / 2);
  return fmt::format("{} {} {} {} {:.3f} {}\n", of.job, static_cast<int>(of.member.kind), of.member.rank, of.member.pid,
                     of.age, host) +
         of.snapshot.encode();
}

MemberMetrics from_message(const std::string& text) {
  const size_t end = text.find('\n');
  if (end == std::string::npos) fail<Corruption>("an answer without its first line");
  std::istringstream head(text.substr(0, end));
  MemberMetrics of;
  int kind = 0;
  if (!(head >> of.job >> kind >> of.member.rank >> of.member.pid >> of.age) || kind < Member::worker ||
      kind > Member::server)
    fail<Corruption>("an answer that names no member: '{}'", text.substr(0, end));
  of.member.kind = static_cast<Member::Kind>(kind);
  head.get();
  std::getline(head, of.member.host);
  of.snapshot = metrics::Snapshot::decode(std::string_view(text).substr(end + 1));
  return of;
}

/// False when it has not answered, not to the end, or in other words than ours.
bool ask(const Door& door, Seconds timeout, std::vector<MemberMetrics>& members) try {
  const Descriptor socket = open_unix_socket();
  if (!connect_to(socket.get(), door.name) || !same_user(socket.get())) return true;  // it has just gone
  limit_wait(socket.get(), timeout);
  std::string room(metrics::kMostBytes + kRoomForHead, '\0');
  while (true) {
    std::vector<Descriptor> none;
    const ssize_t got = receive_message(socket.get(), room.data(), room.size(), none);
    if (got == 0) return true;
    if (got < 0) return false;
    members.push_back(from_message(room.substr(0, static_cast<size_t>(got))));
  }
} catch (const Corruption&) {
  return false;
}

/// Ranks, servers, then who started them.
auto place_of(const MemberMetrics& of) {
  return std::tuple(of.job, of.member.kind == Member::agent, of.member.kind, of.member.rank);
}

}  // namespace

StatusDoor::StatusDoor(std::function<std::vector<MemberMetrics>()> look)
    : look_(std::move(look)), listener_(open_unix_socket()), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (open_door(listener_, kDoors)) thread_ = std::thread([this] { run(); });
}

StatusDoor::~StatusDoor() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void StatusDoor::run() {
  name_thread("trireme-status");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // they are for the threads that wait for something
  while (const Descriptor socket = next_visitor(listener_, stop_))
    for (const MemberMetrics& member : look_()) {
      const std::string message = message_of(member);
      if (!send_message(socket.get(), message.data(), message.size())) break;
    }
}

Status ask_for_status(Seconds timeout) {
  Status status;
  std::vector<MemberMetrics> all;
  for (const Door& door : doors_of(kDoors))
    if (!ask(door, timeout, all)) status.silent.push_back(door.process);
  std::stable_sort(all.begin(), all.end(), [](const MemberMetrics& a, const MemberMetrics& b) {
    return std::tuple_cat(place_of(a), std::tuple(a.age)) < std::tuple_cat(place_of(b), std::tuple(b.age));
  });
  const auto same = [](const MemberMetrics& a, const MemberMetrics& b) { return place_of(a) == place_of(b); };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  status.members = std::move(all);
  return status;
}

std::optional<MemberMetrics> ask_process(int process, Seconds timeout) {
  std::vector<MemberMetrics> members;
  for (const Door& door : doors_of(kDoors))
    if (door.process == process) ask(door, timeout, members);
  for (MemberMetrics& member : members)
    if (member.member.pid == process) return std::move(member);
  return std::nullopt;
}

}  // namespace trireme::cluster
