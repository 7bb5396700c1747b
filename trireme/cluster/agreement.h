#pragma once
// Ranks compare what they were asked to do, before they do it: two jobs that meet by mistake find out here.
#include <string>
#include <utility>
#include <vector>

#include <trireme/comm/communicator.h>

namespace trireme::cluster {

using Terms = std::vector<std::pair<std::string, std::string>>;  // "--lr", "0.1"; what was not said is left out. Names
                                                                 // are different, in any order

/// Throws Mismatch when ranks have different terms: in the same words on every rank, with the first difference and
/// `advice` behind it. Collective; blocks as any collective does.
void compare_terms(comm::Communicator& ranks, const Terms& terms, const std::string& advice);

}  // namespace trireme::cluster
