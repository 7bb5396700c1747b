#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <map>
#include <numeric>

#include <trireme/base/blas.h>
#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/base/process.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/launching/keeper.h>
#include <trireme/cluster/launching/last_words.h>
#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/launching/local_desk.h>
#include <trireme/cluster/launching/slate.h>
#include <trireme/cluster/regroup.h>
#include <trireme/cluster/status_door.h>
#include <trireme/cluster/world.h>
#include <trireme/comm/hierarchical/communicator.h>
#include <trireme/comm/mpi/mpi.h>
#include <trireme/comm/network/engine.h>
#include <trireme/comm/shm/rendezvous.h>
#include <trireme/comm/stream/stream.h>

namespace trireme {
namespace {

constexpr Seconds kWhileItLasts{1e8};  // three years: the coordinator says when a job ends
constexpr Seconds kDeskPatience{10};   // it is on this machine, and was there before this process

using comm::network::Engine;
using comm::shm::Beacon;

int port_of(const std::string& address) {
  int port = 0;
  const size_t colon = address.rfind(':');
  std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  return port;
}

/// Ranks on several machines whom nobody told where to meet: rank 0 opens the coordinator, and MPI tells the others
/// where.
void meet_through_mpi(cluster::Place& place, std::unique_ptr<cluster::Coordinator>& coordinator,
                      const JoinOptions& options) {
  comm::network::Communicator all(comm::mpi::world(),
                                  {.timeout = options.timeout, .timeout_setting = options.timeout_setting});
  std::array<char, 256> text{};
  if (place.rank == 0) {
    const std::string token = cluster::random_name() + cluster::random_name();
    coordinator =
        std::make_unique<cluster::Coordinator>(cluster::CoordinatorOptions{.job = place.job,
                                                                           .token = token,
                                                                           .tls = place.tls,
                                                                           .ranks = place.size,
                                                                           .heartbeat_limit = options.heartbeat_limit});
    fmt::format_to_n(text.data(), text.size() - 1, "{}:{} {}", cluster::own_host_name(), coordinator->port(), token);
  }
  all.broadcast(text.data(), text.size(), DType::u8, 0, "where the coordinator is");
  const std::string told = text.data();
  place.coordinator = told.substr(0, told.find(' '));
  place.token = told.substr(told.find(' ') + 1);
}

/// "" when nobody minds.
std::string wanted_engine(const cluster::Place& place, const JoinOptions& options) {
  const bool here = !options.engine.empty() && options.engine != "auto";
  const std::string& name = here ? options.engine : place.engine;
  return name == "auto" ? "" : name;
}

const Engine& pick_engine(const cluster::Place& place, const JoinOptions& options) {
  const std::string name = cluster::engine_for(wanted_engine(place, options), !place.tls.empty(), place.mpi);
  comm::mpi::add();
  comm::stream::add();
  const Engine& engine = comm::network::engine_named(name);
  if (name == "mpi" && !comm::mpi::available())
    fail<InvalidArgument>("engine 'mpi' needs processes that mpirun has started; this one was not");
  return engine;
}

/// For a crew that may come to be on several machines; null where there is none.
const Engine* engine_if_any(const cluster::Place& place, const JoinOptions& options) try {
  return &pick_engine(place, options);
} catch (const InvalidArgument&) {
  return nullptr;
}

}  // namespace

/// What a rank of a job on one machine has to do with its launcher's desk: it says what it counts, and hears of crews.
struct World::Desk {
  explicit Desk(std::unique_ptr<cluster::Session> made) : session(std::move(made)), store(*session) {}
  std::unique_ptr<cluster::Session> session;
  cluster::CrewStore store;
};

struct World::Network {
  // In the order of their making; destroyed in the reverse one.
  std::unique_ptr<cluster::Coordinator> coordinator;
  std::unique_ptr<cluster::Session> session;
  std::unique_ptr<Beacon> beacon;
  std::unique_ptr<cluster::CrewStore> store;

  /// `error`: why this rank has failed; "" in peace.
  void leave(const std::string& error) noexcept {
    if (session) session->leave(error.empty() ? 0 : session->failure() ? cluster::kPeerLostExit : 1, error);
    if (coordinator) coordinator->wait_ended(Deadline(Seconds(5)));  // the others may still need to hear what happened
  }
};

/// Those who want to hear that the job has failed.
struct FailureWatch::Listeners {
  Mutex mutex;
  std::map<uint64_t, std::function<void(const std::string&)>> waiting TRIREME_GUARDED_BY(mutex);
  uint64_t next TRIREME_GUARDED_BY(mutex) = 0;
  std::optional<std::string> reason TRIREME_GUARDED_BY(mutex);  // once it has failed

