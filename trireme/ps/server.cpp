#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/base/process.h>
#include <trireme/base/unix_socket.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/status_door.h>
#include <trireme/ps/network/door.h>
#include <trireme/ps/network/lane.h>
#include <trireme/ps/server.h>
#include <trireme/ps/shm/door.h>
#include <trireme/ps/shm/lane.h>

namespace trireme::ps {
namespace {

constexpr Seconds kLongestSleep{1};
constexpr Seconds kSibling{5};  // for the door of a server that runs

/// Says hello to server 0, if its door is on this machine. False when it does not answer.
bool greet_sibling(const ServerOptions& options, const shm::Hello& hello, const Deadline& deadline,
                   shm::Welcome& answer, std::vector<Descriptor>& descriptors) {
  const Descriptor socket = shm::Lane::knock(options.meeting.job, 0);
  if (!socket) return false;
  limit_wait(socket.get(), deadline.left() + Seconds(1));
  return send_message(socket.get(), &hello, sizeof hello) &&
         receive_message(socket.get(), &answer, sizeof answer, descriptors) == sizeof answer &&
         answer.magic == shm::kMagic;
}

/// Whether server 0 is on this machine. Waits for it.
bool sibling_is_here(const ServerOptions& options) {
  const Deadline deadline(options.timeout);
  if (options.meeting.store != nullptr) options.meeting.store->get(network::address_key(0), deadline);  // it is up
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    shm::Welcome answer;
    std::vector<Descriptor> none;
    if (greet_sibling(options, {.kind = shm::Visitor::sibling}, deadline, answer, none)) return true;
    if (options.meeting.store != nullptr) return false;  // on another machine
    if (deadline.passed())
      fail<Timeout>("server {} found no server 0 of its job on this machine within {:g} s", options.server,
                    options.timeout.count());
    std::this_thread::sleep_for(pause);  // nothing signals the birth of an abstract socket
  }
}

/// The memory in which server 0 keeps a model's parameters. Its door answers at once, whatever its service does.
std::shared_ptr<Segment> parameters_of_sibling(const ServerOptions& options, int model, size_t bytes) {
  shm::Welcome answer;
  std::vector<Descriptor> descriptors;
  const shm::Hello hello{.kind = shm::Visitor::sibling, .model = model, .plot = {.flat_bytes = bytes}};
  const bool answered = greet_sibling(options, hello, Deadline(kSibling), answer, descriptors);
  answer.text.back() = 0;
  if (answered && descriptors.size() == 1) return std::make_shared<Segment>(std::move(descriptors[0]), bytes);
  fail<PeerLost>("server {} got no memory for the parameters from server 0 of this machine: {}", options.server,
                 answered && answer.text[0] != 0 ? answer.text.data() : "it is gone, or stopped");
}

/// While the service runs, threads that bring requests may carry them out.
struct Opened {
  Opened(Inbox& inbox, Models* models) : inbox(inbox) { inbox.open(*models); }
  ~Opened() { inbox.close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  Inbox& inbox;
};

}  // namespace

struct Server::State {
  explicit State(const ServerOptions& given)
      : options(given),
        bell_memory(Segment::create(kPage)),
        bell(*reinterpret_cast<Bell*>(bell_memory->map(0, kPage, "a server's bell"))),
        inbox(bell),
        asks(options.server != 0 && options.replicas == 0 && !options.meeting.remote_only && sibling_is_here(options)),
        parameters(options.server == 0 || asks, asks ? shm::ParameterFiles::Ask([this](int model, size_t bytes) {
                     return parameters_of_sibling(options, model, bytes);
                   })
                                                     : nullptr),
        helpers(options.helpers.value_or(helpers_for(options.workers, options.servers, usable_cores()))),
        models(options.server, parameters, helpers, options.registry != nullptr ? *options.registry : registry) {
    if (options.replicas > 0) {
      check_replicas();
      replicas.emplace(shm::Replicas::Options{.job = options.meeting.job,
                                              .server = options.server,
                                              .servers = options.servers,
                                              .silence = options.silence,
                                              .bell = bell_memory.get(),
                                              .helpers = &helpers,
                                              .registry = options.registry != nullptr ? options.registry : &registry},
                       inbox);
    }
    if (!options.meeting.remote_only)
      door.emplace(
          shm::DoorOptions{.job = options.meeting.job,
                           .server = options.server,
                           .bell = bell_memory.get(),
                           .memory = &parameters,
                           .helpers = &helpers,
                           .replicas = replicas ? &*replicas : nullptr,
                           .admitted = [this](std::shared_ptr<shm::Port> port) { ports.push_back(std::move(port)); },
                           .left = [this](const std::shared_ptr<shm::Port>& port) { std::erase(ports, port); }},
          inbox);
    if (options.meeting.store != nullptr) {
      network = network::open_door(
          {.server = options.server, .token = options.meeting.token, .tls = options.meeting.tls}, inbox);
      options.meeting.store->put(network::address_key(options.server),
                                 fmt::format("{}:{}", options.host, network->port()));
    }
  }

