#pragma once
// One gRPC stream of a worker's lane. Not installed.
#include <grpcpp/generic/generic_stub.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "buffers.h"

namespace trireme::ps::network {

/// From its construction until it has ended; it does not come back. Writes one message at a time: `next` is asked when it can take one. Thread-safe.
class Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  /// Called from gRPC's threads, and next() from those that call pump().
  class Owner {
   public:
    virtual ~Owner() = default;
    /// The message to write now; false when there is none.
    virtual bool next(size_t channel, grpc::ByteBuffer& message) = 0;
    virtual void received(size_t channel, const grpc::ByteBuffer& message) = 0;
    /// The last call.
    virtual void ended(size_t channel, const grpc::Status& status) = 0;
  };

  Stream(Owner& owner, size_t channel, std::shared_ptr<grpc::Channel> connection, const std::string& token);
  /// Cancels it; waits for the last call, which comes at once. Not from gRPC's threads.
  ~Stream() override;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// There may be something to write. Does not block.
  void pump();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void write_next();

  Owner& owner_;
  const size_t channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;

  std::mutex mutex_;
  std::condition_variable gone_;
  // All below is guarded by `mutex_`.
  grpc::ByteBuffer outgoing_;
  bool writing_ = false, released_ = false, done_ = false;
};

}  // namespace trireme::ps::network
