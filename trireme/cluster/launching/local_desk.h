#pragma once
// The coordinator of a job on one machine: a desk inside the launcher, behind a unix socket that no other machine can
// reach and that has no name in a file system. Ranks register with it, tell it with their heartbeats what they count,
// and hear from it who is left when one of them was lost, as the launcher's policy says (OnLoss).
//
// TRIREME_DESK tells them where it is, with the token that every request shows. Ranks that others have started (mpirun,
// srun, torchrun) have none, and find out among themselves (muster.h).
#include <string>

#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/launching/staffing.h>

namespace trireme::cluster {

/// The launcher's side. Serves from its construction to its destruction. Thread-safe.
class LocalDesk {
 public:
  /// `silence` of a rank counts as its death. Throws IoError when it cannot listen.
  LocalDesk(const std::string& job, int ranks, const Elasticity& elasticity, Seconds silence);
  /// For TRIREME_DESK.
  const std::string& variable() const { return variable_; }
  const Coordinator& coordinator() const { return coordinator_; }
  /// Readable when something has happened since the last crew().
  int descriptor() const { return coordinator_.descriptor(); }
  CrewView crew();
  /// For the next newcomer: nobody has had it.
  int next_rank() { return coordinator_.next_rank(); }
  void hurry(const std::string& why) { coordinator_.hurry(why); }

 private:
  const std::string name_, token_, variable_;
  const int ranks_;  // of the first crew
  Coordinator coordinator_;
};

/// The rank's side: how to reach the desk that TRIREME_DESK, whose value this is, stands for. Throws InvalidArgument
/// when it stands for none.
SessionOptions desk_session(const std::string& variable);
/// Whether its job goes on when a rank is lost: then no rank can do without the desk.
bool elastic_desk(const std::string& variable);

}  // namespace trireme::cluster
