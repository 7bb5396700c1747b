#include <algorithm>
#include <cstdlib>
#include <new>

#include <trireme/base/advice.h>
#include <trireme/base/error.h>
#include <trireme/base/segment.h>
#include <trireme/stages/parcels_remote.h>

namespace trireme::stages {
namespace {

constexpr std::string_view kMessageName = "parcel";  // what the names of all messages begin with
constexpr size_t kSurelyThere = 64 << 20;            // bytes: for more it is looked whether the machine has them

/// What a rank claims to send may be damaged: no memory is taken for more than there is.
void check_claimed(size_t bytes, int from) {
  if (bytes <= kSurelyThere) return;
  const size_t available = available_memory();
  if (bytes > available)
    fail<Corruption>(
        "rank {} announces a parcel of {} bytes, and this machine has {} free. Do all ranks run the same "
        "version? If it is that large, use more micro-batches",
        from, bytes, available);
}

}  // namespace

// ---- memory ----

/// The smallest that is large enough; else one of those that are too small is given up for it.
ParcelStock::Block ParcelStock::find(size_t bytes) {
  Block best, small;
  const Lock lock(mutex_);
  size_t found = free_.size(), given_up = free_.size();
  for (size_t i = 0; i < free_.size(); i++) {
    if (free_[i].bytes < bytes)
      given_up = i;
    else if (found == free_.size() || free_[i].bytes < free_[found].bytes)
      found = i;
  }
  const size_t chosen = found < free_.size() ? found : given_up;
  if (chosen == free_.size()) return {};
  Block block = std::move(free_[chosen]);
  free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(chosen));
  return block.bytes < bytes ? Block{} : std::move(block);
}

std::shared_ptr<std::byte> ParcelStock::take(size_t bytes) {
  Block block = find(bytes);
  if (!block.data) {
    const size_t whole = round_up(std::max<size_t>(bytes, 1), kPage);
    block = {std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(std::aligned_alloc(kPage, whole))), whole};
    if (!block.data) throw std::bad_alloc();
  }
  std::byte* const data = block.data.get();
  auto shared = std::make_shared<Block>(std::move(block));
  return {data, [stock = shared_from_this(), shared](std::byte*) {
            const Lock lock(stock->mutex_);
            stock->free_.push_back(std::move(*shared));
          }};
}

// ---- sending ----

RemoteParcels::RemoteParcels(comm::network::Communicator& network, comm::shm::Rounds& rounds, std::vector<int> names,
                             size_t in_flight)
    : network_(network), rounds_(rounds), names_(std::move(names)), in_flight_(in_flight), peers_(names_.size()) {}

RemoteParcels::~RemoteParcels() {
  const bool posted = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.coming.empty(); });
  if (posted || std::uncaught_exceptions() > exceptions_)
    network_.interrupt(std::make_exception_ptr(
        Error(fmt::format("rank {} left a pipeline in the middle of a step", name_of(network_.rank())))));
  const auto end = [](comm::Work& work) {
    try {
      work.wait();
    } catch (...) {  // nobody to tell
    }
  };
  for (Peer& peer : peers_) {
    for (Leaving& leaving : peer.leaving) end(*leaving.work);
    for (Coming& coming : peer.coming) end(*coming.work);
  }
}

/// Waits in a way that leaves no rank of this machine waiting for this one. `ready()` may throw.
template <class Ready>
void RemoteParcels::await(int other, const Label& label, const Ready& ready) {
  const WaitLimit limit = rounds_.limit();
  const Deadline deadline(limit.timeout);
  bool done = false;
  try {
    if (ready()) return;
    rounds_.await_threads([&] { return (done = ready()) || deadline.passed(); });
  } catch (const PeerLost& lost) {
    fail<PeerLost>("{}; rank {} waited for rank {} in the transfer of the {}", lost.what(), name_of(network_.rank()),
                   name_of(other), describe(label));
  }
  if (!done)
    fail<Timeout>("rank {} did not come to the transfer of the {} within {:.3g} s; rank {} gave up waiting{}",
                  name_of(other), describe(label), limit.timeout.count(), name_of(network_.rank()),
                  longer_helps(limit.setting));
}

/// Lets go of what has left.
void RemoteParcels::see_off(Peer& peer) {
  std::erase_if(peer.leaving, [](const Leaving& leaving) { return leaving.work->test(); });
}

void RemoteParcels::send(int to, const Label& label, std::span<const TensorView> tensors) {
  const size_t bytes = packed_bytes(label, tensors);
  Peer& there = peer(to);
  await(to, label, [&] {
    see_off(there);
    const auto same = [&](const Leaving& leaving) { return leaving.label.what == label.what; };
    return static_cast<size_t>(std::count_if(there.leaving.begin(), there.leaving.end(), same)) < in_flight_;
  });
  auto block = stock_->take(bytes);
  pack(label, tensors, block.get());
  const std::string name = fmt::format("{}: {}", kMessageName, describe(label));
  auto work = network_.start_send(block.get(), bytes, DType::u8, to, name);
  there.leaving.push_back({std::move(work), std::move(block), label});
}

void RemoteParcels::flush() {
  for (int to = 0; to < network_.size(); to++)
    while (!peer(to).leaving.empty()) {
      const Leaving& first = peer(to).leaving.front();
      await(to, first.label, [&] { return first.work->test(); });
      see_off(peer(to));
    }
}

// ---- receiving ----

/// Each posted one takes whatever parcel comes next.
void RemoteParcels::post(int from) {
  auto block = std::make_shared<Block>();
  const auto room = [block, stock = stock_, from, name = name_of(from)](size_t bytes) -> void* {
    check_claimed(bytes, name);
    *block = {stock->take(bytes), bytes};
    return block->data.get();
  };
  peer(from).coming.push_back({network_.start_receive_any(room, from, kMessageName), block});
}

void RemoteParcels::take_in(int from) {
  Peer& there = peer(from);
  while (!there.coming.empty() && there.coming.front().work->test()) {
    const std::shared_ptr<Block> block = there.coming.front().block;
    there.coming.pop_front();
    auto [label, tensors] = unpack(block->data.get(), block->bytes, name_of(from));
    there.awaited.erase(label);
    there.kept.add(label, {std::move(tensors), block->data});
  }
  while (there.coming.size() < there.awaited.size()) post(from);
}

void RemoteParcels::expect(int from, const Label& label) {
  Peer& there = peer(from);
  if (!there.kept.has(label)) there.awaited.insert(label);
  take_in(from);
}

bool RemoteParcels::arrived(int from, const Label& label) {
  expect(from, label);
  return peer(from).kept.has(label);
}

Parcel RemoteParcels::receive(int from, const Label& label) {
  await(from, label, [&] { return arrived(from, label); });
  return peer(from).kept.take(label);
}

}  // namespace trireme::stages
