#pragma once
// libtorch's process groups as a transport. The one part of comm/ that needs libtorch.
#include <c10/util/intrusive_ptr.h>

#include <trireme/comm/c10d/torch_compat.h>
#include <trireme/comm/network/transport.h>

namespace trireme::comm::c10d {

/// Any process group that can send and receive CPU tensors of bytes. After interrupt() or an error the group must not be used by anybody else.
std::unique_ptr<network::Transport> transport_over(c10::intrusive_ptr<torch_compat::ProcessGroup> group);

}  // namespace trireme::comm::c10d
