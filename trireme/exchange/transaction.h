#pragma once
// A step of the ranks of one machine that is made whole or not at all, whoever dies in it.
//
// Nothing is changed before all gradients of the step are in memory that outlives their ranks. Then the first rank to
// see that *decides* the step, with one word in that memory: from there on it will be made, if not by its ranks, then
// by those who are left, out of what is in memory (Shared::take_over). Those who give the crew up write the same word:
// a step that was not decided before will never be. What a rank changes after that is written down before
// (space::Journal), so that the others know how far it came.
#include <atomic>
#include <cstdint>
#include <vector>

#include <trireme/comm/shm/communicator.h>
#include <trireme/space/journal.h>

namespace trireme::exchange {

/// The samples of an epoch that steps were made with: how many, and the sum of their signs (data::sign_of). One that is
/// missing or counted twice shows in it.
struct Ledger {
  int64_t epoch = -1;
  double samples = 0, signs = 0;
  int64_t lost = 0, joined = 0;  // ranks, in all epochs so far
};

/// Where a run is after its steps so far.
struct Reached {
  int64_t steps = 0;     // of the optimizer
  int64_t updates = 0;   // of the model, as its trainer counts them
  int64_t position = 0;  // the step of the run that comes next
  double loss = 0;       // of the last step
  int64_t stops = 0;     // not 0: a rank wanted to stop then
  Ledger ledger{};
};

/// A step that was decided.
struct Decided {
  Reached reached;  // when it is done
  double lr = 0, scale = 1;
  bool applies = false;  // false: it changes nothing, or there was none yet
};

class Transaction {
 public:
  struct Page;
  static size_t page_bytes();
  /// `page` is one for the machine's ranks, each of `journals` a rank's; zeroed by the first crew that uses them.
  Transaction(std::byte* page, const comm::shm::SharedBlock& journals, size_t slots, int rank);

  /// The crew begins here. All ranks say the same.
  void begin_at(const Reached& reached);
  /// Step `step` of this crew, from 1, will be made. All ranks say the same. Throws PeerLost when others have given it
  /// up.
  void decide(uint64_t step, const Decided& what);
  /// State is about to be written over in other ways, until kept().
  void spoil();
  void kept(const Reached& reached);

  /// No further step will be decided. Steps that were.
  uint64_t give_up();
  /// Of the last step that was decided, or where the crew began.
  Decided last() const;
  /// Somebody died while state was written over: nothing is whole.
  bool spoiled() const;

  space::Journal& own() { return journals_[static_cast<size_t>(rank_)]; }
  const space::Journal& of(int rank) const { return journals_[static_cast<size_t>(rank)]; }

 private:
  Page* page_;
  int rank_;
  std::vector<space::Journal> journals_;
};

}  // namespace trireme::exchange
