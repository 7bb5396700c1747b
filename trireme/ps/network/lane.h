#pragma once
// The worker's end of a lane to a server on another machine: gRPC streams, token always, TLS by choice.
#include <functional>
#include <memory>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/ps/lane.h>
#include <trireme/ps/shm/memory.h>

namespace trireme::ps::network {

/// Where a server's "host:port" is kept in the job's key-value store.
std::string address_key(int server);

struct LaneOptions {
  std::string address;     // host:port
  std::string token, tls;  // the job's; tls: folder of certificates, or ""
  int model = 0, worker = 0, server = 0;
  int channels = 2;     // connections; requests are spread over them
  Seconds patience{2};  // to come back after a broken connection; what was not answered is sent again
};

/// Connects and waits for the server's welcome. Answers are copied into `memory` (parameters, staging area) before
/// receive() returns them; its bell is rung when one has come. `alarm` is called once, from any thread, when the server
/// is lost. Throws InvalidArgument when the worker is not admitted (token, certificates, another job), PeerLost,
/// Timeout.
std::unique_ptr<Lane> connect(const LaneOptions& options, std::shared_ptr<shm::Memory> memory,
                              std::function<void()> alarm, const Deadline& deadline);

}  // namespace trireme::ps::network
