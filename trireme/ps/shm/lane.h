#pragma once
// The worker's end of a lane in shared memory.
#include <memory>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/ps/lane.h>
#include <trireme/ps/shm/memory.h>

namespace trireme::ps::shm {

class Lane final : public ps::Lane {
 public:
  /// Connects to a server of this machine for one of the job's models, and waits for its welcome. Throws
  /// InvalidArgument when it is not welcome, PeerLost, Timeout.
  Lane(Descriptor socket, std::shared_ptr<Memory> memory, int model, int worker, int server, const Deadline& deadline);

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
};

}  // namespace trireme::ps::shm
