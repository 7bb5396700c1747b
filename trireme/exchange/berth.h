#pragma once
// The memory of one model in the segment: parameters, gradients, optimizer state, under names that stay.
//
// An area is called GROUP/MODEL/WHAT, such as "all/0/parameters" or "all/0/optimizer/momentum". Models of a group are
// numbered from 0; a number is free again when the model is gone on all ranks, and then the next one takes it and the
// memory with it, so that a program that makes one model after another does not grow. The memory belongs to the
// segment: a rank that dies takes nothing along, and KeptState (kept_state.h) shows it to whoever comes later.
#include <memory>
#include <string>
#include <vector>

#include <trireme/comm/shm/communicator.h>
#include <trireme/exchange/card.h>
#include <trireme/space/updater.h>
#include <trireme/state/visitor.h>

namespace trireme::exchange {

class Berth {
 public:
  /// Collective among `all`, of whom `local` are on this machine. Both must be there until post() has returned.
  Berth(comm::Communicator& all, comm::shm::Communicator& local, uint64_t fingerprint);
  /// Gives the number back.
  ~Berth();
  Berth(const Berth&) = delete;
  Berth& operator=(const Berth&) = delete;

  int model() const { return model_; }

  // Collective among the ranks of this machine, in the same order.

  /// Zeroed: one block for all of them, of which this rank touches `touched` most.
  std::byte* one(const std::string& what, size_t bytes, const char* purpose, std::vector<space::Range> touched = {},
                 bool sparse = false);
  /// Zeroed: one for each. A *sparse* one has memory only where it is touched (comm::shm::Communicator::Wish).
  comm::shm::SharedBlock each(const std::string& what, size_t bytes, const char* purpose, bool sparse = false);
  /// For an updater of `owned`, bucket by bucket: state that the ranks hold together, or each for itself.
  space::StateMemory state(space::Optimizer optimizer, const space::Layout& layout,
                           const std::vector<space::Bucket>& buckets, const std::vector<space::Range>& owned,
                           bool together, bool sparse = false);
  /// The steps of slots of all ranks of this machine, where state() has made them; otherwise empty.
  const comm::shm::SharedBlock& steps() const { return steps_; }
  /// Tells who comes later what this rank holds, as far as it lies in the segment.
  /// Until the first end() it counts as unfinished. `step` is the name of the scalar that begin() and end() have.
  /// `notes` are names of further scalars, four at most.
  void post(const state::About& about, const std::string& step, const std::vector<std::string>& notes,
            const std::vector<state::Part>& parts);

  /// This rank changes something from now on; it has changed all. Not collective. After post().
  void begin(int64_t step) {
    if (progress_ != nullptr) progress_->begun.store(step);
  }
  void end(int64_t step) {
    if (progress_ != nullptr) progress_->ended.store(step);
  }
  void note(size_t index, int64_t value) {
    if (progress_ != nullptr) progress_->notes[index].store(value);
  }

 private:
  std::string name(const std::string& what) const { return std::to_string(model_) + "/" + what; }

  comm::shm::Communicator& local_;
  std::shared_ptr<std::vector<bool>> berths_;
  uint64_t fingerprint_;
  int model_;
  comm::shm::SharedBlock steps_;
  Progress* progress_ = nullptr;  // in the segment
};

}  // namespace trireme::exchange
