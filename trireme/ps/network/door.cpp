#include <fmt/format.h>

#include <trireme/base/error.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/grpc.h>
#include <trireme/cluster/coordination/reach.h>
#include <trireme/ps/network/door.h>

#include "visitor.h"

namespace trireme::ps::network {
namespace {

constexpr auto kLastWords = std::chrono::milliseconds(500);  // for answers that are on their way when a server stops

/// Has a visitor wait for the next worker, always.
void expect_one(const std::shared_ptr<Hall>& hall, grpc::AsyncGenericService& service,
                grpc::ServerCompletionQueue& queue) {
  const auto visitor = std::make_shared<Visitor>(hall);
  if (hall->add(visitor))
    visitor->expect(visitor, service, queue, [hall, &service, &queue] { expect_one(hall, service, queue); });
}

class NetworkDoor final : public Door {
 public:
  NetworkDoor(const DoorOptions& options, Inbox& inbox)
      : hall_(std::make_shared<Hall>(options.server, options.token, inbox)) {
    grpc::ServerBuilder builder;
    prepare(builder);
    builder.AddListeningPort(cluster::joined(options.address, options.port), cluster::server_credentials(options.tls),
                             &port_);
    builder.RegisterAsyncGenericService(&calls_);
    auto queue = builder.AddCompletionQueue();
    grpc::ServerCompletionQueue& same = *queue;
    server_ = builder.BuildAndStart();
    poller_ = std::make_unique<Poller>(std::move(queue));
    if (server_ && port_ > 0) {
      expect_one(hall_, calls_, same);
      return;
    }
    stop();
    fail<IoError>("host {}: server {} cannot listen on {}: {}", cluster::own_host_name(), options.server,
                  cluster::joined(options.address, options.port), cluster::listen_fault(options.address, options.port));
  }
  ~NetworkDoor() override { stop(); }
  NetworkDoor(const NetworkDoor&) = delete;
  NetworkDoor& operator=(const NetworkDoor&) = delete;

  int port() const override { return port_; }
  bool used() const override { return hall_->used(); }

 private:
  /// The queue last: it must be there until all calls have ended.
  void stop() {
    hall_->close();
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + kLastWords);
    hall_->wait_until_empty();
    poller_.reset();
    server_.reset();
  }

  const std::shared_ptr<Hall> hall_;
  grpc::AsyncGenericService calls_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Poller> poller_;
};

}  // namespace

std::unique_ptr<Door> open_door(const DoorOptions& options, Inbox& inbox) {
  if (options.token.empty())
    fail<InvalidArgument>("server {} needs a token: without one, anybody on the network could write to its parameters",
                          options.server);
  cluster::prepare_grpc();
  const cluster::SignalsBlocked blocked;
  return std::make_unique<NetworkDoor>(options, inbox);
}

}  // namespace trireme::ps::network
