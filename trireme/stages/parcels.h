#pragma once
// How activations and their gradients get from stage to stage.
//
// A *parcel* is a few tensors under a label: whose input it is, of which micro-batch and chunk. Between ranks of a
// machine it is copied once, into a buffer of the sender's in shared memory, and the receiver reads it there for as
// long as it likes. Between machines it is one message: it leaves while the sender computes, and travels while the
// receiver does, from when that has said that it expects it. Parcels may be asked for in any order: what comes before
// it is asked for is kept.
//
//   parcels.expect(1, label);                        // at the beginning of a step, for all that will come
//   parcels.send(1, label, tensors);                 // the tensors may be changed at once
//   Parcel parcel = parcels.receive(1, label);       // views; the memory goes back when the last copy is gone
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <trireme/cluster/group.h>
#include <trireme/space/dtype.h>

namespace trireme::stages {

/// A tensor in somebody else's memory, without gaps.
struct TensorView {
  std::string name{};  // "" for the main one, or a skip connection's that is carried along
  DType dtype = DType::f32;
  std::vector<int64_t> sizes{};  // of each dim; none: one element
  const void* data = nullptr;
  bool channels_last = false;  // of 4 dims N, C, H, W the second is the fastest; otherwise it is row-major
  /// Of the product of all sizes.
  size_t bytes() const;
};

/// Memory that stays as it is while `hold` or a copy of it lives: it may outlive Parcels, and be let go in any thread.
/// Every tensor begins at a multiple of 64 bytes.
struct Parcel {
  std::vector<TensorView> tensors;
  std::shared_ptr<void> hold;
};

enum class What : uint8_t { activation, gradient };

struct Label {
  What what = What::activation;
  int micro = 0;  // micro-batch
  int chunk = 0;  // the receiver's
  auto operator<=>(const Label&) const = default;
};

/// "gradient of micro-batch 3 for chunk 0"
std::string describe(const Label& label);

class LocalParcels;
class RemoteParcels;

/// What this rank sends to the others of a pipeline group and receives from them. Waits have the group's deadline
/// (Timeout), and a dead peer ends them (PeerLost); both say which rank and parcel was waited for. Not thread-safe; the
/// group's communicators are used in the calls, by the same thread. No other messages between ranks of the group while
/// parcels are under way. Parcels with the same label arrive in their order.
class Parcels {
 public:
  static constexpr size_t kMostTensors = 1024, kMostDims = 8, kLongestName = 119;  // of a parcel, tensor, name

  /// Collective. `in_flight`: the most parcels of one kind that are alive at a time between a pair of ranks, the same
  /// on all ranks. Between ranks of a machine a parcel is alive until its receiver lets it go.
  Parcels(const Group& pipeline, size_t in_flight);
  /// Waits until what was sent has left, unless an exception is under way: then the group is of no more use.
  ~Parcels();
  Parcels(const Parcels&) = delete;
  Parcels& operator=(const Parcels&) = delete;

  /// Copies the tensors. Does not wait for the receiver while fewer than `in_flight` are alive. Throws InvalidArgument
  /// for what no parcel can hold, IoError when shared memory has no room.
  void send(int to, const Label& label, std::span<const TensorView> tensors);
  /// The parcel will come: it may travel while this rank computes. Nothing when it was said before or the parcel is
  /// here. Does not wait.
  void expect(int from, const Label& label);
  /// Whether receive() would return at once. Expects it. Does not wait.
  bool arrived(int from, const Label& label);
  /// Blocks until it is here. Throws Corruption when what came is no parcel.
  Parcel receive(int from, const Label& label);
  /// Blocks until all that was sent has left this rank: at the end of a step.
  void flush();

  /// Memory in the segment that this rank's parcels have: of the most that were alive at a time. Does not shrink.
  size_t shared_bytes() const;

 private:
  bool here(int rank) const { return local_number_[static_cast<size_t>(rank)] >= 0; }
  void check(int other, const char* verb, const Label& label) const;

  Group group_;
  std::vector<int> local_number_;  // by rank: on this machine; -1: on another
  std::unique_ptr<LocalParcels> local_;
  std::unique_ptr<RemoteParcels> remote_;  // null with one machine
};

}  // namespace trireme::stages
