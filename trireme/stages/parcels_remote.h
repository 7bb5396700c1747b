#pragma once
// Parcels between machines, each one message.
//
// A message needs a posted receive to travel, and one that is posted needs a message to end. So there are never more
// posted than parcels are expected; which of these comes first does not matter, as the message itself says what it is.
#include <set>

#include <trireme/base/lock.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/rounds.h>
#include <trireme/stages/parcel_format.h>

namespace trireme::stages {

/// Memory for parcels, used again: fresh pages for every message would cost more than copying it. There are as many
/// blocks as were in use at a time. Thread-safe.
class ParcelStock : public std::enable_shared_from_this<ParcelStock> {
 public:
  /// Not cleared, at a multiple of kParcelAlign; goes back to the stock with the last copy, in any thread.
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    size_t bytes = 0;
  };
  Block find(size_t bytes);

  Mutex mutex_;
  std::vector<Block> free_ TRIREME_GUARDED_BY(mutex_);
};

/// As Parcels. Not thread-safe.
class RemoteParcels {
 public:
  /// Not collective. `rounds` are of the ranks on this machine, for which this one has to do things while it waits.
  /// `names` are what messages call the ranks.
  RemoteParcels(comm::network::Communicator& network, comm::shm::Rounds& rounds, std::vector<int> names,
                size_t in_flight);
  ~RemoteParcels();
  RemoteParcels(const RemoteParcels&) = delete;
  RemoteParcels& operator=(const RemoteParcels&) = delete;

  void send(int to, const Label& label, std::span<const TensorView> tensors);
  void expect(int from, const Label& label);
  bool arrived(int from, const Label& label);
  Parcel receive(int from, const Label& label);
  void flush();

 private:
  struct Leaving {
    comm::Started work;
    std::shared_ptr<std::byte> block;
    Label label;
  };
  struct Block {
    std::shared_ptr<std::byte> data;
    size_t bytes = 0;
  };
  struct Coming {
    comm::Started work;
    std::shared_ptr<Block> block;
  };
  struct Peer {
    std::deque<Leaving> leaving;
    std::deque<Coming> coming;  // posted, in their order
    std::set<Label> awaited;    // expected and not yet here
    KeptParcels kept;
  };

  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  int name_of(int rank) const { return names_[static_cast<size_t>(rank)]; }
  void post(int from);
  void take_in(int from);
  void see_off(Peer& peer);
  template <class Ready>
  void await(int other, const Label& label, const Ready& ready);

  comm::network::Communicator& network_;
  comm::shm::Rounds& rounds_;
  std::vector<int> names_;
  size_t in_flight_;
  std::vector<Peer> peers_;
  std::shared_ptr<ParcelStock> stock_ = std::make_shared<ParcelStock>();
  int exceptions_ = std::uncaught_exceptions();  // when it was made
};

}  // namespace trireme::stages
