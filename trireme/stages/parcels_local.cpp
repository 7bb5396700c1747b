#include <algorithm>
#include <bit>

#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/stages/parcels_local.h>

namespace trireme::stages {
namespace {

constexpr const char* kBufferPurpose = "activations and gradients between stages";

/// Whose a buffer is. Abandoned: its sender is gone, and the receiver gives the memory back.
enum BufferState : uint32_t { kSenders, kReceivers, kAbandoned };

/// Steps of a sixteenth: sizes that grow a little do not make a new buffer each time.
size_t roomy(size_t bytes) {
  const size_t step = std::bit_floor(std::max(bytes, 16 * kPage)) / 16;
  return round_up(bytes, step);
}

std::string transfer_of(const Label& label) { return "the transfer of the " + describe(label); }

}  // namespace

struct alignas(kParcelAlign) LocalParcels::BufferHead {
  std::atomic<uint32_t> state;
  uint64_t bytes;  // of the parcel, which follows

  std::byte* parcel() { return reinterpret_cast<std::byte*>(this + 1); }
};

struct alignas(64) LocalParcels::Ring {
  struct Entry {
    uint64_t offset, bytes;  // of the buffer
  };
  std::atomic<uint64_t> posted;

  Entry& entry(uint64_t number, size_t entries) { return reinterpret_cast<Entry*>(this + 1)[number % entries]; }
};

bool LocalParcels::Buffer::free() const { return head->state.load() == kSenders; }

// ---- what a receiver has ----

/// Wakes senders that wait for a buffer. Parcels are let go in any thread, and after this rank's part of the group.
class LocalParcels::Doorbell {
 public:
  explicit Doorbell(comm::shm::Rounds& rounds) : rounds_(&rounds) {}
  void nudge(int sender) {
    const Lock lock(mutex_);
    if (rounds_ != nullptr) rounds_->nudge(sender);
  }
  void close() {
    const Lock lock(mutex_);
    rounds_ = nullptr;
  }

