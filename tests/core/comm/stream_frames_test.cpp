// label: unit
// What the engine "stream" makes of bytes from others, good and bad, without a connection.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include <trireme/base/error.h>
#include <trireme/comm/stream/boxes.h>
#include <trireme/comm/stream/frames.h>

namespace trireme::tests {
namespace {

using namespace comm::stream;

using Bytes = std::vector<std::byte>;

Bytes frame(Part part, uint32_t tag, uint64_t claimed, size_t bytes, std::byte fill = std::byte{7}) {
  const auto head = encode(Head{part, tag, claimed});
  Bytes all(head.begin(), head.end());
  all.resize(kHeadBytes + bytes, fill);
  return all;
}

/// In pieces of at most `most`. Returns what was completed.
std::vector<Flight*> feed(Inbox& box, const Bytes& bytes, size_t most) {
  std::vector<Flight*> complete;
  for (size_t at = 0; at < bytes.size();) {
    const std::span<std::byte> room = box.room();
    EXPECT_FALSE(room.empty());
    const size_t n = std::min({room.size(), most, bytes.size() - at});
    std::memcpy(room.data(), bytes.data() + at, n);
    at += n;
    if (Flight* const flight = box.filled(n)) complete.push_back(flight);
  }
  return complete;
}

/// A receive with memory around it that nobody may touch.
struct Guarded {
  static constexpr size_t kGuard = 64;
  explicit Guarded(size_t bytes, uint32_t tag) : memory(bytes + 2 * kGuard, std::byte{0xee}) {
    flight.data = memory.data() + kGuard;
    flight.bytes = bytes;
    flight.tag = tag;
  }
  bool untouched() const {
    for (size_t i = 0; i < kGuard; i++)
      if (memory[i] != std::byte{0xee} || memory[memory.size() - 1 - i] != std::byte{0xee}) return false;
    return true;
  }
  Bytes memory;
  Flight flight;
};

TEST(StreamInbox, TakesMessagesInAnyPieces) {
  for (size_t most : {1, 7, 16, 1000, 100000}) {
    Inbox box;
    Guarded first(100, 5), second(70000, 5), third(0, 6);
    for (Guarded* one : {&first, &second, &third}) box.expect(one->flight);
    Bytes all = frame(Part::data, 6, 0, 0);
    for (const Bytes& more : {frame(Part::data, 5, 100, 100), frame(Part::data, 5, 70000, 70000, std::byte{9})})
      all.insert(all.end(), more.begin(), more.end());
    EXPECT_EQ(feed(box, all, most), (std::vector<Flight*>{&third.flight, &first.flight, &second.flight})) << most;
    EXPECT_TRUE(first.flight.done && second.flight.done && third.flight.done);
    EXPECT_EQ(first.flight.data[99], std::byte{7});
    EXPECT_EQ(second.flight.data[69999], std::byte{9});
    EXPECT_TRUE(first.untouched() && second.untouched());
  }
}

TEST(StreamInbox, KeepsShortMessagesThatNobodyAskedForYet) {
  Inbox box;
  for (int i = 0; i < 3; i++) EXPECT_TRUE(feed(box, frame(Part::data, 9, 50, 50, std::byte(i)), 1000).empty());
  for (int i = 0; i < 3; i++) {
    Guarded one(50, 9);
    box.expect(one.flight);
    EXPECT_TRUE(one.flight.done && one.untouched());
    EXPECT_EQ(one.flight.data[49], std::byte(i)) << "in the order of sending";
  }
}

TEST(StreamInbox, TakesAReceiveThatIsPostedWhileItsMessageComes) {
  Inbox box;
  const Bytes all = frame(Part::data, 9, 50, 50);
  feed(box, {all.begin(), all.begin() + 30}, 1000);
  Guarded one(50, 9);
  box.expect(one.flight);
  EXPECT_FALSE(one.flight.done);
  EXPECT_EQ(feed(box, {all.begin() + 30, all.end()}, 1000), (std::vector<Flight*>{&one.flight}));
}

std::string corruption(Inbox& box, const Bytes& bytes) {
  try {
    feed(box, bytes, 100000);
  } catch (const Corruption& error) {
    return error.what();
  }
  return "none";
}

TEST(StreamInbox, AllocatesNothingForWhatIsOnlyClaimed) {
  Inbox box;
  EXPECT_NE(corruption(box, frame(Part::data, 1, uint64_t{1} << 40, 0)).find("1099511627776 bytes that nobody asked"),
            std::string::npos);
  Inbox other;
  Guarded one(100, 1);
  other.expect(one.flight);
  EXPECT_NE(corruption(other, frame(Part::data, 1, uint64_t{1} << 40, 0)).find("where 100 are expected"),
            std::string::npos);
  EXPECT_TRUE(one.untouched());
}

TEST(StreamInbox, RefusesWhatNoSenderWrites) {
  const auto refused = [](const Bytes& bytes) {
    Inbox box;
    return corruption(box, bytes);
  };
  EXPECT_NE(refused(frame(Part{77}, 1, 0, 0)).find("unknown kind, 77"), std::string::npos);
  EXPECT_NE(refused(frame(Part::grant, 1, 0, 0)).find("where data belong"), std::string::npos);
  EXPECT_NE(refused(frame(Part::grant, 1, 5, 0)).find("a grant with 5 bytes"), std::string::npos);
  EXPECT_NE(refused(frame(Part::data, kTags, 0, 0)).find("tag 32768"), std::string::npos);
  EXPECT_NE(refused(frame(Part::hello, 0, 1 << 20, 0)).find("claims 1048576"), std::string::npos);
  Inbox full;
  std::string why = "none";
  const Bytes one = frame(Part::data, 3, kShort, kShort);
  for (size_t sent = 0; sent <= kMostUnasked && why == "none"; sent += kShort) why = corruption(full, one);
  EXPECT_NE(why.find("that nobody asked for"), std::string::npos) << why;
}

TEST(StreamOutbox, LongMessagesWaitForTheirGrantsAndOthersDoNot) {
  Outbox box;
  Guarded lng(kShort + 1, 1), behind(10, 1), other(10, 2);
  for (Guarded* one : {&lng, &behind, &other}) box.add(one->flight);
  EXPECT_EQ(box.front(), &other.flight);
  box.pop();
  EXPECT_EQ(box.front(), nullptr) << "a short one does not overtake a long one of its tag";
  box.grant(1);
  EXPECT_EQ(box.front(), &lng.flight);
  box.pop();
  EXPECT_EQ(box.front(), &behind.flight);
  box.pop();
  box.grant(7);  // before the message
  Guarded later(kShort + 1, 7);
  box.add(later.flight);
  EXPECT_EQ(box.front(), &later.flight);
  later.flight.begun = true;
  EXPECT_FALSE(box.drop(later.flight)) << "a part of it has left";
}

TEST(StreamGreeting, IsReadAsItWasWritten) {
  Hello hello{.from = 2, .to = 0, .size = 3, .job = "digest", .meeting = "epoch 7/all/lane 0"};
  hello.proof.fill(std::byte{0x5a});
  const Hello read = decode_hello(encode(hello));
  EXPECT_EQ(read.claim(), hello.claim());
  EXPECT_EQ(read.proof, hello.proof);
  const Verdict verdict = decode_verdict(encode(Verdict{hello.proof, "is too late"}));
  EXPECT_EQ(verdict.refusal, "is too late");
  EXPECT_THROW(decode_verdict("short"), Corruption);
  for (size_t left = 0; left < encode(hello).size(); left++)
    EXPECT_THROW(decode_hello(encode(hello).substr(0, left)), Corruption) << left;
  EXPECT_THROW(decode_hello(encode(hello) + "x"), Corruption);
}

TEST(StreamGreeting, IsRefusedWithAReason) {
  const Hello own{.from = 1, .size = 3, .job = "j", .meeting = "epoch 1/all"};
  const Hello good{.from = 2, .to = 1, .size = 3, .job = "j", .meeting = "epoch 1/all"};
  EXPECT_EQ(refusal(good, own), "");
  const auto with = [&](const auto& change) {
    Hello other = good;
    change(other);
    return refusal(other, own);
  };
  EXPECT_EQ(with([](Hello& h) { h.job = "k"; }), "belongs to another job");
  EXPECT_EQ(with([](Hello& h) { h.meeting = "epoch 0/all"; }), "wants to meet in 'epoch 0/all', not in 'epoch 1/all'");
  EXPECT_EQ(with([](Hello& h) { h.to = 0; }), "looks for rank 0, and this is rank 1");
  EXPECT_EQ(with([](Hello& h) { h.size = 4; }), "thinks that there are 4 ranks, not 3");
  for (uint32_t rank : {1u, 3u, ~0u})
    EXPECT_NE(with([&](Hello& h) { h.from = rank; }).find("as whom nobody is expected"), std::string::npos);
}

// ---- bytes by chance, and by mischief ----

class Mischief {
 public:
  explicit Mischief(uint32_t seed) : random_(seed) {}
  size_t below(size_t n) { return random_() % n; }

