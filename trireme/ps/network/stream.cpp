#include "stream.h"

#include <trireme/cluster/grpc.h>

namespace trireme::ps::network {

Stream::Stream(Owner& owner, size_t channel, std::shared_ptr<grpc::Channel> connection, const std::string& token)
    : owner_(owner), channel_(channel), stub_(std::move(connection)) {
  context_.AddMetadata(cluster::kTokenKey, token);
  stub_.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
  AddHold();  // we write from other threads than gRPC's
  StartRead(&incoming_);
  StartCall();
  pump();
}

Stream::~Stream() {
  context_.TryCancel();
  std::unique_lock lock(mutex_);
  gone_.wait(lock, [&] { return done_; });  // a cancelled call ends at once
}

void Stream::pump() {
  const std::lock_guard lock(mutex_);
  write_next();
}

/// With the lock held.
void Stream::write_next() {
  if (writing_ || released_ || !owner_.next(channel_, outgoing_)) return;
  writing_ = true;
  StartWrite(&outgoing_);
}

void Stream::OnReadDone(bool ok) {
  if (ok) {
    owner_.received(channel_, incoming_);
    incoming_.Clear();
    StartRead(&incoming_);
    return pump();
  }
  const std::lock_guard lock(mutex_);
  released_ = true;
  RemoveHold();
}

void Stream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  outgoing_.Clear();
  if (ok) write_next();
}

void Stream::OnDone(const grpc::Status& status) {
  owner_.ended(channel_, status);
  const std::lock_guard lock(mutex_);
  done_ = true;
  gone_.notify_all();
}

}  // namespace trireme::ps::network
