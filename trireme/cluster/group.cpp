#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/cluster/connecting.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/tls.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/cluster/environment/tuning.h>
#include <trireme/cluster/group.h>
#include <trireme/comm/hierarchical/communicator.h>

namespace trireme {

using comm::hierarchical::Topology;

namespace {

constexpr Seconds kAskAround{1};  // of the store, after a failure
constexpr const char* kWithColor = " with color ";
constexpr Seconds kConnect{10};  // for ranks that are all there, each of which has just been told to come

/// Two ranks send each other all they have: as many bytes as in a ring, in half the trips.
size_t default_direct_bytes(size_t ranks) {
  return ranks == 2 ? std::numeric_limits<size_t>::max() : comm::network::Options{}.direct_bytes;
}

/// Machines of the group's ranks, numbered in the order of their first ranks.
std::vector<int> machines_of(const cluster::Facts& facts, const cluster::Crew& crew) {
  std::vector<int> known, result;
  for (int machine : cluster::machines_in(facts, crew)) {
    if (std::find(known.begin(), known.end(), machine) == known.end()) known.push_back(machine);
    result.push_back(static_cast<int>(std::find(known.begin(), known.end(), machine) - known.begin()));
  }
  return result;
}

int place_of(const cluster::Facts& facts, const cluster::Crew& crew) {
  const auto place = std::find(crew.ranks.begin(), crew.ranks.end(), facts.rank);
  if (place == crew.ranks.end())
    fail<InvalidArgument>("rank {} is not in the group of ranks {} of epoch {}", facts.rank,
                          fmt::join(crew.ranks, ", "), crew.epoch);
  return static_cast<int>(place - crew.ranks.begin());
}

}  // namespace

class Group::State final : public cluster::Site::Listener {
 public:
  State(std::shared_ptr<cluster::Site> its_site, cluster::Crew its_crew, size_t control,
        const std::function<bool(int)>& gone)
      : site(std::move(its_site)),
        crew(std::move(its_crew)),
        rank(place_of(site->facts(), crew)),
        topology(machines_of(site->facts(), crew)) {
    const cluster::Facts& facts = site->facts();
    const auto [machine, number] = topology.place(rank);
    std::vector<int> names = topology.ranks_on(machine);
    for (int& name : names) name = crew.ranks[static_cast<size_t>(name)];
    const comm::shm::Excuse excuse = [&](int neighbour) -> std::exception_ptr {
      const int name = names[static_cast<size_t>(neighbour)];
      if (auto cause = site->cause_of(crew.epoch)) return cause;
      if (!gone || !gone(name)) return nullptr;
      return std::make_exception_ptr(
          PeerLost(fmt::format("rank {} died before it came to the crew of epoch {}", name, crew.epoch)));
    };
    comm::shm::Options options{.timeout = facts.timeout,
                               .timeout_setting = facts.timeout_setting,
                               .names = names,
                               .excuse = excuse,
                               .registry = facts.registry,
                               .group = crew.name,
                               .epoch = crew.epoch,
                               .alone = crew.newcomer,
                               .own = crew.newcomer ? cluster::kNewcomerMemory : cluster::kGroupMemory};
    if (facts.stage_bytes) options.stage_bytes = *facts.stage_bytes;
    if (crew.newcomer) options.stage_bytes = kPage;  // nobody else is there
    local = std::make_unique<comm::shm::Communicator>(Spot(facts.segment, control), number,
                                                      static_cast<int>(names.size()), std::move(options));
    if (topology.machines() > 1) connect_machines();
  }

  uint64_t epoch() const override { return crew.newcomer ? cluster::Site::kAllEpochs : crew.epoch; }
  void interrupt(const std::exception_ptr& cause) noexcept override {
    local->rounds().interrupt(cause);
    for_each_network([&](comm::network::Communicator& network) { network.interrupt(cause); });
  }
  void note_cause(std::string_view text, bool victim) noexcept override { local->rounds().note_cause(text, victim); }

  void limit_waits(const WaitLimit& limit) {
    local->rounds().set_limit(limit);
    for_each_network([&](comm::network::Communicator& network) { network.set_limit(limit); });
  }

