#include <pthread.h>

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/base/helpers.h>
#include <trireme/base/process.h>

namespace trireme {
namespace {

// A helper may have no core of its own, but that of somebody who waits for the pass. It yields, so that who waits sees
// the answer; it does so long enough for the next pass to come where several are wanted together. A long yield only
// means that the owner of the core computes again.
constexpr Patience kHelper{0, 100, 0};
constexpr Patience kCaller{400, 1000};
constexpr Seconds kLongSleep{60};
constexpr size_t kMostPieces = std::numeric_limits<uint16_t>::max();
constexpr size_t kLine = 64;  // of the cache; no element lies across one

}  // namespace

Helpers::Helpers(int count) : caller_patience_(kCaller) {
  if (sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
  try {
    for (int i = 0; i < count; i++) threads_.emplace_back([this] { help(); });
  } catch (const std::system_error& error) {
    stop();
    fail<IoError>("cannot start a helper thread: {}", error.what());
  }
}

Helpers::~Helpers() { stop(); }

void Helpers::stop() {
  stopped_.store(true);
  ring(work_bell_);
  for (std::thread& thread : threads_) thread.join();
}

void Helpers::run(size_t total, const Body& body) {
  if (total == 0) return;
  if (threads_.empty() || total < kLong) return body(0, total);
  const size_t piece = std::max(kPiece, (total / kMostPieces / kLine + 1) * kLine);
  pieces_ = (total + piece - 1) / piece;
  done_.store(0);
  body_.store(&body, std::memory_order_relaxed);
  total_.store(total, std::memory_order_relaxed);
  piece_.store(piece, std::memory_order_relaxed);
  keep_apart();
  left_.store({left_.load(std::memory_order_relaxed).pass + 1, 0, static_cast<uint16_t>(pieces_)});
  ring(work_bell_);
  work(End::front);
  while (!await(done_bell_, caller_patience_, Deadline(kLongSleep), [&] { return all_done(); })) {
  }
  if (const Lock lock(mutex_); error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

/// The kernel likes to wake a helper on the core of whoever wakes it, even beside an idle one; there the two would only
/// take turns. Where this fails, they do.
void Helpers::keep_apart() {
  const int core = sched_getcpu();
  if (core == caller_core_ || core < 0 || core >= CPU_SETSIZE) return;
  caller_core_ = core;
  cpu_set_t others = allowed_;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  for (std::thread& thread : threads_) pthread_setaffinity_np(thread.native_handle(), sizeof others, &others);
}

void Helpers::help() {
  name_thread("trireme-helper");
  Patience patience = kHelper;
  const auto ready = [&] {
    const Left left = left_.load();
    return left.front != left.back || stopped_.load();
  };
  while (!stopped_.load())
    if (await(work_bell_, patience, Deadline(kLongSleep), ready)) work(End::back);
}

void Helpers::work(End end) {
  while (true) {
    Left left = left_.load();
    if (left.front == left.back) return;
    const Body* body = body_.load(std::memory_order_relaxed);
    const size_t total = total_.load(std::memory_order_relaxed), piece = piece_.load(std::memory_order_relaxed);
    Left rest = left;
    const size_t index = end == End::front ? rest.front++ : --rest.back;
    if (!left_.compare_exchange_strong(left, rest)) continue;
    do_piece(*body, index * piece, std::min(total, (index + 1) * piece));
  }
}

void Helpers::do_piece(const Body& body, size_t begin, size_t end) {
  try {
    body(begin, end);
  } catch (...) {
    const Lock lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
  done_.fetch_add(1);
  ring(done_bell_);
}

}  // namespace trireme
