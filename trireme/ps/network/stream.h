#pragma once
// One gRPC stream of a worker's lane. Not installed.
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>

#include <trireme/base/lock.h>

#include "buffers.h"
#include "poller.h"

namespace trireme::ps::network {

/// Worth another try: the line broke, or the server is not there.
bool broke(const grpc::Status& status);

/// From its construction until it has ended; it does not come back. Writes one frame at a time: `next` is asked when it
/// can take one. Thread-safe.
class Stream {
 public:
  /// Called from the poller's threads, and next() from those that call pump().
  class Owner {
   public:
    virtual ~Owner() = default;
    /// The frame to write now; empty when there is none.
    virtual Pieces next(size_t channel) = 0;
    virtual void received(size_t channel, const grpc::ByteBuffer& piece) = 0;
    /// The last call.
    virtual void ended(size_t channel, const grpc::Status& status) = 0;
  };

  Stream(Owner& owner, size_t channel, Poller& poller, std::shared_ptr<grpc::Channel> connection,
         const std::string& token);
  /// Cancels it; waits for the last call, which comes at once. Not from the poller's threads.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// There may be something to write. Does not block.
  void pump();

 private:
  void on_start(bool ok);
  void on_read(bool ok);
  void on_write(bool ok);
  void on_end();
  void write_next() TRIREME_REQUIRES(mutex_);
  void finish() TRIREME_REQUIRES(mutex_);

  Owner& owner_;
  const size_t channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  Report start_, read_, write_, end_;
  grpc::ByteBuffer incoming_;
  grpc::Status status_;

  Mutex mutex_;
  Condition gone_;
  Pieces outgoing_ TRIREME_GUARDED_BY(mutex_);  // the first one is being written
  TRIREME_GUARDED_BY(mutex_) bool started_ = false, writing_ = false, over_ = false, done_ = false;
};

}  // namespace trireme::ps::network
