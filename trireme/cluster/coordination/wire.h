#pragma once
// Between the desk's structs and the messages of coordinator.proto. Not installed: of this folder, only wire.cpp,
// grpc.cpp, coordinator.cpp, stream.cpp, session.cpp and requests.cpp see gRPC.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include <trireme/cluster/coordination/desk.h>

#include "coordinator.grpc.pb.h"
#include "grpc.h"

namespace trireme::cluster {

grpc::Status status_of(const std::optional<Refusal>& refusal);

Hello from_wire(const wire::Hello& hello, const std::string& address);
void to_wire(const Welcome& welcome, wire::Welcome& message);
Welcome from_wire(const wire::Welcome& message);
Failure from_wire(const wire::Notice& notice);
void to_wire(const Failure& failure, wire::Notice& notice);
CrewChange from_wire(const wire::Crew& message);
void to_wire(const CrewChange& change, wire::Crew& message);

/// What a message of a member's stream does. `member` is 0 until it has registered.
void serve(Desk& desk, const std::string& token, const wire::FromMember& message, const std::string& address,
           uint64_t& member, const std::shared_ptr<Line>& line);

}  // namespace trireme::cluster