  void run() {
    Patience patience = patience_for(options.workers + options.servers, usable_cores());
    bool remote = false;
    if (replicas) replicas->take_charge(Deadline(options.timeout));
    const auto start = Clock::now();
    const Opened opened(inbox, &models);
    while (!stopped.load()) {
      const auto now = Clock::now();
      std::optional<Clock::time_point> due;
      {
        const Lock turn(inbox.turn());
        if (replicas ? replicas->finished() : models.finished()) break;
        bool busy = replicas && replicas->look_after();
        for (const auto& port : ports)
          busy |= port->poll(port, now);  // a goodbye is read before the door says that the worker is gone
        busy |= inbox.drain(models);
        due = replicas ? replicas->due() : models.due();
        if (due && *due <= now) replicas ? replicas->tick(now) : models.tick(now);
        if (busy) continue;
        if ((replicas ? replicas->empty() : models.empty()) && Seconds(now - start) > options.timeout)
          fail<Timeout>("no worker has come to server {} within {:g} s", options.server, options.timeout.count());
      }
      const Seconds longest = due ? std::min(kLongestSleep, std::max(Seconds(0), Seconds(*due - now))) : kLongestSleep;
      if (!remote && network && network->used()) {  // gRPC's threads must not wait for those that wait for them
        remote = true;
        patience = patience_for(2 * (options.workers + options.servers), usable_cores());
      }
      const bool crowded = patience.crowded > 0;
      await(bell, patience, Deadline(longest), [&] { return anything(); });
      // A server and a worker that sleep by turns on one core would stay there: neither is ever seen waiting for it.
      if (!crowded && patience.crowded > 0) leave_core();
    }
    {
      const Lock lock(mutex);
      if (!reason.empty()) throw PeerLost(reason);
    }
    const Lock turn(inbox.turn());  // a thread that brings a request may still be at it
    if (const std::string failure = replicas ? replicas->failure() : models.failure(); !failure.empty())
      throw PeerLost(failure);
  }

  void check_replicas() const {
    const bool several_hosts = options.meeting.store != nullptr || options.meeting.remote_only;
    if (const std::string why = why_no_replicas(options.replicas, options.servers, several_hosts); !why.empty())
      fail<InvalidArgument>("server {} cannot keep replicas: {}", options.server, why);
  }

  bool anything() const {
    return stopped.load() || !inbox.empty() || (replicas && replicas->waiting()) ||
           std::any_of(ports.begin(), ports.end(), [](const auto& port) { return port->waiting(); });
  }

  ServerOptions options;
  std::shared_ptr<Segment> bell_memory;
  Bell& bell;
  Inbox inbox;
  const bool asks;  // server 0, on the same machine, for memory
  shm::ParameterFiles parameters;
  Helpers helpers;
  metrics::Registry registry;  // unless the options give another
  Models models TRIREME_GUARDED_BY(inbox.turn());
  std::optional<shm::Replicas> replicas;  // in the place of `models`
  std::vector<std::shared_ptr<shm::Port>> ports;
  std::atomic<bool> stopped{false};
  Mutex mutex;
  std::string reason TRIREME_GUARDED_BY(mutex);
  // Last, so that they go first: they post to the inbox.
  std::optional<shm::Door> door;
  std::unique_ptr<network::Door> network;
};

Server::Server(const ServerOptions& options) : state_(std::make_unique<State>(options)) {}
Server::~Server() = default;
void Server::run() { state_->run(); }

void Server::stop() noexcept {
  state_->stopped.store(true);
  ring(state_->bell);
}

void Server::interrupt(const std::string& reason) noexcept {
  {
    const Lock lock(state_->mutex);
    if (state_->reason.empty()) state_->reason = reason;
  }
  stop();
}

namespace {

std::unique_ptr<cluster::StatusDoor> open_status_door(const ServerOptions& options) {
  const cluster::Member member{
      .kind = cluster::Member::server, .rank = options.server, .host = cluster::own_host_name(), .pid = getpid()};
  return std::make_unique<cluster::StatusDoor>(
      [registry = options.registry, job = cluster::job_id(options.meeting.job), member] {
        return std::vector{cluster::MemberMetrics{job, member, registry->snapshot()}};
      });
}

}  // namespace

void serve() { serve(cluster::place_here()); }
bool is_server() { return cluster::place_here().role == "server"; }

void serve(const cluster::Place& place, Seconds timeout, Seconds heartbeat_limit) {
  if (place.role != "server")
    fail<InvalidArgument>("this process was started as a {}, not as a server ({})", place.role, place.launcher);
  metrics::Registry registry;
  ServerOptions options{.server = place.server,
                        .workers = place.size,
                        .servers = place.servers,
                        .replicas = place.replicas,
                        .meeting = {.job = place.job},
                        .timeout = timeout,
                        .registry = &registry};
  if (place.coordinator.empty()) {
    Server server(options);
    const auto door = open_status_door(options);
    return server.run();
  }
  cluster::Session session(
      {.coordinator = place.coordinator,
       .job = place.job,
       .token = place.token,
       .tls = place.tls,
       .timeout = timeout,
       .heartbeat_limit = heartbeat_limit,
       .counted = [&registry] { return registry.snapshot(); }},
      {.kind = cluster::Member::server, .rank = place.server, .host = cluster::own_host_name(), .pid = getpid()});
  try {
    options.server = session.rank();
    options.host = session.address();
    options.meeting = {.job = session.meeting(), .store = &session, .token = place.token, .tls = place.tls};
    Server server(options);
    const auto door = open_status_door(options);
    session.on_failure([&](const cluster::Failure& failure) { server.interrupt(failure.reason); });
    server.run();
    session.leave(0);
  } catch (const std::exception& error) {
    session.leave(session.failure() ? 75 : 1, error.what());
    throw;
  }
}

}  // namespace trireme::ps
