#pragma once
// Where the ranks of one machine take their work from, in memory that they share: two atomics, no rules, nobody waits.
#include <trireme/exchange/berth.h>
#include <trireme/exchange/work_source.h>

namespace trireme::exchange {

class Pile final : public WorkSource {
 public:
  /// Collective.
  Pile(Berth& berth, int rank, int ranks);
  ps::Lease take() override;
  /// Whether some rank wants all to stop; they hear of it when this rank does.
  bool stopped();

  /// The piece that is given next.
  struct Position {
    int64_t course = 0, piece = 0;
  };
  Position position() const;
  /// Collective.
  void restore_position(const Position& position);

 private:
  struct Shared;
  Shared& shared() const;

  std::byte* block_;  // in the segment
};

}  // namespace trireme::exchange
