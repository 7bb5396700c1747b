#include <utility>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/cluster/connecting.h>

namespace trireme::cluster {

Connecting::Connecting(uint64_t epoch, Connect connect)
    : epoch_(epoch), thread_([this, connect = std::move(connect)] { run(connect); }) {}

Connecting::~Connecting() { thread_.join(); }

void Connecting::run(const Connect& connect) {
  name_thread("trireme-connect");
  std::unique_ptr<comm::network::Transport> made;
  std::exception_ptr error;
  try {
    made = connect();
  } catch (...) {
    error = std::current_exception();
  }
  const Lock lock(mutex_);
  error_ = error;
  if (!cause_) transport_ = std::move(made);  // otherwise nobody waits for it any more
  bell_.notify_all();
}

std::unique_ptr<comm::network::Transport> Connecting::wait(const Deadline& deadline, Seconds patience) {
  Lock lock(mutex_);
  if (!bell_.wait_for(lock, deadline.left(), [&]() TRIREME_REQUIRES(mutex_) { return transport_ || error_ || cause_; }))
    fail<Timeout>(
        "the engine has not connected the machines of the crew of epoch {} within {:.3g} s, and has not said why",
        epoch_, deadline.limit().count());
  if (error_) bell_.wait_for(lock, patience, [&]() TRIREME_REQUIRES(mutex_) { return cause_ != nullptr; });
  if (cause_) std::rethrow_exception(cause_);
  if (error_) std::rethrow_exception(error_);
  return std::move(transport_);
}

void Connecting::interrupt(const std::exception_ptr& cause) noexcept {
  const Lock lock(mutex_);
  if (!cause_) cause_ = cause;
  bell_.notify_all();
}

}  // namespace trireme::cluster
