#include <numeric>

#include <trireme/base/error.h>
#include <trireme/comm/network/wire.h>

namespace trireme::comm::network {
namespace {

std::vector<int> checked(std::vector<int> names, int size) {
  if (names.empty()) {
    names.resize(static_cast<size_t>(size));
    std::iota(names.begin(), names.end(), 0);
  }
  if (names.size() != static_cast<size_t>(size))
    fail<InvalidArgument>("{} names for a group of {} ranks", names.size(), size);
  return names;
}

}  // namespace

Rooms::Room Rooms::take(size_t bytes) {
  {
    const Lock lock(mutex_);
    for (size_t i = 0; i < free_.size(); i++) {
      if (free_[i].bytes < bytes) continue;
      Room found = std::move(free_[i]);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
  }
  return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
}

void Rooms::put_back(Room room) {
  if (room.bytes == 0) return;
  const Lock lock(mutex_);
  if (free_.size() == most_) free_.erase(free_.begin());
  free_.push_back(std::move(room));
}

Wire::Wire(std::unique_ptr<Transport> transport, Seconds timeout, Seconds patience, std::vector<int> names,
           std::string timeout_setting, WireMetrics count)
    : transport_(std::move(transport)),
      patience_(patience),
      rank_(transport_->rank()),
      size_(transport_->size()),
      names_(checked(std::move(names), transport_->size())),
      count_(std::move(count)),
      limit_{timeout, std::move(timeout_setting)} {}

/// Runs `action`, which throws what the engine says; the caller hears the cause of the group's failure, or else whom
/// and what it was about.
template <class Action>
auto Wire::explained(int peer, const Fingerprint& what, const Action& action) {
  check();
  try {
    return action();
  } catch (const Timeout&) {
    check();
    const WaitLimit passed = limit();
    trireme::fail<Timeout>("rank {} did not come to {} within {:.3g} s; rank {} gave up waiting{}", name_of(peer),
                           describe(what), passed.timeout.count(), name_of(rank_), longer_helps(passed.setting));
  } catch (const PeerLost& error) {
    await_cause();
    check();
    trireme::fail<PeerLost>("rank {} was lost; rank {} waited for it in {} ({})", name_of(peer), name_of(rank_),
                            describe(what), error.what());
  } catch (...) {
    check();
    throw;
  }
}

std::unique_ptr<Message> Wire::send(const void* data, size_t bytes, int to, uint32_t tag, const Fingerprint& what) {
  return explained(to, what, [&] {
    const Lock lock(posting_);
    count_.sent_bytes.add(static_cast<double>(bytes));
    return transport_->send(data, bytes, to, tag);
  });
}

std::unique_ptr<Message> Wire::receive(void* data, size_t bytes, int from, uint32_t tag, const Fingerprint& what) {
  return explained(from, what, [&] {
    const Lock lock(posting_);
    count_.received_bytes.add(static_cast<double>(bytes));
    return transport_->receive(data, bytes, from, tag);
  });
}

void Wire::wait(Message& message, int peer, const Fingerprint& what) {
  explained(peer, what, [&] { message.wait(Deadline(limit().timeout)); });
}

void Wire::wait_long(Message& message, int peer, const Fingerprint& what) {
  constexpr Seconds kYears{1e8};
  explained(peer, what, [&] { message.wait(Deadline(kYears)); });
}

void Wire::fail(std::exception_ptr cause) noexcept {
  {
    const Lock lock(mutex_);
    if (!cause_) cause_ = std::move(cause);
  }
  failed_.notify_all();
  interrupt();
}

/// A connection that breaks is often the second sign of a death, and comes before the first one's explanation.
void Wire::await_cause() {
  Lock lock(mutex_);
  failed_.wait_for(lock, patience_, [&]() TRIREME_REQUIRES(mutex_) { return cause_ != nullptr; });
}

void Wire::set_limit(WaitLimit limit) {
  const Lock lock(mutex_);
  limit_ = std::move(limit);
}

WaitLimit Wire::limit() const {
  const Lock lock(mutex_);
  return limit_;
}

std::exception_ptr Wire::cause() const {
  const Lock lock(mutex_);
  return cause_;
}

void Wire::check() const {
  if (const std::exception_ptr known = cause()) std::rethrow_exception(known);
}

}  // namespace trireme::comm::network
