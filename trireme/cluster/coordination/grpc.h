#pragma once
// What everything here that speaks gRPC shares: the coordinator, its sessions, the parameter servers' lanes.
// Not installed.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include <trireme/cluster/coordination/tls.h>

namespace trireme::cluster {

constexpr const char* kTokenKey = "trireme-token";  // of the metadata of every call

/// gRPC as this library uses it: silent, without fork handlers, its threads deaf to signals. Call before anything else
/// of gRPC; cheap.
void prepare_grpc();

/// Blocks all signals in this thread, and so in the threads that are made meanwhile: signals belong to the program.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

/// The token that a call brought, or "".
std::string token_of(const grpc::ServerContextBase& context);
/// "10.0.0.2" of gRPC's "ipv4:10.0.0.2:4242"; "fe80::1" of "ipv6:%5Bfe80::1%5D:4242".
std::string address_of(const std::string& peer);

/// Mutual TLS with the folder's certificates, where only those for kCertificateName count; without a folder, none.
/// Throws as load_certificates().
std::shared_ptr<grpc::ServerCredentials> server_credentials(const std::string& folder);
/// A connection of its own: its end means something. `arguments` are added to.
std::shared_ptr<grpc::Channel> channel_to(const std::string& target, const std::optional<Certificates>& certificates,
                                          grpc::ChannelArguments arguments = {});

}  // namespace trireme::cluster
