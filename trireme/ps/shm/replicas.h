#pragma once
// All shards that a server has a part in, where servers have replicas: its own, and those of servers that it stands in
// for.
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/base/helpers.h>
#include <trireme/ps/inbox.h>
#include <trireme/ps/shm/replica.h>
#include <trireme/space/arena.h>

namespace trireme::ps::shm {

/// Parameters of one shard's models, in memory of this process alone: pages that nobody touches take none.
class OwnMemory final : public ModelMemory {
 public:
  std::byte* take(int model, size_t bytes) override {
    return (arenas_[model] = space::Arena::of_process(round_up(std::max<size_t>(1, bytes), kPage))).data();
  }
  void give_back(int model) override { arenas_.erase(model); }

 private:
  std::map<int, space::Arena> arenas_;
};

/// In the service's thread, but what is said to be for the door's.
class Replicas {
 public:
  struct Options {
    std::string job;  // the meeting key
    int server = 0, servers = 1;
    Seconds silence{5};             // of a backup that has something to do, until it is given up
    const Segment* bell = nullptr;  // the server's
    Helpers* helpers = nullptr;
    metrics::Registry* registry = nullptr;  // of its own shard
  };
  Replicas(const Options& options, Inbox& inbox);
  ~Replicas();

  /// Takes the charge that placement gives this server, with a backup, or waits to be one where others have got on
  /// without it. Blocks until the backup's door is open. After its own door is.
  void take_charge(const Deadline& deadline);

  // As of Models, for all shards here.
  void tick(Clock::time_point now);
  std::optional<Clock::time_point> due() const;
  bool empty() const;
  bool finished() const;
  std::string failure() const;
  /// Also "servers": a line for each shard here; "digest": the same with a SHA-256 of all that is known.
  std::string control(const std::string& words);

  /// Whether look_after() would do something.
  bool waiting() const;
  bool look_after();

  /// A worker wants to be served. It is welcomed or refused.
  using Admitted = std::function<void(const std::shared_ptr<Port>&)>;
  void admit(const std::shared_ptr<Port>& port, const Hello& hello, const Admitted& admitted);
  /// The end of a worker's connection.
  void lost(const std::shared_ptr<Port>& port);

  // ---- the door's thread ----

  /// A primary asks for a backup. Null: what it says cannot be. It takes hold when the service's thread comes to it.
  std::shared_ptr<Following> meet_primary(int socket, const Hello& hello, std::vector<Descriptor> descriptors);
  void primary_gone(int shard, const std::shared_ptr<Following>& following);
  /// A server that has just come asks whether its shard is kept here already. It may become somebody's backup.
  bool meet_newcomer(int server);

 private:
  struct Kept {
    Kept(const Charge& charge, const Surroundings& around, Helpers& helpers, metrics::Registry* given);
    OwnMemory memory;
    metrics::Registry registry;
    Models models;
    Replica replica;
  };

  Kept& keep(const Charge& charge, metrics::Registry* registry = nullptr);
  Replica* of(int shard);
  void newcomer(int server);
  void watch_others();

  const Options options_;
  Inbox& inbox_;
  Surroundings around_;
  std::map<int, std::unique_ptr<Kept>> kept_;   // by shard
  std::vector<std::unique_ptr<Kept>> retired_;  // connections may point to them still
  std::vector<std::atomic<bool>> held_;         // by shard: it is here, as the primary's or as a backup's
  std::map<int, std::string> died_;             // workers, and how: a part that comes later hears of it
  std::vector<Descriptor> others_;              // of a newcomer: its lines to servers that were there before
  size_t waits_for_ = 0;                        // of them
  std::unique_ptr<Watch> watch_;                // last: its thread posts errands for this
};

}  // namespace trireme::ps::shm
