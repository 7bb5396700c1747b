#include <cstring>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/comm/network/collectives.h>
#include <trireme/comm/network/communicator.h>

namespace trireme::comm::network {
namespace {

const std::byte* as_bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* as_bytes(void* data) { return static_cast<std::byte*>(data); }

/// What a collective is for a rank that is alone.
Started alone(const void* input = nullptr, void* output = nullptr, size_t bytes = 0) {
  if (bytes > 0 && input != output) std::memcpy(output, input, bytes);
  return std::make_unique<TicketWork>(settled_ticket());
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> transport, Options options)
    : options_(std::move(options)),
      wire_(std::move(transport), options_.timeout, options_.patience, options_.names, options_.timeout_setting,
            WireMetrics(options_.registry, options_.label)),
      letters_(wire_, [this] { tell(); }),
      count_(options_.registry, options_.label) {
  for (size_t i = 0; i < kThreads && size() > 1; i++) threads_.emplace_back([this] { work(); });
}

Communicator::~Communicator() {
  if (size() == 1) return;
  {
    const Lock lock(mutex_);
    stopping_ = true;
    if (!queue_.empty() || active_ > 0)
      wire_.fail(std::make_exception_ptr(
          Error(fmt::format("rank {} left the group before a collective was complete", rank()))));
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  letters_.close();
}

// ---- the thread ----

template <class What, class... Arguments>
Started Communicator::enqueue(const Fingerprint& what, Arguments&&... arguments) {
  wire_.check();
  auto operation = std::make_unique<What>(wire_, what, std::forward<Arguments>(arguments)...);
  std::shared_ptr<Ticket> ticket = operation->ticket();
  {
    const Lock lock(mutex_);
    if (idle()) busy_since_ = Clock::now();
    count_.bytes.add(static_cast<double>(operation->bytes()));
    queue_.push_back(std::move(operation));
    post_ahead();
  }
  wake_.notify_one();
  return std::make_unique<TicketWork>(std::move(ticket));
}

/// All ranks post in the order of the calls.
void Communicator::post_ahead() {
  for (; posted_ < queue_.size() && active_ + posted_ < kAhead; posted_++) queue_[posted_]->post();
}

void Communicator::work() {
  name_thread("trireme-net");
  Lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return stopping_ || !queue_.empty(); });
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
    tell();
  }
}

void Communicator::notify(std::function<void()> news) {
  const Lock lock(telling_);
  news_ = std::move(news);
}

void Communicator::tell() {
  const Lock lock(telling_);
  if (news_) news_();
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
  const Lock lock(mutex_);
  return count_.bytes.value();
}

double Communicator::busy_seconds() {
  const Lock lock(mutex_);
  return count_.busy_seconds.value() + (idle() ? 0 : seconds_since(busy_since_));
}

// ---- the calls ----

Fingerprint Communicator::about(Kind kind, size_t count, DType type, std::string_view name) {
  Fingerprint what = fingerprint(kind, count, type, name);
  what.sequence = sequence_++;
  what.ring = what.bytes() > options_.direct_bytes;
  return what;
}

Fingerprint Communicator::about(Kind kind, const Blocks& blocks, const Blocks& agreed, DType type,
                                std::string_view name) {
  Fingerprint what = about(kind, agreed.count(), type, name);
  what.counts = agreed.hash();
  what.ring = blocks.largest() > options_.direct_bytes;
  return what;
}

static_assert(Communicator::kMostFlags + Communicator::kMostSums * sizeof(double) <= Packet::kRoom);

Started Communicator::start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
  return start_allreduce(data, count, type, op, {}, name);
}

void Communicator::check(const Along& along, std::string_view call, std::string_view name) {
  if (along.flags.size() > kMostFlags || along.sums.size() > kMostSums)
    fail<InvalidArgument>("{} '{}' with {} flags and {} sums, but {} and {} are the most", call, name,
                          along.flags.size(), along.sums.size(), kMostFlags, kMostSums);
}

Started Communicator::start_allreduce(void* data, size_t count, DType type, Op op, const Along& along,
                                      std::string_view name) {
  check(along, "allreduce", name);
  if (size() == 1) return alone();
  Fingerprint what = about(Kind::allreduce, count, type, name);
  what.op = op;
  return enqueue<Allreduce>(what, as_bytes(data), along);
}

Started Communicator::start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                                           std::string_view name) {
  const Blocks blocks(counts.checked(size(), "reduce-scatter", name), size(), size_of(type));
  return start_reduce_scatter(input, output, counts, blocks, type, op, name);
}