  /// Under the lock, so that who unregisters knows that nothing is called afterwards.
  void tell(const std::string& why) {
    const Lock lock(mutex);
    if (std::exchange(reason, why)) return;
    for (const auto& [id, notify] : waiting) notify(why);
    waiting.clear();
  }

  uint64_t add(std::function<void(const std::string&)> notify) {
    const Lock lock(mutex);
    if (reason)
      notify(*reason);
    else
      waiting.emplace(next, std::move(notify));
    return next++;
  }
};

FailureWatch& FailureWatch::operator=(FailureWatch&& other) noexcept {
  if (this == &other) return *this;
  reset();
  listeners_ = std::exchange(other.listeners_, nullptr);
  id_ = other.id_;
  return *this;
}

void FailureWatch::reset() {
  const auto listeners = std::exchange(listeners_, nullptr);
  if (!listeners) return;
  const Lock lock(listeners->mutex);
  listeners->waiting.erase(id_);
}

namespace {

/// A program that no `trireme` started may have got the wrong kernels, and it is too late to change that.
std::vector<std::string> warnings_here() {
  const std::string core = openblas_core(false), better = better_openblas_core(core, vector_units());
  if (better.empty()) return {};
  return {
      fmt::format("OpenBLAS takes this processor for {}: start the program with OPENBLAS_CORETYPE={}, and matrix "
                  "products are several times faster",
                  core, better)};
}

}  // namespace

World::World(cluster::Place place, const JoinOptions& options)
    : place_(std::move(place)),
      job_(place_.job),
      registry_(std::make_unique<metrics::Registry>(options.timed)),
      listeners_(std::make_shared<FailureWatch::Listeners>()),
      timeout_setting_(options.timeout_setting) {
  if (place_.role == "server")
    fail<InvalidArgument>(
        "{} has started this process as a parameter server, and a server is no rank: the program must call "
        "trireme::ps::serve() where its role is server, or "
        "run "
        "`trireme serve` there instead of it",
        place_.launcher);
  if (place_.role == "scheduler")
    fail<InvalidArgument>(
        "DMLC_ROLE=scheduler: this program is a rank, and the scheduler is none. Run `trireme coordinator --ranks {} "
        "--servers {} --port {} --job {}` for "
        "it, with the workers' TRIREME_TOKEN",
        place_.size, place_.servers, port_of(place_.coordinator), place_.job);
  warnings_ = warnings_here();
  if (place_.newcomer) {
    come_alone(options);
    return;
  }
  if (place_.coordinator.empty() && !place_.mpi) {
    meet_here(options);
    return;
  }
  network_ = std::make_unique<Network>();
  try {
    meet_machines(options);
  } catch (const std::exception& error) {
    group_.reset();
    network_->leave(error.what());
    if (site_) site_->end_connections();
    throw;
  }
}

World::World(World&&) noexcept = default;

World::~World() {
  status_door_.reset();
  if (!site_) return;   // moved from
  last_words_.reset();  // it knows of what goes next
  site_->detach_all();
  const bool failed = std::uncaught_exceptions() > 0 && !dismissed_;
  if (!failed) group_.reset();
  const char* const why = failed ? "it stopped after an error of its own (see its output)" : "";
  if (network_) network_->leave(why);
  if (desk_) desk_->session->leave(failed ? 1 : 0, why);
  site_->end_connections();
  group_.reset();  // after an error the others are to hear of it from the coordinator first, who says more
}

/// All ranks of the world, in its first epoch.
void World::begin(cluster::Facts facts, size_t control) {
  cluster::Crew everybody;
  everybody.ranks.resize(facts.machine_of.size());
  std::iota(everybody.ranks.begin(), everybody.ranks.end(), 0);
  facts.registry = registry_.get();
  site_ = std::make_shared<cluster::Site>(std::move(facts));
  if (network_) follow_coordinator();
  if (desk_) follow_desk();
  try {
    group_.emplace(site_, std::move(everybody), control);
  } catch (const PeerLost&) {  // it has come, and died since
    if (!elastic()) throw;
    group_ = cluster::next_group(site_, 0, *session());
    return note_changes();
  }
  for (std::string& note : site_->take_notes()) warnings_.push_back(std::move(note));
  if (elastic()) session()->confirm(0, cluster::machine_of(*site_->facts().segment));
}

cluster::Session* World::session() const {
  return network_ ? network_->session.get() : desk_ ? desk_->session.get() : nullptr;
}

bool World::elastic() const { return session() != nullptr && session()->elastic(); }

namespace {

/// An announced change waits until the crew is ready for it.
void follow_crew(cluster::Session& session, const std::shared_ptr<cluster::Site>& site) {
  session.on_crew([site](const cluster::CrewChange& change) {
    site->note_crew(change.epoch);
    if (!change.announced) site->interrupt_before(change.epoch, std::make_exception_ptr(PeerLost(change.reason)));
  });
}

}  // namespace

/// From now on what it says ends waits of the groups, those that are being made included.
void World::follow_coordinator() {
  network_->store->follow(*site_);
  follow_crew(*network_->session, site_);
  network_->session->on_failure([site = site_, listeners = listeners_](const cluster::Failure& failure) {
    site->interrupt_before(cluster::Site::kAllEpochs, std::make_exception_ptr(PeerLost(failure.reason)));
    listeners->tell(failure.reason);
  });
}

/// A rank that the desk does not take, such as one that has left and comes again, goes without: where the crew changes
/// it cannot, as nobody would tell it of the next one.
void World::attend_desk() {
  cluster::SessionOptions options = cluster::desk_session(place_.desk);
  options.job = place_.job;
  options.counted = [registry = registry_.get()] { return registry->snapshot(); };
  options.timeout = kDeskPatience;
  try {
    desk_ = std::make_unique<Desk>(
        std::make_unique<cluster::Session>(std::move(options), cluster::Member{.rank = place_.rank,
                                                                               .size = place_.size,
                                                                               .host = cluster::own_host_name(),
                                                                               .pid = getpid(),
                                                                               .newcomer = place_.newcomer}));
  } catch (const Error& error) {
    if (place_.newcomer || cluster::elastic_desk(place_.desk)) throw;
    warnings_.push_back(fmt::format("this rank does without its launcher's desk: {}", error.what()));
  }
}

/// Of a loss that ends the job, ranks and servers of a machine hear sooner from one another.
void World::follow_desk() {
  desk_->store.follow(*site_);
  follow_crew(*desk_->session, site_);
  if (!elastic()) return;
  desk_->session->on_failure([site = site_, listeners = listeners_](const cluster::Failure& failure) {
    site->interrupt_before(cluster::Site::kAllEpochs, std::make_exception_ptr(PeerLost(failure.reason)));
    listeners->tell(failure.reason);
  });
}

/// A process that comes when the job is under way: it meets nobody before it enters.
void World::come_alone(const JoinOptions& options) {
  newcomer_ = true;
  if (place_.coordinator.empty()) {
    attend_desk();
  } else {
    network_ = std::make_unique<Network>();
    register_rank(options);
    network_->store = std::make_unique<cluster::CrewStore>(*network_->session);
  }
  if (!elastic())
    fail<InvalidArgument>(
        "TRIREME_NEWCOMER=1, but the crew of job '{}' does not change: start the job with `trireme train "
        "--workers LEAST:MOST …` or `trireme launch --on-failure continue …` (or replace)",
        place_.job);
  cluster::Facts facts{.job = job_,
                       .rank = place_.rank,
                       .machine_of = {},
                       .segment = cluster::kept_segment(place_.segment),
                       .store = network_ ? static_cast<comm::network::KeyValue*>(network_->store.get()) : &desk_->store,
                       .engine = network_ ? engine_if_any(place_, options) : nullptr,
                       .address = network_ ? network_->session->address() : "",
                       .token = place_.token,
                       .tls = place_.tls,
                       .timeout = options.timeout,
                       .timeout_setting = options.timeout_setting,
                       .registry = registry_.get(),
                       .direct_bytes = options.direct_bytes,
                       .stage_bytes = options.stage_bytes};
  if (!facts.segment) facts.segment = Segment::create();
  cluster::Crew alone{0, {place_.rank}, fmt::format("newcomer {}", place_.rank), {0}, true};
  const size_t control = cluster::claim_control(*facts.segment, alone, 1);
  site_ = std::make_shared<cluster::Site>(std::move(facts));
  if (network_) follow_coordinator();
  if (desk_) follow_desk();
  group_.emplace(site_, std::move(alone), control);
}

/// All ranks are on this machine.
void World::meet_here(const JoinOptions& options) {
  Spot spot = comm::shm::meet(place_.job, place_.rank, place_.size, options.timeout,
                              place_.job_is_common ? origin_here() : "", cluster::kept_segment(place_.segment));
  if (!place_.desk.empty()) attend_desk();  // whoever is in its books has met all others
  begin({.job = job_,
         .rank = place_.rank,
         .machine_of = std::vector<int>(static_cast<size_t>(place_.size)),
         .segment = std::move(spot.segment),
         .store = desk_ ? &desk_->store : nullptr,
         .timeout = options.timeout,
         .timeout_setting = options.timeout_setting,
         .stage_bytes = options.stage_bytes},
        spot.offset);
}

/// Registers with the coordinator, finds out who is on this machine, shares memory with them, and connects to the rest.
void World::meet_machines(const JoinOptions& options) {
  if (!wanted_engine(place_, options).empty())
    pick_engine(place_, options);  // one that is not there is refused before anybody waits
  register_rank(options);
  Network& n = *network_;
  const std::vector<int> machine_of = find_machines(options);
  const comm::hierarchical::Topology topology(machine_of);
  const comm::hierarchical::Place here = topology.place(place_.rank);
  const std::vector<int>& neighbours = topology.ranks_on(here.machine);
  Spot spot =
      comm::shm::meet(fmt::format("{}/{}", job_, neighbours.front()), here.local, static_cast<int>(neighbours.size()),
                      options.timeout, "", cluster::kept_segment(place_.segment));
  n.store = std::make_unique<cluster::CrewStore>(*n.session);
  begin({.job = job_,
         .rank = place_.rank,
         .machine_of = machine_of,
         .segment = std::move(spot.segment),
         .store = n.store.get(),
         .engine = topology.machines() > 1 ? &pick_engine(place_, options)
                   : elastic()             ? engine_if_any(place_, options)
                                           : nullptr,
         .address = n.session->address(),
         .token = place_.token,
         .tls = place_.tls,
         .timeout = options.timeout,
         .timeout_setting = options.timeout_setting,
         .direct_bytes = options.direct_bytes,
         .stage_bytes = options.stage_bytes},
        spot.offset);
}

void World::register_rank(const JoinOptions& options) {
  Network& n = *network_;
  if (place_.mpi) {
    meet_through_mpi(place_, n.coordinator, options);
  } else if (place_.hosts_coordinator) {
    n.coordinator =
        std::make_unique<cluster::Coordinator>(cluster::CoordinatorOptions{.port = port_of(place_.coordinator),
                                                                           .job = place_.job,
                                                                           .token = place_.token,
                                                                           .tls = place_.tls,
                                                                           .ranks = place_.size,
                                                                           .servers = place_.servers,
                                                                           .heartbeat_limit = options.heartbeat_limit,
                                                                           .on_loss = options.on_loss});
  }
  n.session = std::make_unique<cluster::Session>(
      cluster::SessionOptions{.coordinator = place_.coordinator,
                              .job = place_.job,
                              .token = place_.token,
                              .tls = place_.tls,
                              .timeout = options.timeout,
                              .heartbeat_limit = options.heartbeat_limit,
                              .counted = [registry = registry_.get()] { return registry->snapshot(); }},
      cluster::Member{.rank = place_.rank,
                      .size = place_.size,
                      .host = cluster::own_host_name(),
                      .pid = getpid(),
                      .servers = place_.servers,
                      .newcomer = place_.newcomer});
  place_.rank = n.session->rank();
  place_.size = n.session->size();
  place_.servers = n.session->servers();
  job_ = n.session->meeting();
  warnings_.insert(warnings_.end(), n.session->warnings().begin(), n.session->warnings().end());
}

/// Of every rank. A rank's leader is the lowest rank whose beacon it can see: that is how machines are told apart, and
/// not by names.
std::vector<int> World::find_machines(const JoinOptions& options) {
  Network& n = *network_;
  const Deadline deadline(options.timeout);
  n.beacon = std::make_unique<Beacon>(job_, place_.rank);
  n.session->put(fmt::format("here/{}", place_.rank), "");
  const auto word_of = [&](int rank, const char* key) {
    try {
      return n.session->get(fmt::format("{}/{}", key, rank), deadline);
    } catch (const Timeout&) {
      fail<Timeout>(
          "host {}: rank {} has not come to the coordinator at {} within {:g} s. Was it started, and with the same "
          "address?",
          cluster::own_host_name(), rank, place_.coordinator, options.timeout.count());
    }
  };
  int leader = 0;
  for (; leader < place_.rank; leader++) {
    word_of(leader, "here");
    if (Beacon::seen(job_, leader)) break;
  }
  n.session->put(fmt::format("leader/{}", place_.rank), std::to_string(leader));
  std::vector<int> machine_of, leaders;
  machine_of.reserve(static_cast<size_t>(place_.size));
  for (int rank = 0; rank < place_.size; rank++) {
    const auto theirs =
        static_cast<int>(comm::network::number_under(fmt::format("leader/{}", rank), word_of(rank, "leader")));
    if (theirs == rank) leaders.push_back(rank);
    machine_of.push_back(static_cast<int>(std::find(leaders.begin(), leaders.end(), theirs) - leaders.begin()));
  }
  return machine_of;
}

Group& World::regroup(Closing saves) try {
  if (newcomer_)
    fail<InvalidArgument>(
        "rank {} came when the job was under way, and is in no crew yet: World::enter() comes before "
        "World::regroup()",
        rank());
  if (session() != nullptr)
    group_ = cluster::next_group(site_, group_->epoch(), *session());
  else
    group_ = cluster::next_group(site_, *group_);
  note_changes();
  if (closing() && saves == Closing::lost) throw PeerLost(changes_.back().reason);
  return *group_;
} catch (const Dismissed&) {
  dismissed_ = true;
  throw;
}

Group& World::enter() try {
  if (!newcomer_) fail<InvalidArgument>("World::enter(): rank {} is in the crew already", rank());
  group_ = cluster::first_group(site_, *session());
  newcomer_ = false;
  note_changes();
  return *group_;
} catch (const Dismissed&) {
  dismissed_ = true;
  throw;
}

namespace {

std::string key_of_told(const std::string& what) { return "newcomers/" + what; }

}  // namespace

void World::tell_newcomers(const std::string& what, const std::string& text) {
  if (elastic() && !newcomer_) session()->put(key_of_told(what), text);
}

std::string World::told_newcomers(const std::string& what) {
  if (!newcomer_) fail<InvalidArgument>("World::told_newcomers(\"{}\"): rank {} is in the crew already", what, rank());
  return session()->get(key_of_told(what), Deadline(kWhileItLasts));
}

/// Up to the crew that this process is in now. Of those that had to wait only what came of it is told.
void World::note_changes() {
  if (session() == nullptr) return;
  const uint64_t before = changes_.empty() ? 0 : changes_.back().epoch;
  for (cluster::CrewChange& change : session()->crews())
    if (change.epoch > before && change.epoch <= group_->epoch() && !change.ranks.empty())
      changes_.push_back(std::move(change));
}

comm::network::KeyValue* World::store() { return network_ ? network_->session.get() : nullptr; }

FailureWatch World::on_failure(std::function<void(const std::string& reason)> notify) {
  return {listeners_, listeners_->add(std::move(notify))};
}

std::string World::engine() const {
  if (machines() == 1) return "shared memory";
  const Engine& engine = *site_->facts().engine;
  return fmt::format("shared memory, and {} between {} machines{}", engine.description, machines(),
                     engine.secure ? "" : ", which is for trusted networks: it neither encrypts nor authenticates");
}

/// An exception that nobody catches ends the process without a destructor: the others hear of it all the same, and of
/// its text.
void World::keep_last_words() {
  // The site and the session stay where they are when a world is moved.
  last_words_ = std::make_unique<cluster::LastWords>([site = site_.get(), network = network_.get(),
                                                      desk = desk_.get()](const cluster::Ending& end) {
    site->note_cause(end.text, end.lost_peer);
    if (desk != nullptr)
      desk->session->leave(end.lost_peer ? cluster::kPeerLostExit : 128 + SIGABRT, "uncaught exception: " + end.text);
    if (network == nullptr || !network->session) return;
    const bool victim = end.lost_peer || network->session->failure();
    network->session->leave(victim ? cluster::kPeerLostExit : 128 + SIGABRT, "uncaught exception: " + end.text);
  });
}

/// What the session tells the coordinator, `trireme ctl status` hears at once.
void World::open_status_door() {
  status_door_ = std::make_unique<cluster::StatusDoor>(
      [registry = registry_.get(), job = cluster::job_id(job_),
       member = cluster::Member{.rank = rank(), .host = cluster::own_host_name(), .pid = getpid()}] {
        return std::vector{cluster::MemberMetrics{job, member, registry->snapshot()}};
      });
}

World join(const JoinOptions& options) {
  const cluster::Place place = cluster::place_here();
  cluster::take_slate(place.slate);
  cluster::note_patience(options.timeout.count());
  cluster::keep_last_words();
  World world(place, options);
  cluster::note_rank(world.rank());
  world.keep_last_words();
  world.open_status_door();
  return world;
}

}  // namespace trireme
