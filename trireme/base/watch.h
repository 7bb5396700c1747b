#pragma once
// Waiting for descriptors elsewhere.
#include <functional>
#include <thread>
#include <vector>

#include <trireme/base/descriptor.h>

namespace trireme {

/// Calls `notify` with the place in the list of each descriptor that becomes readable, once for each, from a thread of
/// its own; negative ones are passed over, and with none there is no thread. The destructor ends and joins it.
class Watch {
 public:
  /// `name` is the thread's, 15 characters at most. The descriptors must stay open.
  Watch(const char* name, std::vector<int> descriptors, std::function<void(size_t)> notify);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void run();

  const char* name_;
  std::vector<int> descriptors_;
  std::function<void(size_t)> notify_;
  Descriptor stop_;
  std::thread thread_;
};

}  // namespace trireme
