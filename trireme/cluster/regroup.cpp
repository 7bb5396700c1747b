#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include <trireme/base/areas.h>
#include <trireme/base/error.h>
#include <trireme/cluster/muster.h>
#include <trireme/cluster/regroup.h>

namespace trireme::cluster {
namespace {

bool ended(int process) {
  pollfd look{process, POLLIN, 0};
  return process >= 0 && poll(&look, 1, 0) > 0;
}

/// The first of the machine claims memory for the crew's control block, and tells the others where.
size_t control_of(const Facts& facts, const Crew& crew) {
  const int machine = facts.machine_of[static_cast<size_t>(facts.rank)];
  int first = -1, here = 0;
  for (int rank : crew.ranks) {
    if (facts.machine_of[static_cast<size_t>(rank)] != machine) continue;
    if (here++ == 0) first = rank;
  }
  const std::string key = fmt::format("{}/control block of rank {}", crew.meeting(), first);
  if (first == facts.rank)
    facts.store->put(
        key, std::to_string(Areas(*facts.segment).claim(comm::shm::Rounds::bytes(here), "the crew's control block")));
  return std::stoull(facts.store->get(key, Deadline(facts.timeout)));
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
      return group;
    } catch (const PeerLost&) {  // another one, since then
      if (deadline.passed()) throw;
    }
  }
}

Group next_group(const std::shared_ptr<Site>& site, const Group& before, Session& session) {
  const Deadline deadline(site->facts().timeout);
  uint64_t epoch = before.epoch();
  while (true) {
    const CrewChange change = session.next_crew(epoch, deadline);
    epoch = change.epoch;
    site->begin_epoch(epoch);
    try {
      Crew crew{epoch, change.ranks};
      const size_t control = control_of(site->facts(), crew);
      return {site, std::move(crew), control};
    } catch (const PeerLost&) {  // another one: the coordinator says who, or that the job has failed
    }
  }
}

}  // namespace trireme::cluster
