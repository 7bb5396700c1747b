// label: multiproc grpc
// Lanes between machines when something is wrong: strangers, garbage, broken connections, servers and workers that die.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include <trireme/ps/network/frames.h>
#include <trireme/ps/network/lane.h>

#include "proxy.h"
#include "servers.h"

namespace trireme::ps::tests {
namespace {

/// The servers' store, but with other addresses.
class Detour final : public comm::network::KeyValue {
 public:
  explicit Detour(std::string address) : address_(std::move(address)) {}
  void put(const std::string& /*key*/, const std::string& /*value*/) override {}
  std::string get(const std::string& /*key*/, const Deadline& /*deadline*/) override { return address_; }

 private:
  std::string address_;
};

std::string address_of(const Meeting& meeting) {
  return meeting.store->get(network::address_key(0), Deadline(Seconds(10)));
}

template <class E>
void expect_refused(const Meeting& meeting, const Job& job, const std::vector<std::string>& parts) {
  std::exception_ptr error;
  try {
    const Client client(meeting, 0, job, {.timeout = Seconds(10)});
  } catch (...) {
    error = std::current_exception();
  }
  expect_error<E>(error, parts);
}

/// A worker comes, does its work and goes: the server is well.
void expect_serves(const Meeting& meeting, const Job& job) {
  expect_all_well(run_workers(meeting, job, [](Client& client) {
    client.set(whole(client)).wait();
    client.push(whole(client), {.lr = 0.5, .pull = true}).wait();
  }));
}

// ---- strangers ----

TEST(LaneFaults, AWrongTokenIsRefused) {
  const Job job = small_job(1, 1, Order::on_arrival);
  Servers running(Way::network, 1, 1);
  for (const char* token : {"another token", ""}) {
    Meeting meeting = running.meeting;
    meeting.token = token;
    expect_refused<InvalidArgument>(meeting, job, {"server 0 at 127.0.0.1", "refuses the token", "TRIREME_TOKEN"});
  }
  expect_serves(running.meeting, job);
}

TEST(LaneFaults, AServerNeedsAToken) {
  Store store;
  const Meeting meeting{.job = job_name(), .store = &store, .remote_only = true};
  EXPECT_THROW(Server({.meeting = meeting}), InvalidArgument);
}

TEST(LaneFaults, AForeignCertificateIsRefused) {
  const Job job = small_job(1, 1, Order::on_arrival);
  Servers running(Way::network_tls, 1, 1);
  Meeting meeting = running.meeting;
  meeting.tls = certificates() + "-foreign";
  cluster::make_certificates(meeting.tls, {.force = true});
  expect_refused<InvalidArgument>(meeting, job, {"server 0 at 127.0.0.1", "foreign certificate"});
  cluster::make_certificates(meeting.tls, {.force = true, .name = "payroll", .authority = certificates()});
  expect_refused<InvalidArgument>(meeting, job, {"server 0 at 127.0.0.1", "refuses a certificate for another name"});
  meeting.tls = "";
  expect_refused<InvalidArgument>(meeting, job, {"server 0 at 127.0.0.1", "speaks TLS"});
  expect_serves(running.meeting, job);
}

TEST(LaneFaults, APlaceHasOneProcess) {
  const Job job = small_job(1, 1, Order::on_arrival);
  Servers running(Way::network, 1, 1);
  expect_all_well(run_workers(running.meeting, job, [&](Client& client) {
    expect_refused<InvalidArgument>(running.meeting, job,
                                    {"does not admit worker 0", "is here already, from 127.0.0.1"});
    client.barrier();
  }));
}

// ---- garbage ----

TEST(LaneFaults, GarbageOnThePortHurtsNobody) {
  const Job job = small_job(1, 1, Order::on_arrival);
  for (Way way : {Way::network, Way::network_tls}) {
    Servers running(way, 1, 1);
    const int port = port_of(address_of(running.meeting));
    std::mt19937 random(1);
    std::vector<Descriptor> open;
    for (int i = 0; i < 50; i++) {
      std::string bytes = i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";  // half of them get past the first look
      for (int k = 0; k < 2000; k++) bytes.push_back(static_cast<char>(random()));
      Descriptor socket = connect_loopback(port);
      ASSERT_TRUE(socket);
      send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (i % 3 == 0) open.push_back(std::move(socket));
    }
    expect_serves(running.meeting, job);
  }
}

/// What a server says to these messages on a stream that shows the right token.
grpc::Status talk(const std::string& address, const std::vector<std::string>& messages) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("trireme-token", "a token");
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, "/trireme.ps.Lane/Talk", &queue);
  grpc::Status status;
  void* tag = nullptr;
  bool ok = false;
  stream->StartCall(&queue);
  queue.Next(&tag, &ok);
  for (const std::string& message : messages) {
    const grpc::Slice slice(message);
    stream->Write(grpc::ByteBuffer(&slice, 1), &queue);
    queue.Next(&tag, &ok);
  }
  stream->WritesDone(&queue);
  queue.Next(&tag, &ok);
  stream->Finish(&status, &queue);
  queue.Next(&tag, &ok);
  return status;
}

