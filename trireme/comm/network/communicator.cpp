#include <cstring>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/comm/network/collectives.h>
#include <trireme/comm/network/communicator.h>

namespace trireme::comm::network {
namespace {

const std::byte* as_bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* as_bytes(void* data) { return static_cast<std::byte*>(data); }

/// What all collectives of blocks are for a rank that is alone.
void copy_block(const void* input, void* output, size_t bytes) {
  if (bytes > 0 && input != output) std::memcpy(output, input, bytes);
}

}  // namespace

class Communicator::Handle final : public Work {
 public:
  explicit Handle(std::shared_ptr<Ticket> ticket) : ticket_(std::move(ticket)) {}
  bool test() override {
    if (!ticket_->done.load()) return false;
    ticket_->wait();  // throws what went wrong
    return true;
  }
  void wait() override { ticket_->wait(); }

 private:
  std::shared_ptr<Ticket> ticket_;
};

Communicator::Communicator(std::unique_ptr<Transport> transport, Options options)
    : options_(std::move(options)),
      wire_(std::move(transport), options_.timeout, options_.patience, options_.names, options_.timeout_setting,
            WireMetrics(options_.registry, options_.label)),
      letters_(wire_),
      count_(options_.registry, options_.label) {
  for (size_t i = 0; i < kThreads && size() > 1; i++) threads_.emplace_back([this] { work(); });
}

Communicator::~Communicator() {
  if (size() == 1) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (!queue_.empty() || active_ > 0)
      wire_.fail(std::make_exception_ptr(
          Error(fmt::format("rank {} left the group before a collective was complete", rank()))));
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  try {
    letters_.flush();
  } catch (...) {  // a destructor has nobody to tell; the receiver hears that this rank is gone
  }
}

// ---- the thread ----

std::shared_ptr<Ticket> Communicator::enqueue(std::unique_ptr<Operation> operation) {
  wire_.check();
  std::shared_ptr<Ticket> ticket = operation->ticket();
  {
    const std::lock_guard lock(mutex_);
    if (idle()) busy_since_ = Clock::now();
    count_.bytes.add(static_cast<double>(operation->bytes()));
    queue_.push_back(std::move(operation));
    post_ahead();
  }
  wake_.notify_one();
  return ticket;
}

/// With mutex_ held: all ranks post in the order of the calls.
void Communicator::post_ahead() {
  for (; posted_ < queue_.size() && active_ + posted_ < kAhead; posted_++) queue_[posted_]->post();
}

void Communicator::work() {
  name_thread("trireme-net");
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    post_ahead();
    std::unique_ptr<Operation> operation = std::move(queue_.front());
    queue_.pop_front();
    posted_--;
    active_++;
    lock.unlock();
    const std::exception_ptr error = complete(*operation);
    const std::shared_ptr<Ticket> ticket = operation->ticket();
    operation.reset();  // before anybody is told: after a failure its messages still point into the caller's memory
    lock.lock();
    active_--;
    if (idle()) count_.busy_seconds.add(seconds_since(busy_since_));
    if (!error) post_ahead();
    ticket->settle(error);
  }
}

std::exception_ptr Communicator::complete(Operation& operation) noexcept {
  try {
    operation.complete();
    return nullptr;
  } catch (...) {
    wire_.fail(std::current_exception());
    return wire_.cause();
  }
}

double Communicator::carried_bytes() {
  const std::lock_guard lock(mutex_);
  return count_.bytes.value();
}

double Communicator::busy_seconds() {
  const std::lock_guard lock(mutex_);
  return count_.busy_seconds.value() + (idle() ? 0 : seconds_since(busy_since_));
}

// ---- the calls ----

Fingerprint Communicator::about(Kind kind, size_t count, DType type, std::string_view name) {
  Fingerprint what = fingerprint(kind, count, type, name);
  what.sequence = sequence_++;
  what.ring = what.bytes() > options_.direct_bytes;
  return what;
}

static_assert(Communicator::kMostFlags + Communicator::kMostSums * sizeof(double) <= Packet::kRoom);

std::unique_ptr<Work> Communicator::start_allreduce(void* data, size_t count, DType type, Op op,
                                                    std::string_view name) {
  return start_allreduce(data, count, type, op, {}, name);
}

std::unique_ptr<Work> Communicator::start_allreduce(void* data, size_t count, DType type, Op op, const Along& along,
                                                    std::string_view name) {
  if (along.flags.size() > kMostFlags || along.sums.size() > kMostSums)
    fail<InvalidArgument>("allreduce '{}' with {} flags and {} sums, but {} and {} are the most", name,
                          along.flags.size(), along.sums.size(), kMostFlags, kMostSums);
  if (size() == 1) {
    const auto ticket = std::make_shared<Ticket>();
    ticket->settle(nullptr);
    return std::make_unique<Handle>(ticket);
  }
  Fingerprint what = about(Kind::allreduce, count, type, name);
  what.op = op;
  return std::make_unique<Handle>(enqueue(std::make_unique<Allreduce>(wire_, what, as_bytes(data), along)));
}

void Communicator::allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
  start_allreduce(data, count, type, op, name)->wait();
}

void Communicator::reduce_scatter(const void* input, void* output, size_t count, DType type, Op op,
                                  std::string_view name) {
  if (size() == 1) return copy_block(input, output, count * size_of(type));
  Fingerprint what = about(Kind::reduce_scatter, count, type, name);
  what.op = op;
  enqueue(std::make_unique<ReduceScatter>(wire_, what, as_bytes(input), as_bytes(output)))->wait();
}

void Communicator::all_gather(const void* input, void* output, size_t count, DType type, std::string_view name) {
  if (size() == 1) return copy_block(input, output, count * size_of(type));
  enqueue(
      std::make_unique<AllGather>(wire_, about(Kind::all_gather, count, type, name), as_bytes(input), as_bytes(output)))
      ->wait();
}

void Communicator::broadcast(void* data, size_t count, DType type, int root, std::string_view name) {
  if (root < 0 || root >= size())
    fail<InvalidArgument>("broadcast '{}' from rank {}, but there are ranks 0 to {}", name, root, size() - 1);
  if (size() == 1) return;
  Fingerprint what = about(Kind::broadcast, count, type, name);
  what.root = root;
  enqueue(std::make_unique<Broadcast>(wire_, what, as_bytes(data)))->wait();
}

void Communicator::all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) {
  if (size() == 1) return copy_block(input, output, count * size_of(type));
  enqueue(
      std::make_unique<AllToAll>(wire_, about(Kind::all_to_all, count, type, name), as_bytes(input), as_bytes(output)))
      ->wait();
}

void Communicator::barrier(std::string_view name) {
  if (size() > 1) enqueue(std::make_unique<Barrier>(wire_, about(Kind::barrier, 0, DType::u8, name)))->wait();
}

template <class Action>
void Communicator::point_to_point(int peer, std::string_view verb, std::string_view name, const Action& action) {
  if (peer < 0 || peer >= size() || peer == rank())
    fail<InvalidArgument>("rank {} cannot {} rank {} ('{}')", rank(), verb, peer, name);
  try {
    action();
  } catch (...) {
    wire_.fail(std::current_exception());
    wire_.check();
  }
}

void Communicator::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  point_to_point(to, "send to", name, [&] { letters_.send(data, count, type, to, name); });
}

void Communicator::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  point_to_point(from, "receive from", name, [&] { letters_.receive(data, count, type, from, name); });
}

}  // namespace trireme::comm::network
