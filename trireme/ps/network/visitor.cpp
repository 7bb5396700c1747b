#include "visitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <trireme/base/process.h>
#include <trireme/cluster/grpc.h>

namespace trireme::ps::network {
namespace {

constexpr Seconds kMissed{3};  // longer than a worker tries to come back (LaneOptions::patience)
constexpr size_t kMostVisitors = 4096;
constexpr size_t kMostReplies = 256;             // that wait: more than a worker may have asked for
constexpr size_t kMostAhead = size_t{32} << 20;  // bytes of one stream that wait for the service
constexpr size_t kLeastCount = 4096;             // what a small request counts there

grpc::Status stopped() { return {grpc::StatusCode::FAILED_PRECONDITION, "it has stopped"}; }

}  // namespace

// ---- the hall ----

Hall::Hall(int server, std::string token, Inbox& inbox)
    : server_(server), token_(std::move(token)), inbox_(inbox), guests_(kMissed), thread_([this] { run(); }) {}

Hall::~Hall() { close(); }

bool Hall::add(std::shared_ptr<Visitor> visitor) {
  const std::lock_guard lock(mutex_);
  if (closed_ || visitors_.size() >= kMostVisitors) return false;
  visitors_.insert(std::move(visitor));
  return true;
}

void Hall::remove(const std::shared_ptr<Visitor>& visitor) {
  const std::lock_guard lock(mutex_);
  visitors_.erase(visitor);
}

void Hall::ended(Visitor& visitor) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(visitor.gone_, true) || !visitor.admitted_) return;
  if (const auto leave = guests_.exit(visitor.worker, Clock::now())) inbox_.post([leave](Service& service) { service.handle(*leave, Clock::now()); });
  bell_.notify_all();
}

std::string Hall::admit(Visitor& visitor, Service& service, const Head& hello, const std::string& job) {
  const std::lock_guard lock(mutex_);
  if (std::string why = guests_.refusal(hello.worker, hello.visit); !why.empty()) return why;
  if (std::string why = service.open(hello.worker, job); !why.empty()) return why;
  visitor.worker = hello.worker;
  visitor.admitted_ = true;
  used_.store(true);
  guests_.enter(hello.worker, hello.visit, hello.channels, visitor.address());
  if (visitor.gone_) guests_.exit(hello.worker, Clock::now());
  bell_.notify_all();
  return "";
}

bool Hall::goodbye(const Incoming& leave, size_t channel) {
  const std::lock_guard lock(mutex_);
  return guests_.goodbye(leave, channel);
}

void Hall::run() {
  name_thread("trireme-netdoor");
  std::unique_lock lock(mutex_);
  while (!closed_) {
    for (const Guests::Lost& lost : guests_.lost(Clock::now())) inbox_.post([lost](Service& service) { service.gone(lost.worker, lost.why); });
    const auto due = guests_.due();
    due ? static_cast<void>(bell_.wait_until(lock, *due)) : bell_.wait(lock, [&] { return closed_ || guests_.due(); });
  }
}

void Hall::close() {
  std::set<std::shared_ptr<Visitor>> visitors;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    visitors = visitors_;
  }
  bell_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto& visitor : visitors) visitor->close(stopped());
}

// ---- a visitor ----

Visitor::Visitor(std::shared_ptr<Hall> hall, grpc::GenericCallbackServerContext& context)
    : hall_(std::move(hall)), context_(context), address_(cluster::address_of(context.peer())) {}

void Visitor::start(std::shared_ptr<Visitor> self) {
  self_ = std::move(self);
  if (!cluster::same_secret(cluster::token_of(context_), hall_->token()))
    return close({grpc::StatusCode::UNAUTHENTICATED, "refuses the token: give the same TRIREME_TOKEN on all hosts"});
  if (context_.method() != kMethod) return close({grpc::StatusCode::UNIMPLEMENTED, ""});
  if (!hall_->add(self_)) return close(stopped());
  StartRead(&incoming_);
}

std::string Visitor::name() const { return fmt::format("worker {} at {}", worker, address_); }

void Visitor::OnReadDone(bool ok) {
  if (!ok) return end();
  Message message = take_message();
  const Frame& frame = message.frame;
  if (!frame.fault.empty()) return close({grpc::StatusCode::INVALID_ARGUMENT, frame.fault});
  if (frame.head.kind != (greeted_ ? Kind::request : Kind::hello))
    return close({grpc::StatusCode::INVALID_ARGUMENT, greeted_ ? "a worker sends requests only" : "a worker's first message is its greeting"});
  greeted_ ? request(std::move(message)) : greet(message);
  const std::lock_guard lock(mutex_);
  if (closing_) return;
  if (ahead_ > kMostAhead) {
    paused_ = true;
  } else {
    StartRead(&incoming_);
  }
}

