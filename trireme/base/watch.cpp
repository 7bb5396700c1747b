#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <trireme/base/process.h>
#include <trireme/base/watch.h>

namespace trireme {

Watch::Watch(const char* name, std::vector<int> descriptors, std::function<void(size_t)> notify)
    : name_(name), descriptors_(std::move(descriptors)), notify_(std::move(notify)) {
  if (std::all_of(descriptors_.begin(), descriptors_.end(), [](int one) { return one < 0; })) return;
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
  std::vector<pollfd> polls;
  for (int descriptor : descriptors_) polls.push_back({descriptor, POLLIN, 0});  // poll() passes over negative ones
  polls.push_back({stop_.get(), POLLIN, 0});
  while (poll(polls.data(), polls.size(), -1) >= 0 || errno == EINTR) {
    if (polls.back().revents != 0) return;
    for (size_t i = 0; i + 1 < polls.size(); i++)
      if (polls[i].fd >= 0 && polls[i].revents != 0) {
        polls[i].fd = -1;
        notify_(i);
      }
  }
}

}  // namespace trireme
