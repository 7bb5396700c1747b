#pragma once
// The memory that the ranks of a machine share belongs to the process that starts them, not to them: a rank that dies
// takes nothing with it, and one that is started later maps what the others have left. It is an anonymous file that
// ranks inherit as a descriptor; TRIREME_SEGMENT says which. It takes memory only as far as ranks use it, has no name
// in any file system, and is gone with the last process that has it: the launcher's end is the ranks' end as well.
//
// Ranks that others have started (mpirun, srun, torchrun) have none, and make one among themselves.
#include <memory>
#include <string>

#include <trireme/base/descriptor.h>
#include <trireme/base/segment.h>

namespace trireme::cluster {

/// The launcher's side.
class Keeper {
 public:
  /// Throws IoError.
  Keeper();
  /// To be inherited by the ranks, which find `variable()` in TRIREME_SEGMENT.
  int descriptor() const { return memory_.get(); }
  std::string variable() const;

 private:
  Descriptor memory_;
};

/// The rank's side: the segment that TRIREME_SEGMENT, whose value this is, stands for; null when it stands for nothing.
/// What this process starts itself does not inherit it.
std::shared_ptr<Segment> kept_segment(const std::string& variable);

}  // namespace trireme::cluster
