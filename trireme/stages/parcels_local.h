#pragma once
// Parcels between ranks of one machine, read where they lie.
//
// A sender has *buffers* in the segment, for all its receivers together: one whose parcel was let go takes the next
// parcel that fits. When none fits, a free one that is too small gives its memory back, and a larger one is made: so
// there are as many as were alive at a time, and no larger than the largest parcel. The first line of a buffer says
// whose it is at the moment; it is the only thing that the receiver writes.
//
// Each pair of ranks has a one-way *ring* in each direction, with the places of the buffers that were sent, in their
// order. It has an entry for every parcel that may be alive, so nobody has to wait for room in it.
#include <atomic>

#include <trireme/base/areas.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/stages/parcel_format.h>

namespace trireme::stages {

/// As Parcels, with the numbers of the ranks on this machine. Not thread-safe.
class LocalParcels {
 public:
  /// Collective on this machine. `local` must outlive it.
  LocalParcels(comm::shm::Communicator& local, size_t in_flight);
  ~LocalParcels();
  LocalParcels(const LocalParcels&) = delete;
  LocalParcels& operator=(const LocalParcels&) = delete;

  void send(int to, const Label& label, std::span<const TensorView> tensors);
  bool arrived(int from, const Label& label);
  Parcel receive(int from, const Label& label);
  size_t shared_bytes() const;

 private:
  struct Ring;
  struct BufferHead;
  struct Buffer {
    size_t offset, bytes;  // in the segment; the head included
    BufferHead* head;
    int to = -1;  // of the last parcel
    What what = What::activation;
    bool free() const;
  };
  class Doorbell;
  class Held;

  static size_t ring_bytes(size_t entries);
  Ring& ring(int from, int to) const;
  size_t alive(int to, What what) const;
  void await_room(int to, const Label& label);
  Buffer& buffer_for(size_t bytes);
  Buffer claim(size_t bytes);
  void take_in(int from);

  comm::shm::Communicator& local_;
  comm::shm::Rounds& rounds_;
  Areas areas_;
  size_t in_flight_;
  comm::shm::SharedBlock rings_;  // a part for each sender
  std::vector<Buffer> buffers_;
  std::vector<uint64_t> taken_;  // by sender: entries of its ring that were looked at
  std::vector<KeptParcels> kept_;
  std::shared_ptr<Doorbell> doorbell_;
};

}  // namespace trireme::stages
