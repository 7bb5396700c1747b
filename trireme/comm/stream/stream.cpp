#include <trireme/comm/stream/assembly.h>
#include <trireme/comm/stream/direction.h>
#include <trireme/comm/stream/stream.h>

namespace trireme::comm::stream {
namespace {

class Transport final : public network::Transport {
 public:
  Transport(int rank, int size, std::unique_ptr<Credentials> credentials, Channels channels)
      : rank_(rank),
        size_(size),
        credentials_(std::move(credentials)),
        incoming_(std::move(channels.incoming)),
        outgoing_(std::move(channels.outgoing)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<network::Message> send(const void* data, size_t bytes, int to, uint32_t tag) override {
    return outgoing_.send(data, bytes, static_cast<size_t>(to), tag);
  }
  std::unique_ptr<network::Message> receive(void* data, size_t bytes, int from, uint32_t tag) override {
    return incoming_.receive(data, bytes, static_cast<size_t>(from), tag);
  }
  void interrupt() noexcept override {
    outgoing_.interrupt();
    incoming_.interrupt();
  }

 private:
  const int rank_, size_;
  const std::unique_ptr<Credentials> credentials_;  // outlives the channels
  Incoming incoming_;                               // outlives the other one, whose farewell others answer
  Outgoing outgoing_;
};

}  // namespace

std::unique_ptr<network::Transport> connect(const network::Meeting& meeting) {
  auto credentials = std::make_unique<Credentials>(meeting.secrets);
  Channels channels = assemble(meeting, *credentials);
  return std::make_unique<Transport>(meeting.rank, meeting.size, std::move(credentials), std::move(channels));
}

void add() {
  network::add_engine({.name = "stream", .description = "encrypted streams", .connect = connect, .secure = true});
}

}  // namespace trireme::comm::stream
