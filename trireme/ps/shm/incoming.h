#pragma once
// A request of a worker that shares memory, with what came along.
#include <utility>

#include <trireme/ps/service.h>
#include <trireme/ps/shm/memory.h>

namespace trireme::ps::shm {

/// A view of the worker's memory, where what it says makes sense; the service refuses the rest.
inline Incoming incoming_of(std::shared_ptr<Connection> from, const Request& r, const Memory& memory) {
  Incoming in{.from = from, .request = r, .keep = from};
  const Service& service = *from->service;
  const Plot& plot = memory.plot();
  const auto view = [&](const std::byte* base, uint64_t room) -> std::span<const std::byte> {
    if (r.begin > room || r.bytes > room - r.begin) return {};
    return {base + r.begin, r.bytes};
  };
  if (r.verb == Verb::push) in.data = view(memory.gradients(), plot.flat_bytes);
  if (r.verb == Verb::set) in.data = view(memory.parameters(), plot.flat_bytes);
  if (brings_staged(r.verb)) in.data = view(memory.staging(), plot.staging_bytes);
  if (r.verb == Verb::push && r.chunk < service.chunks().size() && service.chunks()[r.chunk].last <= plot.slots)
    in.present = memory.present() + service.chunks()[r.chunk].first;
  return in;
}

}  // namespace trireme::ps::shm
