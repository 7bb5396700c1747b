#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include <trireme/base/areas.h>
#include <trireme/base/error.h>
#include <trireme/cluster/muster.h>
#include <trireme/cluster/regroup.h>

namespace trireme::cluster {
namespace {

constexpr Seconds kForever{1e8};  // three years: the coordinator says when it ends

bool ended(int process) {
  pollfd look{process, POLLIN, 0};
  return process >= 0 && poll(&look, 1, 0) > 0;
}

/// What groups of crews before the last have left goes back to the machine. Whoever is still in one of those was given
/// up, or dismissed two changes ago.
void give_back(const Facts& facts, const Group& group) {
  if (group.local().rank() == 0 && group.epoch() > 0)
    Areas(*facts.segment).release_before(group.epoch() - 1, kGroupMemory);
}

/// The first of the machine claims memory for the crew's control block, and tells the others where.
size_t control_of(const Facts& facts, const Crew& crew) {
  const std::vector<int> machines = machines_in(facts, crew);
  const auto own = std::find(crew.ranks.begin(), crew.ranks.end(), facts.rank) - crew.ranks.begin();
  int first = -1, here = 0;
  for (size_t i = 0; i < crew.ranks.size(); i++) {
    if (machines[i] != machines[static_cast<size_t>(own)]) continue;
    if (here++ == 0) first = crew.ranks[i];
  }
  const std::string key = fmt::format("{}/control block of rank {}", crew.meeting(), first);
  if (first == facts.rank) facts.store->put(key, std::to_string(claim_control(*facts.segment, crew, here)));
  return comm::network::number_under(key, facts.store->get(key, Deadline(facts.timeout)));
}

}  // namespace

Group next_group(const std::shared_ptr<Site>& site, const Group& before) {
  const comm::shm::Rounds& rounds = before.local().rounds();
  const auto number_of = [&](int rank) {
    return static_cast<int>(std::find(before.ranks().begin(), before.ranks().end(), rank) - before.ranks().begin());
  };
  const LookAt look = [&](int rank) {
    const int process = rounds.process_of(number_of(rank));
    return Peer{process, process >= 0 ? !ended(process) : rounds.present(number_of(rank))};
  };
  Crew last{before.epoch(), before.ranks()};
  for (const Deadline deadline(site->facts().timeout); true;) {
    const Mustered next = muster(site->facts(), last, look);
    last = next.crew;
    try {
      Group group(site, next.crew, next.control, [&](int rank) { return !look(rank).alive; });
      site->begin_epoch(group.epoch());  // not before: after a failure `before` is still there to look at its ranks
      give_back(site->facts(), group);
      return group;
    } catch (const PeerLost&) {  // another one, since then
      if (deadline.passed()) throw;
    }
  }
}

namespace {

/// The crew comes when it has ended its step, whatever that takes: a newcomer waits for it here, without a deadline.
void await_crew(const Facts& facts, const Crew& crew, bool newcomer) {
  const auto key_of = [&](int rank) { return fmt::format("{}/here/{}", crew.meeting(), rank); };
  facts.store->put(key_of(facts.rank), "");
  if (!newcomer) return;
  for (int rank : crew.ranks) facts.store->get(key_of(rank), Deadline(kForever));
}

/// A rank that is in no crew yet passes over those without it; for another one that is the end.
Group join_crew(const std::shared_ptr<Site>& site, uint64_t epoch, Session& session, bool newcomer) {
  const Facts& facts = site->facts();
  bool taken = !newcomer;  // a crew has been named that it is in
  while (true) {
    const CrewChange change = session.next_crew(epoch, Deadline(newcomer ? kForever : facts.timeout));
    epoch = change.epoch;
    if (std::find(change.ranks.begin(), change.ranks.end(), facts.rank) == change.ranks.end()) {
      if (!taken) continue;
      fail<Dismissed>("rank {} is not in the crew of epoch {} any more: {}", facts.rank, epoch, change.reason);
    }
    taken = true;
    site->begin_epoch(epoch);
    try {
      Crew crew{epoch, change.ranks, "all", change.machines};
      if (change.announced) await_crew(facts, crew, newcomer);
      newcomer = false;
      const size_t control = control_of(facts, crew);
      Group group(site, std::move(crew), control);
      give_back(facts, group);
      if (session.elastic()) session.confirm(epoch, machine_of(*facts.segment));
      return group;
    } catch (const PeerLost&) {  // another one: the coordinator says who, or that the job has failed
    }
  }
}

}  // namespace

Group next_group(const std::shared_ptr<Site>& site, uint64_t epoch, Session& session) {
  return join_crew(site, epoch, session, false);
}

Group first_group(const std::shared_ptr<Site>& site, Session& session) {
  const Facts& facts = site->facts();
  session.ready(machine_of(*facts.segment));
  Group group = join_crew(site, 0, session, true);
  for (const auto& [name, area] : Areas(*facts.segment).all(fmt::format("newcomer {}/", facts.rank)))
    if (name.find(kNewcomerMemory) != name.npos) Areas(*facts.segment).release(name, area.epoch);
  return group;
}

}  // namespace trireme::cluster
