// label: unit
// Openings and letters as a peer may send them: of any bytes. What they say is compared and shown, never believed.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>

#include <trireme/base/error.h>
#include <trireme/comm/network/letters.h>

namespace trireme::tests {
namespace {

using namespace comm::network;

constexpr size_t kMostBelieved = 1 << 20;  // bytes of an enclosure

class Mischief {
 public:
  explicit Mischief(uint32_t seed) : random_(seed) {}
  size_t below(size_t n) { return random_() % n; }

  /// As good as `good`, or with some bytes changed, or nothing but noise.
  Packet damaged(const Packet& good) {
    Packet packet = good;
    std::byte bytes[sizeof(Fingerprint)];
    std::memcpy(bytes, &good.what, sizeof bytes);
    switch (below(5)) {
      case 0:
        for (std::byte& byte : bytes) byte = std::byte(below(256));
        break;
      case 1:  // a name without an end
        std::memset(bytes + offsetof(Fingerprint, text), 'n', sizeof packet.what.text);
        [[fallthrough]];
      case 2:
        bytes[offsetof(Fingerprint, kind) + below(5)] = std::byte(below(256));
        break;
      case 3:
        for (size_t changes = 1 + below(3); changes > 0; changes--) bytes[below(sizeof bytes)] = std::byte(below(256));
        break;
      default:
        const uint64_t counts[] = {0, 1, 900, 5000, kMostBelieved + 1, uint64_t{1} << 61, ~uint64_t{0}};
        std::memcpy(bytes + offsetof(Fingerprint, count), &counts[below(std::size(counts))], sizeof(uint64_t));
    }
    std::memcpy(&packet.what, bytes, sizeof bytes);
    return packet;
  }

 private:
  std::mt19937 random_;
};

void expect_fit_to_read(const std::string& text) {
  ASSERT_LT(text.size(), 700u);
  for (const char c : text) ASSERT_TRUE((c >= ' ' && c <= '~') || c == '\xc3' || c == '\x97') << text;  // and the ×
}

TEST(Opening, ShowsWhatNoRankOfOursSends) {
  Fingerprint strange = fingerprint(Kind::allreduce, 5, DType::f32, "weight");
  strange.dtype = static_cast<DType>(200);
  strange.op = static_cast<Op>(201);
  strange.text.fill('w');
  EXPECT_EQ(describe(strange),
            "allreduce (an unknown operation) '" + std::string(64, 'w') + "' of 5 × an unknown type");
  strange.kind = static_cast<Kind>(99);
  strange.text = {'a', '\n', '\x1b', '\xff', 'b'};
  EXPECT_EQ(describe(strange), "an unknown collective 'a???b' of 5 × an unknown type");
}

TEST(OpeningFuzz, EveryDisagreementIsASentence) {
  Mischief mischief(20261119);
  const Fingerprint mine = fingerprint(Kind::allreduce, 5, DType::f32, "layer1.0.conv1.weight");
  size_t agreed = 0;
  for (int i = 0; i < 100'000; i++) {
    const Fingerprint theirs = mischief.damaged({.what = mine, .data = {}}).what;
    if (agree(mine, theirs)) {
      agreed++;
      continue;
    }
    try {
      disagree(mine, 0, theirs, 1, "");
      FAIL();
    } catch (const Mismatch& error) {
      expect_fit_to_read(error.what());
    }
  }
  EXPECT_LT(agreed, 50'000u);
}

/// A peer that sends one packet, and whatever is asked for beyond it.
class Liar final : public Transport {
 public:
  explicit Liar(const Packet& packet) : packet_(packet) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::unique_ptr<Message> send(const void*, size_t, int, uint32_t) override { return std::make_unique<There>(); }
  std::unique_ptr<Message> receive(void* data, size_t bytes, int, uint32_t tag) override {
    if (tag == kLetterTag)
      std::memcpy(data, &packet_, sizeof packet_);
    else
      std::memset(data, 7, bytes);
    return std::make_unique<There>();
  }
  void interrupt() noexcept override {}

 private:
  struct There final : Message {
    void wait(const Deadline&) override {}
  };
  const Packet packet_;
};

Packet letter(size_t count) {
  Packet packet{.what = fingerprint(Kind::none, count, DType::u8, "parcel: x"), .data = {}};
  packet.data.fill(std::byte{5});
  return packet;
}

std::unique_ptr<Wire> wire_from(const Packet& packet) {
  return std::make_unique<Wire>(std::make_unique<Liar>(packet), Seconds(5), Seconds(0), std::vector<int>{}, "timeout",
                                WireMetrics(nullptr, ""));
}

TEST(LetterFuzz, WhatWasNotAskedForIsAMismatchAndTheMemoryStays) {
  Mischief mischief(1);
  size_t taken = 0, refused = 0;
  for (int i = 0; i < 100'000; i++) {
    const size_t count = mischief.below(2) == 0 ? 40 : 2000;
    const auto wire = wire_from(mischief.below(4) == 0 ? letter(count) : mischief.damaged(letter(count)));
    Letters letters(*wire, [] {});
    std::vector<std::byte> room(count);
    try {
      letters.receive(room.data(), count, DType::u8, 1, "parcel: x");
      taken++;
      ASSERT_EQ(room.back(), count == 40 ? std::byte{5} : std::byte{7});
    } catch (const Mismatch& error) {
      refused++;
      expect_fit_to_read(error.what());
      ASSERT_EQ(room, std::vector<std::byte>(count));
    }
    letters.close();
  }
  EXPECT_GT(taken, 20'000u);
  EXPECT_GT(refused, 20'000u);
}

TEST(LetterFuzz, WhatIsOfAnySizeTakesNoMoreThanIsBelieved) {
  Mischief mischief(2);
  size_t taken = 0, refused = 0, unbelieved = 0;
  for (int i = 0; i < 100'000; i++) {
    const auto wire = wire_from(mischief.damaged(letter(300)));
    std::vector<std::byte> room;
    const auto take = [&room](size_t bytes) -> void* {
      if (bytes > kMostBelieved) fail<Corruption>("too much");
      room.resize(bytes);
      return room.data();
    };
    Letters letters(*wire, [] {});
    try {
      letters.start_receive_any(take, 1, "parcel")->wait();
      taken++;
      ASSERT_TRUE(room.empty() || room.back() == (room.size() <= Packet::kRoom ? std::byte{5} : std::byte{7}));
    } catch (const Mismatch& error) {
      refused++;
      expect_fit_to_read(error.what());
      ASSERT_TRUE(room.empty());
    } catch (const Corruption& error) {
      unbelieved++;
      ASSERT_STREQ(error.what(), "too much");
    }
    letters.close();
  }
  EXPECT_GT(taken, 10'000u);
  EXPECT_GT(refused, 20'000u);
  EXPECT_GT(unbelieved, 5'000u);
}

}  // namespace
}  // namespace trireme::tests
