#pragma once
// Every kind of exchange with the ranks, machines and servers that it needs, all of them threads of this process.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <trireme/cluster/world.h>
#include <trireme/exchange/exchange.h>
#include <trireme/ps/server.h>

#include "../comm/machines.h"

namespace trireme::exchange::tests {

struct Crew {
  Sync sync;
  int ranks = 1;
  int servers = 0;
  std::vector<int> machine_of{};  // by rank; empty: one machine
  int zero = 0;

  std::string name() const {
    std::string text = fmt::format("{}_{}_ranks", name_of(sync), ranks);
    if (zero > 0) text += fmt::format("_zero_{}", zero);
    if (servers > 0) text += fmt::format("_{}_servers", servers);
    for (const int& machine : machine_of)
      text += fmt::format("{}{}", machine_of.data() == &machine ? "_on_" : "", machine);
    for (char& c : text)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
    return text;
  }
  /// Only in turns the result is known where ranks go at their own pace. With local they meet.
  bool takes_turns() const { return !sync.lockstep() && sync.kind != Sync::local && sync.kind != Sync::diloco; }
};

/// One rank of it.
struct Member {
  int rank;
  const Group& group;
  void barrier() const { group.all.barrier("test"); }
};

inline Group group_of(const trireme::tests::OnMachine& rank) {
  Group group(rank.all, rank.here, rank.lane, rank.all.topology().lanes());
  group.second_lane = [&rank] { return rank.second_lane; };
  return group;
}

/// While one lives, all parameters may be read, also where a machine has parts of them only.
class Reading {
 public:
  explicit Reading(Exchange& exchange) : exchange_(exchange) {
    if (exchange_.paging() != nullptr) exchange_.state().settle();
  }
  ~Reading() {
    if (exchange_.paging() != nullptr) exchange_.state().resume();
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  Exchange& exchange_;
};

/// What a forward pass does with parameters that come and go: uses one slot after the other, and says that it ended.
/// Elsewhere it waits for them.
inline void use_in_order(Exchange& exchange) {
  Paging* const paging = exchange.paging();
  if (paging != nullptr) paging->begin_pass(Pass::last);
  for (const space::Slot& slot : exchange.flat().layout().slots()) {
    if (paging == nullptr) {
      exchange.await(slot.range);
      continue;
    }
    const space::Range parts[] = {slot.range};
    paging->use(parts);
    paging->release();
  }
}

inline std::string job_name() {
  static std::atomic<int> jobs{0};
  return fmt::format("crew-{}-{}", getpid(), jobs++);
}

/// Ranks that joined a world, and servers. What a server failed with comes after the ranks' outcomes.
inline trireme::tests::Outcomes run_world(int ranks, int servers, const std::function<void(const Member&)>& body) {
  constexpr Seconds kTimeout{30};
  const std::string job = job_name();
  trireme::tests::Outcomes outcomes(static_cast<size_t>(ranks + servers));
  std::vector<std::thread> threads;
  const auto start = [&](int number, auto part) {
    threads.emplace_back([&outcomes, number, part] {
      try {
        part();
      } catch (...) {
        outcomes[static_cast<size_t>(number)] = std::current_exception();
      }
    });
  };
  for (int server = 0; server < servers; server++)
    start(ranks + server, [=] {
      ps::ServerOptions options;
      options.server = server, options.workers = ranks, options.servers = servers;
      options.meeting.job = job;
      options.timeout = kTimeout;
      options.helpers = 0;
      ps::Server(options).run();
    });
  for (int rank = 0; rank < ranks; rank++)
    start(rank, [=, &body] {
      World world({.rank = rank, .size = ranks, .job = job, .launcher = "test", .servers = servers},
                  {.timeout = kTimeout});
      Group group(world.comm(), world.local(), world.lane(), world.lanes());
      group.world = &world;
      body({rank, group});
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline trireme::tests::Outcomes run(const Crew& crew, const std::function<void(const Member&)>& body) {
  if (crew.machine_of.empty()) return run_world(crew.ranks, crew.servers, body);
  return trireme::tests::run_machines(crew.machine_of, [&](const trireme::tests::OnMachine& rank) {
    body({rank.all.rank(), group_of(rank)});
  });
}

/// All of them.
inline std::vector<Crew> all_crews() {
  std::vector<Crew> crews;
  for (const Sync sync : {Sync::shared, Sync::allreduce, Sync::central})
    for (int ranks : {1, 2, 3, 4}) crews.push_back({sync, ranks});
  for (const auto& machine_of : {std::vector{0, 1}, std::vector{0, 0, 1}, std::vector{0, 0, 1, 1}})
    crews.push_back({Sync::shared, static_cast<int>(machine_of.size()), 0, machine_of});
  for (int zero : {1, 2, 3}) {
    crews.push_back({Sync::shared, 2, 0, {}, zero});
    for (const auto& machine_of : {std::vector{0, 1}, std::vector{0, 0, 1}, std::vector{0, 1, 0, 1}})
      crews.push_back({Sync::shared, static_cast<int>(machine_of.size()), 0, machine_of, zero});
  }
  for (const Sync sync : {Sync::allreduce, Sync::central}) crews.push_back({sync, 3, 0, {0, 0, 1}});
  for (const Sync& sync :
       {Sync(Sync::server), Sync::stale_by(0), Sync(Sync::async), Sync::stale_by(2), Sync::trylock_with(1),
        Sync(Sync::round_robin), Sync::local_for(3), Sync::elastic_with(3, 0.3)})
    for (int ranks : {1, 3}) crews.push_back({sync, ranks, ranks == 1 ? 1 : 2});
  crews.push_back({Sync::diloco_for(3), 3, 0, {0, 0, 1}});
  for (const Sync& sync : {Sync(Sync::hogwild), Sync::local_for(3), Sync::diloco_for(3)})
    for (int ranks : {1, 3}) crews.push_back({sync, ranks});
  return crews;
}

}  // namespace trireme::exchange::tests
