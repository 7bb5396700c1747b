#pragma once
// How a part of a gradient becomes fewer bytes, and these a gradient again.
//
// A codec encodes one *strip* at a time: elements of one tensor that lie one behind another. What it makes of them is
// a *message*, whose size the strip alone decides, so that whoever receives it knows how much to wait for. Decoding
// adds: a sum over senders is made by adding their messages to one vector, one after another, in f32. The bytes say all
// that decoding needs, and the same bytes give the same bits on every machine.
//
// A message begins with a header of eight bytes. Its state says what follows: values; nothing (the sender had no
// gradient, and adds nothing); or that the values were not finite, which makes every element NaN wherever it is
// decoded, so that whoever looks for NaN finds it on all machines alike.
//
// Whoever decodes may be sent anything. A message of the wrong size or kind, indices out of range or out of order,
// scales that are no numbers: Corruption, before an element has changed.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <trireme/compress/spec.h>
#include <trireme/space/range.h>

namespace trireme::compress {

/// Elements that are encoded together.
struct Strip {
  size_t place = 0;  // where it begins in the flat space, in bytes: what a codec remembers is kept under this
  size_t rows = 1;   // as a matrix, row by row; what is no matrix has one row
  size_t columns = 0;
  uint64_t seed = 0;  // of what is left to chance in encoding: another one for each step, place and sender
  size_t count() const { return rows * columns; }
};

/// Not thread-safe. Decoding changes nothing in it but memory that is used again.
class Codec {
 public:
  static constexpr size_t kHeader = 8;
  static constexpr size_t kMostElements = size_t{1} << 31;

  virtual ~Codec() = default;

  /// Of a message of this strip.
  size_t bytes(const Strip& strip) const { return kHeader + body_bytes(strip); }
  /// Fills `message`, which has bytes(strip). Returns false when the values were not finite, which the message says.
  bool encode(const Strip& strip, const float* values, std::span<std::byte> message);
  /// A message that adds nothing.
  void encode_nothing(const Strip& strip, std::span<std::byte> message) const;
  /// into[i] += what the message says of element i. Throws Corruption, and has changed nothing then.
  void add(const Strip& strip, std::span<const std::byte> message, float* into);

 protected:
  /// Tells messages of one codec from another's; the settings of both sides are the same.
  virtual uint8_t kind() const = 0;
  virtual size_t body_bytes(const Strip& strip) const = 0;
  /// False: they are not finite, and whatever was written does not count. Nothing is remembered then.
  virtual bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) = 0;
  /// As add(): it checks before it changes anything.
  virtual void add_body(const Strip& strip, std::span<const std::byte> body, float* into) = 0;

 private:
  friend class ErrorFeedback;
};

/// Remembers what a codec has left out, and adds it to what is encoded next: the sum of all messages stays within one
/// residual of the sum of all that was given, however coarse the codec is. What is remembered lies where the elements
/// do: at Strip::place of a vector as long as the flat space. Only memory that was used is taken from the system.
class ErrorFeedback final : public Codec {
 public:
  /// `undo`: what a step has changed counts only after settle(true). That takes a second vector.
  ErrorFeedback(std::unique_ptr<Codec> codec, size_t flat_bytes, bool undo = false);
  /// Around another codec, remembers the same as `other`: what one has left out, the next one adds. One of them is
  /// asked to settle().
  ErrorFeedback(std::unique_ptr<Codec> codec, const ErrorFeedback& other);
  ~ErrorFeedback() override;

  /// With `undo`: a strip stays as it is in this step. Otherwise that is so by itself.
  void keep(const Strip& strip);
  /// After a step in which every strip was encoded or kept, with `undo`: false takes all of it back.
  void settle(bool applied);
  /// Nothing is remembered any more.
  void forget();
  /// What is remembered of a strip that travels as it is is added to it, and is no more: state of another layout may
  /// have some there.
  void add_rest(const Strip& strip, float* values);
  /// As of the last settle(), or encode() without `undo`.
  std::span<float> residual(const Strip& strip) const;
  std::span<std::byte> residual(space::Range part) const {
    return std::as_writable_bytes(residual(Strip{part.begin, 1, part.size() / sizeof(float), 0})).first(part.size());
  }

  /// What went in, what went out, and what is left: Σ given = Σ sent + Σ residual − residual at first, up to rounding.
  /// Elements are summed in f64, of all strips that were encoded; steps that were taken back do not count.
  struct Balance {
    double given = 0, sent = 0, residual = 0;
    double error() const { return given - sent - residual; }
  };
  const Balance& balance() const;

  /// How much of what was to be sent is in what is sent, summed over elements in f64.
  struct Likeness {
    double product = 0, wanted = 0, sent = 0;  // of both; squares of each
  };
  /// Adds to it what is encoded from now on, at the cost of one more pass; null: no more.
  void compare(Likeness* likeness) { likeness_ = likeness; }

 protected:
  uint8_t kind() const override { return codec_->kind(); }
  size_t body_bytes(const Strip& strip) const override { return codec_->body_bytes(strip); }
  bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) override;
  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    codec_->add_body(strip, body, into);
  }

 private:
  struct Memory;
  float* at(int copy, const Strip& strip) const;
  Balance& counted() const;
  std::unique_ptr<Codec> codec_;
  std::shared_ptr<Memory> memory_;
  Likeness* likeness_ = nullptr;
};

/// A codec by its name; null for none. `feedback`: it will be wrapped in ErrorFeedback, which needs a codec that makes
/// what is left smaller; without, randomk is unbiased instead.
std::unique_ptr<Codec> make_codec(const Spec& spec, bool feedback);

}  // namespace trireme::compress
