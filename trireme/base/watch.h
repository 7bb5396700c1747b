#pragma once
// Waiting for a descriptor elsewhere.
#include <functional>
#include <thread>

#include <trireme/base/descriptor.h>

namespace trireme {

/// Calls `notify` at most once, from a thread of its own, when the descriptor becomes readable. With -1 it does
/// nothing. The destructor ends and joins the thread.
class Watch {
 public:
  /// `name` is the thread's, 15 characters at most.
  Watch(const char* name, int descriptor, std::function<void()> notify);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void run();

  const char* name_;
  int descriptor_;
  std::function<void()> notify_;
  Descriptor stop_;
  std::thread thread_;
};

}  // namespace trireme
