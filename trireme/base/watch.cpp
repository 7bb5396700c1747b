#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include <trireme/base/process.h>
#include <trireme/base/watch.h>

namespace trireme {

Watch::Watch(const char* name, int descriptor, std::function<void()> notify)
    : name_(name), descriptor_(descriptor), notify_(std::move(notify)) {
  if (descriptor_ < 0) return;
  stop_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Watch::run() {
  name_thread(name_);
  pollfd polls[] = {{stop_.get(), POLLIN, 0}, {descriptor_, POLLIN, 0}};
  while (poll(polls, 2, -1) < 0 && errno == EINTR) {
  }
  if (polls[0].revents == 0 && polls[1].revents != 0) notify_();
}

}  // namespace trireme
