#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/comm/network/operation.h>

namespace trireme::comm::network {

std::vector<std::byte> Along::packed() const {
  const auto first = std::as_bytes(sums), second = std::as_bytes(flags);
  std::vector<std::byte> bytes(first.begin(), first.end());
  bytes.insert(bytes.end(), second.begin(), second.end());
  return bytes;
}

void Along::merge(std::span<const std::byte* const> all) {
  std::fill(sums.begin(), sums.end(), 0.0);
  for (const std::byte* theirs : all) {
    for (size_t i = 0; i < sums.size(); i++) {
      double value = 0;
      std::memcpy(&value, theirs + i * sizeof value, sizeof value);
      sums[i] += value;
    }
    for (size_t i = 0; i < flags.size(); i++)
      flags[i] = std::max(flags[i], static_cast<uint8_t>(theirs[sums.size_bytes() + i]));
  }
}

void Operation::merge(Along& along, const std::vector<std::byte>& packed) const {
  if (along.empty()) return;
  std::vector<const std::byte*> all;
  for (int from = 0; from < size_; from++) all.push_back(from == me_ ? packed.data() : enclosed_by(from));
  along.merge(all);
}

void Operation::post() noexcept {
  try {
    post_openings();
    send_first();
  } catch (...) {
    trouble_ = std::current_exception();
  }
}

void Operation::post_openings() {
  const auto n = static_cast<size_t>(size_);
  arrived_ = std::make_unique_for_overwrite<Packet[]>(n);
  leaving_ = std::make_unique<Packet[]>(individual() ? n : 1);
  openings_.resize(n);
  for (int step = 1; step < size_; step++) {
    const auto from = static_cast<size_t>(peer(-step));
    openings_[from] = wire_.receive(&arrived_[from], Packet::kBytes, peer(-step), kOpeningTag, what_);
  }
  for (int step = 1; step < size_; step++) {
    const int to = peer(step);
    Packet& packet = leaving_[individual() ? static_cast<size_t>(to) : 0];
    if (individual() || step == 1) {
      packet.what = what_;
      const Piece piece = enclosed(to);
      std::copy_n(piece.data, piece.bytes, packet.data.begin());
    }
    openings_sent_.push_back({wire_.send(&packet, Packet::kBytes, to, kOpeningTag, what_), to});
  }
}

void Operation::complete() {
  wire_.check();
  compare_openings();
  if (trouble_) std::rethrow_exception(trouble_);
  run();
  drain();
  for (const Sent& sent : openings_sent_) wire_.wait(*sent.message, sent.to, what_);
}

void Operation::compare_openings() {
  for (int step = 1; step < size_; step++) {
    const int from = peer(step);
    const auto& opening = openings_[static_cast<size_t>(from)];
    if (!opening) std::rethrow_exception(trouble_);
    wire_.wait(*opening, from, what_);
    const Fingerprint& theirs = arrived_[static_cast<size_t>(from)].what;
    const bool agreed = agree(what_, theirs);
    const bool lists = what_.counts != 0 && theirs.counts != 0 && what_.kind == theirs.kind;
    const std::string more = lists ? conflict(from) : "";
    if (agreed && more.empty()) continue;
    flush_openings();
    if (agreed) fail<Mismatch>("ranks disagree in {} '{}': {}", name_of(what_.kind), what_.text.data(), more);
    disagree(what_, wire_.name_of(me_), theirs, wire_.name_of(from), more);
  }
}

/// The others shall find the disagreement too, even if this rank is gone by then.
void Operation::flush_openings() noexcept {
  try {
    for (const Sent& sent : openings_sent_) wire_.wait(*sent.message, sent.to, what_);
  } catch (...) {  // who cannot be told will hear of the end of this rank
  }
}

void Operation::send(const std::byte* data, size_t bytes, int to) {
  if (bytes > 0) sent_.push_back({wire_.send(data, bytes, to, tag(), what_), to});
}

std::unique_ptr<Message> Operation::receive(std::byte* data, size_t bytes, int from) {
  return bytes > 0 ? wire_.receive(data, bytes, from, tag(), what_) : nullptr;
}

void Operation::await(const std::unique_ptr<Message>& message, int from) {
  if (message) wire_.wait(*message, from, what_);
}

void Operation::drain(size_t left) {
  for (; sent_.size() > left; sent_.pop_front()) wire_.wait(*sent_.front().message, sent_.front().to, what_);
}

}  // namespace trireme::comm::network
