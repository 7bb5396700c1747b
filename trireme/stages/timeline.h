#pragma once
// When what happens: a schedule played through with given costs, or what a run has recorded. Pure functions.
//
// The *bubble* is the share of the time in which stages do not compute, over all stages and from the first begin to the
// last end. With p stages, m micro-batches and v chunks, whatever a forward and a backward cost, it is b / (v·m + b):
//   gpipe, 1f1b, interleaved   b = p - 1 + (v - 1) · max(0, p - m)
//   zero-bubble                b = max(p - 1, 2p - 1 - m), and 3·m instead of v·m, if forward, input and weight part
//   cost
//                              the same
#include <optional>
#include <string>
#include <vector>

#include <trireme/stages/schedule.h>

namespace trireme::stages {

/// What one micro-batch costs in one stage, all chunks of it together; in any unit of time.
struct Costs {
  double forward = 1;
  double backward = 2;           // all of it
  double input = 1, weight = 1;  // its parts
  double transfer = 0;           // of one activation or gradient, from its send until it can be received
  bool rendezvous = false;       // a sender waits until its receive is reached and the transfer is done
  bool operator==(const Costs&) const = default;
};

struct Span {
  int stage = 0;
  Action action;
  double begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

struct Timeline {
  std::string name;
  int stages = 1, micro = 1, chunks = 1;
  std::vector<Span> spans;  // of a stage in their order; a receive's span is how long it was waited for
  double total = 0;         // from the first begin to the last end of a computation
  double bubble = 0;        // share of it
};

/// Plays it through, with sends that begin as soon as what they send is there (early_sends), or with rendezvous in the
/// order of the rows. Throws InvalidArgument if it comes to a stop before its end: check() says why.
Timeline simulate(const Schedule& schedule, const Costs& costs = {});

/// What a run has recorded, with times moved so that it begins at 0.
Timeline recorded(const Schedule& schedule, std::vector<Span> spans);

/// The costs at which a timeline has run, as medians; what it does not have stays as in `otherwise`.
Costs measured_costs(const Timeline& timeline, const Costs& otherwise = {});

/// By formula; nothing where none holds: of files, with transfers that take time, with rendezvous.
std::optional<double> bubble_formula(const ScheduleSpec& spec, int stages, int micro, const Costs& costs = {});

/// A sentence about the waits that follow if there are fewer micro-batches than stages; "" otherwise.
std::string few_micro_batches(const Schedule& schedule, const Costs& costs = {});

}  // namespace trireme::stages
