#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/comm/stream/boxes.h>

namespace trireme::comm::stream {

// ---- to a peer ----

void Outbox::add(Flight& flight) {
  waiting_.push(flight.tag, &flight);
  advance(flight.tag);
}

void Outbox::grant(uint32_t tag) {
  granted_[tag]++;
  advance(tag);
}

void Outbox::advance(uint32_t tag) {
  while (Flight** next = waiting_.front(tag)) {
    if ((*next)->bytes > kShort) {
      const auto found = granted_.find(tag);
      if (found == granted_.end()) return;
      if (--found->second == 0) granted_.erase(found);
    }
    ready_.push_back(*next);
    waiting_.pop(tag);
  }
}

bool Outbox::drop(Flight& flight) {
  if (waiting_.remove(flight.tag, &flight)) return true;
  std::erase(ready_, &flight);
  return !flight.begun || flight.done;
}

// ---- from a peer ----

void Inbox::expect(Flight& flight) {
  std::vector<std::byte>* const early = expected_.has(flight.tag) ? nullptr : early_.front(flight.tag);
  if (early == nullptr) {
    expected_.push(flight.tag, &flight);
    return;
  }
  if (early->size() != flight.bytes)
    fail<Corruption>("it has sent a message of {} bytes where {} are expected", early->size(), flight.bytes);
  std::copy(early->begin(), early->end(), flight.data);
  flight.moved = flight.bytes;
  flight.done = true;
  early_bytes_ -= early->size();
  early_.pop(flight.tag);
}

std::span<std::byte> Inbox::room() {
  if (got_ < kHeadBytes) return std::span(head_bytes_).subspan(got_);
  const std::span<std::byte> body =
      receiver_ != nullptr ? std::span(receiver_->data, receiver_->bytes) : std::span(unasked_);
  return body.subspan(got_ - kHeadBytes);
}

Flight* Inbox::filled(size_t bytes) {
  const bool in_head = got_ < kHeadBytes;
  got_ += bytes;
  if (got_ < kHeadBytes) return nullptr;
  if (in_head) return begin_frame();
  if (receiver_ != nullptr) receiver_->moved += bytes;
  return got_ == kHeadBytes + head_.bytes ? end_frame() : nullptr;
}

/// Nothing is allocated that was not asked for, but for short messages, and not many of these.
Flight* Inbox::begin_frame() {
  head_ = decode(head_bytes_);
  if (head_.part != Part::data)
    fail<Corruption>("a frame of the kind {} where data belong", static_cast<int>(head_.part));
  if (Flight** const next = expected_.front(head_.tag)) {
    receiver_ = *next;
    if (receiver_->bytes != head_.bytes)
      fail<Corruption>("it sends a message of {} bytes where {} are expected", head_.bytes, receiver_->bytes);
    expected_.pop(head_.tag);
  } else {
    if (head_.bytes > kShort) fail<Corruption>("it sends a message of {} bytes that nobody asked for", head_.bytes);
    if (early_bytes_ + head_.bytes > kMostUnasked)
      fail<Corruption>("it has sent {} bytes that nobody asked for", early_bytes_ + head_.bytes);
    unasked_.resize(head_.bytes);
  }
  return head_.bytes == 0 ? end_frame() : nullptr;
}

Flight* Inbox::end_frame() {
  got_ = 0;
  if (receiver_ != nullptr) {
    receiver_->done = true;
    return std::exchange(receiver_, nullptr);
  }
  // A receive may have been posted since the head came.
  if (Flight** const next = expected_.front(head_.tag)) {
    Flight& flight = **next;
    if (flight.bytes != unasked_.size())
      fail<Corruption>("it has sent a message of {} bytes where {} are expected", unasked_.size(), flight.bytes);
    std::copy(unasked_.begin(), unasked_.end(), flight.data);
    flight.moved = flight.bytes;
    flight.done = true;
    expected_.pop(head_.tag);
    return &flight;
  }
  early_bytes_ += unasked_.size();
  early_.push(head_.tag, std::exchange(unasked_, {}));
  return nullptr;
}

bool Inbox::drop(Flight& flight) {
  if (flight.done || expected_.remove(flight.tag, &flight)) return true;
  return receiver_ != &flight;
}

}  // namespace trireme::comm::stream
