#pragma once
// The worker's end of a lane in shared memory.
#include <memory>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/ps/lane.h>
#include <trireme/ps/shm/memory.h>

namespace trireme::ps::shm {

/// The server does not answer for the shard that it was asked for; another one may.
struct Elsewhere : PeerLost {
  enum When { never = 1, soon };  // it will: never, or when its primary is gone, as a backup
  Elsewhere(const std::string& why, int when) : PeerLost(why), when(when) {}
  int when;
};

/// Whom a lane leads to.
struct Way {
  int model = 0, worker = 0;  // for which model, and whose
  int server = 0;
  int shard = 0;       // the server's own, unless there are replicas
  size_t line = 0;     // in the worker's memory
  int replicas = 0;    // of the job, as the worker was told
  uint64_t epoch = 0;  // of the shard's charge, as far as the worker knows
};

class Lane final : public ps::Lane {
 public:
  /// Connects to a server of this machine, and waits for its welcome. Throws InvalidArgument when it is not welcome,
  /// Elsewhere, PeerLost, Timeout.
  Lane(Descriptor socket, std::shared_ptr<Memory> memory, const Way& way, const Deadline& deadline);

  /// A connection to the server's door, or none when there is no such server on this machine.
  static Descriptor knock(const std::string& job, int server);

  void send(const Request& request, std::span<const std::byte> data, std::span<const uint8_t> present,
            uint32_t urgency) override;
  bool receive(Reply& reply, std::string& text) override;
  void expect(size_t answers) override;
  std::string fault() override;
  std::string name() const override;
  bool local() const override { return true; }

  /// Readable when the server is gone.
  int socket() const { return socket_.get(); }
  /// The parameters that this server keeps are in server 0's memory.
  bool shared() const { return shared_; }
  /// With replicas: whom to ask when this server is gone, as it was when the lane began; and the charge's epoch.
  int backup() const { return backup_; }
  uint64_t epoch() const { return epoch_; }
  /// That memory. Once.
  std::shared_ptr<Segment> open_parameters(size_t bytes) {
    return std::make_shared<Segment>(std::move(parameters_), bytes);
  }

 private:
  Descriptor socket_;
  std::shared_ptr<Memory> memory_;
  int server_;
  pid_t process_;
  Line& line_;
  std::shared_ptr<Segment> bell_memory_;
  Descriptor parameters_;
  Bell* bell_ = nullptr;
  bool shared_ = false;
  int backup_ = -1;
  uint64_t epoch_ = 0;
};

}  // namespace trireme::ps::shm
