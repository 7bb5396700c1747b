#include <trireme/ps/network/door.h>

#include <fmt/format.h>

#include <trireme/base/error.h>
#include <trireme/cluster/coordinator.h>
#include <trireme/cluster/grpc.h>
#include <trireme/cluster/reach.h>
#include "visitor.h"

namespace trireme::ps::network {
namespace {

constexpr auto kLastWords = std::chrono::milliseconds(500);  // for answers that are on their way when a server stops

class Reception final : public grpc::CallbackGenericService {
 public:
  explicit Reception(std::shared_ptr<Hall> hall) : hall_(std::move(hall)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    const auto visitor = std::make_shared<Visitor>(hall_, *context);
    visitor->start(visitor);
    return visitor.get();
  }

 private:
  const std::shared_ptr<Hall> hall_;
};

class NetworkDoor final : public Door {
 public:
  NetworkDoor(const DoorOptions& options, Inbox& inbox) : hall_(std::make_shared<Hall>(options.server, options.token, inbox)), reception_(hall_) {
    grpc::ServerBuilder builder;
    prepare(builder);
    builder.AddListeningPort(cluster::joined(options.address, options.port), cluster::server_credentials(options.tls), &port_);
    builder.RegisterCallbackGenericService(&reception_);
    server_ = builder.BuildAndStart();
    if (server_ && port_ > 0) return;
    server_.reset();
    fail<IoError>("host {}: server {} cannot listen on {}: {}", cluster::own_host_name(), options.server, cluster::joined(options.address, options.port),
                  cluster::listen_fault(options.address, options.port));
  }
  ~NetworkDoor() override {
    hall_->close();
    server_->Shutdown(std::chrono::system_clock::now() + kLastWords);
  }
  NetworkDoor(const NetworkDoor&) = delete;
  NetworkDoor& operator=(const NetworkDoor&) = delete;

  int port() const override { return port_; }
  bool used() const override { return hall_->used(); }

 private:
  const std::shared_ptr<Hall> hall_;
  Reception reception_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<Door> open_door(const DoorOptions& options, Inbox& inbox) {
  if (options.token.empty())
    fail<InvalidArgument>("server {} needs a token: without one, anybody on the network could write to its parameters", options.server);
  cluster::prepare_grpc();
  const cluster::SignalsBlocked blocked;
  return std::make_unique<NetworkDoor>(options, inbox);
}

}  // namespace trireme::ps::network
