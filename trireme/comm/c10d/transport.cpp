#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <mutex>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/comm/c10d/transport.h>

namespace trireme::comm::c10d {
namespace {

using Flight = c10::intrusive_ptr<::c10d::Work>;

/// What is under way, so that another thread can end it.
class Flights {
 public:
  void add(const Flight& flight) {
    const std::lock_guard lock(mutex_);
    flights_.push_back(flight);
    if (interrupted_) flight->abort();
  }
  void remove(const Flight& flight) {
    const std::lock_guard lock(mutex_);
    std::erase(flights_, flight);
  }
  void interrupt() noexcept {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    for (const Flight& flight : flights_) flight->abort();
  }
  bool interrupted() const {
    const std::lock_guard lock(mutex_);
    return interrupted_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Flight> flights_;  // guarded by mutex_
  bool interrupted_ = false;     // guarded by mutex_
};

class FlightMessage final : public network::Message {
 public:
  FlightMessage(Flight flight, Flights& flights) : flight_(std::move(flight)), flights_(flights) {
    flights_.add(flight_);
  }
  ~FlightMessage() override { flights_.remove(flight_); }

  void wait(const Deadline& deadline) override {
    // Gloo takes 0 for "for ever".
    const auto limit =
        std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(deadline.left().count() * 1e3)));
    bool complete = false;
    std::string reason = "its connection was closed";
    try {
      complete = flight_->wait(limit);
    } catch (const std::exception& error) {
      reason = error.what();
      reason.resize(std::min(reason.find('\n'), reason.size()));
    }
    if (flights_.interrupted()) fail<PeerLost>("interrupted");
    if (complete) return;
    if (deadline.passed()) fail<Timeout>("nothing was sent or taken for {:.3g} s", deadline.limit().count());
    fail<PeerLost>("{}", reason);
  }

 private:
  Flight flight_;
  Flights& flights_;
};

/// Gloo has no messages of nothing.
struct EmptyMessage final : network::Message {
  void wait(const Deadline&) override {}
};

torch::Tensor bytes_at(const void* data, size_t bytes) {
  return torch::from_blob(const_cast<void*>(data), {static_cast<int64_t>(bytes)}, torch::kUInt8);
}

class GroupTransport final : public network::Transport {
 public:
  GroupTransport(Group up, Group down) : up_(std::move(up)), down_(std::move(down)) {}

  int rank() const override { return up_->getRank(); }
  int size() const override { return up_->getSize(); }

  std::unique_ptr<network::Message> send(const void* data, size_t bytes, int to, uint32_t tag) override {
    return start(data, bytes, [&](std::vector<at::Tensor>& tensors) {
      return towards(rank(), to).send(tensors, to, static_cast<int>(tag));
    });
  }
  std::unique_ptr<network::Message> receive(void* data, size_t bytes, int from, uint32_t tag) override {
    return start(data, bytes, [&](std::vector<at::Tensor>& tensors) {
      return towards(from, rank()).recv(tensors, from, static_cast<int>(tag));
    });
  }
  void interrupt() noexcept override { flights_.interrupt(); }

 private:
  template <class Start>
  std::unique_ptr<network::Message> start(const void* data, size_t bytes, const Start& begin) {
    if (bytes == 0) return std::make_unique<EmptyMessage>();
    std::vector<at::Tensor> tensors = {bytes_at(data, bytes)};
    try {
      return std::make_unique<FlightMessage>(begin(tensors), flights_);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      fail<PeerLost>("{}", text.substr(0, text.find('\n')));
    }
  }

  torch_compat::ProcessGroup& towards(int from, int to) { return from < to ? *up_ : *down_; }

  Group up_, down_;
  Flights flights_;
};

}  // namespace

std::unique_ptr<network::Transport> transport_over(Group up, Group down) {
  return std::make_unique<GroupTransport>(std::move(up), std::move(down));
}

}  // namespace trireme::comm::c10d
