#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include <trireme/cluster/coordination/membership.h>
#include <trireme/cluster/launching/launcher.h>

namespace trireme::cluster {
namespace {

constexpr int kMostSlots = 1 << 16;

bool present(const Attendee& attendee) { return attendee.standing == Standing::present; }

std::string_view short_name(std::string_view host) { return host.substr(0, host.find('.')); }

/// "node1" and "node1.example.com" are one host; "10.0.0.1" and "10.0.0.2" are not.
bool same_host(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const bool one_is_short = a.find('.') == a.npos || b.find('.') == b.npos;
  return one_is_short && short_name(a) == short_name(b);
}

bool matches(const std::string& entry, const Member& member, std::string_view address) {
  return same_host(entry, member.host) || entry == address;
}

/// Place of a host in the job's list, or the end of the list.
size_t place_in_list(const Member& member, std::string_view address, const MembershipOptions& options) {
  const auto entry = std::find_if(options.hosts.begin(), options.hosts.end(),
                                  [&](const auto& host) { return matches(host.first, member, address); });
  return static_cast<size_t>(entry - options.hosts.begin());
}

/// Ranks that a member stands for; a server stands for itself.
int weight(const Member& member) { return member.kind == Member::agent ? member.slots : 1; }

/// How many places there are for one kind of member. Servers are numbered apart from ranks.
int places(Member::Kind kind, const MembershipOptions& options) {
  return kind == Member::server ? options.servers : options.ranks;
}

const char* place_word(Member::Kind kind) { return kind == Member::server ? "server" : "rank"; }

/// Which places one kind of member has ever had; one that left counts too.
std::vector<bool> places_seen(Member::Kind kind, const std::vector<Attendee>& attendees,
                              const MembershipOptions& options) {
  std::vector<bool> seen(static_cast<size_t>(places(kind, options)));
  for (const Attendee& attendee : attendees) {
    if (attendee.member.kind != kind || attendee.member.rank < 0) continue;
    const int end = std::min(static_cast<int>(seen.size()), attendee.member.rank + weight(attendee.member));
    for (int rank = attendee.member.rank; rank < end; rank++) seen[static_cast<size_t>(rank)] = true;
  }
  return seen;
}

bool all(const std::vector<bool>& seen) { return std::find(seen.begin(), seen.end(), false) == seen.end(); }

/// "rank", "ranks", "server", "servers".
std::string counted(const char* word, size_t count) { return count == 1 ? word : fmt::format("{}s", word); }

std::string list(const char* word, const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  std::string text = counted(word, ranks.size()) + " ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); i++)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return ranks.size() > kShown ? fmt::format("{} and {} more", text, ranks.size() - kShown) : text;
}

/// `word`: of what.
std::string count_sentence(const char* word, const std::vector<bool>& seen, int unplaced) {
  if (all(seen)) return fmt::format("all {} {}s have registered", seen.size(), word);
  std::vector<int> missing;
  for (size_t rank = 0; rank < seen.size(); rank++)
    if (!seen[rank]) missing.push_back(static_cast<int>(rank));
  std::string text = fmt::format("{} of {} {}s have registered",
                                 static_cast<int>(seen.size() - missing.size()) + unplaced, seen.size(), word);
  // Without ranks of their own nobody can say which ones are missing.
  return unplaced > 0 ? text
                      : fmt::format("{}; {} {} not", text, list(word, missing), missing.size() == 1 ? "has" : "have");
}

Departure lost(const Attendee& attendee, const std::string& what) {
  const Member& member = attendee.member;
  if (member.kind == Member::agent && attendee.reported_server >= 0) {
    const Failure failure{-1, member.host,
                          fmt::format("server {} on host {} {}", attendee.reported_server, member.host, what)};
    return {attendee.id, Standing::lost, failure, failure.reason};
  }
  const bool of_another = attendee.reported_rank >= 0 && member.kind != Member::server &&
                          (member.kind == Member::agent || attendee.reported_rank != member.rank);
  const std::string who =
      of_another ? fmt::format("rank {} on host {}", attendee.reported_rank, member.host) : name_of(member);
  const int rank = of_another ? attendee.reported_rank : member.kind == Member::worker ? member.rank : -1;
  const Failure failure{rank, member.host, fmt::format("{} {}", who, what)};
  return {attendee.id, Standing::lost, failure, failure.reason};
}

std::string report_of(const Attendee& attendee) { return attendee.report.empty() ? "" : ": " + attendee.report; }

/// The end of one that did not end because of somebody else.
std::optional<Departure> departure_of(Clock::time_point now, const Attendee& attendee,
                                      const MembershipOptions& options) {
  if (attendee.exit_code == 0)
    return Departure{attendee.id, Standing::left, {}, fmt::format("{} has left", name_of(attendee.member))};
  if (attendee.exit_code)
    return lost(attendee, fmt::format("failed with exit code {}{}", *attendee.exit_code, report_of(attendee)));
  if (attendee.away) {
    if (Seconds(now - attendee.heard) <= options.return_limit) return std::nullopt;
    return lost(attendee, fmt::format("has not come back within {:g} s after the coordinator was started again: it was "
                                      "killed meanwhile, or its host or network is down",
                                      options.return_limit.count()));
  }
  if (!attendee.connected)
    return lost(attendee, "is gone: its connection ended without a goodbye, so it was killed or has crashed");
  const double silence = Seconds(now - attendee.heard).count(), limit = options.heartbeat_limit.count();
  if (silence <= limit) return std::nullopt;
  return lost(
      attendee,
      fmt::format("has not been heard of for {:.1f} s (limit {:g} s): it is stopped, or its host or network is down",
                  silence, limit));
}

/// One that gave up because of somebody else is blamed only if nobody else turns up in time.
bool gave_up(const Attendee& attendee) { return attendee.exit_code == kPeerLostExit; }

std::optional<Departure> departure_of_victim(Clock::time_point now, const Attendee& attendee, bool culprit_known,
                                             const MembershipOptions& options) {
  if (culprit_known)
    return Departure{
        attendee.id, Standing::left, {}, fmt::format("{} gave up because of the failure", name_of(attendee.member))};
  if (Seconds(now - attendee.heard) <= options.heartbeat_limit) return std::nullopt;
  return lost(attendee,
              fmt::format("gave up because it had lost a peer, but nobody else has failed{}", report_of(attendee)));
}

std::string describe(const Member& member) { return fmt::format("host {} (process {})", member.host, member.pid); }

/// Of a process that comes when the job is under way.
std::string newcomer_refusal(const Member& newcomer, const MembershipOptions& options) {
  if (options.on_loss != OnLoss::change_crew)
    return fmt::format(
        "host {} brings a newcomer, but the crew of this job does not change: start the job with --workers "
        "LEAST:MOST, or with --on-failure continue or replace",
        newcomer.host);
  if (newcomer.kind == Member::server)
    return fmt::format("host {} brings a server to a job that is under way: only workers can come later",
                       newcomer.host);
  if (newcomer.rank < -1 || newcomer.rank + std::max(1, newcomer.slots) > kRankNumbers)
    return fmt::format("host {} registers as rank {}: rank numbers are 0 to {}", newcomer.host, newcomer.rank,
                       kRankNumbers - 1);
  if (newcomer.slots < 0 || newcomer.slots > kMostSlots)
    return fmt::format("host {} offers {} slots; a host has 1 to {}", newcomer.host, newcomer.slots, kMostSlots);
  return "";
}

std::string number_refusal(const Member& newcomer, const MembershipOptions& options) {
  const std::string& host = newcomer.host;
  if (host.empty()) return "a member without a host name cannot register";
  const bool is_server = newcomer.kind == Member::server;
  if (is_server && options.servers == 0)
    return fmt::format(
        "host {} brings a parameter server, but the coordinator was started for a job without any: start it with "
        "--servers",
        host);
  const int most = places(newcomer.kind, options);
  if (newcomer.newcomer) return newcomer_refusal(newcomer, options);
  if (newcomer.rank < -1 || newcomer.rank >= most)
    return fmt::format(
        "host {} registers as {} {}, but the job has {} {}, 0 to {}: start as many processes as the coordinator "
        "expects",
        host, place_word(newcomer.kind), newcomer.rank, most,
        counted(place_word(newcomer.kind), static_cast<size_t>(most)), most - 1);
  if (newcomer.size != 0 && newcomer.size != options.ranks)
    return fmt::format("host {} was started for a job of {} ranks, the coordinator for {}: give both the same number",
                       host, newcomer.size, options.ranks);
  if (newcomer.servers != 0 && newcomer.servers != options.servers)
    return fmt::format("host {} was started for a job of {} {}, the coordinator for {}: give both the same number",
                       host, newcomer.servers, counted("server", static_cast<size_t>(newcomer.servers)),
                       options.servers);
  if (newcomer.slots < 0 || newcomer.slots > kMostSlots)
    return fmt::format("host {} offers {} slots; a host has 1 to {}", host, newcomer.slots, kMostSlots);
  return "";
}

/// An agent whose host is in the job's list gets slots and ranks from it.
Admission admit_by_list(Member newcomer, std::string_view address, const std::vector<Attendee>& attendees,
                        const MembershipOptions& options) {
  const Attendee* holder = nullptr;
  int first = 0;
  for (const auto& [name, slots] : options.hosts) {
    const int begin = std::exchange(first, first + slots);
    if (!matches(name, newcomer, address)) continue;
    const auto holds = [&](const Attendee& other) {
      return present(other) && other.member.kind == Member::agent && other.member.rank == begin;
    };
    const auto found = std::find_if(attendees.begin(), attendees.end(), holds);
    if (found != attendees.end()) {
      holder = &*found;
      continue;  // a list may name a host twice
    }
    if (newcomer.slots != 0 && newcomer.slots != slots)
      return {fmt::format(
                  "host {} offers {} slots, but the job's host list gives it {}: leave --slots out, or make them agree",
                  newcomer.host, newcomer.slots, slots),
              {}};
    newcomer.slots = slots;
    newcomer.rank = begin;
    return {"", newcomer};
  }
  if (holder != nullptr)
    return {
        fmt::format("{} has joined before {}, and the job's list has no second place for it: start one agent per host",
                    describe(holder->member), describe(newcomer)),
        {}};
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(options.hosts.size(), 16); i++)
    names += (i == 0 ? "" : ", ") + options.hosts[i].first;
  return {fmt::format(
              "host {} ({}) is not in the job's host list ({}): add it, or give --host with the name that the list has",
              newcomer.host, address.empty() ? "address not known" : address, names),
          {}};
}

std::string conflict(const Member& newcomer, const std::vector<Attendee>& attendees, const MembershipOptions& options) {
  const auto end_of = [](const Member& member) { return member.rank < 0 ? -1 : member.rank + weight(member); };
  const int most = places(newcomer.kind, options);
  const char* word = place_word(newcomer.kind);
  long taken = 0;
  std::string hosts;
  for (const Attendee& other : attendees) {
    if (!present(other) || other.member.kind != newcomer.kind || other.member.newcomer) continue;
    const int both = std::max(newcomer.rank, other.member.rank);
    if (newcomer.rank >= 0 && other.member.rank >= 0 && both < std::min(end_of(newcomer), end_of(other.member)))
      return fmt::format("{} {} is taken: {} registered with it before {} did. Give every process a {} of its own",
                         word, both, describe(other.member), describe(newcomer),
                         newcomer.kind == Member::server ? "number" : "rank");
    taken += weight(other.member);
    if (hosts.size() < 200 && hosts.find(other.member.host) == hosts.npos)
      hosts += (hosts.empty() ? "" : ", ") + other.member.host;
  }
  if (end_of(newcomer) <= most && taken + weight(newcomer) <= most) return "";
  return fmt::format("host {} brings {} {}, but of the job's {} {}s {} {} taken{}{}", newcomer.host, weight(newcomer),
                     counted(word, static_cast<size_t>(weight(newcomer))), most, word, taken, taken == 1 ? "is" : "are",
                     taken > 0 ? ", by " : "", hosts);
}

/// A number that anybody has had is not given again: what it left behind would be taken for the newcomer's.
std::string newcomer_conflict(const Member& newcomer, const std::vector<Attendee>& attendees,
                              const MembershipOptions& options) {
  const int end = newcomer.rank + weight(newcomer);
  const auto refusal = [&](const std::string& holder) {
    return fmt::format(
        "rank {} is taken: {} has it or had it before {} came. Give every newcomer a rank of its own; "
        "the next one is {}",
        newcomer.rank, holder, describe(newcomer), next_number(attendees, options));
  };
  if (newcomer.rank < options.ranks) return refusal("one of the first crew");
  for (const Attendee& other : attendees) {
    if (other.member.kind != newcomer.kind || other.member.rank < 0) continue;
    if (std::max(newcomer.rank, other.member.rank) < std::min(end, other.member.rank + weight(other.member)))
      return refusal(describe(other.member));
  }
  return "";
}

/// The lowest first rank of `count` free neighbours, marked as taken; -1 when there are none.
int take(std::vector<bool>& taken, int count) {
  const int ranks = static_cast<int>(taken.size());
  int run = 0;
  for (int rank = 0; rank < ranks; rank++) {
    run = taken[static_cast<size_t>(rank)] ? 0 : run + 1;
    if (run < count) continue;
    for (int i = rank - count + 1; i <= rank; i++) taken[static_cast<size_t>(i)] = true;
    return rank - count + 1;
  }
  return -1;
}

/// The members of one kind that have no rank, host by host.
std::vector<size_t> by_host(Member::Kind kind, const std::vector<Attendee>& attendees,
                            const MembershipOptions& options) {
  std::vector<std::pair<std::pair<size_t, size_t>, size_t>>
      keyed;  // (place in the list, first registration of the host), index
  std::map<std::string, size_t> first;
  for (size_t i = 0; i < attendees.size(); i++) {
    const Attendee& attendee = attendees[i];
    if (!present(attendee) || attendee.member.kind != kind) continue;
    const size_t since = first.try_emplace(attendee.member.host, i).first->second;
    if (attendee.member.rank < 0)
      keyed.push_back({{place_in_list(attendee.member, attendee.address, options), since}, i});
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<size_t> order;
  order.reserve(keyed.size());
  for (const auto& [key, index] : keyed) order.push_back(index);
  return order;
}

void assign_kind(Member::Kind kind, std::vector<int>& result, const std::vector<Attendee>& attendees,
                 const MembershipOptions& options) {
  const int most = places(kind, options);
  std::vector<bool> taken(static_cast<size_t>(most));
  long there = 0;
  for (size_t i = 0; i < attendees.size(); i++) {
    const Attendee& attendee = attendees[i];
    if (!present(attendee) || attendee.member.kind != kind || attendee.member.newcomer) continue;
    there += weight(attendee.member);
    if (result[i] < 0) continue;
    for (int rank = result[i]; rank < std::min(most, result[i] + weight(attendee.member)); rank++)
      taken[static_cast<size_t>(rank)] = true;
  }
  if (there < most && kind != Member::server) return;
  for (size_t i : by_host(kind, attendees, options)) result[i] = take(taken, weight(attendees[i].member));
}

}  // namespace

std::string name_of(const Member& member) {
  if (member.kind == Member::agent) return fmt::format("the agent of host {} (process {})", member.host, member.pid);
  if (member.rank < 0)
    return fmt::format("a {} on host {} (process {})", member.kind == Member::server ? "server" : "worker", member.host,
                       member.pid);
  return fmt::format("{} {} on host {} (process {})", place_word(member.kind), member.rank, member.host, member.pid);
}

Decision judge(Clock::time_point now, const std::vector<Attendee>& attendees, const MembershipOptions& options,
               bool failed) {
  Decision decision;
  const auto workers = places_seen(Member::worker, attendees, options),
             agents = places_seen(Member::agent, attendees, options);
  const auto servers = places_seen(Member::server, attendees, options);
  decision.underway = all(workers) && all(servers);
  decision.complete = all(agents) || decision.underway;
  const bool crew_may_change = options.on_loss == OnLoss::change_crew && decision.underway;
  const auto dispensable = [&](const Attendee& a) { return crew_may_change && a.member.kind != Member::server; };
  const auto is_lost = [](const Attendee& a) { return a.standing == Standing::lost; };
  failed = failed || std::any_of(attendees.begin(), attendees.end(),
                                 [&](const Attendee& a) { return is_lost(a) && !dispensable(a); });
  bool culprit_known = failed || std::any_of(attendees.begin(), attendees.end(), is_lost);
  size_t staying = 0;
  int unplaced = 0;
  const auto note = [&](const Attendee& attendee, std::optional<Departure> departure) {
    if (!departure) {
      staying++;
      if (attendee.member.rank < 0 && attendee.member.kind != Member::server) unplaced += weight(attendee.member);
      return;
    }
    if (dispensable(attendee) && attendee.exit_code.value_or(1) != 0) {
      departure->standing = Standing::lost;
      departure->failure.reset();
    }
    failed = failed || departure->failure;
    culprit_known = culprit_known || departure->standing == Standing::lost;
    decision.departures.push_back(std::move(*departure));
  };
  for (const Attendee& attendee : attendees)
    if (present(attendee) && !gave_up(attendee)) note(attendee, departure_of(now, attendee, options));
  for (const Attendee& attendee : attendees)
    if (present(attendee) && gave_up(attendee))
      note(attendee, departure_of_victim(now, attendee, culprit_known, options));

  const bool with_agents = !all(workers) && std::find(agents.begin(), agents.end(), true) != agents.end();
  decision.ended = staying == 0 && (decision.complete || failed);
  decision.reason = count_sentence("rank", with_agents ? agents : workers, unplaced);
  if (options.servers > 0) decision.reason += "; " + count_sentence("server", servers, 0);
  return decision;
}

Admission admit(const Member& newcomer, std::string_view address, const std::vector<Attendee>& attendees,
                const MembershipOptions& options) {
  if (std::string text = number_refusal(newcomer, options); !text.empty()) return {text, {}};
  if (static_cast<size_t>(std::count_if(attendees.begin(), attendees.end(), present)) >= options.most_members)
    return {fmt::format("host {} cannot register: the coordinator serves {} members at most", newcomer.host,
                        options.most_members),
            {}};
  Admission admission{"", newcomer};
  if (newcomer.newcomer) {
    if (newcomer.kind == Member::agent && newcomer.slots == 0) admission.member.slots = 1;
    if (newcomer.rank < 0) admission.member.rank = next_number(attendees, options);
    admission.refusal = newcomer_conflict(admission.member, attendees, options);
    return admission;
  }
  if (newcomer.kind == Member::agent && !options.hosts.empty())
    admission = admit_by_list(newcomer, address, attendees, options);
  if (!admission.refusal.empty()) return admission;
  if (newcomer.kind == Member::agent && admission.member.slots == 0)
    return {fmt::format("host {} does not say how many ranks it starts: give it --slots", newcomer.host), {}};
  admission.refusal = conflict(admission.member, attendees, options);
  return admission;
}

std::vector<int> assign(const std::vector<Attendee>& attendees, const MembershipOptions& options) {
  std::vector<int> result;
  result.reserve(attendees.size());
  for (const Attendee& attendee : attendees) result.push_back(attendee.member.rank);
  for (const Member::Kind kind : {Member::worker, Member::agent, Member::server})
    assign_kind(kind, result, attendees, options);
  return result;
}

int next_number(const std::vector<Attendee>& attendees, const MembershipOptions& options) {
  int next = options.ranks;
  for (const Attendee& attendee : attendees)
    if (attendee.member.kind != Member::server && attendee.member.rank >= 0)
      next = std::max(next, attendee.member.rank + weight(attendee.member));
  return next;
}

uint64_t epoch_of(const std::vector<Attendee>& attendees) {
  uint64_t changes = 0;
  for (const Attendee& attendee : attendees) changes += 1 + (attendee.member.rank >= 0) + !present(attendee);
  return changes;
}

std::string clock_warning(const std::string& host, double theirs, const std::string& own_host, double ours) {
  const double ahead = theirs - ours;
  if (std::isfinite(ahead) && std::abs(ahead) <= kClockTolerance) return "";
  if (!std::isfinite(ahead)) return fmt::format("host {} sends no usable wall clock", host);
  return fmt::format(
      "the clock of host {} is {:.1f} s {} that of the coordinator's host {}: log times will not agree, and "
      "certificates may be refused. Run chrony or ntp on "
      "both",
      host, std::abs(ahead), ahead > 0 ? "ahead of" : "behind", own_host);
}

}  // namespace trireme::cluster
