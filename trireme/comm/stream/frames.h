#pragma once
// What ranks say to each other over an encrypted connection: frames, each a head and so many bytes.
//
// A connection carries one direction's data. It begins with a greeting (hello, and the verdict on it); then `data` goes
// one way and `grant` the other. A short message is sent at once, and waits with its receiver until somebody asks for
// it. A long one waits with its sender until its receive was posted, which a grant says: so nobody has to keep much,
// and no message stands in the way of another. Messages of one tag keep their order.
//
// Numbers are little-endian. All that is here is pure: what comes from others is looked at before it is believed.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme::comm::stream {

enum class Part : uint32_t { hello = 1, verdict = 2, data = 3, grant = 4 };

constexpr size_t kHeadBytes = 16;
constexpr uint32_t kTags = 32768;
constexpr size_t kShort = 64 << 10;         // bytes of a message that nobody has to ask for
constexpr size_t kMostGreeting = 4096;      // bytes of a hello or a verdict
constexpr size_t kMostUnasked = 256 << 20;  // bytes of short messages that wait for their receives, of one peer

struct Head {
  Part part = Part::data;
  uint32_t tag = 0;
  uint64_t bytes = 0;  // that follow; of a grant: none
};

std::array<std::byte, kHeadBytes> encode(const Head& head);
/// Throws Corruption for what no sender of ours writes.
Head decode(std::span<const std::byte, kHeadBytes> bytes);

using Proof = std::array<std::byte, 32>;

/// Who wants to send whom, in which group. The proof is of the job's token, and good for this connection alone.
struct Hello {
  uint32_t from = 0, to = 0, size = 0;
  std::string job;      // its digest: two jobs may have one token
  std::string meeting;  // with the epoch in it
  Proof proof{};
  /// What the proof is about.
  std::string claim() const;
};

std::string encode(const Hello& hello);
/// Throws Corruption.
Hello decode_hello(std::string_view bytes);

/// The answer. Whoever accepts proves that it has the token, too.
struct Verdict {
  Proof proof{};
  std::string refusal;  // "": welcome
};

std::string encode(const Verdict& verdict);
/// Throws Corruption.
Verdict decode_verdict(std::string_view bytes);

/// Why `hello` is not for a rank that expects others like `own`, as the rest of a sentence about its sender; "": it is.
/// Proofs are not looked at.
std::string refusal(const Hello& hello, const Hello& own);

/// A head and what follows, for what is short enough to be kept as a whole.
class Parcel {
 public:
  /// Where the next bytes go; empty when it is complete.
  std::span<std::byte> room();
  /// So many of them have come. Throws Corruption when the head is of another part, or claims too much.
  void filled(size_t bytes, Part expected);
  bool complete() const { return got_ == kHeadBytes + body_.size() && got_ > 0; }
  std::string_view body() const { return {reinterpret_cast<const char*>(body_.data()), body_.size()}; }

 private:
  std::array<std::byte, kHeadBytes> head_{};
  std::string body_;
  size_t got_ = 0;
};

}  // namespace trireme::comm::stream
