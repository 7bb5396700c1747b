#pragma once
// libtorch's process groups as a transport. The one part of comm/ that needs libtorch.
#include <c10/util/intrusive_ptr.h>

#include <trireme/comm/network/transport.h>
#include <trireme/torch/compat.h>

namespace trireme::comm::c10d {

using Group = c10::intrusive_ptr<torch_compat::ProcessGroup>;

/// Any process group that can send and receive CPU tensors of bytes. Messages to higher ranks go through `up`, the
/// others through `down`, which may be the same group: a backend whose receiver has to say that it is ready (Gloo)
/// stalls one direction behind the other's data when both share a connection. After interrupt() or an error the groups
/// must not be used by anybody else.
std::unique_ptr<network::Transport> transport_over(Group up, Group down);

}  // namespace trireme::comm::c10d
