#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>

#include <trireme/base/process.h>
#include <trireme/base/unix_socket.h>
#include <trireme/cluster/control_door.h>
#include <trireme/cluster/doors.h>

namespace trireme::cluster {
namespace {

constexpr char kControlDoors[] = "control/";
constexpr size_t kLongestOrder = 256, kLongestAnswer = 16 << 10;

// An order is "JOB\nWORDS", JOB may be empty. The answer is "JOB\nyes TEXT" or "JOB\nno TEXT"; none: it is another job.

}  // namespace

ControlDoor::ControlDoor(std::string job, std::function<Obeyed(const std::string& words)> obey)
    : job_(std::move(job)), obey_(std::move(obey)), listener_(open_unix_socket()), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (open_door(listener_, kControlDoors)) thread_ = std::thread([this] { run(); });
}

ControlDoor::~ControlDoor() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void ControlDoor::run() {
  name_thread("trireme-control");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // they are for the threads that wait for something
  while (const Descriptor visitor = next_visitor(listener_, stop_)) serve(visitor.get());
}

void ControlDoor::serve(int socket) const {
  std::string order(kLongestOrder, '\0');
  std::vector<Descriptor> none;
  const ssize_t got = receive_message(socket, order.data(), order.size(), none);
  if (got <= 0) return;
  order.resize(static_cast<size_t>(got));
  const size_t end = order.find('\n');
  if (end == std::string::npos || (end > 0 && order.substr(0, end) != job_)) return;
  const Obeyed obeyed = obey_(order.substr(end + 1));
  const std::string answer = (job_ + (obeyed.done ? "\nyes " : "\nno ") + obeyed.text).substr(0, kLongestAnswer);
  send_message(socket, answer.data(), answer.size());
}

std::vector<Answered> order(const std::string& job, const std::string& words, Seconds timeout) {
  std::vector<Answered> all;
  for (const Door& door : doors_of(kControlDoors)) {
    const Descriptor socket = open_unix_socket();
    if (!connect_to(socket.get(), door.name) || !same_user(socket.get())) continue;
    limit_wait(socket.get(), timeout);
    const std::string message = job + "\n" + words;
    std::string answer(kLongestAnswer, '\0');
    std::vector<Descriptor> none;
    if (!send_message(socket.get(), message.data(), message.size())) continue;
    const ssize_t got = receive_message(socket.get(), answer.data(), answer.size(), none);
    if (got <= 0) continue;
    answer.resize(static_cast<size_t>(got));
    const size_t end = answer.find('\n'), space = answer.find(' ', end);
    if (end == std::string::npos || space == std::string::npos) continue;
    all.push_back({answer.substr(0, end),
                   door.process,
                   {answer.substr(end + 1, space - end - 1) == "yes", answer.substr(space + 1)}});
  }
  return all;
}

}  // namespace trireme::cluster
