// label: unit
// Copy on write: readers and writers of one memory, in every order.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/space/originals.h>

namespace trireme::space {
namespace {

constexpr size_t kChunk = Originals::kChunk;

std::vector<std::byte> counted(size_t size, size_t seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; i++) bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) % 253);
  return bytes;
}

std::vector<std::byte> read(Originals& originals, size_t span) {
  std::vector<std::byte> bytes(originals.size_of(span));
  originals.read(span, 0, bytes);
  return bytes;
}

/// As an update does it.
void overwrite(Originals& originals, std::span<std::byte> memory, size_t begin, size_t size) {
  originals.save(memory.data() + begin, size);
  std::memset(memory.data() + begin, 0xee, size);
}

TEST(Originals, AreReadFromTheMemoryItselfUntilItIsWrittenTo) {
  std::vector<std::byte> memory = counted(5 * kChunk + 100, 1);
  const std::vector<std::byte> before = memory;
  Originals originals(2 * memory.size());
  EXPECT_EQ(originals.follow(memory), 0u);
  const std::vector<std::byte> small = counted(77, 9);
  EXPECT_EQ(originals.copy(small), 1u);
  originals.seal();
  EXPECT_EQ(read(originals, 0), before);
  EXPECT_EQ(originals.saved_bytes(), 0u);
  overwrite(originals, memory, 2 * kChunk - 4, 8);  // two chunks
  EXPECT_EQ(originals.saved_bytes(), 2 * kChunk);
  EXPECT_EQ(read(originals, 0), before);
  overwrite(originals, memory, 2 * kChunk, kChunk + 1);  // one of them again
  EXPECT_EQ(originals.saved_bytes(), 3 * kChunk);
  overwrite(originals, memory, 5 * kChunk + 99, 1);
  EXPECT_EQ(originals.saved_bytes(), 3 * kChunk + 100);
  EXPECT_EQ(read(originals, 0), before);
  originals.save_all();
  EXPECT_EQ(originals.saved_bytes(), memory.size());
  std::memset(memory.data(), 0, memory.size());
  EXPECT_EQ(read(originals, 0), before);
  EXPECT_EQ(read(originals, 1), small);
}

TEST(Originals, OfManySpansKeepThoseThatAreWrittenTo) {
  std::vector<std::byte> memory = counted(40 * kChunk, 2);
  const std::vector<std::byte> before = memory;
  Originals originals(memory.size());
  std::vector<size_t> begins = {30 * kChunk, 3 * kChunk, 8 * kChunk, 0, 20 * kChunk};  // in no order, with gaps
  for (const size_t begin : begins) originals.follow(std::span(memory).subspan(begin, 2 * kChunk + 64));
  originals.seal();
  overwrite(originals, memory, kChunk, 28 * kChunk);  // from the middle of one to a gap before the last
  for (size_t span = 0; span < begins.size(); span++) {
    const auto from = before.begin() + static_cast<ptrdiff_t>(begins[span]);
    EXPECT_EQ(read(originals, span), std::vector(from, from + static_cast<ptrdiff_t>(2 * kChunk + 64))) << span;
  }
  EXPECT_EQ(originals.saved_bytes(), 3 * (2 * kChunk + 64) + kChunk + 64);
}

TEST(Originals, AreNotSavedWhenTheyWereReleased) {
  std::vector<std::byte> memory = counted(4 * kChunk, 3);
  const std::vector<std::byte> before = memory;
  Originals originals(memory.size());
  originals.follow(memory);
  originals.seal();
  originals.release(0, 2 * kChunk - 1);  // the second is not all of it
  overwrite(originals, memory, 0, memory.size());
  EXPECT_EQ(originals.saved_bytes(), 3 * kChunk);
  std::vector<std::byte> some(3 * kChunk);
  originals.read(0, kChunk, some);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), before.begin() + kChunk));
  EXPECT_THROW(originals.read(0, kChunk - 1, some), InvalidArgument);
  EXPECT_THROW(originals.read(0, 2 * kChunk, some), InvalidArgument) << "beyond the end";
  originals.release(0, 3 * kChunk);
  EXPECT_FALSE(originals.released());
  originals.release(0, 4 * kChunk);
  EXPECT_TRUE(originals.released());
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kShadows = true;  // a sanitizer's memory grows with what is touched
#else
constexpr bool kShadows = false;
#endif

size_t resident_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

TEST(Originals, GiveTheirMemoryBackWhileTheyAreRead) {
  if (kShadows) GTEST_SKIP();
  constexpr size_t kSize = size_t{64} << 20;
  std::vector<std::byte> memory = counted(kSize, 4);
  Originals originals(kSize);
  originals.follow(memory);
  originals.seal();
  const size_t before = resident_bytes();
  originals.save_all();
  const size_t full = resident_bytes();
  EXPECT_GT(full, before + kSize * 9 / 10);
  originals.release(0, kSize / 2);
  EXPECT_LT(resident_bytes(), full - kSize * 4 / 10);
  originals.release(0, kSize);
  EXPECT_LT(resident_bytes(), full - kSize * 9 / 10);
}

