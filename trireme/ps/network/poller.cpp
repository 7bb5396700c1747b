#include "poller.h"

#include <malloc.h>

#include <algorithm>

#include <trireme/base/bell.h>
#include <trireme/base/process.h>
#include <trireme/cluster/coordination/grpc.h>

namespace trireme::ps::network {
namespace {

constexpr auto kLook =
    std::chrono::microseconds(200);  // before sleeping: the next piece, or an answer, is often on its way

/// One is fastest where both ends share few cores: two take turns at polling, and wake each other for it.
int threads_for(int cores) { return std::clamp(cores / 4, 1, 4); }

/// gRPC reads into fresh memory. As malloc is set up, that goes back to the system with every message, and each page of
/// the next one is a fault.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 16 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

/// The next report; false after the last one. Looks for a while before it sleeps, unless others want this core (see
/// await()).
bool next(grpc::CompletionQueue& queue, Patience& patience, void** tag, bool* ok) {
  if (patience.crowded > 0) {
    patience.crowded--;
    return queue.Next(tag, ok);
  }
  for (auto now = Clock::now(), until = now + kLook; now < until && patience.crowded == 0;) {
    const auto status = queue.AsyncNext(tag, ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
    if (status != grpc::CompletionQueue::TIMEOUT) return status == grpc::CompletionQueue::GOT_EVENT;
    const auto before = Clock::now();
    std::this_thread::yield();
    now = Clock::now();
    now - before > kAnotherRan ? patience.learn_crowded() : void(patience.penalty = 0);
  }
  return queue.Next(tag, ok);
}

}  // namespace

Poller::Poller(std::unique_ptr<grpc::CompletionQueue> queue) : queue_(std::move(queue)) {
  keep_freed_memory();
  const cluster::SignalsBlocked blocked;
  for (int i = threads_for(usable_cores()); i > 0; i--) threads_.emplace_back([this] { run(); });
}

Poller::~Poller() {
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
}

void Poller::run() {
  name_thread("trireme-grpc");
  Patience patience;
  void* tag = nullptr;
  for (bool ok = false; next(*queue_, patience, &tag, &ok);) (*static_cast<Report*>(tag))(ok);
}

}  // namespace trireme::ps::network
