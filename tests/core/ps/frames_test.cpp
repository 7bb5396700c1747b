// label: unit
// What network lanes decide without a network: frames, the order of sending, who is missing.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include <trireme/ps/network/blocks.h>
#include <trireme/ps/network/frames.h>
#include <trireme/ps/network/guests.h>
#include <trireme/ps/network/send_queue.h>

namespace trireme::ps::network {
namespace {

using Bytes = std::vector<std::byte>;

Bytes frame_of(Head head, const void* message, size_t data, size_t present) {
  head.data = data;
  head.present = present;
  Bytes bytes(kPrefix + data + present);
  std::memcpy(bytes.data(), &head, sizeof head);
  if (message != nullptr) std::memcpy(bytes.data() + sizeof head, message, 64);
  for (size_t i = kPrefix; i < bytes.size(); i++) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

Bytes request_frame(const Request& request, size_t data, size_t present = 0) {
  return frame_of({.kind = Kind::request}, &request, data, present);
}
Bytes reply_frame(const Reply& reply, size_t data) { return frame_of({.kind = Kind::reply}, &reply, data, 0); }
const Head kHello{.kind = Kind::hello, .channel = 1, .channels = 2, .worker = 3, .server = 0, .visit = 42};

TEST(Frames, WhatWasPutInComesOut) {
  const Bytes bytes =
      request_frame({.id = 7, .verb = Verb::push, .chunk = 5, .lr = 0.5, .begin = 640, .bytes = 100}, 100, 3);
  const Frame frame = decode(bytes);
  ASSERT_EQ(frame.fault, "");
  EXPECT_EQ(frame.request.id, 7u);
  EXPECT_EQ(frame.request.chunk, 5u);
  EXPECT_EQ(frame.data.data(), bytes.data() + kPrefix);
  EXPECT_EQ(frame.data.size(), 100u);
  ASSERT_EQ(frame.present.size(), 3u);
  EXPECT_EQ(frame.present[0], static_cast<uint8_t>(kPrefix + 100));
  const Bytes answer = reply_frame({.id = 9, .status = Status::invalid, .bytes = 11}, 11);
  EXPECT_EQ(decode(answer).reply.id, 9u);
  EXPECT_EQ(decode(frame_of(kHello, nullptr, 20, 0)).head.worker, 3);
}

TEST(Frames, SaysWhatIsWrong) {
  const auto fault = [](const Bytes& bytes) { return decode(bytes).fault; };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(fault({}), "0 bytes"));
  EXPECT_TRUE(has(fault(Bytes(200)), "no message of a parameter server"));
  Head other = kHello;
  other.version = kVersion + 1;
  EXPECT_TRUE(has(fault(frame_of(other, nullptr, 0, 0)), "same version"));
  Bytes cut = request_frame({.id = 1, .verb = Verb::push, .bytes = 100}, 100);
  cut.pop_back();
  EXPECT_TRUE(has(fault(cut), "says it has 100"));
  EXPECT_TRUE(
      has(fault(request_frame({.id = 1, .verb = Verb::push, .bytes = 100}, 99)), "push of 100 bytes that brings 99"));
  EXPECT_TRUE(has(fault(request_frame({.id = 1, .verb = Verb::pull, .bytes = 100}, 100)), "pull of 0 bytes"));
  EXPECT_TRUE(has(fault(request_frame({.id = 1, .verb = Verb::barrier}, 0, 4)), "4 slots in a barrier"));
  EXPECT_TRUE(has(fault(request_frame({.id = 0, .verb = Verb::barrier}, 0)), "without a number"));
  EXPECT_TRUE(has(fault(request_frame({.id = 1, .verb = static_cast<Verb>(200)}, 0)), "no request 200"));
  EXPECT_TRUE(has(fault(reply_frame({.id = 1, .status = static_cast<Status>(99)}, 0)), "status 99"));
  Head many = kHello;
  many.channels = 17;
  EXPECT_TRUE(has(fault(frame_of(many, nullptr, 0, 0)), "of 17"));
}

TEST(Frames, TheFirstPieceSaysHowLongAFrameIs) {
  const auto size = [](const Bytes& frame, size_t first) {
    return size_of_frame(std::span(frame).first<kPrefix>(), first);
  };
  const Bytes small = request_frame({.id = 1, .verb = Verb::push, .bytes = 100}, 100, 3);
  EXPECT_EQ(size(small, kPrefix + 103), kPrefix + 103);
  EXPECT_EQ(size(small, kPrefix + 102), 0u) << "it fits one piece, and is not whole";
  EXPECT_EQ(size(small, kPrefix + 104), 0u);
  const size_t much = 3 * kPiece;
  const Bytes large = request_frame({.id = 1, .verb = Verb::push, .bytes = much}, much);
  EXPECT_EQ(size(large, kPiece), kPrefix + much);
  EXPECT_EQ(size(large, kPrefix + much), 0u) << "all at once";
  EXPECT_EQ(size(large, kPiece - 1), 0u);
  Bytes foreign = small;
  foreign[0] ^= std::byte{1};
  EXPECT_EQ(size(foreign, foreign.size()), 0u);
  Head head{.kind = Kind::request};
  Bytes huge(kPrefix);
  for (uint64_t bytes : {uint64_t{kMostBytes}, ~uint64_t{0}, ~uint64_t{0} - kPrefix + 1}) {
    head.data = bytes;
    std::memcpy(huge.data(), &head, sizeof head);
    EXPECT_EQ(size(huge, kPiece), 0u) << bytes;
  }
}

/// Everything that a frame's reader would touch, touched: under AddressSanitizer, a view past the end is found.
uint64_t touch(const Frame& frame) {
  uint64_t sum = 0;
  for (std::byte byte : frame.data) sum += static_cast<uint64_t>(byte);
  for (uint8_t byte : frame.present) sum += byte;
  return sum;
}

TEST(Frames, AnythingMayComeIn) {
  std::mt19937_64 random(20261117);
  const std::vector<Bytes> valid = {request_frame({.id = 7, .verb = Verb::push, .chunk = 5, .bytes = 256}, 256, 3),
                                    request_frame({.id = 8, .verb = Verb::pull, .bytes = 4096}, 0),
                                    request_frame({.id = 9, .verb = Verb::sparse_push, .version = 4, .bytes = 64}, 64),
                                    reply_frame({.id = 9, .bytes = 77}, 77),
                                    frame_of(kHello, nullptr, 300, 0),
                                    frame_of({.kind = Kind::welcome}, nullptr, 9, 0)};
  constexpr uint64_t kNasty[] = {
      0, 1, 63, 64, 0x7f, 0xff, 0x7fffffff, 0xffffffff, ~uint64_t{0}, ~uint64_t{0} - 63, uint64_t{1} << 63, kMostBytes};
  size_t accepted = 0, refused = 0;
  for (int i = 0; i < 100'000; i++) {
    Bytes bytes;
    if (random() % 4 == 0) {
      bytes.resize(random() % 400);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      if (bytes.size() >= 8 && random() % 2 == 0) std::memcpy(bytes.data(), valid[0].data(), 8);
    } else {
      bytes = valid[random() % valid.size()];
      for (uint64_t changes = random() % 4; changes > 0; changes--) {
        const uint64_t value = kNasty[random() % std::size(kNasty)];
        const size_t width = size_t{1} << random() % 4, at = random() % (kPrefix / width) * width;
        std::memcpy(bytes.data() + at, &value, width);
      }
      if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 40));
    }
    bytes.shrink_to_fit();
    const Frame frame = decode(bytes);
    frame.fault.empty() ? accepted++ : refused++;
    ASSERT_LE(kPrefix + frame.data.size() + frame.present.size(), frame.fault.empty() ? bytes.size() : kPrefix);
    if (!frame.fault.empty()) continue;
    ASSERT_LT(touch(frame), uint64_t{1} << 32);
    ASSERT_TRUE(frame.head.kind != Kind::request || frame.request.verb < Verb::count);
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(refused, 10'000u);
}

TEST(SendQueue, FirstLayersGoFirstAndEqualsInTheirOrder) {
  SendQueue<int> queue;
  queue.push(5, 1, 51);
  queue.push(0, 2, 2);
  queue.push(5, 3, 53);
  queue.push(1, 4, 14);
  queue.push(0, 5, 5);
  std::vector<int> order;
  while (!queue.empty()) order.push_back(queue.pop());
  EXPECT_EQ(order, (std::vector<int>{2, 5, 14, 51, 53}));
}

TEST(SendQueue, WhatIsPutBackComesBeforeItsSuccessors) {
  SendQueue<int> queue;
  for (uint64_t i = 1; i <= 4; i++) queue.push(3, i, static_cast<int>(i));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  queue.push(3, 2, 2);  // not answered: the line broke
  queue.push(3, 1, 1);
  for (int expected = 1; expected <= 4; expected++) EXPECT_EQ(queue.pop(), expected);
}

TEST(SendQueue, NobodyWaitsForEver) {
  SendQueue<uint64_t> queue;
  uint64_t next = 1, waited = 0;
  queue.push(1000, next++, 1);
  for (bool out = false; !out && waited < 10'000; waited++) {
    queue.push(0, next, next);
    next++;
    out = queue.pop() == 1;
  }
  EXPECT_LE(waited, SendQueue<uint64_t>::kOvertaken + 2);
}

TEST(Blocks, AreAlignedAndUsedAgain) {
  Blocks blocks;
  std::set<std::byte*> seen;
  for (int i = 0; i < 10; i++) {
    const auto block = blocks.take((1 << 20) + 128);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 64, 0u);
    seen.insert(block.get());
  }
  EXPECT_EQ(seen.size(), 1u);
  auto outlives = std::make_unique<Blocks>()->take(10);
  outlives.get()[9] = std::byte{1};
}

struct NoConnection final : Connection {
  explicit NoConnection(int number) { worker = number; }
  void reply(const Reply& /*reply*/, std::span<const std::byte> /*data*/) override {}
  std::string name() const override { return ""; }
};

TEST(Guests, OneWithoutALineIsMissedForAWhile) {
  Guests guests(Seconds(3));
  const Clock::time_point start{};
  guests.enter({0, 1}, 42, 2, "10.0.0.2");
  guests.enter({0, 1}, 42, 2, "10.0.0.2");
  EXPECT_FALSE(guests.exit({0, 1}, start));
  EXPECT_FALSE(guests.due()) << "it has a line left";
  EXPECT_FALSE(guests.exit({0, 1}, start));
  EXPECT_EQ(guests.due(), start + std::chrono::seconds(3));
  EXPECT_TRUE(guests.lost(start + std::chrono::seconds(2)).empty());
  guests.enter({0, 1}, 42, 2, "10.0.0.2");
  EXPECT_FALSE(guests.due()) << "it has come back";
  guests.exit({0, 1}, start + std::chrono::seconds(4));
  const auto lost = guests.lost(start + std::chrono::seconds(7));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].why, "worker 1 at 10.0.0.2 is gone: its connection ended without a goodbye");
  EXPECT_TRUE(guests.lost(start + std::chrono::seconds(9)).empty());
}