std::string frame_of(network::Head head, const Request& request) {
  std::string bytes(network::kPrefix, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, &request, sizeof request);
  return bytes;
}

TEST(LaneFaults, WrongFramesEndTheirStreamOnly) {
  const Job job = small_job(1, 1, Order::on_arrival);
  Servers running(Way::network, 1, 1);
  const std::string address = address_of(running.meeting);
  const Request barrier{.id = 1, .verb = Verb::barrier};
  const auto expect_end = [&](const std::vector<std::string>& messages, const char* part) {
    const grpc::Status status = talk(address, messages);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_NE(status.error_message().find(part), std::string::npos) << status.error_message();
  };
  expect_end({"hello"}, "5 bytes");
  expect_end({std::string(1000, 'x')}, "no message of a parameter server");
  expect_end({frame_of({.kind = network::Kind::request}, barrier)}, "first message");
  expect_end({frame_of({.kind = network::Kind::hello, .channels = 1, .worker = 0, .server = 3}, {})},
             "this is server 0, not server 3");
  std::string truncated =
      frame_of({.kind = network::Kind::request, .data = 100}, {.id = 1, .verb = Verb::push, .bytes = 100});
  expect_end({truncated}, "says it has 100");
  expect_serves(running.meeting, job);
}

// ---- connections that break ----

Job large_job(int workers, Order order) {
  Job job{.layout = space::Layout({{"w", DType::f32, {(1 << 19) + 3}}}),
          .workers = workers,
          .bucket_bytes = 1 << 20,
          .chunk_bytes = 256 << 10};
  job.optimizer = space::sgd({.lr = 1});
  job.rules = {.workers = workers, .order = order};
  return job;
}

class LaneCuts : public testing::TestWithParam<std::tuple<Way, Order>> {};

/// Whole numbers, which floats add without error: every gradient was applied once, or the sum is another.
TEST_P(LaneCuts, EveryGradientIsAppliedOnce) {
  const auto [way, order] = GetParam();
  constexpr int kWorkers = 2, kSteps = 40, kCuts = 8;
  const Job job = large_job(kWorkers, order);
  Servers running(way, kWorkers, 1);
  Proxy proxy(port_of(address_of(running.meeting)), 7'000'000, kCuts);
  Detour detour(proxy.address());
  Meeting meeting = running.meeting;
  meeting.store = &detour;
  const auto outcomes = run_workers(meeting, job, [&](Client& client) {
    if (client.worker() == 0) client.set(whole(client)).wait();
    client.barrier();
    for (int step = 0; step < kSteps; step++) {
      fill(job.layout, client.gradients(),
           [&](size_t, size_t i) { return static_cast<float>(step + client.worker() + static_cast<int>(i % 3)); });
      client.push(whole(client), {.step = step, .lr = 1, .pull = true}).wait();
    }
    client.barrier();
    client.pull(whole(client)).wait();
    for (size_t i = 0; i < job.layout[0].elements(); i++) {
      const int sum = kSteps * (kSteps - 1) / 2 * kWorkers + kSteps * kWorkers * (kWorkers - 1) / 2 +
                      kSteps * kWorkers * static_cast<int>(i % 3);
      ASSERT_EQ(floats(client.parameters())[i], -static_cast<float>(sum)) << "element " << i;
    }
    client.barrier();
  });
  expect_all_well(outcomes);
  EXPECT_EQ(proxy.cuts(), kCuts);
  running.join();
  expect_all_well(running.errors);
}

INSTANTIATE_TEST_SUITE_P(Network, LaneCuts,
                         testing::Combine(testing::Values(Way::network, Way::network_tls),
                                          testing::Values(Order::on_arrival, Order::together)));

// ---- deaths ----