  comm::network::Communicator* second_lane() {
    if (!lane) return nullptr;
    {
      const Lock lock(mutex_);
      if (second_) return second_.get();
    }
    auto made = connect_lane("second lane");
    const Lock lock(mutex_);
    second_ = std::move(made);
    if (const auto cause = site->cause_of(crew.epoch)) second_->interrupt(cause);  // it came while nobody could tell
    return second_.get();
  }

  /// So that the others can say where this rank is when they wait for it in vain.
  void announce_split(const std::string& what) const {
    if (crew.ranks.size() > 1 && site->facts().store != nullptr)
      site->facts().store->put(key_of_split(site->facts().rank), what);
  }

  /// "; rank 1 came last to split 0 of …": those who are in another split than this rank. "" when nobody is.
  std::string others_split(const std::string& mine) const {
    std::vector<std::string> others;
    if (site->facts().store == nullptr) return "";
    const Deadline deadline(kAskAround);
    for (const int other : crew.ranks) try {
        if (other == site->facts().rank) continue;
        const std::string theirs = site->facts().store->get(key_of_split(other), deadline);
        if (group_of_split(theirs) != group_of_split(mine))
          others.push_back(fmt::format("rank {} came last to {}", other, theirs));
      } catch (const Error&) {  // it has not split anything, or the crew has ended: then there is nothing to add
      }
    if (others.empty()) return "";
    return fmt::format("; rank {} is in {}, {}. Do all ranks split the same groups, in the same order?",
                       site->facts().rank, mine, fmt::join(others, ", "));
  }

  comm::Communicator& all_ranks() { return all ? static_cast<comm::Communicator&>(*all) : *local; }

  const std::shared_ptr<cluster::Site> site;
  const cluster::Crew crew;
  const int rank;
  const Topology topology;
  // Made in this order, destroyed in the reverse one.
  std::unique_ptr<comm::shm::Communicator> local;
  std::unique_ptr<comm::network::Communicator> lane, flat;
  std::unique_ptr<comm::hierarchical::Communicator> all;  // null with one machine
  int splits = 0;                                         // so far: the same number in all ranks

 private:
  std::string key_of_split(int of) const { return fmt::format("epoch {}/rank {} splits", crew.epoch, of); }
  /// What has to be the same in all ranks: all but the color, which comes last.
  static std::string group_of_split(const std::string& split) { return split.substr(0, split.find(kWithColor)); }

  template <class Action>
  void for_each_network(const Action& action) {
    const Lock lock(mutex_);
    for (comm::network::Communicator* network : {lane.get(), flat.get(), second_.get()})
      if (network != nullptr) action(*network);
  }

  std::unique_ptr<comm::network::Communicator> connect(const std::string& name, int number,
                                                       const std::vector<int>& members, size_t direct_bytes,
                                                       const std::string& label) const {
    const cluster::Facts& facts = site->facts();
    if (facts.engine == nullptr)
      fail<InvalidArgument>("the crew is on {} machines now, and this program has no engine between machines",
                            topology.machines());
    const comm::network::Meeting meeting{.store = *facts.store,
                                         .name = fmt::format("{}/{}", crew.meeting(), name),
                                         .rank = number,
                                         .size = static_cast<int>(members.size()),
                                         .address = facts.address,
                                         .timeout = crew.epoch == 0 ? facts.timeout : std::min(facts.timeout, kConnect),
                                         .secrets = secrets(),
                                         .registry = facts.registry,
                                         .note = [to = site.get()](const std::string& text) { to->note(text); }};
    return std::make_unique<comm::network::Communicator>(
        crew.epoch == 0 ? facts.engine->connect(meeting) : connect_unless_lost(meeting),
        comm::network::Options{.timeout = facts.timeout,
                               .timeout_setting = facts.timeout_setting,
                               .direct_bytes = direct_bytes,
                               .patience = Seconds(1),
                               .names = members,
                               .registry = facts.registry,
                               .label = label});
  }

