#pragma once
// A world in one process: ranks as threads, a segment per machine, sockets between machines.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include <trireme/cluster/group.h>
#include <trireme/comm/hierarchical/communicator.h>

#include "../comm/ranks.h"
#include "../comm/socket_transport.h"

namespace trireme::tests {

/// What a coordinator is to processes.
class Board final : public comm::network::KeyValue {
 public:
  void put(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline.left(), [&] { return values_.contains(key); }))
      fail<Timeout>("nobody put '{}'", key);
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// An engine for ranks that are threads: the first to come to a meeting connects all of it.
class Sockets {
 public:
  comm::network::Engine engine() {
    return {"sockets", "sockets of a test", [this](const comm::network::Meeting& meeting) {
              const std::lock_guard lock(mutex_);
              auto& group = groups_[meeting.name];
              if (group.empty()) group = connect_by_sockets(meeting.size);
              if (static_cast<int>(group.size()) != meeting.size)
                fail<Mismatch>("{} of {} ranks", meeting.name, group.size());
              auto mine = std::move(group[static_cast<size_t>(meeting.rank)]);
              if (!mine) fail<Mismatch>("rank {} comes to {} twice", meeting.rank, meeting.name);
              return mine;
            }};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<comm::network::Transport>>> groups_;
};

/// Runs `body` once per rank with the group of all; `machine_of[r]` is the machine of rank r.
inline Outcomes run_world(const std::vector<int>& machine_of, const std::function<void(Group&, cluster::Site&)>& body,
                          Seconds timeout = Seconds(20)) {
  Board board;
  Sockets sockets;
  const comm::network::Engine engine = sockets.engine();
  const int machines = *std::max_element(machine_of.begin(), machine_of.end()) + 1;
  std::vector<Spot> spots;
  for (int m = 0; m < machines; m++) {
    const auto ranks = static_cast<int>(std::count(machine_of.begin(), machine_of.end(), m));
    auto segment = Segment::create(size_t{1} << 32);
    const size_t offset = Areas(*segment).claim(comm::shm::Rounds::bytes(ranks), "a test");
    spots.emplace_back(std::move(segment), offset);
  }
  Outcomes outcomes(machine_of.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < machine_of.size(); rank++)
    threads.emplace_back([&, rank] {
      try {
        const Spot& spot = spots[static_cast<size_t>(machine_of[rank])];
        metrics::Registry registry;
        cluster::Crew everybody;
        for (size_t r = 0; r < machine_of.size(); r++) everybody.ranks.push_back(static_cast<int>(r));
        const auto site = std::make_shared<cluster::Site>(cluster::Facts{.job = "test",
                                                                         .rank = static_cast<int>(rank),
                                                                         .machine_of = machine_of,
                                                                         .segment = spot.segment,
                                                                         .store = &board,
                                                                         .engine = &engine,
                                                                         .address = "",
                                                                         .timeout = timeout,
                                                                         .registry = &registry});
        Group all(site, std::move(everybody), spot.offset);
        body(all, *site);
      } catch (...) {
        outcomes[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// Shared memory of a group's machine, this rank's part.
inline std::byte* allocate_in(comm::Communicator& group, size_t bytes) {
  if (auto* all = dynamic_cast<comm::hierarchical::Communicator*>(&group)) {
    const int local = all->topology().place(all->rank()).local;
    return all->allocate(bytes, "a test's memory").parts[static_cast<size_t>(local)];
  }
  auto& here = dynamic_cast<comm::shm::Communicator&>(group);
  return here.allocate(bytes, "a test's memory").parts[static_cast<size_t>(here.rank())];
}

}  // namespace trireme::tests
