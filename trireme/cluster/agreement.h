#pragma once
// Ranks compare what they were asked to do, before they do it: two jobs that meet by mistake find out here. And what
// one of them finds out for all.
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/comm/communicator.h>

namespace trireme::cluster {

/// A process that came when the job was under way does not fit the others: it has another model, other options or data.
/// It has disturbed nobody.
class CannotJoin : public Mismatch {
  using Mismatch::Mismatch;
};

using Terms = std::vector<std::pair<std::string, std::string>>;  // "--lr", "0.1"; what was not said is left out. Names
                                                                 // are different, in any order

/// Throws Mismatch when ranks have different terms: in the same words on every rank, with the first difference and
/// `advice` behind it. Collective; blocks as any collective does.
void compare_terms(comm::Communicator& ranks, const Terms& terms, const std::string& advice);

/// Rank 0's text becomes everybody's. Collective.
void share(comm::Communicator& ranks, std::string& text, std::string_view name);

/// What only rank 0 does, and all hear of: the text that `act` returns there. Where it throws, rank 0 throws the same,
/// the others an InvalidArgument with its words. Collective.
std::string on_first(comm::Communicator& ranks, const std::function<std::string()>& act, std::string_view name);

}  // namespace trireme::cluster