TEST(Guests, AGoodbyeCountsWhenItHasComeOnAllLines) {
  Guests guests(Seconds(3));
  const Incoming leave{.from = std::make_shared<NoConnection>(1), .request = {.id = 9, .verb = Verb::leave}};
  guests.enter({0, 1}, 42, 2, "a");
  guests.enter({0, 1}, 42, 2, "a");
  EXPECT_FALSE(guests.goodbye(0, leave, 0));
  EXPECT_FALSE(guests.goodbye(0, leave, 0)) << "sent again on the same line";
  EXPECT_TRUE(guests.goodbye(0, leave, 1));
  EXPECT_FALSE(guests.exit({0, 1}, {}));
  EXPECT_FALSE(guests.exit({0, 1}, {}));
  EXPECT_FALSE(guests.due());
}

TEST(Guests, AGoodbyeOnSomeLinesCountsWhenTheLastOneEnds) {
  Guests guests(Seconds(3));
  guests.enter({0, 1}, 42, 2, "a");
  guests.enter({0, 1}, 42, 2, "a");
  guests.goodbye(0, {.from = std::make_shared<NoConnection>(1), .request = {.id = 9, .verb = Verb::leave}}, 1);
  EXPECT_FALSE(guests.exit({0, 1}, {}));
  const auto leave = guests.exit({0, 1}, {});
  ASSERT_TRUE(leave);
  EXPECT_EQ(leave->request.id, 9u);
  EXPECT_FALSE(guests.due());
}

TEST(Guests, APlaceHasOneProcess) {
  Guests guests(Seconds(3));
  guests.enter({0, 1}, 42, 1, "10.0.0.2");
  EXPECT_EQ(guests.refusal({0, 1}, 42), "");
  EXPECT_EQ(guests.refusal({0, 2}, 43), "");
  EXPECT_EQ(guests.refusal({1, 1}, 43), "") << "a client per model";
  EXPECT_NE(guests.refusal({0, 1}, 43).find("is here already, from 10.0.0.2"), std::string::npos);
}

}  // namespace
}  // namespace trireme::ps::network
