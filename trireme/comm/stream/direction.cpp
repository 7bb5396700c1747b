#include <pthread.h>

#include <algorithm>
#include <csignal>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/comm/stream/direction.h>

namespace trireme::comm::stream {
namespace {

constexpr Seconds kForever{1e6};        // until the bell rings
constexpr Seconds kShortFarewell{0.3};  // of a group that has failed: some of its peers may hear nothing any more

}  // namespace

class Direction::UnderWay final : public network::Message {
 public:
  UnderWay(Direction& direction, std::unique_ptr<Flight> flight, size_t peer)
      : direction_(direction), flight_(std::move(flight)), peer_(peer) {}

  /// The thread may be at its memory, for as long as it takes to encrypt a piece.
  ~UnderWay() override {
    Lock lock(direction_.mutex_);
    flight_->news.wait(lock, [&] { return !flight_->moving; });
    direction_.flights_[peer_].erase(flight_.get());
    if (!flight_->done && !direction_.forget(*flight_, peer_))
      direction_.lose_locked(peer_, "a message of its connection was given up half way");
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  void wait(const Deadline& deadline) override {
    Lock lock(direction_.mutex_);
    const std::string& lost = direction_.lost_[peer_];
    const auto over = [&]() TRIREME_REQUIRES(direction_.mutex_) {
      return flight_->done || direction_.interrupted_ || !lost.empty();
    };
    const bool news = flight_->news.wait_for(lock, deadline.left(), over);
    if (direction_.interrupted_) fail<PeerLost>("interrupted");
    if (flight_->done) return;
    if (!news) fail<Timeout>("nothing was sent or taken for {:.3g} s", deadline.limit().count());
    fail<PeerLost>("{}", lost);
  }

 private:
  Direction& direction_;
  const std::unique_ptr<Flight> flight_;
  const size_t peer_;
};

Direction::Direction(std::vector<std::unique_ptr<Channel>> channels)
    : lost_(channels.size()), flights_(channels.size()) {
  for (size_t i = 0; i < channels.size(); i++) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->number = i;
    peers_.back()->channel = std::move(channels[i]);
    if (!peers_.back()->channel) continue;
    poller_.add(peers_.back()->channel->socket(), i);
    peers_.back()->again = true;  // what came with the greeting
  }
}

Direction::~Direction() = default;

void Direction::start(const char* name) {
  thread_ = std::thread([this, name] { work(name); });
  poller_.ring();
}

void Direction::stop(Seconds limit) {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    farewell_ = limit;
  }
  poller_.ring();
  thread_.join();
}

void Direction::interrupt() noexcept {
  const Lock lock(mutex_);
  interrupted_ = true;
  for (const auto& flights : flights_)
    for (Flight* flight : flights) flight->news.notify_all();
}

std::unique_ptr<network::Message> Direction::under_way(std::unique_ptr<Flight> flight, size_t peer) {
  return std::make_unique<UnderWay>(*this, std::move(flight), peer);
}

void Direction::lose(size_t peer, const std::string& why) {
  const Lock lock(mutex_);
  lose_locked(peer, why);
}

void Direction::lose_locked(size_t peer, const std::string& why) {
  if (lost_[peer].empty()) lost_[peer] = why;
  for (Flight* flight : flights_[peer]) flight->news.notify_all();
  poller_.ring();
}

bool Direction::flush(Peer& peer) {
  const bool gone = peer.channel->flush();
  if (gone == peer.looks_for_room) {
    peer.looks_for_room = !gone;
    poller_.look_for_room(peer.channel->socket(), peer.number, !gone);
  }
  return gone;
}

void Direction::serve(Peer& peer, bool readable, bool leaving) {
  if (peer.over) return;
  peer.again = false;
  try {
    if (!leaving)
      step(peer, readable);
    else if (part(peer, readable))
      lose(peer.number, "the group has ended");
  } catch (const Error& error) {
    lose(peer.number, error.what());
  }
  {
    const Lock lock(mutex_);
    if (!lost(peer)) return;
  }
  peer.over = true;
  poller_.remove(peer.channel->socket());
  peer.channel->shut_down();
}

void Direction::hurry(size_t number) {
  Peer& peer = *peers_[number];
  if (!peer.use.try_lock()) return poller_.ring();
  const Lock use(peer.use, std::adopt_lock);
  const bool more = peer.again;
  serve(peer, false, false);
  peer.again = peer.again || more;
  if (peer.again) poller_.ring();
}

// ---- the thread ----

void Direction::work(const char* name) {
  name_thread(name);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // they belong to the program
  bool again = false;
  while (true) {
    const auto& events = poller_.wait(Deadline(again ? Seconds(0) : kForever));
    {
      const Lock lock(mutex_);
      if (stopping_) break;
    }
    again = false;
    for (const auto& peer : peers_) {
      if (!peer->channel) continue;
      const Lock use(peer->use);
      const bool more = peer->again;
      serve(*peer, more || readable(peer->number, events), false);
      again = again || peer->again;
    }
  }
  say_farewell();
}

bool Direction::readable(size_t peer, const std::vector<Poller::Event>& events) const {
  return std::any_of(events.begin(), events.end(),
                     [&](const Poller::Event& event) { return event.peer == peer && event.readable; });
}

void Direction::say_farewell() {
  Seconds limit;
  {
    const Lock lock(mutex_);
    limit = interrupted_ ? std::min(farewell_, kShortFarewell) : farewell_;
  }
  const Deadline deadline(limit);
  for (bool first = true; true; first = false) {
    const auto& events = poller_.wait(Deadline(first ? Seconds(0) : deadline.left()));
    bool all_over = true;
    for (const auto& peer : peers_) {
      if (!peer->channel) continue;
      const Lock use(peer->use);
      serve(*peer, first || readable(peer->number, events), true);
      all_over = all_over && peer->over;
    }
    if (all_over || deadline.passed()) return;
  }
}

}  // namespace trireme::comm::stream
