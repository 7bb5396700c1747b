#include "stream.h"

namespace trireme::cluster {

Stream::Stream(wire::Coordination::Stub& stub, const std::string& token, Received received, Ended ended)
    : received_(std::move(received)), ended_(std::move(ended)) {
  context_.AddMetadata(kTokenKey, token);
  stub.async()->Attend(&context_, this);
  AddHold();  // we write from other threads than gRPC's
  StartRead(&incoming_);
  StartCall();
}

Stream::~Stream() {
  context_.TryCancel();
  Lock lock(mutex_);
  gone_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return done_; });  // a cancelled call ends at once
}

void Stream::send(wire::FromMember message) {
  const Lock lock(mutex_);
  if (released_) return;
  outbox_.push_back(std::move(message));
  pump();
}

bool Stream::busy() const {
  const Lock lock(mutex_);
  return !outbox_.empty();
}

void Stream::OnReadDone(bool ok) {
  if (ok) {
    received_(incoming_);
    return StartRead(&incoming_);
  }
  const Lock lock(mutex_);
  released_ = true;
  RemoveHold();
}

void Stream::OnWriteDone(bool /*ok*/) {
  const Lock lock(mutex_);
  writing_ = false;
  if (!released_) pump();
}

void Stream::OnDone(const grpc::Status& status) {
  ended_(status);
  const Lock lock(mutex_);
  done_ = true;
  gone_.notify_all();
}

void Stream::pump() {
  if (writing_ || outbox_.empty()) return;
  outgoing_ = std::move(outbox_.front());
  outbox_.pop_front();
  writing_ = true;
  StartWrite(&outgoing_);
}

}  // namespace trireme::cluster
