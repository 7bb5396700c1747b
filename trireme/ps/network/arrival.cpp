#include "arrival.h"

namespace trireme::ps::network {
namespace {

/// Null when the data do not fit what was asked.
std::byte* place_of(const Request& r, const Reply& reply, shm::Memory& memory) {
  const shm::Plot& plot = memory.plot();
  if (answers_staged(r.verb))
    return r.extra <= plot.staging_bytes && reply.bytes <= plot.staging_bytes - r.extra ? memory.staging() + r.extra
                                                                                        : nullptr;
  const bool dense = r.verb == Verb::pull || r.verb == Verb::push;
  const bool fits = reply.bytes == r.bytes && r.begin <= plot.flat_bytes && r.bytes <= plot.flat_bytes - r.begin;
  return dense && fits ? memory.parameters() + r.begin : nullptr;
}

}  // namespace

std::string Arrival::take(const grpc::ByteBuffer& piece, shm::Memory& memory, const FindRequest& find) {
  std::string fault =
      assembly_.take(piece, [&](const Frame& frame, size_t bytes) { return place(frame, bytes, memory, find); });
  const Kind kind = frame().head.kind;
  return fault.empty() && kind != Kind::welcome && kind != Kind::reply ? "it talks like a worker" : fault;
}

std::byte* Arrival::place(const Frame& frame, size_t bytes, shm::Memory& memory, const FindRequest& find) {
  unasked_ = false;
  text_.clear();
  const Reply& reply = frame.reply;
  if (frame.head.kind == Kind::welcome ||
      (frame.head.kind == Kind::reply && (reply.status >= Status::invalid || answers_in_words(reply.verb)))) {
    unasked_ = bytes > kMostWords;
    if (unasked_) return nullptr;
    text_.resize(bytes);
    return reinterpret_cast<std::byte*>(text_.data());
  }
  if (frame.head.kind != Kind::reply || bytes == 0) return nullptr;
  const auto request = find(reply.id);
  std::byte* there = request ? place_of(*request, reply, memory) : nullptr;
  unasked_ = there == nullptr;
  return there;
}

}  // namespace trireme::ps::network
