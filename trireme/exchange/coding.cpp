#include <algorithm>
#include <cstring>
#include <limits>

#include <trireme/base/error.h>
#include <trireme/exchange/coding.h>

namespace trireme::exchange {
std::unique_ptr<compress::Codec> codec_for(const Options& options) {
  return options.own_codec ? options.own_codec() : compress::make_codec(options.codec, true);
}

bool by_matrix(const Options& options) { return !options.own_codec && options.codec.by_matrix(); }

void put_beside(std::span<std::byte> message, std::span<const uint8_t> flags, std::span<const double> told) {
  std::byte* const numbers = message.data() + compress::aligned(flags.size());
  std::memcpy(message.data(), flags.data(), flags.size());
  std::memset(numbers, 0, sizeof(Told));
  if (!told.empty()) std::memcpy(numbers, told.data(), told.size_bytes());
}

void add_beside(std::span<const std::byte> message, std::span<uint8_t> flags, std::span<double> told) {
  const auto theirs = message.first(flags.size());
  const auto wrong = std::find_if(theirs.begin(), theirs.end(), [](std::byte flag) { return flag > std::byte{1}; });
  if (wrong != theirs.end())
    fail<Corruption>("a machine's message has {} where a flag of a parameter belongs", static_cast<int>(*wrong));
  for (size_t slot = 0; slot < flags.size(); slot++) flags[slot] |= static_cast<uint8_t>(theirs[slot]);
  for (size_t i = 0; i < told.size(); i++) {
    double one = 0;
    std::memcpy(&one, message.data() + compress::aligned(flags.size()) + i * sizeof one, sizeof one);
    told[i] += one;
  }
}

void check_coding(const Options& options, const space::Layout& layout, bool one_machine, bool in_parts) {
  if (!options.codes()) return;
  const std::string what = what_codes(options);
  if (one_machine && options.chooses()) return;  // and none is what it chooses
  if (options.chooses()) check_choosing(options);
  if (one_machine && !options.sync.pushes())  // servers may be elsewhere
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
  if (!options.chooses() && std::none_of(layout.slots().begin(), layout.slots().end(), [&](const space::Slot& slot) {
        return compress::is_coded(slot, options.codec_excludes);
      }))
    fail<InvalidArgument>("{} has nothing to do: every parameter is excluded, or has one dimension", what);
}

size_t Coding::piece_bytes(const Options& options, size_t usual) {
  return by_matrix(options) ? std::numeric_limits<size_t>::max() / 2 : usual;
}

Coding::Coding(const space::Layout& layout, std::span<const space::Bucket> buckets,
               std::span<const space::Range> slices, const Options& options, size_t piece_bytes,
               comm::network::Communicator& lane, metrics::Registry* registry, const compress::ErrorFeedback* same)
    : lane_(lane),
      seed_(options.seed),
      piece_bytes_(piece_bytes),
      codec_(same != nullptr
                 ? compress::ErrorFeedback(codec_for(options), *same)
                 : compress::ErrorFeedback(codec_for(options), layout.bytes(), options.on_nan == OnNan::skip)),
      flags_(buckets.size()),
      bucket_seconds_(buckets.size()),
      count_(registry),
      timed_(count_.timed) {
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
  const size_t beside = beside_bytes(bucket.last - bucket.first);
  const compress::Packing packing{codec_, by_matrix(options), options.codec_excludes};
  for (size_t begin = slice.begin; begin < slice.end;) {
    const space::Range range{begin, begin + std::min(slice.end - begin, piece_bytes_)};
    Piece& piece = pieces.emplace_back();
    piece.parcel = plan_parcel(layout, bucket.first, bucket.last, range, packing, begin == slice.begin ? beside : 0);
    piece.messages.resize(piece.parcel.bytes * static_cast<size_t>(lane_.size()));
    begin = range.end;
  }
}

comm::Started Coding::depart(size_t bucket, size_t number, const std::byte* gradients, std::span<const uint8_t> flags,
                             std::span<const double> told, int64_t step) {
  Piece& piece = pieces_[bucket][number];
  const std::span<std::byte> own = message(piece, lane_.rank());
  {
    const Timed timed(count_.seconds, timed_, &bucket_seconds_[bucket]);
    if (number == 0) {  // later pieces may leave when the flags are those of all machines
      std::copy(flags.begin(), flags.end(), flags_[bucket].begin());
      put_beside(own, flags, told);
    }
    codec_.compare(likeness_ != nullptr ? &(*likeness_)[bucket] : nullptr);
    encode(piece, gradients, flags_[bucket], step);
  }
  return lane_.start_all_gather(own.data(), piece.messages.data(), piece.parcel.bytes, DType::u8, names_[bucket]);
}

void Coding::encode(Piece& piece, const std::byte* gradients, std::span<const uint8_t> flags, int64_t step) {
  compress::encode(piece.parcel, codec_, gradients, flags, compress::seed_of(seed_, step, lane_.rank()),
                   message(piece, lane_.rank()));
  size_t before = 0;
  for (const compress::Parcel::Item& item : piece.parcel.items) before += item.range.size();
  count_.before_bytes.add(static_cast<double>(before));
  count_.after_bytes.add(static_cast<double>(piece.parcel.bytes));
}

void Coding::land(size_t bucket, size_t number, std::byte* gradients, std::span<uint8_t> flags,
                  std::span<double> told) {
  const Timed timed(count_.seconds, timed_, &bucket_seconds_[bucket]);
  Piece& piece = pieces_[bucket][number];
  if (number == 0) {
    std::fill(flags.begin(), flags.end(), uint8_t{0});
    std::fill(told.begin(), told.end(), 0.0);
  }
  for (int machine = 0; machine < lane_.size() && number == 0; machine++)
    add_beside(message(piece, machine), flags, told);
  for (const compress::Parcel::Item& item : piece.parcel.items) {
    std::memset(gradients + item.range.begin, 0, item.range.size());
    for (int machine = 0; machine < lane_.size(); machine++)
      compress::add(item, codec_, message(piece, machine), gradients);
  }
}

size_t Coding::bytes(size_t bucket) const {
  size_t bytes = 0;
  for (const Piece& piece : pieces_[bucket]) bytes += piece.parcel.bytes;
  return bytes;
}

void Coding::settle(bool applied) {
  codec_.settle(applied);
  count_.show(codec_.balance());
}

}  // namespace trireme::exchange