 private:
  Mutex mutex_;
  comm::shm::Rounds* rounds_ TRIREME_GUARDED_BY(mutex_);
};

class LocalParcels::Held {
 public:
  Held(std::shared_ptr<Segment> segment, std::shared_ptr<Doorbell> doorbell, int sender, const Ring::Entry& place)
      : segment_(std::move(segment)), doorbell_(std::move(doorbell)), sender_(sender), place_(place) {}
  ~Held() {
    if (head().state.exchange(kSenders) == kAbandoned)
      segment_->give_back(place_.offset, place_.bytes);
    else
      doorbell_->nudge(sender_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  BufferHead& head() const { return *reinterpret_cast<BufferHead*>(segment_->at(place_.offset)); }

 private:
  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Doorbell> doorbell_;
  int sender_;
  Ring::Entry place_;
};

// ---- the calls ----

size_t LocalParcels::ring_bytes(size_t entries) {
  return round_up(sizeof(Ring) + entries * sizeof(Ring::Entry), alignof(Ring));
}

LocalParcels::LocalParcels(comm::shm::Communicator& local, size_t in_flight)
    : local_(local),
      rounds_(local.rounds()),
      areas_(local.segment()),
      in_flight_(in_flight),
      rings_(local.allocate(ring_bytes(2 * in_flight) * static_cast<size_t>(local.size()),
                            "the rings of a pipeline's parcels")),
      taken_(static_cast<size_t>(local.size())),
      kept_(static_cast<size_t>(local.size())),
      doorbell_(std::make_shared<Doorbell>(local.rounds())) {}

LocalParcels::~LocalParcels() {
  for (int from = 0; from < rounds_.ranks(); from++) try {
      if (from != rounds_.rank()) take_in(from);  // to let them go
    } catch (const Error&) {                      // nobody asks for it any more
    }
  kept_.clear();
  for (const Buffer& buffer : buffers_) {
    uint32_t state = kReceivers;
    if (!buffer.head->state.compare_exchange_strong(state, kAbandoned))
      local_.segment().give_back(buffer.offset, buffer.bytes);
  }
  doorbell_->close();
}

LocalParcels::Ring& LocalParcels::ring(int from, int to) const {
  return *reinterpret_cast<Ring*>(rings_.parts[static_cast<size_t>(from)] +
                                  static_cast<size_t>(to) * ring_bytes(2 * in_flight_));
}

size_t LocalParcels::alive(int to, What what) const {
  return static_cast<size_t>(std::count_if(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) {
    return buffer.to == to && buffer.what == what && !buffer.free();
  }));
}

LocalParcels::Buffer LocalParcels::claim(size_t bytes) {
  const size_t whole = round_up(roomy(bytes), kPage), offset = areas_.claim(whole, kBufferPurpose);
  std::byte* data = local_.segment().attach(offset, whole, kBufferPurpose);
  return {offset, whole, reinterpret_cast<BufferHead*>(data)};
}

/// The smallest free one that is large enough. The first of equals: it was used last, and is in the cache.
LocalParcels::Buffer& LocalParcels::buffer_for(size_t bytes) {
  Buffer *best = nullptr, *small = nullptr;
  for (Buffer& buffer : buffers_) {
    if (!buffer.free()) continue;
    if (buffer.bytes < bytes)
      small = small == nullptr || buffer.bytes > small->bytes ? &buffer : small;
    else
      best = best == nullptr || buffer.bytes < best->bytes ? &buffer : best;
  }
  if (best != nullptr) return *best;
  if (small == nullptr) return buffers_.emplace_back(claim(bytes));
  local_.segment().give_back(small->offset, small->bytes);
  return *small = claim(bytes);
}

void LocalParcels::await_room(int to, const Label& label) {
  const auto room = [&] { return alive(to, label.what) < in_flight_; };
  if (room()) return;
  rounds_.await(to, room, [&] {
    return fmt::format("{}: of the {} before it, none was let go", transfer_of(label), in_flight_);
  });
}

void LocalParcels::send(int to, const Label& label, std::span<const TensorView> tensors) {
  const size_t bytes = packed_bytes(label, tensors);
  await_room(to, label);
  Buffer& buffer = buffer_for(sizeof(BufferHead) + bytes);
  buffer.to = to;
  buffer.what = label.what;
  pack(label, tensors, buffer.head->parcel());
  buffer.head->bytes = bytes;
  buffer.head->state.store(kReceivers);
  Ring& ring = this->ring(rounds_.rank(), to);
  const uint64_t number = ring.posted.load(std::memory_order_relaxed);
  ring.entry(number, 2 * in_flight_) = {buffer.offset, buffer.bytes};
  ring.posted.store(number + 1);
  rounds_.nudge(to);
}

void LocalParcels::take_in(int from) {
  Ring& ring = this->ring(from, rounds_.rank());
  for (uint64_t& number = taken_[static_cast<size_t>(from)]; number != ring.posted.load(); number++) {
    const Ring::Entry place = ring.entry(number, 2 * in_flight_);
    local_.segment().attach(place.offset, place.bytes, kBufferPurpose);
    auto held = std::make_shared<Held>(local_.memory(), doorbell_, from, place);
    auto [label, tensors] = unpack(held->head().parcel(), held->head().bytes, rounds_.name_of(from));
    kept_[static_cast<size_t>(from)].add(label, {std::move(tensors), std::move(held)});
  }
}

bool LocalParcels::arrived(int from, const Label& label) {
  take_in(from);
  return kept_[static_cast<size_t>(from)].has(label);
}

Parcel LocalParcels::receive(int from, const Label& label) {
  const auto here = [&] { return arrived(from, label); };
  if (!here()) rounds_.await(from, here, [&] { return transfer_of(label); });
  return kept_[static_cast<size_t>(from)].take(label);
}

size_t LocalParcels::shared_bytes() const {
  size_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.bytes;
  return bytes;
}

}  // namespace trireme::stages
