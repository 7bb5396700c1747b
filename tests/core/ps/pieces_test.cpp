// label: unit grpc
// Frames that are cut into pieces and put together again.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace trireme::ps::network
