#pragma once
// How the ranks of a group find each other: each listens, says where, connects to all others and lets all others in.
// Nothing listens after that.
#include <memory>
#include <vector>

#include <trireme/comm/network/engine.h>
#include <trireme/comm/stream/channel.h>

namespace trireme::comm::stream {

/// A connection to each other rank, for what this one sends, and one from each, for what they do. By rank; this one's
/// own are null.
struct Channels {
  std::vector<std::unique_ptr<Channel>> outgoing, incoming;
};

/// Collective. Strangers who connect meanwhile are turned away, counted and, the first of them, told of. Throws Timeout
/// with the ranks that did not come, InvalidArgument that names a rank with which this one's certificates or token do
/// not go together, and what the meeting's store throws when the job has failed.
Channels assemble(const network::Meeting& meeting, const Credentials& credentials);

}  // namespace trireme::comm::stream
