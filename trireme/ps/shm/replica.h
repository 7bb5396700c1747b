#pragma once
// One server's part in keeping a shard that has a backup: as its primary, as its backup, or first one and then the
// other. placement.h decides, this carries out.
//
// The primary writes down every event (log.h) before it carries it out, so that both work at a time, and holds the
// answers until the backup has carried out what they are about. The backup's services have the same state to the bit:
// chunks, rows, clocks, locks, who has come to the barrier, and which requests were seen. When the primary is gone the
// backup finishes what is in the log and answers from then on; workers send again what was not answered.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/base/descriptor.h>
#include <trireme/base/watch.h>
#include <trireme/ps/models.h>
#include <trireme/ps/placement.h>
#include <trireme/ps/shm/log.h>

namespace trireme::ps::shm {

class Port;

/// What the replicas of a server have in common.
struct Surroundings {
  int server = 0, servers = 1;
  std::string job;                                  // the meeting key
  Seconds silence{5};                               // of a backup that has something to do, until it is given up
  const Segment* bell = nullptr;                    // the server's own
  std::function<void(std::function<void()>)> post;  // from any thread: the service's thread does it
};

/// The backup's end of a log.
struct Following {
  Descriptor socket;  // the primary's end is its life
  std::shared_ptr<Segment> memory, bell_memory;
  Log* log = nullptr;
  Bell* bell = nullptr;  // the primary's
};

/// One thread at a time.
class Replica {
 public:
  /// `models` and `around` stay the caller's.
  Replica(Models& models, const Charge& charge, const Surroundings& around);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  const Charge& charge() const { return charge_; }
  bool leads() const { return charge_.primary == around_.server; }
  /// Nothing will be asked here any more, and nobody waits for an answer or for this backup.
  bool finished() const;
  /// Whether look_after() would do something.
  bool waiting() const;
  /// As the backup, carries out what the log has; as the primary, sends the answers that are due. False when there was
  /// nothing to do.
  bool look_after();
  /// "part 0: epoch 2, primary, ...": a line for `trireme ctl servers`.
  std::string describe() const;

  // ---- the primary ----

  Models::Admission open(const std::shared_ptr<Port>& port, int model, int worker);
  void handle(const std::shared_ptr<Port>& port, const Request& request, Clock::time_point now);
  void lost(int worker, const std::string& how);
  void tick(Clock::time_point now);
  std::optional<Clock::time_point> due() const;
  std::string control(const std::string& words);
  /// An answer of one of its services: now, or when the backup is as far.
  void answer(const std::shared_ptr<Port>& port, const Reply& reply);
  /// Gets a backup if it has none and there is a server that can be it. `deadline`: for one that must come.
  void find_backup(const Deadline* deadline = nullptr);
  /// A server has come that may be the backup.
  void newcomer(int server);

  // ---- the backup ----

  /// From now on it has what the log says.
  void follow(std::shared_ptr<Following> following, const Charge& charge);
  /// The primary is gone: the rest of its log, and then this server answers.
  void primary_gone(const Following* following);
  /// Its primary had given it up, though it lives.
  bool left_behind() const { return left_behind_; }
  /// What is wrong with it, or "".
  const std::string& fault() const { return fault_; }
  std::string digest() const { return models_.digest(); }

 private:
  struct Leading;
  struct Shadow;
  struct Held {
    uint64_t order;
    std::shared_ptr<Port> port;
    Reply reply;
  };
  using Place = std::pair<int, int>;  // model, worker

  void append(Record record, const Aside* aside = nullptr, int descriptor = -1);
  bool try_backup(int server, bool anew);
  void backup_gone(uint64_t log);
  std::optional<Clock::time_point> silence_ends() const;
  void check_backup(Clock::time_point now);
  std::string why_held(const Port& port, uint64_t id) const;
  void fill();
  void send_due();
  void replay(const Record& record);
  void open_shadow(const Aside& aside, std::vector<Descriptor> descriptors);
  void take_copy(const Aside& aside, std::vector<Descriptor> descriptors);
  Aside receive_aside(const Record& record, std::vector<Descriptor>& descriptors);
  void give_up(const std::string& why);

  Models& models_;
  Charge charge_;
  const Surroundings& around_;
  std::string fault_;  // why it is no replica any more, or ""
  bool left_behind_ = false;

  std::unique_ptr<Leading> leading_;  // the log that it writes
  uint64_t logs_ = 0;                 // that it has written, with this one
  uint64_t order_ = 0;                // of the last event in it
  std::deque<Held> held_;
  uint64_t seen_ = 0;           // of `applied`
  Clock::time_point moved_{};   // when that was, or there was nothing to do
  uint64_t copied_ = 0;         // the order of the copy with which the backup was filled, and what it may take beyond
  Seconds for_copy_{0};         // others
  int silent_ = kNobody;        // who was given up for its silence, if nobody has come since
  std::vector<bool> unsuited_;  // servers that could not be the backup
  std::map<Place, std::pair<std::shared_ptr<const Memory>, pid_t>> workers_;  // who has come

  std::shared_ptr<Following> following_;  // the log that it reads
  std::map<Place, std::shared_ptr<Shadow>> shadows_;
};

}  // namespace trireme::ps::shm
