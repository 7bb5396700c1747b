#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/base/process.h>
#include <trireme/cluster/coordination/grpc.h>
#include <trireme/cluster/coordination/reach.h>
#include <trireme/ps/network/lane.h>
#include <trireme/ps/network/send_queue.h>

#include "arrival.h"
#include "stream.h"

namespace trireme::ps::network {
namespace {

constexpr Seconds kBetweenTries{0.05};

/// A request that has not been answered.
struct Sending {
  Request request;
  std::span<const std::byte> data;
  std::vector<uint8_t> present;
  uint32_t urgency = 0;
  size_t channel = 0;
  bool answered = false;
};

struct Answer {
  Reply reply;
  std::string text;
};

uint64_t random_number() {
  std::random_device source;
  return uint64_t{source()} << 32 | source();
}

/// `mutex_` guards the state; streams call with their own lock held, never the other way round. A thread of its own
/// brings broken channels back.
class NetworkLane final : public Lane, Stream::Owner {
 public:
  NetworkLane(LaneOptions options, std::shared_ptr<shm::Memory> memory, std::function<void()> alarm,
              const Deadline& deadline);
  ~NetworkLane() override;
  NetworkLane(const NetworkLane&) = delete;
  NetworkLane& operator=(const NetworkLane&) = delete;

  void send(const Request& request, std::span<const std::byte> data, std::span<const uint8_t> present,
            uint32_t urgency) override;
  bool receive(Reply& reply, std::string& text) override;
  std::string fault() override;
  std::string name() const override { return fmt::format("server {} at {}", options_.server, options_.address); }
  bool local() const override { return false; }

 private:
  struct Channel {
    std::shared_ptr<Stream> stream;
    bool greeted = false, welcomed = false, broken = true;
    Clock::time_point next_try{}, back_by{Clock::time_point::max()};
    std::string why;  // it broke
    SendQueue<std::shared_ptr<Sending>> queue;
    std::map<uint64_t, std::shared_ptr<Sending>> sent;  // by id; not answered
  };

  Pieces next(size_t channel) override;
  void received(size_t channel, const grpc::ByteBuffer& piece) override;
  void ended(size_t channel, const grpc::Status& status) override;
  void welcomed(size_t channel, const std::string& refusal);
  void answered(Arrival& arrival);
  std::optional<Request> request_of(uint64_t id);
  size_t channel_of(const Request& request) TRIREME_REQUIRES(mutex_);

  void reach_server(const Deadline& deadline);
  void wait_for_welcome(const Deadline& deadline);
  std::optional<Clock::time_point> tend() TRIREME_REQUIRES(mutex_);
  void reopen(size_t channel) TRIREME_REQUIRES(mutex_);
  void lose(const std::string& why) TRIREME_REQUIRES(mutex_);
  void run();
  void stop();

  const LaneOptions options_;
  const std::shared_ptr<shm::Memory> memory_;
  const std::function<void()> alarm_;
  const uint64_t visit_ = random_number();
  const cluster::Endpoint endpoint_;
  std::optional<cluster::Certificates> certificates_;
  std::string target_;
  std::atomic<size_t> waiting_{0};  // answers
  Poller poller_;
  std::vector<Arrival> arrivals_;  // by channel; each is used by its stream only

  Mutex mutex_;
  Condition bell_;
  std::vector<Channel> channels_ TRIREME_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<Sending>> open_ TRIREME_GUARDED_BY(mutex_);  // by id
  std::unordered_map<uint32_t, size_t> channel_of_chunk_ TRIREME_GUARDED_BY(mutex_);
  std::deque<Answer> answers_ TRIREME_GUARDED_BY(mutex_);
  std::string fault_ TRIREME_GUARDED_BY(mutex_);
  TRIREME_GUARDED_BY(mutex_) bool refused_ = false, left_ = false, stopping_ = false;

