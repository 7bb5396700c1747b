#include "stream.h"

#include <trireme/cluster/coordination/grpc.h>

namespace trireme::ps::network {

bool broke(const grpc::Status& status) {
  const auto code = status.error_code();
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED ||
         code == grpc::StatusCode::INTERNAL || code == grpc::StatusCode::UNKNOWN || code == grpc::StatusCode::OK;
}

Stream::Stream(Owner& owner, size_t channel, Poller& poller, std::shared_ptr<grpc::Channel> connection,
               const std::string& token)
    : owner_(owner),
      channel_(channel),
      stub_(std::move(connection)),
      start_([this](bool ok) { on_start(ok); }),
      read_([this](bool ok) { on_read(ok); }),
      write_([this](bool ok) { on_write(ok); }),
      end_([this](bool /*ok*/) { on_end(); }) {
  context_.AddMetadata(cluster::kTokenKey, token);
  call_ = stub_.PrepareCall(&context_, kMethod, &poller.queue());
  call_->StartCall(&start_);
}

Stream::~Stream() {
  context_.TryCancel();
  Lock lock(mutex_);
  gone_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return done_; });  // a cancelled call ends at once
}

void Stream::pump() {
  const Lock lock(mutex_);
  write_next();
}

void Stream::write_next() {
  if (!started_ || writing_ || over_) return;
  if (outgoing_.empty()) outgoing_ = owner_.next(channel_);
  if (outgoing_.empty()) return;
  writing_ = true;
  call_->Write(outgoing_.front(), &write_);
}

/// When nothing is under way any more, gRPC is asked why.
void Stream::finish() {
  over_ = true;
  if (!writing_) call_->Finish(&status_, &end_);
}

void Stream::on_start(bool ok) {
  const Lock lock(mutex_);
  if (!ok) return finish();
  started_ = true;
  call_->Read(&incoming_, &read_);
  write_next();
}

void Stream::on_read(bool ok) {
  if (ok) owner_.received(channel_, incoming_);
  const Lock lock(mutex_);
  if (!ok) return finish();
  incoming_.Clear();
  call_->Read(&incoming_, &read_);
  write_next();
}

void Stream::on_write(bool ok) {
  const Lock lock(mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (over_) return finish();
  if (ok) write_next();
}

void Stream::on_end() {
  owner_.ended(channel_, status_);
  const Lock lock(mutex_);
  done_ = true;
  gone_.notify_all();
}

}  // namespace trireme::ps::network
