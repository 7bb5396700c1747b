#pragma once
// One crew after another: with Options::elastic. A crew that lost a rank, or gets one, is given up, and a new exchange
// of those who are there takes over the state of the last step that was decided (transaction.h). For that, each step
// says before it is decided where the run is when it is done.
#include <cstdint>

#include <trireme/exchange/transaction.h>

namespace trireme::exchange {

class Exchange;

/// One thread, that which trains.
class Succession {
 public:
  /// Before close(): where the run is when the step that is under way is done, but for the optimizer's steps and what
  /// the step's ranks tell.
  void aim(const Reached& reached) { aim_ = reached; }
  /// After State::restore(): where the run is now.
  virtual void rewritten(const Reached& now) = 0;
  /// Where the crew is.
  virtual Reached reached() const = 0;
  /// Nothing of this crew's will change any more. Where it was in the end.
  virtual Reached give_up() = 0;
  /// Collective, of a new exchange, instead of State::publish(): goes on with the state of the crew before. `before`:
  /// its exchange of this rank, which was given up; null: this rank comes anew. Returns where that was. From then on
  /// this crew's memory is what the next one goes on with. Throws StateLost when nothing whole is left of it.
  virtual Reached take_over(Exchange* before, const Reached& reached) = 0;

 protected:
  ~Succession() = default;

  Reached aim_;
};

}  // namespace trireme::exchange