/// What one kept, the next one uses: as soon as nobody reads it any more, and not before.
TEST(Originals, TakeOverMemoryThatIsNoLongerRead) {
  constexpr size_t kSize = size_t{32} << 20;
  std::vector<std::byte> memory = counted(kSize, 6);
  const std::vector<std::byte> first = memory;
  const auto after = [&](const Originals* before) {
    auto originals = std::make_unique<Originals>(kSize, before);
    originals->follow(memory);
    originals->seal();
    return originals;
  };
  auto one = after(nullptr);
  overwrite(*one, memory, 0, kSize);
  const std::vector<std::byte> second = memory;
  const auto two = after(one.get());
  overwrite(*two, memory, 0, kSize / 2);
  EXPECT_TRUE(read(*one, 0) == first) << "it was still there to be read";
  one->release_all();
  const size_t kept = resident_bytes();
  const auto three = after(one.get());
  one.reset();
  const std::vector<std::byte> third = memory;
  three->save_all();
  if (!kShadows) {
    EXPECT_LT(resident_bytes(), kept + kSize * 14 / 10) << "`third`, and no more";
  }
  two->save_all();
  std::memset(memory.data(), 0x11, kSize);
  EXPECT_TRUE(read(*two, 0) == second);
  EXPECT_TRUE(read(*three, 0) == third);
}

TEST(Originals, GetMemoryBeforeItIsNeeded) {
  if (kShadows) GTEST_SKIP();
  constexpr size_t kSize = size_t{32} << 20;
  std::vector<std::byte> memory = counted(kSize, 5);
  Originals originals(kSize);
  originals.follow(memory);
  originals.seal();
  const size_t before = resident_bytes();
  originals.prepare();
  const size_t prepared = resident_bytes();
  EXPECT_GT(prepared, before + kSize * 9 / 10);
  originals.save_all();
  EXPECT_LT(resident_bytes(), prepared + kSize / 10);
}

/// Several readers and writers at a time: every reader gets the bytes of the beginning.
TEST(Originals, AreTheSameForAllReadersWhileWritersWrite) {
  for (uint32_t seed = 0; seed < 20; seed++) {
    std::vector<std::byte> memory = counted(24 * kChunk, seed);
    const std::vector<std::byte> before = memory;
    Originals originals(memory.size());
    originals.follow(memory);
    originals.seal();
    std::vector<std::thread> threads;
    std::array<std::vector<std::byte>, 2> got;
    for (auto& bytes : got)
      threads.emplace_back([&originals, &bytes, size = memory.size()] {
        bytes.resize(size);
        const size_t piece = kChunk / 2 + 512;
        for (size_t at = 0; at < size; at += piece)
          originals.read(0, at, std::span(bytes).subspan(at, std::min(piece, size - at)));
      });
    for (size_t half : {0, 1})
      threads.emplace_back([&, half] {
        std::minstd_rand random(seed * 2 + static_cast<uint32_t>(half) + 1);
        for (int i = 0; i < 100; i++) {
          const size_t begin = half * memory.size() / 2 + random() % (memory.size() / 2);
          const size_t end = std::min((half + 1) * memory.size() / 2, begin + random() % (2 * kChunk));
          overwrite(originals, memory, begin, end - begin);
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& bytes : got) ASSERT_TRUE(bytes == before) << seed;
    ASSERT_FALSE(memory == before);
  }
}

/// A reader that lets go of what it has, or of all at once, in the middle of everything.
TEST(Originals, AreReleasedWhileWritersWrite) {
  for (uint32_t seed = 0; seed < 20; seed++) {
    std::vector<std::byte> memory = counted(24 * kChunk, seed);
    const std::vector<std::byte> before = memory;
    Originals originals(memory.size());
    originals.follow(memory);
    originals.seal();
    std::thread writer([&] {
      for (size_t at = memory.size(); at > 0; at -= kChunk / 4)
        overwrite(originals, memory, at - kChunk / 4, kChunk / 4);
    });
    std::vector<std::byte> bytes(kChunk);
    for (size_t at = 0; at < (seed % 2 == 0 ? memory.size() : memory.size() / 2); at += kChunk) {
      originals.read(0, at, bytes);
      originals.release(0, at + kChunk);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), before.begin() + static_cast<ptrdiff_t>(at))) << seed;
    }
    originals.release_all();
    EXPECT_TRUE(originals.released());
    writer.join();
    EXPECT_TRUE(originals.released());
  }
}

TEST(Originals, OfNothing) {
  Originals originals(0);
  originals.seal();
  originals.prepare();
  originals.save_all();
  EXPECT_TRUE(originals.released());
}

}  // namespace
}  // namespace trireme::space
