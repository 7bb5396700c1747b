#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/comm/stream/direction.h>

namespace trireme::comm::stream {
namespace {

constexpr size_t kPiece = 1 << 20;         // bytes, between two looks at whose they are
constexpr size_t kBeforeOthers = 4 << 20;  // of one peer, before the next one's turn

}  // namespace

Incoming::Incoming(std::vector<std::unique_ptr<Channel>> channels)
    : Direction(std::move(channels)), boxes_(peers_.size()), granted_(peers_.size()) {
  start("trireme-str-in");
}

Incoming::~Incoming() { stop(Seconds(0)); }

std::unique_ptr<network::Message> Incoming::receive(void* data, size_t bytes, size_t from, uint32_t tag) {
  auto flight = std::make_unique<Flight>();
  flight->data = static_cast<std::byte*>(data);
  flight->bytes = bytes;
  flight->tag = tag;
  Flight& posted = *flight;
  auto message = under_way(std::move(flight), from);
  try {
    const Lock lock(mutex_);
    track(posted, from);
    boxes_[from].expect(posted);
    if (bytes <= kShort) return message;
    granted_[from].push_back(tag);
  } catch (const Corruption& error) {
    lose(from, error.what());
    return message;
  }
  hurry(from);
  return message;
}

void Incoming::step(Peer& peer, bool readable) {
  write_grants(peer);
  for (size_t read = 0; readable && read < kBeforeOthers;) {
    const size_t bytes = read_some(peer);
    write_grants(peer);  // the sender should not run out of what it may send
    if (bytes == 0) return;
    read += bytes;
  }
  peer.again = readable;
}

void Incoming::write_grants(Peer& peer) {
  std::vector<uint32_t> tags;
  {
    const Lock lock(mutex_);
    tags.swap(granted_[peer.number]);
  }
  std::vector<std::byte> heads;
  for (const uint32_t tag : tags) {
    const auto head = encode(Head{Part::grant, tag, 0});
    heads.insert(heads.end(), head.begin(), head.end());
  }
  peer.channel->write(heads);
  flush(peer);
}

size_t Incoming::read_some(Peer& peer) {
  std::span<std::byte> room;
  Flight* flight = nullptr;
  {
    const Lock lock(mutex_);
    if (lost(peer)) return 0;
    Inbox& box = boxes_[peer.number];
    room = box.room();
    flight = box.receiver();
    if (flight != nullptr) flight->moving = true;
  }
  size_t got = 0;
  std::exception_ptr trouble;
  try {
    const size_t most = std::min(room.size(), kPiece);
    while (got < most) {
      const auto bytes = peer.channel->read(room.subspan(got, most - got));
      if (!bytes) fail<IoError>("it has left");
      if (*bytes == 0) break;
      got += *bytes;
    }
  } catch (const Error&) {
    trouble = std::current_exception();
  }
  const Lock lock(mutex_);
  if (flight != nullptr) {
    flight->moving = false;
    flight->news.notify_all();
  }
  if (!lost(peer) && got > 0)
    if (Flight* const complete = boxes_[peer.number].filled(got)) complete->news.notify_all();
  if (trouble) std::rethrow_exception(trouble);
  return got;
}

}  // namespace trireme::comm::stream
