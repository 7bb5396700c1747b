// label: unit grpc
// Frames that are cut into pieces and put together again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <trireme/ps/network/arrival.h>
#include <trireme/ps/network/assembly.h>

namespace trireme::ps::network {
namespace {

std::vector<std::byte> numbered(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; i++) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

Pieces push_of(const std::vector<std::byte>& data, const std::vector<uint8_t>& present) {
  return compose({.head = {.kind = Kind::request},
                  .request = {.id = 9, .verb = Verb::push, .bytes = data.size()},
                  .data = data,
                  .present = present});
}

grpc::ByteBuffer buffer_of(size_t bytes) {
  const grpc::Slice slice(std::string(bytes, 'x'));
  return {&slice, 1};
}

/// All sizes at which something changes: empty, within one piece, at its border, several.
TEST(Pieces, BecomeTheSameFrame) {
  Assembly assembly;  // one after another, as on a stream
  for (size_t bytes : {size_t{4}, kPiece - kPrefix - 4, kPiece - kPrefix, kPiece - kPrefix + 4, kPiece,
                       3 * kPiece - kPrefix, 4 * kPiece + 12})
    for (size_t slots : {0, 5, 300}) {
      const auto data = numbered(bytes);
      const std::vector<uint8_t> present(slots, 1);
      std::vector<std::byte> room;
      const Pieces pieces = push_of(data, present);
      EXPECT_EQ(pieces.size(), (kPrefix + bytes + slots + kPiece - 1) / kPiece);
      for (size_t i = 0; i < pieces.size(); i++) {
        ASSERT_EQ(assembly.take(pieces[i], [&](const Frame&, size_t size) { return room.resize(size), room.data(); }),
                  "");
        EXPECT_EQ(assembly.complete(), i + 1 == pieces.size());
      }
      EXPECT_EQ(assembly.frame().request.id, 9u);
      ASSERT_EQ(room.size(), bytes + slots);
      EXPECT_TRUE(std::equal(data.begin(), data.end(), room.begin()));
      EXPECT_TRUE(std::all_of(room.begin() + static_cast<ptrdiff_t>(bytes), room.end(),
                              [](std::byte byte) { return byte == std::byte{1}; }));
    }
}

TEST(Pieces, MayGoNowhere) {
  Assembly assembly;
  for (const auto& piece : push_of(numbered(3 * kPiece), {}))
    EXPECT_EQ(assembly.take(piece, [](const Frame&, size_t) { return nullptr; }), "");
  EXPECT_TRUE(assembly.complete());
}

TEST(Pieces, OfAnotherSizeAreRefused) {
  const auto data = numbered(3 * kPiece);
  std::vector<std::byte> room(data.size());
  for (size_t wrong : {size_t{0}, size_t{1}, kPiece - 1, kPiece + 1, 2 * kPiece}) {
    Assembly assembly;
    const auto place = [&](const Frame&, size_t) { return room.data(); };
    ASSERT_EQ(assembly.take(push_of(data, {})[0], place), "");
    EXPECT_NE(assembly.take(buffer_of(wrong), place).find("a piece of"), std::string::npos) << wrong;
    EXPECT_FALSE(assembly.complete());
  }
  Assembly assembly;
  const auto nowhere = [](const Frame&, size_t) { return nullptr; };
  EXPECT_NE(assembly.take(buffer_of(5), nowhere), "");
  EXPECT_NE(assembly.take(buffer_of(500), nowhere), "");
  EXPECT_NE(assembly.take(push_of(data, {})[1], nowhere), "") << "the beginning is missing";
}

// ---- bytes by chance, and by mischief ----

class Mischief {
 public:
  explicit Mischief(uint64_t seed) : random_(seed) {}
  size_t below(size_t n) { return random_() % n; }

