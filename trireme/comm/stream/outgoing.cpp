#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/comm/stream/direction.h>

namespace trireme::comm::stream {
namespace {

constexpr size_t kStaged = 16 << 10;   // bytes of one record of TLS
constexpr size_t kAtOnce = 128 << 10;  // of a long message, between two looks at the socket
constexpr Seconds kFarewell{1};        // for the others to read what was sent

}  // namespace

Outgoing::Outgoing(std::vector<std::unique_ptr<Channel>> channels)
    : Direction(std::move(channels)), lines_(peers_.size()), boxes_(peers_.size()) {
  start("trireme-str-out");
}

Outgoing::~Outgoing() { stop(kFarewell); }

std::unique_ptr<network::Message> Outgoing::send(const void* data, size_t bytes, size_t to, uint32_t tag) {
  auto flight = std::make_unique<Flight>();
  flight->data = static_cast<std::byte*>(const_cast<void*>(data));
  flight->bytes = bytes;
  flight->tag = tag;
  Flight& posted = *flight;
  auto message = under_way(std::move(flight), to);
  {
    const Lock lock(mutex_);
    boxes_[to].add(posted);
    track(posted, to);
  }
  hurry(to);
  return message;
}

void Outgoing::step(Peer& peer, bool readable) {
  if (readable) read_grants(peer);
  while (flush(peer))
    if (!encrypt_some(peer)) return;
}

void Outgoing::read_grants(Peer& peer) {
  Line& line = lines_[peer.number];
  while (true) {
    const auto bytes = peer.channel->read(std::span(line.head).subspan(line.got));
    if (!bytes) fail<IoError>("it has left");
    if (*bytes == 0) return;
    line.got += *bytes;
    if (line.got < kHeadBytes) continue;
    line.got = 0;
    const Head head = decode(line.head);
    if (head.part != Part::grant) fail<Corruption>("it sends where it should receive");
    const Lock lock(mutex_);
    boxes_[peer.number].grant(head.tag);
  }
}

/// Heads and short messages, and the beginning of a long one, which `large` then is: what fits into a record.
size_t Outgoing::gather(Peer& peer, Flight*& large) {
  std::vector<std::byte>& staged = lines_[peer.number].staged;
  staged.clear();
  const Lock lock(mutex_);
  if (lost(peer)) return 0;
  Outbox& box = boxes_[peer.number];
  while (Flight* const flight = box.front()) {
    if (!flight->begun) {
      if (staged.size() + kHeadBytes > kStaged) break;
      const auto head = encode(Head{Part::data, flight->tag, flight->bytes});
      staged.insert(staged.end(), head.begin(), head.end());
      flight->begun = true;
    } else if (staged.empty() && flight->bytes - flight->moved >= kStaged) {
      large = flight;
      break;
    }
    const size_t bytes = std::min(kStaged - staged.size(), flight->bytes - flight->moved);
    staged.insert(staged.end(), flight->data + flight->moved, flight->data + flight->moved + bytes);
    flight->moved += bytes;
    if (flight->moved < flight->bytes) {
      if (flight->bytes - flight->moved >= kStaged) large = flight;
      break;
    }
    box.pop();
    flight->done = true;
    flight->news.notify_all();
  }
  if (large != nullptr) large->moving = true;
  return staged.size();
}

bool Outgoing::encrypt_some(Peer& peer) {
  Flight* large = nullptr;
  const size_t staged = gather(peer, large);
  if (large == nullptr) {
    peer.channel->write(lines_[peer.number].staged);
    return staged > 0;
  }
  const size_t bytes = std::min(kAtOnce, large->bytes - large->moved);
  std::exception_ptr trouble;
  try {
    peer.channel->write(lines_[peer.number].staged);
    peer.channel->write({large->data + large->moved, bytes});
  } catch (const Error&) {
    trouble = std::current_exception();
  }
  const Lock lock(mutex_);
  large->moved += bytes;
  large->moving = false;
  if (!trouble && large->moved == large->bytes) {
    boxes_[peer.number].pop();
    large->done = true;
  }
  large->news.notify_all();
  if (trouble) std::rethrow_exception(trouble);
  return true;
}

bool Outgoing::part(Peer& peer, bool readable) {
  Line& line = lines_[peer.number];
  if (!line.parted) {
    while (flush(peer))
      if (!encrypt_some(peer)) break;
    if (!flush(peer)) return false;
    peer.channel->say_goodbye();
    line.parted = true;
  }
  if (!flush(peer)) return false;
  if (!line.shut) peer.channel->shut_down();
  line.shut = true;
  // Until the other side has read it all, and leaves too: a socket that is closed before loses what is on its way.
  if (readable) read_grants(peer);
  return false;
}

}  // namespace trireme::comm::stream