Started Communicator::start_reduce_scatter(const void* input, void* output, const Counts& counts, const Blocks& agreed,
                                           DType type, Op op, std::string_view name) {
  const Blocks blocks(counts, size(), size_of(type));
  if (size() == 1) return alone(input, output, blocks.bytes());
  Fingerprint what = about(Kind::reduce_scatter, blocks, agreed, type, name);
  what.op = op;
  return enqueue<ReduceScatter>(what, blocks, agreed, as_bytes(input), as_bytes(output));
}

Started Communicator::start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                                           const Along& along, std::string_view name) {
  check(along, "reduce-scatter", name);
  const Blocks blocks(counts.checked(size(), "reduce-scatter", name), size(), size_of(type));
  if (size() == 1) return alone(input, output, blocks.bytes());
  Fingerprint what = about(Kind::reduce_scatter, blocks, blocks, type, name);
  what.op = op;
  return enqueue<ReduceScatter>(what, blocks, blocks, as_bytes(input), as_bytes(output), along);
}

Started Communicator::start_all_gather(const void* input, void* output, const Counts& counts, DType type,
                                       std::string_view name) {
  const Blocks blocks(counts.checked(size(), "all-gather", name), size(), size_of(type));
  return start_all_gather(input, output, counts, blocks, type, name);
}

Started Communicator::start_all_gather(const void* input, void* output, const Counts& counts, const Blocks& agreed,
                                       DType type, std::string_view name) {
  const Blocks blocks(counts, size(), size_of(type));
  if (size() == 1) return alone(input, output, blocks.bytes());
  return enqueue<AllGather>(about(Kind::all_gather, blocks, agreed, type, name), blocks, agreed, as_bytes(input),
                            as_bytes(output));
}

Started Communicator::start_broadcast(void* data, size_t count, DType type, int root, std::string_view name) {
  if (root < 0 || root >= size())
    fail<InvalidArgument>("broadcast '{}' from rank {}, but there are ranks 0 to {}", name, root, size() - 1);
  if (size() == 1) return alone();
  Fingerprint what = about(Kind::broadcast, count, type, name);
  what.root = root;
  return enqueue<Broadcast>(what, as_bytes(data));
}

Started Communicator::start_all_to_all(const void* input, void* output, const Counts& sends, const Counts& receives,
                                       DType type, std::string_view name) {
  check_all_to_all(sends, receives, size(), name);
  const Blocks leaving(sends, size(), size_of(type)), coming(receives, size(), size_of(type));
  if (const int me = wire_.name_of(rank()); sends.of(rank()) != receives.of(rank()))
    fail<Mismatch>("all-to-all '{}': {}", name, sends_and_expects(me, sends.of(rank()), me, receives.of(rank())));
  if (size() == 1) return alone(input, output, leaving.bytes());
  Fingerprint what = about(Kind::all_to_all, sends.is_list() ? 0 : sends.of(0), type, name);
  if (sends.is_list()) what.counts = kOwnCounts;
  return enqueue<AllToAll>(what, leaving, coming, as_bytes(input), as_bytes(output));
}

Started Communicator::start_barrier(std::string_view name) {
  if (size() == 1) return alone();
  return enqueue<Barrier>(about(Kind::barrier, 0, DType::u8, name));
}

// ---- point to point ----

template <class Action>
auto Communicator::point_to_point(int peer, std::string_view verb, std::string_view name, const Action& action) {
  if (peer < 0 || peer >= size() || peer == rank())
    fail<InvalidArgument>("rank {} cannot {} rank {} ('{}')", rank(), verb, peer, name);
  try {
    return action();
  } catch (...) {
    wire_.fail(std::current_exception());
    wire_.check();
    throw;
  }
}

Started Communicator::start_send(const void* data, size_t count, DType type, int to, std::string_view name) {
  return point_to_point(to, "send to", name, [&]() -> Started {
    return std::make_unique<TicketWork>(letters_.start_send(data, count, type, to, name));
  });
}

Started Communicator::start_receive(void* data, size_t count, DType type, int from, std::string_view name) {
  return point_to_point(from, "receive from", name, [&]() -> Started {
    return std::make_unique<TicketWork>(letters_.start_receive(data, count, type, from, name));
  });
}

Started Communicator::start_receive_any(Letters::Room room, int from, std::string_view name) {
  return point_to_point(from, "receive from", name, [&]() -> Started {
    return std::make_unique<TicketWork>(letters_.start_receive_any(std::move(room), from, name));
  });
}

void Communicator::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  point_to_point(to, "send to", name, [&] { letters_.send(data, count, type, to, name); });
}

void Communicator::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  point_to_point(from, "receive from", name, [&] { letters_.receive(data, count, type, from, name); });
}

}  // namespace trireme::comm::network
