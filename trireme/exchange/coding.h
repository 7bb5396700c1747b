#pragma once
// A lane's slices as messages of a codec: what lies between a machine's sum of gradients and the wire.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/compress/parcel.h>
#include <trireme/exchange/options.h>
#include <trireme/exchange/outcome.h>
#include <trireme/metrics/metrics.h>
#include <trireme/space/layout.h>

namespace trireme::exchange {

/// What a rank with a lane counts of its codec. Written by the thread that trains.
struct CodingMetrics {
  explicit CodingMetrics(metrics::Registry* registry)
      : before_bytes(registry, {"codec_before_bytes", "bytes", "Of sums of gradients that this rank's codec took"}),
        after_bytes(registry, {"codec_after_bytes", "bytes", "That it made of them, for each of the other machines"}),
        seconds(registry, {"codec_seconds", "seconds", "In which it encoded and decoded"}),
        given(registry, {"codec_given", "gradient", "Sum over all elements and steps of what the codec was given"}),
        sent(registry, {"codec_sent", "gradient", "The same of what was sent, and applied"}),
        residual(registry, {"codec_residual", "gradient",
                            "The same of what is left for later: what was given is what was sent and this"}),
        timed(registry != nullptr && registry->timed()) {}
  void show(const compress::ErrorFeedback::Balance& balance) {
    given.set(balance.given);
    sent.set(balance.sent);
    residual.set(balance.residual);
  }
  metrics::Counter before_bytes, after_bytes, seconds;
  metrics::Gauge given, sent, residual;
  const bool timed;
};

/// Measures a scope, if somebody wants to know.
class Timed {
 public:
  Timed(metrics::Counter& seconds, bool wanted, double* more = nullptr)
      : seconds_(wanted ? &seconds : nullptr), more_(more) {
    if (seconds_ != nullptr) begin_ = Clock::now();
  }
  ~Timed() {
    if (seconds_ == nullptr) return;
    const double passed = seconds_since(begin_);
    seconds_->add(passed);
    if (more_ != nullptr) *more_ += passed;
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  metrics::Counter* seconds_;
  double* more_;
  Clock::time_point begin_{};
};

/// Each machine's part of a piece is encoded by itself, with what the codec has left out before (error feedback). All
/// machines get all messages, their own included, and add them up in f32 in the order of the machines: so all have the
/// same bits. What has one dimension (biases, norms) and what Options::codec_excludes names travels as it is, in the
/// same message. So do the flags of slots, and what ranks tell.
///
/// A tensor is encoded in strips that stay in a second-level cache; for codecs that go by matrices as many whole rows
/// as the slice has. Where they are is fixed from the start, and residuals lie there.
class Coding {
 public:
  /// `slices`: by bucket, the same on all machines of the lane. Not collective.
  Coding(const space::Layout& layout, std::span<const space::Bucket> buckets, std::span<const space::Range> slices,
         const Options& options, size_t piece_bytes, comm::network::Communicator& lane, metrics::Registry* registry,
         const compress::ErrorFeedback* same = nullptr);  // what it keeps is what this keeps

  /// How long the pieces of a slice are: those but the last.
  static size_t piece_bytes(const Options& options, size_t usual);
  /// Bytes that a lane carries for each byte of a gradient, as Communicator::carried_bytes() counts them.
  double carried() const { return carried_; }
  /// Of this machine's messages of a bucket.
  size_t bytes(size_t bucket) const;
  /// Seconds of encoding and decoding a bucket, so far, where that is measured.
  double seconds(size_t bucket) const { return bucket_seconds_[bucket]; }
  void measure() { timed_ = true; }
  /// From now on, how much of what was to be sent is in what is, by bucket (compress/codec.h); null: no more.
  void compare(std::vector<compress::ErrorFeedback::Likeness>* by_bucket) { likeness_ = by_bucket; }

  /// Goes on its way from `gradients`, the flat vector, which may change from then on. With a slice's first piece go
  /// `flags` of the bucket's slots, and `told`, if this lane carries that. Slots without a flag add nothing.
  comm::Started depart(size_t bucket, size_t piece, const std::byte* gradients, std::span<const uint8_t> flags,
                       std::span<const double> told, int64_t step);
  /// When it is here: the sum over machines, in `gradients`; with a first piece, flags of all of them and the sums of
  /// what they tell.
  void land(size_t bucket, size_t piece, std::byte* gradients, std::span<uint8_t> flags, std::span<double> told);
  /// The step is over, and was applied or not.
  void settle(bool applied);
  /// What it keeps for later.
  compress::ErrorFeedback& feedback() { return codec_; }

 private:
  struct Piece {
    compress::Parcel parcel;          // a machine's message
    std::vector<std::byte> messages;  // of all machines, one after another
  };
  void plan(const space::Layout& layout, const space::Bucket& bucket, space::Range slice, const Options& options);
  std::span<std::byte> message(Piece& piece, int machine) {
    return {piece.messages.data() + static_cast<size_t>(machine) * piece.parcel.bytes, piece.parcel.bytes};
  }
  void encode(Piece& piece, const std::byte* gradients, std::span<const uint8_t> flags, int64_t step);

  comm::network::Communicator& lane_;
  const uint64_t seed_;
  size_t piece_bytes_;
  compress::ErrorFeedback codec_;
  std::vector<std::vector<Piece>> pieces_;   // by bucket
  std::vector<std::vector<uint8_t>> flags_;  // by bucket: this machine's, of the slots
  std::vector<std::string> names_;           // by bucket
  std::vector<double> bucket_seconds_;       // by bucket
  std::vector<compress::ErrorFeedback::Likeness>* likeness_ = nullptr;
  double carried_ = 1;
  CodingMetrics count_;
  bool timed_;
};

/// The codec that was asked for, for error feedback; and whether it goes by whole rows.
std::unique_ptr<compress::Codec> codec_for(const Options& options);
bool by_matrix(const Options& options);

// What a message has before its items: a flag for each slot of its bucket, and what ranks tell.
constexpr size_t beside_bytes(size_t slots) { return compress::aligned(slots) + sizeof(Told); }
/// `told` may be empty: zeroes.
void put_beside(std::span<std::byte> message, std::span<const uint8_t> flags, std::span<const double> told);
/// Whatever one machine has a flag for has one; sums of what they tell, where `told` is not empty. Throws Corruption
/// for what is no flag, and has changed nothing then.
void add_beside(std::span<const std::byte> message, std::span<uint8_t> flags, std::span<double> told);

/// Throws InvalidArgument where this codec cannot be had: other types than f32, parts of a model, one machine.
void check_coding(const Options& options, const space::Layout& layout, bool one_machine, bool in_parts);

}  // namespace trireme::exchange
