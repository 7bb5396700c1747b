#pragma once
// A connection between machines for a crew that may lose a rank meanwhile. An engine goes on waiting for a rank that
// has died until its deadline, and nothing wakes it; those who are left must not wait with it, as the next crew needs
// them. So the engine works in a thread of its own, and a connection whose epoch has ended is left to it.
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include <trireme/base/lock.h>
#include <trireme/cluster/site.h>
#include <trireme/comm/network/transport.h>

namespace trireme::cluster {

/// Thread-safe.
class Connecting final : public Site::Listener {
 public:
  using Connect = std::function<std::unique_ptr<comm::network::Transport>()>;

  /// Begins at once. `connect` runs in another thread, to its end in any case.
  Connecting(uint64_t epoch, Connect connect);
  /// Waits for the engine.
  ~Connecting() override;

  /// Blocks until there is a connection. Throws what the engine throws, or PeerLost as soon as the epoch has ended: an
  /// engine may notice a death before anybody has said whose it was, so its errors wait for that, `patience` at most.
  /// Throws Timeout when the engine has neither connected nor failed by `deadline`: it has one of its own, but is not
  /// relied on.
  std::unique_ptr<comm::network::Transport> wait(const Deadline& deadline, Seconds patience);

  uint64_t epoch() const override { return epoch_; }
  void interrupt(const std::exception_ptr& cause) noexcept override;
  void note_cause(std::string_view /*text*/, bool /*victim*/) noexcept override {}

 private:
  void run(const Connect& connect);

  const uint64_t epoch_;
  Mutex mutex_;
  Condition bell_;
  std::unique_ptr<comm::network::Transport> transport_ TRIREME_GUARDED_BY(mutex_);
  std::exception_ptr error_ TRIREME_GUARDED_BY(mutex_), cause_ TRIREME_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses what stands above
};

}  // namespace trireme::cluster