/// Out of gRPC's pieces, which begin anywhere, into one that is aligned.
Visitor::Message Visitor::take_message() {
  Reader reader(incoming_);
  Message message{.bytes = reader.left()};
  message.memory = hall_->blocks().take(message.bytes);
  reader.copy(message.memory.get(), message.bytes);
  incoming_.Clear();
  message.frame = decode({message.memory.get(), message.bytes});
  return message;
}

void Visitor::greet(const Message& message) {
  greeted_ = true;
  const Head& hello = message.frame.head;
  if (hello.server != hall_->server())
    return close({grpc::StatusCode::INVALID_ARGUMENT, fmt::format("this is server {}, not server {}", hall_->server(), hello.server)});
  channel_ = hello.channel;
  const auto text = message.frame.data;
  hall_->inbox().post([self = self_, hello, job = std::string(reinterpret_cast<const char*>(text.data()), text.size())](Service& service) {
    const std::string refusal = self->hall_->admit(*self, service, hello, job);
    const auto words = std::make_shared<const std::string>(refusal);
    self->send(compose({.head = {.kind = Kind::welcome}, .data = std::as_bytes(std::span(*words)), .keep = words}));
    if (!refusal.empty()) self->close({grpc::StatusCode::FAILED_PRECONDITION, "not admitted"});
  });
}

void Visitor::request(Message message) {
  {
    const std::lock_guard lock(mutex_);
    ahead_ += std::max(message.bytes, kLeastCount);
  }
  hall_->inbox().post([self = self_, message = std::move(message)](Service& service) {
    self->deliver(service, self, message);
    self->handled(std::max(message.bytes, kLeastCount));
  });
}

/// In the service's thread. The service cannot know how many slots came.
void Visitor::deliver(Service& service, const std::shared_ptr<Visitor>& self, const Message& message) {
  Incoming in{.from = self, .request = message.frame.request, .data = message.frame.data, .keep = message.memory};
  const size_t slots = message.frame.present.size();
  if (slots > 0) {
    const uint32_t chunk = in.request.chunk;
    if (chunk < service.chunks().size() && slots == service.chunks()[chunk].last - service.chunks()[chunk].first) {
      in.present = message.frame.present.data();
    } else {
      const std::string why = fmt::format("{} slots came with chunk {}, which has another number of them", slots, chunk);
      return reply({.id = in.request.id, .verb = in.request.verb, .status = Status::invalid, .bytes = why.size()}, std::as_bytes(std::span(why)));
    }
  }
  if (in.request.verb == Verb::leave && !hall_->goodbye(in, channel_)) return;
  service.handle(std::move(in), Clock::now());
}

/// The service has seen so many bytes: more may come.
void Visitor::handled(size_t bytes) {
  const std::lock_guard lock(mutex_);
  ahead_ -= bytes;
  if (!paused_ || closing_ || ahead_ > kMostAhead / 2) return;
  paused_ = false;
  StartRead(&incoming_);
}

void Visitor::reply(const Reply& given, std::span<const std::byte> data) {
  Reply reply = given;
  std::string why;
  if (data.size() > kMostBytes - kPrefix) {
    why = fmt::format("server {} has an answer of {} bytes to a {}; {} fit a message: use smaller chunks or batches", hall_->server(), data.size(),
                      name_of(reply.verb), kMostBytes - kPrefix);
    data = std::as_bytes(std::span(why));
    reply.status = Status::invalid;
    reply.bytes = data.size();
  }
  Parts parts{.head = {.kind = Kind::reply}, .reply = reply};
  if (!data.empty()) {
    const auto copy = hall_->blocks().take(data.size());
    std::memcpy(copy.get(), data.data(), data.size());
    parts.data = {copy.get(), data.size()};
    parts.keep = copy;
  }
  send(compose(parts));
}

void Visitor::send(grpc::ByteBuffer message) {
  const std::lock_guard lock(mutex_);
  if (closing_) return;
  if (outbox_.size() >= kMostReplies) return context_.TryCancel();  // it does not read
  outbox_.push_back(std::move(message));
  write_next();
}

void Visitor::close(const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  if (closing_) return;
  closing_ = true;
  status_ = status;
  write_next();
}

/// The other side is gone.
void Visitor::end() {
  hall_->ended(*this);
  const std::lock_guard lock(mutex_);
  outbox_.clear();
  closing_ = true;
  write_next();
}

/// With the lock held: the next message, or the end when there is none.
void Visitor::write_next() {
  if (writing_ || finished_) return;
  if (!outbox_.empty()) {
    outgoing_.Swap(&outbox_.front());
    outbox_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  } else if (closing_) {
    finished_ = true;
    Finish(status_);
  }
}

void Visitor::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  outgoing_.Clear();
  if (!ok) outbox_.clear();
  write_next();
}

void Visitor::OnDone() {
  hall_->ended(*this);
  hall_->remove(self_);
  const std::shared_ptr<Visitor> last = std::move(self_);
}

}  // namespace trireme::ps::network
