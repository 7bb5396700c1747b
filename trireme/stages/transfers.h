#pragma once
// Where sends and receives stand in rows that so far only compute.
//
// The rows are timed as if transfers took no time and a backward two forwards. A computation then has the time at which
// it ends; a transfer has the time at which its data are there and its receiver has nothing else to do before it needs
// them. Every row is sorted by these times, the same ones in the row of the sender and in that of the receiver. All
// rows are therefore parts of one order of everything, and in that order each rendezvous can take place when its turn
// comes: there is no circle. A receive always stands right before what needs it. Not installed: private to this folder.
#include <trireme/stages/schedule.h>

namespace trireme::stages {

/// `schedule` has rows of computations only, each (micro, chunk) with one forward and one backward or both its parts
/// (unchecked rows do no harm). Throws InvalidArgument if they wait for each other for ever.
Schedule with_transfers(const Schedule& schedule);

}  // namespace trireme::stages