  std::thread thread_;
};

// ---- coming and going ----

NetworkLane::NetworkLane(LaneOptions options, std::shared_ptr<shm::Memory> memory, std::function<void()> alarm,
                         const Deadline& deadline)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      alarm_(std::move(alarm)),
      endpoint_(cluster::endpoint_of(options_.address, "a server")) {
  if (options_.channels < 1 || options_.channels > kMostChannels)
    fail<InvalidArgument>("{} connections to each server: 1 to {} are possible", options_.channels, kMostChannels);
  if (!options_.tls.empty()) certificates_ = cluster::load_certificates(options_.tls);
  reach_server(deadline);
  channels_ = std::vector<Channel>(static_cast<size_t>(options_.channels));
  arrivals_ = std::vector<Arrival>(channels_.size());
  try {
    wait_for_welcome(deadline);
  } catch (...) {
    stop();
    throw;
  }
  thread_ = std::thread([this] { run(); });
}

NetworkLane::~NetworkLane() { stop(); }

void NetworkLane::stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  bell_.notify_all();
  if (thread_.joinable()) thread_.join();
  std::vector<std::shared_ptr<Stream>> streams;  // they end without the lock, which their last call takes
  const Lock lock(mutex_);
  for (Channel& channel : channels_) streams.push_back(std::move(channel.stream));
}

/// A server puts its address when it listens: whoever is not there within `patience` has died.
void NetworkLane::reach_server(const Deadline& deadline) {
  const Deadline patience(std::min(options_.patience, deadline.left()));
  while (true) {
    const cluster::Reached reached = cluster::reach(endpoint_, deadline);
    target_ = reached.target;
    if (reached.socket) return;
    if (deadline.passed())
      fail<Timeout>("{} cannot be reached within {:g} s ({})", name(), deadline.limit().count(), reached.fault);
    if (patience.passed())
      fail<PeerLost>(
          "{} is gone, or cannot be reached from here: {}. Does it still run, and does no firewall block the port?",
          name(), reached.fault);
    Lock lock(mutex_);
    bell_.wait_for(lock, kBetweenTries);
  }
}

void NetworkLane::wait_for_welcome(const Deadline& deadline) {
  bool explained = false;
  Lock lock(mutex_);
  const auto ready = [&]() TRIREME_REQUIRES(mutex_) {
    return std::all_of(channels_.begin(), channels_.end(), [](const Channel& channel) { return channel.welcomed; });
  };
  while (!ready()) {
    if (refused_) throw InvalidArgument(fault_);
    if (!fault_.empty()) throw PeerLost(fault_);
    if (deadline.passed())
      fail<Timeout>("{} has not welcomed worker {} within {:g} s: is it stopped?", name(), options_.worker,
                    deadline.limit().count());
    const bool failed = std::any_of(channels_.begin(), channels_.end(),
                                    [](const Channel& channel) { return channel.broken && !channel.why.empty(); });
    if (failed && !std::exchange(explained, true)) {
      lock.unlock();
      const std::string why = cluster::tls_fault(endpoint_, certificates_, options_.tls);
      if (!why.empty()) fail<InvalidArgument>("{} {}", name(), why);
      lock.lock();
    }
    auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline.left());
    if (const auto due = tend()) until = std::min(until, *due);
    if (!ready() && fault_.empty()) bell_.wait_until(lock, until);
  }
}

/// Brings broken channels back, or gives up. Returns when there is something to do next. Lets go of the lock meanwhile.
std::optional<Clock::time_point> NetworkLane::tend() {
  std::optional<Clock::time_point> due;
  for (size_t i = 0; i < channels_.size() && fault_.empty(); i++) {
    Channel& channel = channels_[i];
    if (channel.welcomed || left_) continue;
    const auto now = Clock::now();
    if (now >= channel.back_by) {
      lose(fmt::format("{} is gone: {}, and it did not come back within {:g} s", name(), channel.why,
                       options_.patience.count()));
      break;
    }
    if (channel.broken && now >= channel.next_try) reopen(i);
    const auto next = channel.broken ? std::min(channel.next_try, channel.back_by) : channel.back_by;
    if (!due || next < *due) due = next;
  }
  return due;
}

