#pragma once
// The threads that carry messages. Not installed.
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace trireme::ps::network {

/// What gRPC calls when something that was begun has come to its end; its address is the tag. One thing at a time.
using Report = std::function<void(bool ok)>;

/// The first one tells malloc to keep up to 64 MiB of freed memory, in the whole process.
/// Threads that wait in gRPC, read and write its sockets, and call the reports themselves. (gRPC's own callbacks come
/// from two threads per process that take turns at polling, and each wakes the other for it.) Where there is a poller,
/// malloc keeps up to 64 MiB of freed memory.
class Poller {
 public:
  explicit Poller(std::unique_ptr<grpc::CompletionQueue> queue = std::make_unique<grpc::CompletionQueue>());
  /// Waits for what is under way, which must have been cancelled. Not from its own threads.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::CompletionQueue& queue() { return *queue_; }

 private:
  void run();

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace trireme::ps::network
