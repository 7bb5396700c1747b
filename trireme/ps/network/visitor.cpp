#include "visitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <trireme/base/process.h>
#include <trireme/cluster/coordination/grpc.h>

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
  const Lock lock(mutex_);
  if (closed_) return false;
  const Visitor* const key = visitor.get();
  visits_.emplace(key, Visit{std::move(visitor)});
  return true;
}

void Hall::remove(const std::shared_ptr<Visitor>& visitor) {
  const Lock lock(mutex_);
  visits_.erase(visitor.get());
  if (visits_.empty()) bell_.notify_all();
}

bool Hall::crowded() {
  const Lock lock(mutex_);
  return visits_.size() > kMostVisitors;
}

void Hall::wait_until_empty() {
  Lock lock(mutex_);
  bell_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return visits_.empty(); });
}

void Hall::ended(Visitor& visitor) {
  const Lock lock(mutex_);
  const auto visit = visits_.find(&visitor);
  if (visit == visits_.end() || std::exchange(visit->second.gone, true) || !visit->second.admitted) return;
  if (const auto leave = guests_.exit({visitor.model_, visitor.worker}, Clock::now()))
    inbox_.post([leave](Models&) { leave->from->service->handle(*leave, Clock::now()); });
  bell_.notify_all();
}

std::string Hall::admit(Visitor& visitor, Models& models, const Head& hello, const std::string& job) {
  const Lock lock(mutex_);
  const Guests::Place place{hello.model, hello.worker};
  if (std::string why = guests_.refusal(place, hello.visit); !why.empty()) return why;
  auto [service, refusal] = models.open(hello.model, hello.worker, job);
  if (!refusal.empty()) return refusal;
  visitor.worker = hello.worker;
  visitor.service = service;
  const auto visit = visits_.find(&visitor);
  const bool gone = visit == visits_.end() || visit->second.gone;
  if (!gone) visit->second.admitted = true;
  used_.store(true);
  guests_.enter(place, hello.visit, hello.channels, visitor.address(), service);
  if (gone) guests_.exit(place, Clock::now());
  bell_.notify_all();
  return "";
}

bool Hall::goodbye(int model, const Incoming& leave, size_t channel) {
  const Lock lock(mutex_);
  return guests_.goodbye(model, leave, channel);
}

void Hall::run() {
  name_thread("trireme-netdoor");
  Lock lock(mutex_);
  while (!closed_) {
    for (const Guests::Lost& lost : guests_.lost(Clock::now()))
      inbox_.post([lost](Models& models) { models.lost(*lost.service, lost.worker, lost.why); });
    const auto due = guests_.due();
    due ? bell_.wait_until(lock, *due)
        : bell_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return closed_ || guests_.due(); });
  }
}

void Hall::close() {
  std::vector<std::shared_ptr<Visitor>> visitors;
  {
    const Lock lock(mutex_);
    closed_ = true;
    for (const auto& [key, visit] : visits_) visitors.push_back(visit.visitor);
  }
  bell_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto& visitor : visitors) visitor->close(stopped());
}

// ---- a visitor ----

Visitor::Visitor(std::shared_ptr<Hall> hall)
    : hall_(std::move(hall)),
      read_([this](bool ok) { on_read(ok), settle(); }),
      write_([this](bool ok) { on_write(ok), settle(); }),
      finish_([this](bool /*ok*/) { settle(); }),
      leave_([this](bool /*ok*/) {
        if (call_->context.IsCancelled()) end();
        settle();
      }) {}

void Visitor::expect(std::shared_ptr<Visitor> self, grpc::AsyncGenericService& service,
                     grpc::ServerCompletionQueue& queue, std::function<void()> taken) {
  self_ = std::move(self);
  {
    const Lock lock(mutex_);
    under_way_ = 2;  // arrive_ and leave_
  }
  arrive_ = [this, taken = std::move(taken)](bool ok) {
    if (!ok) return release();  // the server has stopped
    taken();
    on_call();
    settle();
  };
  call_->context.AsyncNotifyWhenDone(&leave_);
  service.RequestCall(&call_->context, &call_->stream, &queue, &queue, &arrive_);
}

void Visitor::on_call() {
  address_ = cluster::address_of(call_->context.peer());
  {
    const Lock lock(mutex_);
    called_ = true;
  }
  if (!cluster::same_secret(cluster::token_of(call_->context), hall_->token()))
    return close({grpc::StatusCode::UNAUTHENTICATED, "refuses the token: give the same TRIREME_TOKEN on all hosts"});
  if (call_->context.method() != kMethod) return close({grpc::StatusCode::UNIMPLEMENTED, ""});
  if (hall_->crowded()) return close({grpc::StatusCode::RESOURCE_EXHAUSTED, "has too many connections"});
  const Lock lock(mutex_);
  closing_ ? write_next() : read_next();
}

/// The last report: gRPC has done with it.
void Visitor::settle() {
  {
    const Lock lock(mutex_);
    if (--under_way_ > 0) return;
  }
  hall_->ended(*this);
  release();
}

void Visitor::release() {
  call_.reset();
  hall_->remove(self_);
  const std::shared_ptr<Visitor> last = std::move(self_);
}

std::string Visitor::name() const { return fmt::format("worker {} at {}", worker, address_); }