void NetworkLane::reopen(size_t index) {
  Channel& channel = channels_[index];
  channel.broken = channel.greeted = false;
  std::shared_ptr<Stream> stream = std::move(channel.stream);
  {
    const Unlocked meanwhile(mutex_);
    stream.reset();
    const cluster::SignalsBlocked blocked;
    Owner& owner = *this;
    stream = std::make_shared<Stream>(owner, index, poller_,
                                      cluster::channel_to(target_, certificates_, lane_arguments()), options_.token);
  }
  channel.stream = std::move(stream);
}

void NetworkLane::lose(const std::string& why) {
  if (!fault_.empty() || left_) return;
  fault_ = why;
  bell_.notify_all();
}

void NetworkLane::run() {
  name_thread("trireme-lane");
  Lock lock(mutex_);
  const auto broken = [](const Channel& channel) { return channel.broken; };
  const auto news = [&]() TRIREME_REQUIRES(mutex_) {
    return stopping_ || !fault_.empty() || (!left_ && std::any_of(channels_.begin(), channels_.end(), broken));
  };
  while (!stopping_ && fault_.empty()) {
    const auto due = tend();
    if (stopping_ || !fault_.empty()) break;
    due ? bell_.wait_until(lock, *due) : bell_.wait(lock, news);
  }
  const bool raise = !stopping_;
  lock.unlock();
  if (raise) alarm_();
}

// ---- sending ----

/// Requests about one thing stay in their order: they share a channel.
size_t NetworkLane::channel_of(const Request& request) {
  switch (request.verb) {
    case Verb::push:
    case Verb::pull:
    case Verb::set:
    case Verb::show_state:
    case Verb::take_state:
      return channel_of_chunk_.try_emplace(request.chunk, channel_of_chunk_.size() % channels_.size()).first->second;
    case Verb::sparse_push:
    case Verb::sparse_pull:
    case Verb::show_rows:
    case Verb::take_rows:
      return request.table % channels_.size();
    default:
      return 0;
  }
}

void NetworkLane::send(const Request& request, std::span<const std::byte> data, std::span<const uint8_t> present,
                       uint32_t urgency) {
  if (data.size() + present.size() + kPrefix > kMostBytes)
    fail<InvalidArgument>("{} bytes in one request to {}; {} are possible: use smaller chunks or batches", data.size(),
                          name(), kMostBytes - kPrefix);
  const auto sending = std::make_shared<Sending>(Sending{request, data, {present.begin(), present.end()}, urgency});
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const Lock lock(mutex_);
    open_.emplace(request.id, sending);
    if (request.verb == Verb::leave) {  // behind everything else, on every channel; the server acts on the last one
      sending->urgency = ~uint32_t{0};
      for (Channel& channel : channels_) {
        channel.queue.push(sending->urgency, request.id, sending);
        streams.push_back(channel.stream);
      }
    } else {
      Channel& channel = channels_[channel_of(request)];
      channel.queue.push(urgency, request.id, sending);
      streams.push_back(channel.stream);
    }
  }
  for (const auto& stream : streams)
    if (stream) stream->pump();
}

Pieces NetworkLane::next(size_t index) {
  const Lock lock(mutex_);
  Channel& channel = channels_[index];
  if (!channel.greeted) {
    channel.greeted = true;
    const Head head{.kind = Kind::hello,
                    .channel = static_cast<uint8_t>(index),
                    .channels = static_cast<uint32_t>(channels_.size()),
                    .worker = options_.worker,
                    .server = options_.server,
                    .model = options_.model,
                    .visit = visit_};
    return compose(
        {.head = head, .data = std::as_bytes(std::span(memory_->job(), memory_->plot().job_bytes)), .keep = memory_});
  }
  while (channel.welcomed && !channel.queue.empty()) {
    const auto sending = channel.queue.pop();
    if (sending->answered) continue;
    channel.sent.emplace(sending->request.id, sending);
    return compose({.head = {.kind = Kind::request},
                    .request = sending->request,
                    .data = sending->data,
                    .keep = memory_,
                    .present = sending->present});
  }
  return {};
}

// ---- news, from the poller's threads ----

