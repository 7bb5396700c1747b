#pragma once
// A session's stream of messages to and from its coordinator. Not installed: sees gRPC.
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <trireme/base/lock.h>

#include "wire.h"

namespace trireme::cluster {

/// The session's stream. Calls back from gRPC's threads; the last call is `ended`.
class Stream final : public grpc::ClientBidiReactor<wire::FromMember, wire::ToMember> {
 public:
  using Received = std::function<void(const wire::ToMember&)>;
  using Ended = std::function<void(const grpc::Status&)>;

  Stream(wire::Coordination::Stub& stub, const std::string& token, Received received, Ended ended);
  ~Stream() override;

  void send(wire::FromMember message);
  /// True while something waits to be sent.
  bool busy() const;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool /*ok*/) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void pump() TRIREME_REQUIRES(mutex_);

  const Received received_;
  const Ended ended_;
  grpc::ClientContext context_;
  wire::ToMember incoming_;

  mutable Mutex mutex_;
  Condition gone_;
  std::deque<wire::FromMember> outbox_ TRIREME_GUARDED_BY(mutex_);
  wire::FromMember outgoing_ TRIREME_GUARDED_BY(mutex_);
  TRIREME_GUARDED_BY(mutex_) bool writing_ = false, released_ = false, done_ = false;
};

}  // namespace trireme::cluster
