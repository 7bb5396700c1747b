#include "wire.h"

#include <algorithm>

namespace trireme::cluster {
namespace {

grpc::StatusCode code_of(Refused kind) {
  switch (kind) {
    case Refused::token:
      return grpc::StatusCode::UNAUTHENTICATED;
    case Refused::argument:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case Refused::mismatch:
      return grpc::StatusCode::ABORTED;
    case Refused::limit:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case Refused::failed:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case Refused::cancelled:
      return grpc::StatusCode::CANCELLED;
    case Refused::over:
      return grpc::StatusCode::OUT_OF_RANGE;
  }
  return grpc::StatusCode::INTERNAL;
}

JobSpec from_wire(const wire::JobSpec& message) {
  JobSpec spec;
  for (const auto& host : message.hosts()) spec.hosts.emplace_back(host.name(), host.slots());
  spec.command.assign(message.command().begin(), message.command().end());
  for (const auto& variable : message.environment()) spec.environment.emplace_back(variable.name(), variable.value());
  spec.show = std::clamp(message.show(), 0, 2);
  spec.server_command.assign(message.server_command().begin(), message.server_command().end());
  spec.on_failure = std::clamp(message.on_failure(), 0, 2);
  return spec;
}

void to_wire(const JobSpec& spec, wire::JobSpec& message) {
  for (const auto& [name, slots] : spec.hosts) {
    auto* host = message.add_hosts();
    host->set_name(name);
    host->set_slots(slots);
  }
  for (const std::string& word : spec.command) message.add_command(word);
  for (const std::string& word : spec.server_command) message.add_server_command(word);
  message.set_show(spec.show);
  message.set_on_failure(spec.on_failure);
  for (const auto& [name, value] : spec.environment) {
    auto* variable = message.add_environment();
    variable->set_name(name);
    variable->set_value(value);
  }
}

}  // namespace

grpc::Status status_of(const std::optional<Refusal>& refusal) {
  return refusal ? grpc::Status(code_of(refusal->kind), refusal->text) : grpc::Status::OK;
}

Hello from_wire(const wire::Hello& hello, const std::string& address) {
  Hello result{hello.job(), hello.version(), {}, address, hello.wall_clock()};
  Member& member = result.member;
  member.kind = hello.kind() == Member::agent    ? Member::agent
                : hello.kind() == Member::server ? Member::server
                                                 : Member::worker;
  member.rank = hello.rank();
  member.size = hello.size();
  member.servers = hello.servers();
  member.slots = hello.slots();
  member.host = hello.host();
  member.pid = hello.pid();
  member.newcomer = hello.newcomer();
  result.secret = hello.secret();
  result.returning = hello.member();
  result.heard = hello.heard();
  result.attempt = hello.attempt();
  return result;
}

void to_wire(const Welcome& welcome, wire::Welcome& message) {
  message.set_member(welcome.member);
  message.set_job(welcome.job);
  message.set_size(welcome.size);
  message.set_servers(welcome.servers);
  message.set_heartbeat_limit(welcome.heartbeat_limit.count());
  message.set_host(welcome.host);
  for (const std::string& warning : welcome.warnings) message.add_warnings(warning);
  to_wire(welcome.spec, *message.mutable_spec());
  message.set_elastic(welcome.elastic);
  message.set_patience(welcome.patience.count());
}

Welcome from_wire(const wire::Welcome& message) {
  Welcome welcome{message.member(),
                  message.job(),
                  message.size(),
                  message.servers(),
                  Seconds(message.heartbeat_limit()),
                  message.host(),
                  {},
                  from_wire(message.spec()),
                  message.elastic(),
                  Seconds(message.patience())};
  welcome.warnings.assign(message.warnings().begin(), message.warnings().end());
  return welcome;
}

Failure from_wire(const wire::Notice& notice) { return {notice.rank(), notice.host(), notice.reason()}; }

void to_wire(const Failure& failure, wire::Notice& notice) {
  notice.set_rank(failure.rank);
  notice.set_host(failure.host);
  notice.set_reason(failure.reason);
}

CrewChange from_wire(const wire::Crew& message) {
  return {message.epoch(),
          {message.ranks().begin(), message.ranks().end()},
          message.reason(),
          message.announced(),
          {message.machines().begin(), message.machines().end()},
          {message.lost().begin(), message.lost().end()},
          message.closing()};
}

void to_wire(const CrewChange& change, wire::Crew& message) {
  message.set_epoch(change.epoch);
  message.mutable_ranks()->Add(change.ranks.begin(), change.ranks.end());
  message.set_reason(change.reason);
  message.set_announced(change.announced);
  message.mutable_machines()->Add(change.machines.begin(), change.machines.end());
  message.mutable_lost()->Add(change.lost.begin(), change.lost.end());
  message.set_closing(change.closing);
}

void serve(Desk& desk, const std::string& token, const wire::FromMember& message, const std::string& address,
           uint64_t& member, const std::shared_ptr<Line>& line) {
  if (message.has_hello() && member == 0) {
    member = desk.attend(token, from_wire(message.hello(), address), line);
  } else if (message.has_heartbeat()) {
    desk.heartbeat(token, member, message.heartbeat().metrics());
  } else if (message.has_ready()) {
    desk.ready(token, member, message.ready().machine());
  } else if (message.has_confirm()) {
    desk.confirm(token, member, message.confirm().epoch(), message.confirm().machine());
  } else if (message.has_leave()) {
    desk.leave(token, member, message.leave().exit_code(), message.leave().reason(), message.leave().rank(),
               message.leave().server());
  }
}

}  // namespace trireme::cluster
