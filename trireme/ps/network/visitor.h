#pragma once
// One gRPC stream at a server's door. Not installed.
#include <grpcpp/generic/async_generic_service.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include <trireme/base/lock.h>
#include <trireme/ps/inbox.h>
#include <trireme/ps/models.h>
#include <trireme/ps/network/blocks.h>
#include <trireme/ps/network/guests.h>

#include "assembly.h"
#include "poller.h"

namespace trireme::ps::network {

class Visitor;

/// What all visitors of a door share. Thread-safe. A thread of its own watches for workers that do not come back.
class Hall {
 public:
  Hall(int server, std::string token, Inbox& inbox);
  ~Hall();
  Hall(const Hall&) = delete;
  Hall& operator=(const Hall&) = delete;

  int server() const { return server_; }
  const std::string& token() const { return token_; }
  Inbox& inbox() { return inbox_; }
  Blocks& blocks() { return blocks_; }
  /// Whether anybody was admitted.
  bool used() const { return used_.load(); }

  /// One who is here, or expected. False after close().
  bool add(std::shared_ptr<Visitor> visitor);
  void remove(const std::shared_ptr<Visitor>& visitor);
  /// Too many are here.
  bool crowded();
  /// A stream has ended, admitted or not.
  void ended(Visitor& visitor);
  /// From the service's thread: why the visitor is not admitted, or "".
  std::string admit(Visitor& visitor, Models& models, const Head& hello, const std::string& job);
  bool goodbye(int model, const Incoming& leave, size_t channel);
  /// Ends all visits, and the thread. Those who come later are turned away.
  void close();
  /// After close(), and when gRPC's server was shut down: until gRPC has done with all visitors.
  void wait_until_empty();

 private:
  struct Visit {
    std::shared_ptr<Visitor> visitor;
    bool admitted = false, gone = false;
  };

  void run();

  const int server_;
  const std::string token_;
  Inbox& inbox_;
  Blocks blocks_;
  std::atomic<bool> used_{false};
  Mutex mutex_;
  Condition bell_;
  std::map<const Visitor*, Visit> visits_ TRIREME_GUARDED_BY(mutex_);
  Guests guests_ TRIREME_GUARDED_BY(mutex_);
  bool closed_ TRIREME_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses what stands above
};

/// The poller's threads call the on_… functions; the service's thread calls reply().
class Visitor final : public Connection {
 public:
  explicit Visitor(std::shared_ptr<Hall> hall);

  /// Waits for a worker's call; `taken` is called when this one has it, or never. It lives until gRPC has done with it,
  /// whoever else holds it.
  void expect(std::shared_ptr<Visitor> self, grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue,
              std::function<void()> taken);
  void reply(const Reply& reply, std::span<const std::byte> data) override;
  std::string name() const override;
  const std::string& address() const { return address_; }
  /// What waits is sent, then the stream ends.
  void close(const grpc::Status& status);

 private:
  friend class Hall;
  struct Message {
    Frame frame;
    std::shared_ptr<std::byte> memory;
    size_t bytes = 0;
  };

  /// What gRPC needs until it has done.
  struct Call {
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream{&context};
  };

  void on_call();
  void on_read(bool ok);
  void on_write(bool ok);
  void settle();
  void release();
  void read_next() TRIREME_REQUIRES(mutex_);
  Message take_message();
  void greet(const Message& message);
  void request(Message message);
  void deliver(const std::shared_ptr<Visitor>& self, const Message& message);
  void handled(size_t bytes);
  void end();
  void forget() TRIREME_REQUIRES(mutex_);
  void send(Pieces frame);
  void write_next() TRIREME_REQUIRES(mutex_);

  const std::shared_ptr<Hall> hall_;
  std::unique_ptr<Call> call_ = std::make_unique<Call>();
  Report arrive_, read_, write_, finish_, leave_;
  std::string address_;
  std::shared_ptr<Visitor> self_;
  grpc::ByteBuffer incoming_;
  Assembly assembly_;
  std::shared_ptr<std::byte> memory_;  // where it puts what comes
  bool greeted_ = false;
  int model_ = 0;       // that its worker came for
  size_t channel_ = 0;  // of its worker

  Mutex mutex_;
  std::deque<Pieces> outbox_ TRIREME_GUARDED_BY(mutex_);
  Pieces outgoing_ TRIREME_GUARDED_BY(mutex_);  // the first one is being written
  grpc::Status status_ TRIREME_GUARDED_BY(mutex_);
  size_t ahead_ TRIREME_GUARDED_BY(mutex_) = 0;   // bytes that the service has not seen yet
  int under_way_ TRIREME_GUARDED_BY(mutex_) = 0;  // reports that will come
  TRIREME_GUARDED_BY(mutex_) bool called_ = false, paused_ = false, writing_ = false;
  TRIREME_GUARDED_BY(mutex_) bool closing_ = false, finished_ = false;
};

}  // namespace trireme::ps::network