  /// Frames that could be meant, with a few changes, cut somewhere; or anything.
  Bytes input() {
    Bytes all;
    for (size_t frames = below(4); frames > 0; frames--) {
      const size_t bytes = below(3) == 0 ? below(3) * 40 : below(200);
      const Bytes one = frame(below(8) == 0 ? Part(below(6)) : Part::data, static_cast<uint32_t>(below(3)),
                              below(10) == 0 ? uint64_t{1} << below(64) : bytes, bytes);
      all.insert(all.end(), one.begin(), one.end());
    }
    for (size_t changes = below(3); changes > 0 && !all.empty(); changes--)
      all[below(all.size())] = std::byte(below(256));
    if (below(3) == 0) all.resize(below(all.size() + 1));
    for (size_t more = below(4) == 0 ? below(60) : 0; more > 0; more--) all.push_back(std::byte(below(256)));
    return all;
  }

 private:
  std::mt19937 random_;
};

TEST(StreamFuzz, NoBytesDoMoreThanFail) {
  Mischief mischief(20260117);
  size_t refused = 0, taken = 0;
  for (int i = 0; i < 100'000; i++) {
    Inbox box;
    Guarded first(mischief.below(3) * 40, 0), second(mischief.below(200), 1);
    const Bytes input = mischief.input();
    try {
      box.expect(first.flight);
      feed(box, input, 1 + mischief.below(300));
      box.expect(second.flight);
      taken += first.flight.done || second.flight.done;
    } catch (const Corruption&) {
      refused++;
    }
    ASSERT_TRUE(first.untouched() && second.untouched()) << i;
    const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
    try {
      decode_hello(text);
    } catch (const Corruption&) {
    }
    try {
      Parcel parcel;
      for (size_t at = 0; at < input.size() && !parcel.complete();) {
        const size_t n = std::min(parcel.room().size(), input.size() - at);
        std::memcpy(parcel.room().data(), input.data() + at, n);
        parcel.filled(n, Part::hello);
        at += n;
      }
      ASSERT_LE(parcel.body().size(), kMostGreeting);
    } catch (const Corruption&) {
    }
  }
  EXPECT_GT(refused, 10'000u) << "they are not as bad as they should be";
  EXPECT_GT(taken, 500u) << "nor as good";
}

TEST(StreamFuzz, AVerdictIsItsProofAndItsReason) {
  Mischief mischief(11);
  size_t taken = 0;
  for (int i = 0; i < 100'000; i++) {
    std::string bytes(mischief.below(i % 2 == 0 ? 64 : 400), '\0');
    for (char& byte : bytes) byte = static_cast<char>(mischief.below(256));
    bytes.shrink_to_fit();
    try {
      const Verdict verdict = decode_verdict(bytes);
      taken++;
      ASSERT_EQ(encode(verdict), bytes);
    } catch (const Corruption&) {
      ASSERT_LT(bytes.size(), sizeof(Proof));
    }
  }
  EXPECT_GT(taken, 50'000u);
  EXPECT_LT(taken, 90'000u);
}

TEST(StreamFuzz, DamagedGreetingsAreNeverBelieved) {
  Mischief mischief(7);
  Hello hello{.from = 2, .to = 0, .size = 3, .job = "digest", .meeting = "epoch 7/all/lane 0"};
  const std::string good = encode(hello);
  for (int i = 0; i < 100'000; i++) {
    std::string bytes = good;
    for (size_t changes = 1 + mischief.below(3); changes > 0; changes--)
      bytes[mischief.below(bytes.size())] ^= static_cast<char>(1 + mischief.below(255));
    if (mischief.below(4) == 0) bytes.resize(mischief.below(bytes.size()));
    try {
      const Hello read = decode_hello(bytes);
      EXPECT_LE(read.meeting.size() + read.job.size(), bytes.size());
      EXPECT_TRUE(bytes == good || read.claim() != hello.claim() || read.proof != hello.proof);
    } catch (const Corruption&) {
    }
  }
}

}  // namespace
}  // namespace trireme::tests