  /// The pieces of a frame with some bytes changed, some cut or doubled, now and then one left out.
  std::vector<grpc::ByteBuffer> damaged(const Pieces& good) {
    std::vector<grpc::ByteBuffer> pieces;
    for (const grpc::ByteBuffer& piece : good) {
      if (below(16) == 0) continue;
      Reader reader(piece);
      std::string bytes(reader.left(), '\0');
      reader.copy(bytes.data(), bytes.size());
      constexpr uint64_t kNasty[] = {0, 1, 64, 0x7fffffff, 0xffffffff, ~uint64_t{0}, uint64_t{1} << 63, kMostBytes};
      for (size_t changes = below(3); changes > 0; changes--) {
        const uint64_t value = kNasty[below(std::size(kNasty))];
        const size_t width = size_t{1} << below(4), at = below(std::min(bytes.size(), kPrefix) / width) * width;
        std::memcpy(bytes.data() + at, &value, width);
      }
      if (below(8) == 0) bytes.resize(below(2 * bytes.size()));
      const grpc::Slice slice(bytes);
      pieces.emplace_back(&slice, 1);
      if (below(16) == 0) pieces.push_back(pieces.back());
    }
    return pieces;
  }

 private:
  std::mt19937_64 random_;
};

/// The memory of a worker, of which requests ask for a part.
struct Asking {
  static constexpr size_t kFlat = 4096, kStaging = 2048;
  Asking() : plot(shm::Plot::plan(1, 0, kFlat, 4, kStaging)), memory(Segment::create(plot.total), plot) {
    std::memset(memory.parameters(), 0x11, kFlat);
    std::memset(memory.gradients(), 0x11, kFlat);
    std::memset(memory.staging(), 0x11, kStaging);
  }
  static std::optional<Request> find(uint64_t id) {
    if (id == 7) return Request{.id = 7, .verb = Verb::pull, .begin = 1024, .bytes = 512};
    if (id == 8) return Request{.id = 8, .verb = Verb::sparse_pull, .version = 4, .bytes = 32, .extra = 256};
    return std::nullopt;
  }
  /// But for what was asked for: 512 bytes of parameters, and the staging area from 256 on.
  bool untouched() const {
    const auto same = [](const std::byte* from, size_t bytes) {
      return std::all_of(from, from + bytes, [](std::byte byte) { return byte == std::byte{0x11}; });
    };
    return same(memory.gradients(), kFlat) && same(memory.parameters(), 1024) &&
           same(memory.parameters() + 1536, kFlat - 1536) && same(memory.staging(), 256);
  }
  shm::Plot plot;
  shm::Memory memory;
};

TEST(PiecesFuzz, AnArrivalWritesOnlyWhereSomethingWasAskedFor) {
  Asking asking;
  Mischief mischief(20261119);
  const auto answer = [](Verb verb, uint64_t id, const std::vector<std::byte>& data, Status status = Status::ok) {
    return compose({.head = {.kind = Kind::reply},
                    .reply = {.id = id, .verb = verb, .status = status, .begin = 1024, .bytes = data.size()},
                    .data = data});
  };
  const auto right = numbered(512), rows = numbered(300), words = numbered(40), large = numbered(kPiece + 100);
  const std::vector<Pieces> good = {answer(Verb::pull, 7, right),
                                    answer(Verb::sparse_pull, 8, rows),
                                    answer(Verb::status, 9, words),
                                    answer(Verb::push, 7, words, Status::invalid),
                                    answer(Verb::show_state, 8, rows),
                                    answer(Verb::pull, 6, right),
                                    compose({.head = {.kind = Kind::welcome}, .data = words})};
  const Pieces long_one = answer(Verb::explain, 9, large);
  size_t complete = 0, faults = 0;
  for (int i = 0; i < 100'000;) {
    Arrival arrival;
    for (int frames = 0; frames < 4; frames++) {  // one after another, as on a stream, until one is wrong
      const Pieces& one = mischief.below(500) == 0 ? long_one : good[mischief.below(good.size())];
      bool wrong = false;
      for (const grpc::ByteBuffer& piece : mischief.damaged(one)) {
        i++;
        wrong = !arrival.take(piece, asking.memory, Asking::find).empty();
        if (wrong) break;
        complete += arrival.complete();
      }
      faults += wrong;
      if (wrong) break;
    }
    if (i % 64 == 0) ASSERT_TRUE(asking.untouched()) << i;
  }
  EXPECT_TRUE(asking.untouched());
  EXPECT_GT(complete, 20'000u);
  EXPECT_GT(faults, 10'000u);
}

}  // namespace
}  // namespace trireme::ps::network
