#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/comm/stream/poller.h>

namespace trireme::comm::stream {
namespace {

constexpr uint64_t kBell = ~uint64_t{0};

}  // namespace

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)), bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kBell}};
  if (!epoll_ || !bell_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, bell_.get(), &event) != 0)
    fail<IoError>("no epoll: {}", errno_text());
}

void Poller::add(int socket, size_t peer) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = peer}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) != 0) fail<IoError>("no epoll: {}", errno_text());
}

void Poller::look_for_room(int socket, size_t peer, bool wanted) {
  epoll_event event{.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, .data = {.u64 = peer}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event);
}

void Poller::remove(int socket) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr); }

void Poller::ring() { eventfd_write(bell_.get(), 1); }

const std::vector<Poller::Event>& Poller::wait(const Deadline& deadline) {
  std::array<epoll_event, 64> found{};
  const double most = std::min(deadline.left().count() * 1e3, 1e9);
  const int count =
      epoll_wait(epoll_.get(), found.data(), static_cast<int>(found.size()), static_cast<int>(std::ceil(most)));
  events_.clear();
  for (int i = 0; i < count; i++) {
    const epoll_event& event = found[static_cast<size_t>(i)];
    if (event.data.u64 == kBell) {
      eventfd_t rung = 0;
      eventfd_read(bell_.get(), &rung);
      continue;
    }
    events_.push_back({.peer = event.data.u64,
                       .readable = (event.events & ~static_cast<uint32_t>(EPOLLOUT)) != 0,
                       .writable = (event.events & EPOLLOUT) != 0});
  }
  return events_;
}

}  // namespace trireme::comm::stream
