#pragma once
// Does a schedule work out? A proof before anything starts, of a generated schedule as of a user's own:
//  - every (micro-batch, chunk) of a stage has one forward, and one backward or one of each of its parts, in this
//  order;
//  - what comes from another stage is received before it is used, and what goes there is sent after it was computed;
//  - each send has its receive at the right neighbour, and nothing crosses where there is no neighbour;
//  - on each way (from, to, activations or gradients) receives have the order of the sends;
//  - nobody waits for ever, even if a send ends only when its receive is reached.
// A pure function; time and memory are linear in the number of actions.
#include <string>
#include <vector>

#include <trireme/stages/schedule.h>

namespace trireme::stages {

struct Verdict {
  bool ok = false;
  std::string reason;  // a sentence: which stage, action, micro-batch and chunk, and what is wrong; "" if all is well
  /// By stage: the most activations held at a time, of (micro-batch, chunk)s whose forward is done and whose backward,
  /// or its weight part, is not. Empty if not ok.
  std::vector<int> peak;
};

Verdict check(const Schedule& schedule);

}  // namespace trireme::stages