/// Pushes until it fails; how long the last one took.
std::exception_ptr push_until_lost(Client& client, Seconds& took) {
  try {
    client.set(whole(client)).wait();
    for (int step = 0;; step++) {
      const auto start = Clock::now();
      try {
        client.push(whole(client), {.step = step, .lr = 1}).wait();
      } catch (...) {
        took = Seconds(Clock::now() - start);
        throw;
      }
    }
  } catch (...) {
    return std::current_exception();
  }
}

TEST(LaneFaults, AServerThatStopsIsNamed) {
  const Job job = large_job(1, Order::on_arrival);
  Store store;
  const Meeting meeting{.job = job_name(), .store = &store, .token = "a token", .remote_only = true};
  auto server = std::make_unique<Server>(ServerOptions{.meeting = meeting});
  std::thread serving([&] { server->run(); });
  std::thread stopper;
  {
    Client client(meeting, 0, job, {.timeout = Seconds(30)});
    stopper = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      server->stop();
      serving.join();
      server.reset();
    });
    Seconds took{0};
    expect_error<PeerLost>(push_until_lost(client, took), {"server 0 at 127.0.0.1:", "is gone", "worker 0 waited for"});
    EXPECT_LT(took.count(), 2 + 2);
  }
  stopper.join();
}

TEST(LaneFaults, AServerThatIsKilledIsNamed) {
  const Job job = large_job(1, Order::on_arrival);
  Servers running(Way::network, 1, 1);
  Proxy proxy(port_of(address_of(running.meeting)), 1, 0);
  Detour detour(proxy.address());
  Meeting meeting = running.meeting;
  meeting.store = &detour;
  {
    Client client(meeting, 0, job, {.timeout = Seconds(30)});
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      proxy.close();
    });
    Seconds took{0};
    expect_error<PeerLost>(push_until_lost(client, took),
                           {"server 0 at " + proxy.address(), "is gone", "did not come back within 2 s"});
    EXPECT_LT(took.count(), 2 + 2);
    killer.join();
  }
  running.join();  // and the server misses its worker
  ASSERT_EQ(running.errors.size(), 1u);
  expect_error<PeerLost>(running.errors[0], {"worker 0 at 127.0.0.1 is gone: its connection ended without a goodbye"});
}

TEST(LaneFaults, APulledCableIsNoticed) {
  const Job job = large_job(1, Order::on_arrival);
  Servers running(Way::network, 1, 1);
  Proxy proxy(port_of(address_of(running.meeting)), 1, 0);
  Detour detour(proxy.address());
  Meeting meeting = running.meeting;
  meeting.store = &detour;
  {
    Client client(meeting, 0, job, {.timeout = Seconds(60)});
    client.set(whole(client)).wait();
    proxy.freeze();
    Seconds took{0};
    expect_error<PeerLost>(push_until_lost(client, took), {"server 0 at " + proxy.address(), "is gone"});
  }
  running.join();
  ASSERT_EQ(running.errors.size(), 1u);
  expect_error<PeerLost>(running.errors[0], {"worker 0 at 127.0.0.1 is gone"});
}

TEST(LaneFaults, NobodyIsThere) {
  Detour detour("127.0.0.1:1");
  const Meeting meeting{.job = job_name(), .store = &detour, .token = "a token", .remote_only = true};
  expect_refused<PeerLost>(meeting, small_job(1, 1, Order::on_arrival), {"server 0 at 127.0.0.1:1", "refused"});
}

TEST(LaneFaults, AWorkerThatVanishesIsNamed) {
  const Job job = small_job(2, 1, Order::together);
  Servers running(Way::network, 2, 1);
  std::thread other([&] {  // comes, and goes without a word
    const std::string text = [&] {
      Job same = job;
      same.rules.workers = same.workers;
      return same.encode();
    }();
    const auto memory = std::make_shared<shm::Memory>(
        Segment::create(), shm::Plot::plan(1, text.size(), job.layout.bytes(), job.layout.size(), 0));
    std::memcpy(memory->job(), text.data(), text.size());
    const auto lane = network::connect(
        {.address = address_of(running.meeting), .token = "a token", .worker = 1}, memory, [] {},
        Deadline(Seconds(10)));
    EXPECT_EQ(lane->fault(), "");
  });
  std::exception_ptr error;
  try {
    Client client(running.meeting, 0, job, {.timeout = Seconds(20)});
    client.barrier();
  } catch (...) {
    error = std::current_exception();
  }
  expect_error<PeerLost>(error, {"worker 1 at 127.0.0.1 is gone: its connection ended without a goodbye"});
  other.join();
}

}  // namespace
}  // namespace trireme::ps::tests
