#pragma once
// The server's end of lanes in shared memory.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <trireme/base/descriptor.h>
#include <trireme/base/helpers.h>
#include <trireme/base/segment.h>
#include <trireme/ps/inbox.h>
#include <trireme/ps/models.h>
#include <trireme/ps/shm/memory.h>
#include <trireme/ps/shm/parameter_files.h>
#include <trireme/ps/shm/replicas.h>

namespace trireme::ps::shm {

/// A worker that shares memory with this server.
class Port final : public Connection, public std::enable_shared_from_this<Port> {
 public:
  /// `line`: which of the worker's. `helpers` take part in long copies, in the service's thread.
  Port(Memory memory, size_t line, Descriptor socket, pid_t process, std::string name, Helpers& helpers);
  /// From the service's thread. With replicas the data are where they belong at once, and send() tells the worker
  /// later.
  void reply(const Reply& reply, std::span<const std::byte> data) override;
  /// Hands an answer over, whose data are there.
  void send(const Reply& reply);
  std::span<std::byte> room(const Request& request, size_t bytes) override;
  std::string name() const override { return name_; }
  /// Whether poll() would find something.
  bool waiting() const { return line_.requests.written.load() != line_.requests.read.load(std::memory_order_relaxed); }
  /// Hands the requests that wait to its service; false when there was none. From the service's thread.
  bool poll(const std::shared_ptr<Port>& self, Clock::time_point now);

  int socket() const { return socket_.get(); }
  pid_t process() const { return process_; }
  const Memory& memory() const { return memory_; }
  /// Tells the worker that it is admitted, or why not.
  void welcome(const Segment& bell, const Segment& parameters, const Welcome& answer);
  void refuse(const std::string& why, int elsewhere = 0);

  Replica* replica = nullptr;  // that it was admitted to, where servers have replicas

 private:
  Memory memory_;
  Line& line_;
  Descriptor socket_;  // its end is the worker's
  pid_t process_;
  std::string name_;
  Helpers& helpers_;
  size_t texts_ = 0;
};

struct DoorOptions {
  std::string job;  // the meeting key
  int server = 0;
  const Segment* bell = nullptr;     // passed to workers; their requests ring it
  ParameterFiles* memory = nullptr;  // of the models' parameters: passed to workers and siblings
  Helpers* helpers = nullptr;        // the service's
  Replicas* replicas = nullptr;      // null: there are none
  // In the service's thread: poll this one from now on, and no longer.
  std::function<void(std::shared_ptr<Port>)> admitted, left;
};

/// Lets workers, siblings and `trireme ctl` in, and notices when one is gone. One thread of its own. Processes of other
/// users are not heard.
class Door {
 public:
  /// Throws IoError when another process has the same place in the same job.
  Door(DoorOptions options, Inbox& inbox);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

 private:
  struct Visit;
  void run();
  void receive(Visit& visit);
  void meet_sibling(Visit& visit, const Hello& hello);
  void meet_server(Visit& visit, const Hello& hello, std::vector<Descriptor> descriptors);
  void admit(Models& models, const std::shared_ptr<Port>& port, const Hello& hello);
  void meet_worker(Visit& visit, const Hello& hello, std::vector<Descriptor> descriptors);
  void leave(Visit& visit);

  DoorOptions options_;
  Inbox& inbox_;
  Descriptor listener_, stop_;
  std::vector<std::unique_ptr<Visit>> visits_;
  std::thread thread_;
};

}  // namespace trireme::ps::shm
