#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/comm/network/letters.h>
#include <trireme/comm/network/shown.h>

namespace trireme::comm::network {

// ---- a thread that waits ----

Line::Line(Wire& wire, const std::function<void()>& settled)
    : wire_(wire), settled_(settled), thread_([this] { work(); }) {}

Line::~Line() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<Ticket> Line::add(std::function<void()> job) {
  auto ticket = std::make_shared<Ticket>();
  {
    const Lock lock(mutex_);
    jobs_.push_back({std::move(job), ticket});
  }
  wake_.notify_all();
  return ticket;
}

bool Line::idle() {
  const Lock lock(mutex_);
  return jobs_.empty();
}

void Line::work() {
  name_thread("trireme-letters");
  Lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job& job = jobs_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      job.work();
    } catch (...) {
      wire_.fail(std::current_exception());
      error = wire_.cause();
    }
    job.work = nullptr;  // before anybody is told: its messages point into the caller's memory
    const std::shared_ptr<Ticket> ticket = job.ticket;
    lock.lock();
    jobs_.pop_front();
    ticket->settle(error);
    settled_();
  }
}

Line& Letters::line(std::unique_ptr<Line>& line) {
  if (!line) line = std::make_unique<Line>(wire_, settled_);
  return *line;
}

// ---- sending ----

/// `room`, if there is one, holds the data until they are sent.
std::shared_ptr<Ticket> Letters::post(const void* data, const Fingerprint& what, int to,
                                      std::shared_ptr<Rooms::Room> room) {
  Peer& peer = peers_[to];
  auto packet = std::make_unique<Packet>();
  packet->what = what;
  const bool inside = what.bytes() <= Packet::kRoom;
  if (inside) std::copy_n(static_cast<const std::byte*>(data), what.bytes(), packet->data.begin());
  auto message = wire_.send(packet.get(), Packet::kBytes, to, kLetterTag, what);
  peer.unread.push_back({std::move(packet), std::move(message)});
  if (inside && peer.unread.size() <= kUnread) return nullptr;

  // Somebody has to wait for them: to let go of their memory, and because some engines only move while somebody waits.
  auto unread = std::make_shared<std::deque<Sent>>(std::move(peer.unread));
  peer.unread.clear();
  std::shared_ptr<Message> enclosure;
  if (!inside) enclosure = wire_.send(data, what.bytes(), to, kEnclosureTag, what);
  return line(peer.out).add([this, what, to, unread, enclosure, room] {
    for (; !unread->empty(); unread->pop_front())
      wire_.wait(*unread->front().message, to, unread->front().packet->what);
    if (enclosure) wire_.wait(*enclosure, to, what);
    if (room) wire_.rooms().put_back(std::move(*room));
  });
}

void Letters::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  const Fingerprint what = fingerprint(Kind::none, count, type, name);
  if (what.bytes() <= Packet::kRoom) {
    post(data, what, to, nullptr);
    return;
  }
  auto room = std::make_shared<Rooms::Room>(wire_.rooms().take(what.bytes()));
  std::memcpy(room->data.get(), data, what.bytes());
  post(room->data.get(), what, to, room);
}

std::shared_ptr<Ticket> Letters::start_send(const void* data, size_t count, DType type, int to, std::string_view name) {
  const Fingerprint what = fingerprint(Kind::none, count, type, name);
  const auto ticket = post(data, what, to, nullptr);
  return what.bytes() <= Packet::kRoom ? settled_ticket() : ticket;
}

// ---- receiving ----

Letters::Incoming Letters::expect(const Fingerprint& what, int from) {
  std::shared_ptr<Packet> packet = std::make_unique_for_overwrite<Packet>();
  std::shared_ptr<Message> message = wire_.receive(packet.get(), Packet::kBytes, from, kLetterTag, what);
  return {packet, message};
}

void Letters::finish_receiving(const Incoming& incoming, void* data, const Fingerprint& what, int from) {
  const auto& [packet, message] = incoming;
  wire_.wait(*message, from, what);
  const Fingerprint& theirs = packet->what;
  if (!agree(what, theirs))
    fail<Mismatch>("rank {} expects '{}' of {} × {} from rank {}, which sent '{}' of {} × {}",
                   wire_.name_of(wire_.rank()), shown_name(what), what.count, shown_type(what), wire_.name_of(from),
                   shown_name(theirs), theirs.count, shown_type(theirs));
  take_data(*packet, data, what, from);
}

void Letters::take_data(const Packet& packet, void* data, const Fingerprint& what, int from) {
  if (what.bytes() <= Packet::kRoom)
    std::copy_n(packet.data.begin(), what.bytes(), static_cast<std::byte*>(data));
  else
    wire_.wait(*wire_.receive(data, what.bytes(), from, kEnclosureTag, what), from, what);
}

void Letters::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  Peer& peer = peers_[from];
  if (peer.in && !peer.in->idle()) return start_receive(data, count, type, from, name)->wait();
  const Fingerprint what = fingerprint(Kind::none, count, type, name);
  finish_receiving(expect(what, from), data, what, from);
}

std::shared_ptr<Ticket> Letters::start_receive(void* data, size_t count, DType type, int from, std::string_view name) {
  const Fingerprint what = fingerprint(Kind::none, count, type, name);
  return line(peers_[from].in).add([this, incoming = expect(what, from), data, what, from] {
    finish_receiving(incoming, data, what, from);
  });
}

std::shared_ptr<Ticket> Letters::start_receive_any(Room room, int from, std::string_view name) {
  const Fingerprint what = fingerprint(Kind::none, 0, DType::u8, name);
  return line(peers_[from].in).add([this, incoming = expect(what, from), room = std::move(room), what, from] {
    const auto& [packet, message] = incoming;
    wire_.wait_long(*message, from, what);
    const Fingerprint& theirs = packet->what;
    const std::string beginning = shown_name(what), shown = shown_name(theirs);
    if (theirs.kind != Kind::none || theirs.dtype != DType::u8 || !shown.starts_with(beginning))
      fail<Mismatch>("rank {} expects bytes '{}' from rank {}, which sent '{}' of {} × {}", wire_.name_of(wire_.rank()),
                     beginning, wire_.name_of(from), shown, theirs.count, shown_type(theirs));
    take_data(*packet, room(theirs.bytes()), theirs, from);
  });
}

void Letters::close() {
  for (auto& [to, peer] : peers_) {
    peer.out.reset();
    try {
      for (; !peer.unread.empty(); peer.unread.pop_front())
        wire_.wait(*peer.unread.front().message, to, peer.unread.front().packet->what);
    } catch (...) {  // nobody to tell; the receiver hears that this rank is gone
    }
  }
  const bool waiting =
      std::any_of(peers_.begin(), peers_.end(), [](auto& p) { return p.second.in && !p.second.in->idle(); });
  if (waiting)
    wire_.fail(std::make_exception_ptr(
        Error(fmt::format("rank {} left the group before a message had come", wire_.name_of(wire_.rank())))));
  peers_.clear();
}

}  // namespace trireme::comm::network