  /// Somebody of a crew that follows another may die now, too; one that is silent is given up before the timeout.
  std::unique_ptr<comm::network::Transport> connect_unless_lost(const comm::network::Meeting& meeting) const {
    const auto attempt = std::make_shared<cluster::Connecting>(
        crew.epoch, [engine = site->facts().engine, meeting] { return engine->connect(meeting); });
    site->add(attempt);
    try {
      return attempt->wait(Deadline(meeting.timeout + kConnect), site->facts().timeout);
    } catch (...) {
      site->leave_behind(attempt);
      throw;
    }
  }

  /// Certificates are read anew for every group: those that were replaced hold from the next crew on.
  comm::network::Secrets secrets() const {
    const cluster::Facts& facts = site->facts();
    comm::network::Secrets secrets{.job = facts.job, .token = facts.token};
    if (!facts.engine->secure || facts.tls.empty()) return secrets;
    cluster::Certificates files = cluster::load_certificates(facts.tls, cluster::own_host_name());
    secrets.authority = std::move(files.authority);
    secrets.certificate = std::move(files.certificate);
    secrets.key = std::move(files.key);
    return secrets;
  }

  /// Hosts may have different caches, but all ranks must have one value: the first's.
  size_t tuned_direct_bytes() const {
    const cluster::Facts& facts = site->facts();
    const std::string key = crew.meeting() + "/direct bytes";
    if (rank == 0) {
      std::optional<size_t> bytes = facts.direct_bytes;
      if (!bytes)
        bytes = cluster::kept_direct_bytes(cluster::cache_file(cluster::kTuningFile), facts.engine->name,
                                           topology.machines());
      facts.store->put(key,
                       std::to_string(bytes.value_or(default_direct_bytes(static_cast<size_t>(topology.machines())))));
    }
    return comm::network::number_under(key, facts.store->get(key, Deadline(facts.timeout)));
  }

  /// This rank's partners, one on each machine.
  std::unique_ptr<comm::network::Communicator> connect_lane(const char* name) const {
    const auto [machine, number] = topology.place(rank);
    std::vector<int> members;
    for (int m = 0; m < topology.machines(); m++)
      members.push_back(crew.ranks[static_cast<size_t>(topology.ranks_on(m)[static_cast<size_t>(number)])]);
    return connect(fmt::format("{} {}", name, number), machine, members, tuned_direct_bytes(), name);
  }

  void connect_machines() {
    if (topology.place(rank).local < topology.lanes()) lane = connect_lane("lane");
    flat = connect("all", rank, crew.ranks, default_direct_bytes(crew.ranks.size()), "all");
    all = std::make_unique<comm::hierarchical::Communicator>(topology, rank, *local, lane.get(), *flat);
  }

