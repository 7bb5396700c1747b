#pragma once
// Collectives of a job that spans machines: shared memory inside each, the network between them.
//
// Vocabulary. Let `lanes` be the smallest number of ranks on any machine. *Lane* i connects the i-th rank of every
// machine; lane 0 is that of the *leaders*. An allreduce is cut into a slice per lane, so that all lanes carry data at
// once: reduce the slice inside the machine, between machines, hand it to all.
#include <deque>
#include <vector>

#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>

namespace trireme::comm::hierarchical {

/// Where the ranks are. Any placement will do.
struct Place {
  int machine = 0;  // numbered from 0 without gaps
  int local = 0;    // the rank's number on its machine, in the order of ranks
};

class Topology {
 public:
  /// `machine_of[r]` is the machine of rank r.
  explicit Topology(const std::vector<int>& machine_of);

  int size() const { return static_cast<int>(places_.size()); }
  int machines() const { return static_cast<int>(ranks_.size()); }
  int lanes() const { return lanes_; }
  const Place& place(int rank) const { return places_[static_cast<size_t>(rank)]; }
  /// Ranks of a machine, by local number.
  const std::vector<int>& ranks_on(int machine) const { return ranks_[static_cast<size_t>(machine)]; }
  int largest_machine() const { return largest_; }

 private:
  std::vector<Place> places_;
  std::vector<std::vector<int>> ranks_;
  int lanes_ = 0, largest_ = 0;
};

/// Owns none of its groups, and shares none of them: while an allreduce that was started is under way, the local group
/// takes no other calls.
class Communicator final : public comm::Communicator {
 public:
  /// `local`: the ranks of this machine. `lane`: this rank's, whose ranks are the machines; null for a local number ≥
  /// lanes. `flat`: all ranks of the job.
  Communicator(Topology topology, int rank, shm::Communicator& local, network::Communicator* lane,
               network::Communicator& flat);

  int rank() const override { return rank_; }
  int size() const override { return topology_.size(); }
  void allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  /// Needs memory from allocate(), unless this rank is alone on its machine.
  std::unique_ptr<Work> start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  void reduce_scatter(const void* input, void* output, size_t count, DType type, Op op, std::string_view name) override;
  void all_gather(const void* input, void* output, size_t count, DType type, std::string_view name) override;
  void broadcast(void* data, size_t count, DType type, int root, std::string_view name) override;
  void all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) override;
  void send(const void* data, size_t count, DType type, int to, std::string_view name) override;
  void receive(void* data, size_t count, DType type, int from, std::string_view name) override;
  void barrier(std::string_view name) override;

  /// Collective on this machine: memory that its ranks share.
  shm::SharedBlock allocate(size_t bytes, const char* purpose);
  const Topology& topology() const { return topology_; }

 private:
  class Handle;
  struct Open {  // an allreduce in place that was started
    uint32_t round;
    std::byte* data;
    size_t count;
    DType type;
    Op op;
    std::string name;
    std::unique_ptr<Work> between;  // machines; of this rank's slice
    enum { arrived, sent, finished } state = arrived;
  };

  bool leads() const { return local_.rank() == 0; }
  space::Range slice(int lane, size_t bytes) const { return space::part_of({0, bytes}, lane, topology_.lanes()); }
  Open arrive(void* data, size_t count, DType type, Op op, uint32_t part, std::string_view name);
  std::vector<std::byte*> parts(const Open& open, space::Range slice);
  void reduce_here(Open& open);
  void hand_out(Open& open);
  void allreduce_private(std::byte* data, size_t count, DType type, Op op, std::string_view name);
  void advance(bool block);
  bool advance(Open& open, bool block);
  void complete_open();
  void check_peer(int peer, std::string_view verb, std::string_view name) const;
  bool here(int rank) const { return topology_.place(rank).machine == machine_; }

  Topology topology_;
  int rank_, machine_;
  shm::Communicator& local_;
  network::Communicator* lane_;
  network::Communicator& flat_;
  std::deque<Open> open_;  // in the order of their rounds
};

}  // namespace trireme::comm::hierarchical
