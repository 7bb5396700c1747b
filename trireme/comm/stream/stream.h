#pragma once
// The engine "stream": messages between machines over TCP, of which every byte is encrypted and authenticated. With
// certificates (--tls), or with the job's token as the key.
#include <memory>

#include <trireme/comm/network/engine.h>

namespace trireme::comm::stream {

/// Collective, as network::Engine::connect.
std::unique_ptr<network::Transport> connect(const network::Meeting& meeting);

/// Adds the engine "stream".
void add();

}  // namespace trireme::comm::stream