  Mutex mutex_;
  std::unique_ptr<comm::network::Communicator> second_ TRIREME_GUARDED_BY(mutex_);
};

Group::Group(std::shared_ptr<cluster::Site> site, cluster::Crew crew, size_t control,
             const std::function<bool(int rank)>& gone)
    : state_(std::make_shared<State>(site, std::move(crew), control, gone)) {
  site->add(state_);
}

Group::State& Group::live() const {
  const uint64_t now = state_->site->epoch();
  if (state_->crew.epoch != now)
    fail<InvalidArgument>(
        "this group, {}, is of no more use: the crew has changed, and its epoch is {} now. Make the group anew, from "
        "World::group() or what comes from it",
        describe(), now);
  return *state_;
}

cluster::Site& Group::site() const { return *state_->site; }
void Group::limit_waits(const WaitLimit* limit) const {
  const cluster::Facts& facts = state_->site->facts();
  state_->limit_waits(limit != nullptr ? *limit : WaitLimit{facts.timeout, facts.timeout_setting});
}
metrics::Registry& Group::registry() const { return *state_->site->facts().registry; }
int Group::rank() const { return state_->rank; }
int Group::size() const { return static_cast<int>(state_->crew.ranks.size()); }
uint64_t Group::epoch() const { return state_->crew.epoch; }
const std::vector<int>& Group::ranks() const { return state_->crew.ranks; }
int Group::machines() const { return state_->topology.machines(); }
int Group::machine_of(int rank) const { return state_->topology.place(rank).machine; }
int Group::lanes() const { return state_->topology.lanes(); }
comm::Communicator& Group::comm() const { return live().all_ranks(); }
comm::shm::Communicator& Group::local() const { return *live().local; }
comm::network::Communicator* Group::lane() const { return live().lane.get(); }
comm::network::Communicator* Group::network() const { return live().flat.get(); }
comm::network::Communicator* Group::second_lane() const { return live().second_lane(); }

bool Group::intact() const {
  return epoch() == state_->site->epoch() && !state_->site->cause_of(epoch()) && state_->local->rounds().intact();
}

std::string Group::describe() const {
  const auto& ranks = state_->crew.ranks;
  return fmt::format("rank{} {} of epoch {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), epoch());
}

namespace {

struct Choice {
  int64_t color, key;
};

/// The ranks of the parent that give the same color as `mine`, in their new order.
std::vector<int> members_of(const std::vector<Choice>& choices, int mine) {
  std::vector<int> members;
  for (int rank = 0; rank < static_cast<int>(choices.size()); rank++)
    if (choices[static_cast<size_t>(rank)].color == choices[static_cast<size_t>(mine)].color) members.push_back(rank);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key;
  });
  return members;
}

constexpr int64_t kNoRoom = -1;

/// An offset, or kNoRoom: the others are to hear of it and not to wait.
int64_t control_or_none(Segment& segment, const cluster::Crew& crew, size_t ranks) {
  try {
    return static_cast<int64_t>(cluster::claim_control(segment, crew, static_cast<int>(ranks)));
  } catch (const IoError&) {
    return kNoRoom;
  }
}

}  // namespace

Group Group::split(int color, int key) const {
  State& state = live();
  const std::string what = fmt::format("split {} of group '{}'", state.splits++, state.crew.name);
  const Choice mine{color, key};
  std::vector<Choice> choices(static_cast<size_t>(size()));
  const std::string announced = fmt::format("{} (ranks {}){}{}", what, fmt::join(ranks(), ", "), kWithColor, color);
  state.announce_split(announced);
  try {
    comm().all_gather(&mine, choices.data(), 2, DType::i64, what);
  } catch (const Timeout& error) {
    throw Timeout(error.what() + state.others_split(announced));
  } catch (const PeerLost& error) {  // who gave up sooner
    if (const std::string others = state.others_split(announced); !others.empty())
      throw PeerLost(error.what() + others);
    throw;
  }
  for (size_t rank = 0; rank < choices.size(); rank++)
    if (choices[rank].color < 0)
      fail<InvalidArgument>("rank {} gives color {} to {}: colors are 0 or more, and every rank has one", ranks()[rank],
                            choices[rank].color, what);
  const std::vector<int> members = members_of(choices, rank());
  const int machine = machine_of(rank());
  std::vector<int> here;
  std::copy_if(members.begin(), members.end(), std::back_inserter(here),
               [&](int member) { return machine_of(member) == machine; });
  cluster::Crew crew{epoch(), {}, fmt::format("{}/{}.{}", state.crew.name, state.splits, color)};
  crew.newcomer = state.crew.newcomer;
  for (int member : members) {
    crew.ranks.push_back(ranks()[static_cast<size_t>(member)]);
    if (!state.crew.machines.empty()) crew.machines.push_back(state.crew.machines[static_cast<size_t>(member)]);
  }
  const int64_t claimed =
      here.front() == rank() ? control_or_none(*state.site->facts().segment, crew, here.size()) : int64_t{0};
  std::vector<int64_t> offsets(choices.size());
  comm().all_gather(&claimed, offsets.data(), 1, DType::i64, what);
  const auto poor = std::find(offsets.begin(), offsets.end(), kNoRoom);
  if (poor != offsets.end())
    fail<IoError>("no room in shared memory for the control block of a group, on the machine of rank {}: {}",
                  ranks()[static_cast<size_t>(poor - offsets.begin())], what);
  return {state.site, std::move(crew), static_cast<size_t>(offsets[static_cast<size_t>(here.front())])};
}

}  // namespace trireme
