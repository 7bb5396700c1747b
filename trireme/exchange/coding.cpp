#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/exchange/coding.h>
#include <trireme/exchange/exchange.h>
#include <trireme/space/kernels.h>

namespace trireme::exchange {
namespace {

constexpr size_t kAligned = 8;                     // messages in a message
constexpr size_t kStripBytes = size_t{256} << 10;  // with a residual and two copies within a second-level cache

constexpr size_t aligned(size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

std::unique_ptr<compress::Codec> codec_for(const Options& options) {
  return options.own_codec ? options.own_codec() : compress::make_codec(options.codec, true);
}

bool by_matrix(const Options& options) { return !options.own_codec && options.codec.kind == compress::Spec::powersgd; }

/// Measures a scope, if somebody wants to know.
class Timed {
 public:
  Timed(metrics::Counter& seconds, bool wanted) : seconds_(wanted ? &seconds : nullptr) {
    if (seconds_ != nullptr) begin_ = Clock::now();
  }
  ~Timed() {
    if (seconds_ != nullptr) seconds_->add(seconds_since(begin_));
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  metrics::Counter* seconds_;
  Clock::time_point begin_{};
};

}  // namespace

bool is_coded(const space::Slot& slot, const Options& options) {
  if (slot.shape.size() < 2) return false;
  return std::none_of(options.codec_excludes.begin(), options.codec_excludes.end(),
                      [&](const std::string& pattern) { return fnmatch(pattern.c_str(), slot.name.c_str(), 0) == 0; });
}

void check_coding(const Options& options, const space::Layout& layout, bool one_machine, bool in_parts) {
  if (!options.codes()) return;
  const std::string what = options.own_codec ? "a codec" : fmt::format("compress {}", compress::name_of(options.codec));
  if (one_machine)
    fail<InvalidArgument>(
        "{} makes fewer bytes of what travels between machines, and all ranks are on one machine, where nothing "
        "travels: leave it out",
        what);
  if (in_parts)
    fail<InvalidArgument>(
        "{} is not there yet for models that ranks have in parts (tensor, pipeline): leave out one of "
        "them",
        what);
  for (const space::Slot& slot : layout.slots())
    if (slot.dtype != DType::f32)
      fail<InvalidArgument>("{} is for parameters of type f32, and '{}' is {}: leave it out, or train in f32", what,
                            slot.name, name_of(slot.dtype));
  if (std::none_of(layout.slots().begin(), layout.slots().end(),
                   [&](const space::Slot& slot) { return is_coded(slot, options); }))
    fail<InvalidArgument>("{} has nothing to do: every parameter is excluded, or has one dimension", what);
}

size_t Coding::piece_bytes(const Options& options, size_t usual) {
  return by_matrix(options) ? std::numeric_limits<size_t>::max() / 2 : usual;
}

Coding::Coding(const space::Layout& layout, std::span<const space::Bucket> buckets,
               std::span<const space::Range> slices, const Options& options, size_t piece_bytes,
               comm::network::Communicator& lane, metrics::Registry* registry)
    : lane_(lane),
      by_matrix_(by_matrix(options)),
      seed_(options.seed),
      piece_bytes_(piece_bytes),
      codec_(codec_for(options), layout.bytes(), options.on_nan == OnNan::skip),
      flags_(buckets.size()),
      count_(registry) {
  double before = 0, after = 0;
  for (size_t b = 0; b < buckets.size(); b++) {
    names_.push_back(buckets[b].name);
    flags_[b].resize(buckets[b].last - buckets[b].first);
    plan(layout, buckets[b], slices[b], options);
    before += static_cast<double>(slices[b].size());
    for (const Piece& piece : pieces_[b]) after += static_cast<double>(piece.messages.size());
  }
  if (before > 0) carried_ = after / before;
}

/// The pieces of a bucket's slice. The first one begins with flags and what is told.
void Coding::plan(const space::Layout& layout, const space::Bucket& bucket, space::Range slice,
                  const Options& options) {
  std::vector<Piece>& pieces = pieces_.emplace_back();
  const size_t beside = aligned(bucket.last - bucket.first) + sizeof(Told);
  for (size_t begin = slice.begin; begin < slice.end;) {
    const space::Range range{begin, begin + std::min(slice.end - begin, piece_bytes_)};
    Piece& piece = pieces.emplace_back();
    if (begin == slice.begin) piece.bytes = beside;
    for (size_t slot = bucket.first; slot < bucket.last; slot++)
      if (const space::Range part = intersect(range, layout[slot].range); !part.empty())
        plan_slot(piece, layout[slot], slot - bucket.first, part, is_coded(layout[slot], options));
    piece.messages.resize(piece.bytes * static_cast<size_t>(lane_.size()));
    begin = range.end;
  }
}

/// A part of a tensor. As a matrix it has whole rows; what is left of others, at both ends, travels as it is.
void Coding::plan_slot(Piece& piece, const space::Slot& slot, size_t number, space::Range part, bool coded) {
  part.end = std::min(part.end, slot.range.begin + slot.elements() * sizeof(float));  // without padding
  if (part.empty()) return;
  if (!coded) return add_item(piece, number, part, false, 1);
  if (!by_matrix_) {
    for (size_t begin = part.begin; begin < part.end; begin += kStripBytes)
      add_item(piece, number, {begin, std::min(part.end, begin + kStripBytes)}, true, 1);
    return;
  }
  const size_t row = slot.elements() / static_cast<size_t>(slot.shape[0]) * sizeof(float);
  const size_t first = (part.begin - slot.range.begin + row - 1) / row, last = (part.end - slot.range.begin) / row;
  const space::Range whole{slot.range.begin + first * row, slot.range.begin + last * row};
  if (first >= last) return add_item(piece, number, part, false, 1);
  add_item(piece, number, {part.begin, whole.begin}, false, 1);
  add_item(piece, number, whole, true, last - first);
  add_item(piece, number, {whole.end, part.end}, false, 1);
}

void Coding::add_item(Piece& piece, size_t number, space::Range range, bool coded, size_t rows) {
  if (range.empty()) return;
  const size_t elements = range.size() / sizeof(float);
  const compress::Strip strip{range.begin, rows, elements / rows, 0};
  const size_t bytes = coded ? codec_.bytes(strip) : range.size();
  piece.items.push_back({range, number, coded, strip, piece.bytes, bytes});
  piece.bytes += aligned(bytes);
}

comm::Started Coding::depart(size_t bucket, size_t number, const std::byte* gradients, std::span<const uint8_t> flags,
                             std::span<const double> told, int64_t step) {
  Piece& piece = pieces_[bucket][number];
  const std::span<std::byte> own = message(piece, lane_.rank());
  {
    const Timed timed(count_.seconds, count_.timed);
    if (number == 0) {  // later pieces may leave when the flags are those of all machines
      std::copy(flags.begin(), flags.end(), flags_[bucket].begin());
      std::memcpy(own.data(), flags.data(), flags.size());
      std::memset(own.data() + aligned(flags.size()), 0, sizeof(Told));
      std::memcpy(own.data() + aligned(flags.size()), told.data(), told.size_bytes());
    }
    encode(piece, gradients, flags_[bucket], step);
  }
  return lane_.start_all_gather(own.data(), piece.messages.data(), piece.bytes, DType::u8, names_[bucket]);
}

void Coding::encode(Piece& piece, const std::byte* gradients, std::span<const uint8_t> flags, int64_t step) {
  const std::span<std::byte> own = message(piece, lane_.rank());
  size_t before = 0;
  for (Item& item : piece.items) {
    const std::span<std::byte> to = own.subspan(item.at, item.bytes);
    before += item.range.size();
    if (!item.coded) {
      std::memcpy(to.data(), gradients + item.range.begin, item.bytes);
    } else if (flags[item.slot] == 0) {
      codec_.encode_nothing(item.strip, to);
      codec_.keep(item.strip);
    } else {
      item.strip.seed = seed_ * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(step) * 0xbf58476d1ce4e5b9 +
                        static_cast<uint64_t>(lane_.rank()) * 0x94d049bb133111eb + item.range.begin;
      codec_.encode(item.strip, reinterpret_cast<const float*>(gradients + item.range.begin), to);
    }
  }
  count_.before_bytes.add(static_cast<double>(before));
  count_.after_bytes.add(static_cast<double>(piece.bytes));
}

void Coding::land(size_t bucket, size_t number, std::byte* gradients, std::span<uint8_t> flags,
                  std::span<double> told) {
  const Timed timed(count_.seconds, count_.timed);
  Piece& piece = pieces_[bucket][number];
  if (number == 0) {
    std::fill(flags.begin(), flags.end(), uint8_t{0});
    std::fill(told.begin(), told.end(), 0.0);
  }
  for (int machine = 0; machine < lane_.size() && number == 0; machine++) {
    const std::byte* const at = message(piece, machine).data();
    for (size_t slot = 0; slot < flags.size(); slot++) flags[slot] |= static_cast<uint8_t>(at[slot]);
    for (size_t i = 0; i < told.size(); i++) {
      double one = 0;
      std::memcpy(&one, at + aligned(flags.size()) + i * sizeof one, sizeof one);
      told[i] += one;
    }
  }
  for (const Item& item : piece.items) {
    auto* const into = reinterpret_cast<float*>(gradients + item.range.begin);
    std::memset(into, 0, item.range.size());
    for (int machine = 0; machine < lane_.size(); machine++) {
      const std::span<const std::byte> from = message(piece, machine).subspan(item.at, item.bytes);
      if (item.coded)
        codec_.add(item.strip, from, into);
      else
        space::kernels().accumulate(DType::f32, into, from.data(), item.strip.count());
    }
  }
}

std::span<std::byte> Coding::residual(space::Range part) {
  const std::span<float> all = codec_.residual({part.begin, 1, part.size() / sizeof(float), 0});
  return std::as_writable_bytes(all).first(part.size());
}

void Coding::settle(bool applied) {
  codec_.settle(applied);
  const compress::ErrorFeedback::Balance& balance = codec_.balance();
  count_.given.set(balance.given);
  count_.sent.set(balance.sent);
  count_.residual.set(balance.residual);
}

}  // namespace trireme::exchange
