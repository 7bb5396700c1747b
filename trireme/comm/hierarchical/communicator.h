#pragma once
// Collectives of a job that spans machines: shared memory inside each, the network between them.
#include <trireme/comm/hierarchical/collectives.h>
#include <trireme/comm/hierarchical/topology.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>

namespace trireme::comm::hierarchical {

/// Owns none of its groups, and shares none of them: while something that was started is under way, the local group
/// takes no other collectives.
class Communicator final : public comm::Communicator {
 public:
  /// Collective on this machine. `local`: its ranks. `lane`: this rank's, whose ranks are the machines; null for a
  /// local number ≥ lanes. `flat`: all ranks of the job.
  Communicator(Topology topology, int rank, shm::Communicator& local, network::Communicator* lane,
               network::Communicator& flat);
  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return topology_.size(); }
  Started start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  Started start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                               std::string_view name) override;
  Started start_all_gather(const void* input, void* output, const Counts& counts, DType type,
                           std::string_view name) override;
  Started start_broadcast(void* data, size_t count, DType type, int root, std::string_view name) override;
  Started start_all_to_all(const void* input, void* output, const Counts& sends, const Counts& receives, DType type,
                           std::string_view name) override;
  Started start_barrier(std::string_view name) override;
  Started start_send(const void* data, size_t count, DType type, int to, std::string_view name) override;
  Started start_receive(void* data, size_t count, DType type, int from, std::string_view name) override;
  void send(const void* data, size_t count, DType type, int to, std::string_view name) override;
  void receive(void* data, size_t count, DType type, int from, std::string_view name) override;

  /// Collective on this machine: memory that its ranks share.
  shm::SharedBlock allocate(size_t bytes, const char* purpose) { return local_.allocate(bytes, purpose); }
  const Topology& topology() const { return topology_; }

 private:
  class Remote;
  int parts_for(const Blocks& blocks) const;
  template <class What, class... Arguments>
  Started start(const Arguments&... arguments);
  void check_peer(int peer, std::string_view verb, std::string_view name) const;
  bool here(int rank) const { return topology_.place(rank).machine == machine_; }

  Topology topology_;
  int rank_, machine_;
  shm::Communicator& local_;
  network::Communicator* lane_;
  network::Communicator& flat_;
  network::Rooms rooms_;
  Junction junction_;
};

}  // namespace trireme::comm::hierarchical
