#include "requests.h"

#include <trireme/cluster/coordination/wire.h>

namespace trireme::cluster {
namespace {

/// A line to nobody.
struct Listener final : Line {
  void welcome(const Welcome& /*welcome*/) override { welcomed = true; }
  void placed(const Member& /*member*/) override {}
  void heartbeat(const std::string& /*waiting*/) override {}
  void notice(const Failure& /*failure*/) override {}
  void crew(const CrewChange& /*change*/) override {}
  void dismissed(const std::string& /*reason*/) override {}
  void more(int /*workers*/) override {}
  void farewell() override {}
  void close(const std::optional<Refusal>& /*refusal*/) override {}
  bool welcomed = false;
};

Outcome serve_message(Desk& desk, const std::string& token, const std::string& bytes, uint64_t& member) {
  wire::FromMember message;
  if (!message.ParseFromString(bytes)) return {};
  const auto line = std::make_shared<Listener>();
  serve(desk, token, message, "127.0.0.1", member, line);
  return {true, line->welcomed};
}

}  // namespace

Outcome serve_bytes(Desk& desk, Request request, const std::string& token, const std::string& bytes, uint64_t& member) {
  if (request == Request::attend) return serve_message(desk, token, bytes, member);
  if (request == Request::put) {
    wire::PutRequest message;
    if (!message.ParseFromString(bytes)) return {};
    return {true, !desk.put(token, message.member(), message.key(), message.value())};
  }
  wire::GetRequest message;
  if (!message.ParseFromString(bytes)) return {};
  const auto accepted = std::make_shared<bool>(false);
  const uint64_t ticket = desk.get(token, message.member(), message.key(), [accepted](const auto& answer) {
    *accepted = std::holds_alternative<std::string>(answer);
  });
  desk.cancel(ticket);
  return {true, *accepted || ticket != 0};
}

std::vector<std::string> sample_requests(Request request, const std::string& job, const std::string& version,
                                         uint64_t member) {
  std::vector<std::string> samples;
  if (request == Request::attend) {
    wire::FromMember hello, server, heartbeat, leave, of_server;
    hello.mutable_hello()->set_job(job);
    hello.mutable_hello()->set_version(version);
    hello.mutable_hello()->set_rank(-1);
    hello.mutable_hello()->set_host("a");
    hello.mutable_hello()->set_pid(1);
    server = hello;
    server.mutable_hello()->set_kind(Member::server);
    server.mutable_hello()->set_servers(1);
    heartbeat.mutable_heartbeat()->set_metrics(metrics::Snapshot({{.name = "updates", .value = 1}}).encode());
    leave.mutable_leave()->set_rank(-1);
    leave.mutable_leave()->set_server(-1);
    of_server = leave;
    of_server.mutable_leave()->set_exit_code(1);
    of_server.mutable_leave()->set_server(0);
    for (const wire::FromMember& message : {hello, heartbeat, leave, server, of_server})
      samples.push_back(message.SerializeAsString());
  } else if (request == Request::put) {
    wire::PutRequest put;
    put.set_member(member);
    put.set_key("key");
    put.set_value("value");
    samples = {put.SerializeAsString()};
  } else {
    wire::GetRequest get;
    get.set_member(member);
    get.set_key("key");
    samples = {get.SerializeAsString()};
  }
  return samples;
}

}  // namespace trireme::cluster
