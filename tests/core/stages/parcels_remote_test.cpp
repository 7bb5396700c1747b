// label: multiproc
// Parcels on the wire: they travel while their receiver computes, and what is no parcel is refused.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include <trireme/stages/parcels_remote.h>

#include "../comm/ranks.h"
#include "../comm/socket_transport.h"
#include "parcel_contents.h"

namespace trireme::tests {
namespace {

using comm::network::Message;
using comm::network::Transport;

/// One of two ranks, each on a machine of its own, whose messages call them 40 and 41.
class Alone {
 public:
  Alone(std::unique_ptr<Transport> transport, Seconds timeout)
      : local_(Segment::create(size_t{1} << 30), 0, 1, {.timeout = timeout}),
        network_(std::move(transport), {.timeout = timeout}),
        parcels_(network_, local_.rounds(), {40, 41}, 2) {
    network_.notify([this] { local_.rounds().nudge(0); });
  }
  ~Alone() { network_.notify({}); }
  RemoteParcels* operator->() { return &parcels_; }

 private:
  comm::shm::Communicator local_;
  comm::network::Communicator network_;
  RemoteParcels parcels_;
};

// ---- overlap ----

/// As engines are whose sockets keep little: what is large stays with the sender until its receive was posted.
class Hesitant final : public Transport {
 public:
  explicit Hesitant(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Message> send(const void* data, size_t bytes, int to, uint32_t tag) override {
    if (tag != comm::network::kEnclosureTag) return inner_->send(data, bytes, to, tag);
    auto call = std::make_unique<uint8_t>();
    auto called = inner_->receive(call.get(), 1, to, kCallTag);
    return later(
        [this, data, bytes, to, tag, call = std::move(call), called = std::move(called)](const Deadline& deadline) {
          called->wait(deadline);
          inner_->send(data, bytes, to, tag)->wait(deadline);
        });
  }
  std::unique_ptr<Message> receive(void* data, size_t bytes, int from, uint32_t tag) override {
    if (tag == comm::network::kEnclosureTag) inner_->send(&kCall, 1, from, kCallTag)->wait(Deadline(Seconds(5)));
    return inner_->receive(data, bytes, from, tag);
  }
  void interrupt() noexcept override { inner_->interrupt(); }

 private:
  static constexpr uint32_t kCallTag = 30000;
  static constexpr uint8_t kCall = 1;
  template <class Wait>
  class Waiting final : public Message {
   public:
    explicit Waiting(Wait wait) : wait_(std::move(wait)) {}
    void wait(const Deadline& deadline) override { wait_(deadline); }

   private:
    Wait wait_;
  };
  template <class Wait>
  static std::unique_ptr<Message> later(Wait wait) {
    return std::make_unique<Waiting<Wait>>(std::move(wait));
  }

  std::unique_ptr<Transport> inner_;
};

TEST(ParcelsOnTheWire, TravelWhileTheReceiverComputes) {
  constexpr int kParcels = 3;
  auto transports = connect_by_sockets(2);
  std::atomic<int> phase{0};
  const auto reach = [&](int next) {
    phase.store(next);
    phase.notify_all();
  };
  std::exception_ptr sending;
  std::thread sender([&] {
    try {
      Alone parcels(std::make_unique<Hesitant>(std::move(transports[1])), Seconds(5));
      phase.wait(0);
      for (int micro = 0; micro < kParcels; micro++) {
        const auto data = content(seed_of(1, 0, {What::activation, micro}), 1 << 20);
        parcels->send(0, {What::activation, micro}, std::vector<TensorView>{{"", DType::u8, {1 << 20}, data.data()}});
      }
      parcels->flush();
    } catch (...) {
      sending = std::current_exception();
    }
    reach(2);
  });
  {
    Alone parcels(std::make_unique<Hesitant>(std::move(transports[0])), Seconds(5));
    for (int micro = 0; micro < kParcels; micro++) parcels->expect(1, {What::activation, micro});
    reach(1);
    phase.wait(1);  // computes, until all has left the sender
    if (!sending)
      for (int micro = 0; micro < kParcels; micro++)
        expect_bytes(parcels->receive(1, {What::activation, micro}), 1, 0, {What::activation, micro}, 1 << 20);
  }
  sender.join();
  EXPECT_EQ(message_of(sending), "");
}

// ---- no parcels ----

/// What a rank hears whose peer, number 41, sends what `send` does with its end of the wire.
void receive_from(const std::function<void(Transport&)>& send) {
  auto transports = connect_by_sockets(2);
  Alone parcels(std::move(transports[0]), Seconds(5));
  send(*transports[1]);
  parcels->receive(1, {});
}

void send_packet(Transport& wire, uint64_t count, DType type, const char* name, const std::string& data = "") {
  comm::network::Packet packet{.what = comm::network::fingerprint(comm::network::Kind::none, count, type, name),
                               .data = {}};
  std::memcpy(packet.data.data(), data.data(), data.size());
  wire.send(&packet, sizeof packet, 0, comm::network::kLetterTag)->wait(Deadline(Seconds(5)));
}

TEST(Garbage, AnAbsurdSizeIsCorruptionBeforeMemoryIsTaken) {
  for (const uint64_t count : {uint64_t{1} << 50, ~uint64_t{0}}) try {
      receive_from([&](Transport& wire) { send_packet(wire, count, DType::u8, "parcel: large"); });
      ADD_FAILURE() << "no error";
    } catch (const Corruption& error) {
      expect_within(error.what(), {"rank 41", fmt::format("{} bytes", count)});
    }
}

TEST(Garbage, BytesThatAreNoParcelAreCorruption) {
  try {
    receive_from([](Transport& wire) { send_packet(wire, 30, DType::u8, "parcel: x", std::string(30, 'x')); });
    ADD_FAILURE() << "no error";
  } catch (const Corruption& error) {
    expect_within(error.what(), {"rank 41", "not a parcel"});
  }
}

TEST(Garbage, AnotherMessageIsAMismatch) {
  EXPECT_THROW(receive_from([](Transport& wire) { send_packet(wire, 4, DType::u8, "losses", "abcd"); }), Mismatch);
  EXPECT_THROW(receive_from([](Transport& wire) { send_packet(wire, 1, DType::f32, "parcel", "abcd"); }), Mismatch);
}

}  // namespace
}  // namespace trireme::tests
