#pragma once
// The collectives of a job that spans machines.
//
// Each goes up inside the machine, between machines on the lanes, and down again (see shm/sequence.h). Everything is
// cut into a slice per lane, so that all lanes carry data at once, and the slices do not depend on where data is:
// machines, and ranks of a machine, need not agree on that. Sums are formed in the order of a machine's ranks, then
// between the machines.
#include <trireme/comm/hierarchical/sections.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/sequence.h>

namespace trireme::comm::hierarchical {

/// A rank, and what it reaches the others with: where the memory of its machine and a lane between machines meet.
struct Junction {
  const Topology& topology;
  int rank, machine, local;
  network::Communicator* lane;  // null: this rank has none
  network::Communicator& flat;
  network::Rooms& rooms;
  size_t stage_bytes;

  int locals() const { return static_cast<int>(topology.ranks_on(machine).size()); }
  space::Range slice(int of_lane, size_t bytes) const { return space::part_of({0, bytes}, of_lane, topology.lanes()); }
};

class Allreduce final : public shm::Collective {
 public:
  Allreduce(const Junction& junction, void* data, size_t count, DType type, Op op, std::string_view name);
  void work_direct(const shm::View& view) override;
  size_t up_chunks() const override;
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const shm::View& view, const shm::Posted& posted, size_t chunk) override;
  Started launch() override;
  void land(const shm::View& view, bool direct) override;
  size_t down_chunks(bool direct) const override { return direct ? 0 : up_chunks(); }
  void post_down(std::byte* stage, size_t chunk) override;
  void take_down(const shm::View& view, const shm::Posted& posted, size_t chunk) override;

 private:
  const Junction& junction_;
  size_t bytes_;
  space::Range mine_;  // this lane's slice
  std::byte* data_;
};

/// Up: a lane reduces its slice of every machine's section over the ranks of its own machine. Between: a reduce-scatter
/// of the slices, in which each byte crosses the wire once. Down: each rank finds its block in the lanes' slices.
class ReduceScatter final : public shm::Collective {
 public:
  ReduceScatter(const Junction& junction, const void* input, void* output, const Blocks& blocks, int part, int parts,
                DType type, Op op, std::string_view name);
  ~ReduceScatter() override;
  void work_direct(const shm::View& view) override;
  size_t up_chunks() const override;
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const shm::View& view, const shm::Posted& posted, size_t chunk) override;
  Started launch() override;
  void land(const shm::View& view, bool direct) override;
  size_t down_chunks(bool direct) const override;
  void post_down(std::byte* stage, size_t chunk) override;
  void take_down(const shm::View& view, const shm::Posted& posted, size_t chunk) override;

 private:
  void reduce(std::vector<const void*>& sources, space::Range part, space::Range slice, int machine);

  const Junction& junction_;
  Blocks blocks_;
  Sections sections_;
  const std::byte* input_;
  std::byte* output_;                   // of this part
  network::Rooms::Room sums_, result_;  // of this lane's slices; of this machine's
};

/// Up: ranks see the blocks of their machine. Between: an all-gather of the lanes' slices of the sections. Down: the
/// sections of the other machines.
class AllGather final : public shm::Collective {
 public:
  AllGather(const Junction& junction, const void* input, void* output, const Blocks& blocks, int part, int parts,
            DType type, std::string_view name);
  ~AllGather() override;
  void work_direct(const shm::View& view) override;
  size_t up_chunks() const override;
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const shm::View& view, const shm::Posted& posted, size_t chunk) override;
  Started launch() override;
  void land(const shm::View& view, bool direct) override;
  size_t down_chunks(bool direct) const override;
  void post_down(std::byte* stage, size_t chunk) override;
  void take_down(const shm::View& view, const shm::Posted& posted, size_t chunk) override;

 private:
  /// What rank r's memory holds of this part, as an offset into it.
  size_t in_input(int rank) const { return sections_.in_vector(rank) - blocks_.of(rank).begin; }
  template <class Visit>
  void each_remote(int lane, size_t chunk, const Visit& visit) const;

  const Junction& junction_;
  Blocks blocks_;
  Sections sections_;
  space::Range here_;  // this machine's section
  const std::byte* input_;
  std::byte* output_;
  network::Rooms::Room mine_, all_;  // this lane's slice of this machine; of all machines
};

class Broadcast final : public shm::Collective {
 public:
  Broadcast(const Junction& junction, void* data, size_t count, DType type, int root, std::string_view name);
  bool may_be_direct() const override { return false; }
  size_t up_chunks() const override;
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const shm::View& view, const shm::Posted& posted, size_t chunk) override;
  Started launch() override;
  size_t down_chunks(bool direct) const override;
  void post_down(std::byte* stage, size_t chunk) override;
  void take_down(const shm::View& view, const shm::Posted& posted, size_t chunk) override;

 private:
  const Junction& junction_;
  Place root_;
  size_t bytes_;
  std::byte* data_;
};

/// From rank to rank, whatever machine they are on.
class AllToAll final : public shm::Collective {
 public:
  AllToAll(const Junction& junction, const void* input, void* output, const Counts& sends, const Counts& receives,
           DType type, std::string_view name);
  Started launch() override;

 private:
  const Junction& junction_;
  const void* input_;
  void* output_;
  std::vector<size_t> sends_, receives_;  // empty: `what.count` each
};

/// All have come here when all have arrived, elsewhere when the leader has met the others: then it finishes.
class Barrier final : public shm::Collective {
 public:
  Barrier(const Junction& junction, std::string_view name);
  Started launch() override;
  bool together(bool /*direct*/) const override { return true; }

 private:
  const Junction& junction_;
};

}  // namespace trireme::comm::hierarchical
