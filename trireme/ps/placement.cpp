#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <trireme/ps/placement.h>

namespace trireme::ps {
namespace {

using MoveWhy = Move::Why;

/// The first server after `from` that suits, or nobody.
template <class Suits>
int next_after(int from, int servers, const Suits& suits) {
  for (int step = 1; step < servers; step++)
    if (const int server = (from + step) % servers; suits(server)) return server;
  return kNobody;
}

/// On another host than `primary`, if one of those that suit is.
template <class Suits>
int backup_for(int primary, int servers, std::span<const std::string> hosts, const Suits& suits) {
  const auto elsewhere = [&](int server) {
    return suits(server) && hosts[static_cast<size_t>(server)] != hosts[static_cast<size_t>(primary)];
  };
  const int apart = hosts.empty() ? kNobody : next_after(primary, servers, elsewhere);
  return apart != kNobody ? apart : next_after(primary, servers, suits);
}

}  // namespace

std::vector<Charge> place(int servers, int replicas, std::span<const std::string> hosts) {
  std::vector<Charge> charges;
  for (int server = 0; server < servers; server++) {
    Charge charge{.shard = server, .primary = server};
    if (replicas > 0) charge.backup = backup_for(server, servers, hosts, [](int) { return true; });
    charges.push_back(charge);
  }
  return charges;
}

std::string why_no_replicas(int replicas, int servers, bool several_hosts) {
  if (replicas < 0 || replicas > 1)
    return fmt::format("there is no way to keep {} replicas: servers keep one backup of each part (1), or none (0)",
                       replicas);
  if (replicas == 0) return "";
  if (replicas > servers - 1)
    return fmt::format(
        "{} of {} server{}: a backup is kept by another server than the one that it stands in for; "
        "start {} servers at least",
        replicas == 1 ? "a replica" : "replicas", servers, servers == 1 ? "" : "s", replicas + 1);
  if (several_hosts)
    return "replicas are kept on one machine so far, and these servers are on several: leave replicas out, or run all "
           "servers and workers on one";
  return "";
}

Move after_death(const Charge& charge, int dead) {
  Move move{charge, MoveWhy::nothing, dead};
  if (dead == kNobody) return move;
  if (dead == charge.filling) {
    move.charge.filling = kNobody;
    move.why = MoveWhy::unfilled;
  } else if (dead == charge.backup) {
    move.charge.backup = kNobody;
    move.charge.epoch++;
    move.why = MoveWhy::alone;
  } else if (dead == charge.primary) {
    move.charge = {.shard = charge.shard, .epoch = charge.epoch + 1, .primary = charge.backup};
    move.why = charge.backup == kNobody ? MoveWhy::lost : MoveWhy::promoted;
  }
  return move;
}

Move appoint(const Charge& charge, const std::vector<bool>& lives, std::span<const std::string> hosts) {
  Move move{charge, MoveWhy::nothing, kNobody};
  if (charge.primary == kNobody || charge.backup != kNobody || charge.filling != kNobody) return move;
  const auto suits = [&](int server) { return lives[static_cast<size_t>(server)]; };
  move.charge.filling = move.server = backup_for(charge.primary, static_cast<int>(lives.size()), hosts, suits);
  move.why = move.server == kNobody ? MoveWhy::nobody_left : MoveWhy::appointed;
  return move;
}

Move filled(const Charge& charge) {
  if (charge.filling == kNobody) return {charge, MoveWhy::nothing, kNobody};
  Move move{charge, MoveWhy::filled, charge.filling};
  move.charge.backup = std::exchange(move.charge.filling, kNobody);
  move.charge.epoch++;
  return move;
}

std::string Move::reason() const {
  switch (why) {
    case MoveWhy::nothing:
      return fmt::format("nothing changes for part {}", charge.shard);
    case MoveWhy::promoted:
      return fmt::format("server {} died: its backup, server {}, answers for part {} from epoch {} on", server,
                         charge.primary, charge.shard, charge.epoch);
    case MoveWhy::lost:
      return fmt::format("server {} died, and nobody else has part {}", server, charge.shard);
    case MoveWhy::alone:
      return fmt::format("server {} died: part {} has no backup", server, charge.shard);
    case MoveWhy::unfilled:
      return fmt::format("server {} died before it had all of part {}", server, charge.shard);
    case MoveWhy::appointed:
      return fmt::format("server {} becomes the backup of part {} when it has all of it", server, charge.shard);
    case MoveWhy::nobody_left:
      return fmt::format("there is no other server to be the backup of part {}", charge.shard);
    case MoveWhy::filled:
      return fmt::format("server {} is the backup of part {} from epoch {} on", server, charge.shard, charge.epoch);
  }
  return "";
}

Hearing hear(const Charge& charge, int server, uint64_t epoch) {
  using Verdict = Hearing::Verdict;
  if (epoch > charge.epoch && charge.primary == server) return {Verdict::fenced, charge.epoch};
  if (charge.primary == server) return {Verdict::accept, charge.epoch};
  if (charge.backup == server) return {Verdict::wait, charge.epoch};
  return {Verdict::elsewhere, charge.epoch};
}

std::string Hearing::reason(int server, int shard) const {
  switch (verdict) {
    case Verdict::accept:
      return fmt::format("server {} answers for part {} (epoch {})", server, shard, epoch);
    case Verdict::wait:
      return fmt::format("server {} is the backup of part {}, whose server it has not seen die", server, shard);
    case Verdict::elsewhere:
      return fmt::format("server {} does not keep part {}", server, shard);
    case Verdict::fenced:
      return fmt::format("server {} kept part {} until epoch {}, which is over", server, shard, epoch);
  }
  return "";
}

bool may_acknowledge(const Charge& charge, uint64_t order, uint64_t applied) {
  return charge.backup == kNobody || order <= applied;
}

std::vector<int> whom_to_ask(int servers, int gone, int backup) {
  std::vector<int> servers_in_turn;
  if (backup != kNobody) servers_in_turn.push_back(backup);
  for (int step = 1; step <= servers; step++)  // the number that is gone last: a new server may have it
    if (const int server = (gone + step) % servers; server != backup) servers_in_turn.push_back(server);
  return servers_in_turn;
}

}  // namespace trireme::ps
