#pragma once
// Which rank is on which machine.
//
// Vocabulary. Let `lanes` be the smallest number of ranks on any machine. *Lane* i connects the i-th rank of every
// machine; lane 0 is that of the *leaders*.
#include <vector>

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

}  // namespace trireme::comm::hierarchical
