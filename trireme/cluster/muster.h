#pragma once
// How the ranks of one machine, without a coordinator, find out who is left after a death, and agree on the next crew.
//
// The lowest rank that is alive leads. It waits until everybody whom it sees alive has come, decides, and tells all of
// them: the crew, its epoch, and where its control block is. A leader that dies takes nothing along: those who have no
// answer yet go to the next one. Each leader has a meeting point of its own, so that nobody can come to the wrong one,
// and the epoch is one more than the latest that anybody there has seen.
#include <functional>
#include <memory>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/base/segment.h>
#include <trireme/cluster/site.h>

namespace trireme::cluster {

/// What a rank knows of a peer: the descriptor that becomes readable when its process ends (-1: a thread of this
/// process), and whether it still lives. One that lives, and has left the job, is waited for in vain.
struct Peer {
  int process = -1;
  bool alive = true;
};
using LookAt = std::function<Peer(int rank)>;

struct Mustered {
  Crew crew;
  size_t control = 0;  // offset of its control block in the segment
};

/// Collective among those of `before` that are alive. Throws Timeout with the ranks that live and did not come.
Mustered muster(const Facts& facts, const Crew& before, const LookAt& look);

}  // namespace trireme::cluster
