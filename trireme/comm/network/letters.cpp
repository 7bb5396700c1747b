#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/comm/network/letters.h>

namespace trireme::comm::network {

void Letters::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  auto packet = std::make_unique<Packet>();
  const Fingerprint what = packet->what = fingerprint(Kind::none, count, type, name);
  const bool inside = what.bytes() <= Packet::kRoom;
  if (inside) std::copy_n(static_cast<const std::byte*>(data), what.bytes(), packet->data.begin());
  flush(to, kUnread - 1);
  auto message = wire_.send(packet.get(), Packet::kBytes, to, kLetterTag, what);
  sent_[to].push_back({std::move(packet), std::move(message)});
  if (!inside) wire_.wait(*wire_.send(data, what.bytes(), to, kEnclosureTag, what), to, what);
}

void Letters::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  const Fingerprint what = fingerprint(Kind::none, count, type, name);
  const auto packet = std::make_unique_for_overwrite<Packet>();
  wire_.wait(*wire_.receive(packet.get(), Packet::kBytes, from, kLetterTag, what), from, what);
  const Fingerprint& theirs = packet->what;
  if (!agree(what, theirs))
    fail<Mismatch>("rank {} expects '{}' of {} × {} from rank {}, which sent '{}' of {} × {}",
                   wire_.name_of(wire_.rank()), name, count, trireme::name_of(type), wire_.name_of(from),
                   theirs.text.data(), theirs.count, trireme::name_of(theirs.dtype));
  if (what.bytes() <= Packet::kRoom)
    std::copy_n(packet->data.begin(), what.bytes(), static_cast<std::byte*>(data));
  else
    wire_.wait(*wire_.receive(data, what.bytes(), from, kEnclosureTag, what), from, what);
}

void Letters::flush(int to, size_t left) {
  std::deque<Sent>& sent = sent_[to];
  for (; sent.size() > left; sent.pop_front()) wire_.wait(*sent.front().message, to, sent.front().packet->what);
}

void Letters::flush() {
  for (auto& [to, sent] : sent_) flush(to, 0);
}

}  // namespace trireme::comm::network