void NetworkLane::received(size_t index, const grpc::ByteBuffer& piece) {
  Arrival& arrival = arrivals_[index];
  if (const std::string fault = arrival.take(piece, *memory_, [this](uint64_t id) { return request_of(id); });
      !fault.empty()) {
    const Lock lock(mutex_);
    return lose(fmt::format("{} is not understood: {}", name(), fault));
  }
  if (!arrival.complete()) return;
  arrival.frame().head.kind == Kind::reply ? answered(arrival) : welcomed(index, arrival.take_text());
}

void NetworkLane::welcomed(size_t index, const std::string& refusal) {
  const Lock lock(mutex_);
  Channel& channel = channels_[index];
  if (!refusal.empty()) {
    refused_ = true;
    return lose(fmt::format("{} does not admit worker {}: {}", name(), options_.worker, refusal));
  }
  channel.welcomed = true;
  channel.back_by = Clock::time_point::max();
  bell_.notify_all();
}

std::optional<Request> NetworkLane::request_of(uint64_t id) {
  const Lock lock(mutex_);
  const auto found = open_.find(id);
  return found == open_.end() ? std::nullopt : std::optional(found->second->request);
}

/// With all of its data: a request whose answer broke off is sent again.
void NetworkLane::answered(Arrival& arrival) {
  const Reply& reply = arrival.frame().reply;
  Answer answer{reply, arrival.take_text()};
  if (arrival.unasked())
    answer = {{.id = reply.id, .verb = reply.verb, .status = Status::invalid},
              fmt::format("{} sent {} bytes that nobody asked for", name(), reply.bytes)};
  {
    const Lock lock(mutex_);
    const auto found = open_.find(reply.id);
    if (found == open_.end()) return;  // it was sent twice, and answered before
    found->second->answered = true;
    open_.erase(found);
    for (Channel& channel : channels_) channel.sent.erase(reply.id);
    if (reply.verb == Verb::leave) left_ = true;
    answers_.push_back(std::move(answer));
    waiting_.store(answers_.size());
  }
  ring(memory_->bell());
}

void NetworkLane::ended(size_t index, const grpc::Status& status) {
  const Lock lock(mutex_);
  Channel& channel = channels_[index];
  channel.welcomed = false;
  channel.broken = true;
  for (auto& [id, sending] : channel.sent) channel.queue.push(sending->urgency, id, sending);
  channel.sent.clear();
  arrivals_[index] = {};
  if (stopping_ || left_) return;
  channel.why = status.error_message().empty() ? "the connection ended" : status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    refused_ = true;
    return lose(fmt::format("{} {}", name(), status.error_message()));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    refused_ = true;
    return lose(fmt::format("{} is no parameter server: another program answers there", name()));
  }
  if (!broke(status)) return lose(fmt::format("{} is gone: {}", name(), status.error_message()));
  const auto now = Clock::now();
  if (channel.back_by == Clock::time_point::max())
    channel.back_by = now + std::chrono::duration_cast<Clock::duration>(options_.patience);
  channel.next_try = now + std::chrono::duration_cast<Clock::duration>(kBetweenTries);
  bell_.notify_all();
}

// ---- receiving ----

bool NetworkLane::receive(Reply& reply, std::string& text) {
  if (waiting_.load() == 0) return false;
  const Lock lock(mutex_);
  if (answers_.empty()) return false;
  reply = answers_.front().reply;
  text = std::move(answers_.front().text);
  answers_.pop_front();
  waiting_.store(answers_.size());
  return true;
}

std::string NetworkLane::fault() {
  const Lock lock(mutex_);
  return fault_;
}

}  // namespace

std::string address_key(int server) { return fmt::format("ps/{}", server); }

std::unique_ptr<Lane> connect(const LaneOptions& options, std::shared_ptr<shm::Memory> memory,
                              std::function<void()> alarm, const Deadline& deadline) {
  cluster::prepare_grpc();
  return std::make_unique<NetworkLane>(options, std::move(memory), std::move(alarm), deadline);
}

}  // namespace trireme::ps::network