void Visitor::on_read(bool ok) {
  if (!ok) return end();
  // Out of gRPC's slices, which begin anywhere, into memory that is aligned.
  const std::string fault = assembly_.take(
      incoming_, [&](const Frame&, size_t bytes) { return (memory_ = hall_->blocks().take(bytes)).get(); });
  incoming_.Clear();
  if (!fault.empty()) return close({grpc::StatusCode::INVALID_ARGUMENT, fault});
  if (assembly_.complete()) {
    if (assembly_.frame().head.kind != (greeted_ ? Kind::request : Kind::hello))
      return close({grpc::StatusCode::INVALID_ARGUMENT,
                    greeted_ ? "a worker sends requests only" : "a worker's first message is its greeting"});
    greeted_ ? request(take_message()) : greet(take_message());
  }
  const Lock lock(mutex_);
  if (closing_) return;
  if (ahead_ > kMostAhead) {
    paused_ = true;
  } else {
    read_next();
  }
}

void Visitor::read_next() {
  under_way_++;
  call_->stream.Read(&incoming_, &read_);
}

Visitor::Message Visitor::take_message() {
  Message message{.frame = assembly_.frame(), .memory = std::move(memory_)};
  const Head& head = message.frame.head;
  const std::byte* data = message.memory.get();
  message.frame.data = {data, head.data};
  message.frame.present = {reinterpret_cast<const uint8_t*>(data + head.data), head.present};
  message.bytes = kPrefix + head.data + head.present;
  return message;
}

void Visitor::greet(const Message& message) {
  greeted_ = true;
  const Head& hello = message.frame.head;
  if (hello.server != hall_->server())
    return close({grpc::StatusCode::INVALID_ARGUMENT,
                  fmt::format("this is server {}, not server {}", hall_->server(), hello.server)});
  channel_ = hello.channel;
  model_ = hello.model;
  const auto text = message.frame.data;
  hall_->inbox().post([self = self_, hello,
                       job = std::string(reinterpret_cast<const char*>(text.data()), text.size())](Models& models) {
    const std::string refusal = self->hall_->admit(*self, models, hello, job);
    const auto words = std::make_shared<const std::string>(refusal);
    self->send(compose({.head = {.kind = Kind::welcome}, .data = std::as_bytes(std::span(*words)), .keep = words}));
    if (!refusal.empty()) self->close({grpc::StatusCode::FAILED_PRECONDITION, "not admitted"});
  });
}

void Visitor::request(Message message) {
  {
    const Lock lock(mutex_);
    ahead_ += std::max(message.bytes, kLeastCount);
  }
  hall_->inbox().run(
      [self = self_, message = std::move(message)](Models&) {
        self->deliver(self, message);
        self->handled(std::max(message.bytes, kLeastCount));
      },
      [](const Models& models) { return !models.due() && !models.finished(); });
}

/// In the service's thread. The service cannot know how many slots came.
void Visitor::deliver(const std::shared_ptr<Visitor>& self, const Message& message) {
  Incoming in{.from = self, .request = message.frame.request, .data = message.frame.data, .keep = message.memory};
  const size_t slots = message.frame.present.size();
  const auto refuse = [&](const std::string& why) {
    reply({.id = in.request.id, .verb = in.request.verb, .status = Status::invalid, .bytes = why.size()},
          std::as_bytes(std::span(why)));
  };
  if (service == nullptr) return refuse("a request before the worker was admitted");
  if (slots > 0) {
    const uint32_t chunk = in.request.chunk;
    if (const auto& chunks = service->chunks();
        chunk < chunks.size() && slots == chunks[chunk].last - chunks[chunk].first) {
      in.present = message.frame.present.data();
    } else {
      return refuse(fmt::format("{} slots came with chunk {}, which has another number of them", slots, chunk));
    }
  }
  if (in.request.verb == Verb::leave && !hall_->goodbye(model_, in, channel_)) return;
  service->handle(std::move(in), Clock::now());
}

/// The service has seen so many bytes: more may come.
void Visitor::handled(size_t bytes) {
  const Lock lock(mutex_);
  ahead_ -= bytes;
  if (!paused_ || closing_ || ahead_ > kMostAhead / 2) return;
  paused_ = false;
  read_next();
}

void Visitor::reply(const Reply& given, std::span<const std::byte> data) {
  Reply reply = given;
  std::string why;
  if (data.size() > kMostBytes - kPrefix) {
    why = fmt::format("server {} has an answer of {} bytes to a {}; {} fit a message: use smaller chunks or batches",
                      hall_->server(), data.size(), name_of(reply.verb), kMostBytes - kPrefix);
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

void Visitor::send(Pieces frame) {
  const Lock lock(mutex_);
  if (closing_) return;
  if (outbox_.size() >= kMostReplies) return call_->context.TryCancel();  // it does not read
  outbox_.push_back(std::move(frame));
  write_next();
}

void Visitor::close(const grpc::Status& status) {
  const Lock lock(mutex_);
  if (closing_) return;
  closing_ = true;
  status_ = status;
  write_next();
}

/// The other side is gone.
void Visitor::end() {
  hall_->ended(*this);
  const Lock lock(mutex_);
  closing_ = true;
  forget();
  write_next();
}

/// Nobody would read it.
void Visitor::forget() {
  outbox_.clear();
  outgoing_.resize(writing_ ? 1 : 0);
}

/// The next message, or the end when there is none.
void Visitor::write_next() {
  if (!called_ || writing_ || finished_) return;
  if (outgoing_.empty() && !outbox_.empty()) {
    outgoing_ = std::move(outbox_.front());
    outbox_.pop_front();
  }
  if (!outgoing_.empty()) {
    writing_ = true;
    under_way_++;
    call_->stream.Write(outgoing_.front(), &write_);
  } else if (closing_) {
    finished_ = true;
    under_way_++;
    call_->stream.Finish(status_, &finish_);
  }
}

void Visitor::on_write(bool ok) {
  const Lock lock(mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (!ok) forget();
  write_next();
}

}  // namespace trireme::ps::network
