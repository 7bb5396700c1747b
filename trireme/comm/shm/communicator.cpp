#include <array>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/space/kernels.h>
#include <trireme/space/layout.h>
#include <trireme/space/range.h>

namespace trireme::comm::shm {
namespace {

constexpr int kMaxRanks = 256;
constexpr size_t kLetterRoom = 1 << 19, kLeastLetter = 1 << 10,
                 kMostLetter = 1 << 16;  // bytes: of one rank's letters of each kind, of one letter
using Pointers = std::array<void*, kMaxRanks>;

Fingerprint about(Kind kind, size_t count, DType type, std::string_view name) {
  return {.kind = kind, .dtype = type, .count = count, .name = space::hash_text(name)};
}

/// memcpy that takes null pointers when there is nothing to copy.
void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

Options checked(Options options, int ranks) {
  if (ranks > kMaxRanks) fail<InvalidArgument>("at most {} ranks per machine, not {}", kMaxRanks, ranks);
  if (options.stage_bytes < space::kLine * static_cast<size_t>(ranks) || options.stage_bytes % space::kLine != 0)
    fail<InvalidArgument>("stage_bytes must be a multiple of {} and at least that much per rank, not {}", space::kLine,
                          options.stage_bytes);
  return options;
}

const void* const* as_sources(const Pointers& pointers) { return const_cast<const void* const*>(pointers.data()); }

}  // namespace

/// A one-way channel between two ranks: two letters in turn, so that one is written while the other is read. Their
/// bytes follow in memory.
struct alignas(64) Communicator::Mail {
  struct alignas(64) Head {
    size_t count;  // elements of the whole message
    DType type;
    char name[kNameBytes];
  };
  alignas(64) std::atomic<uint32_t> posted;
  alignas(64) std::atomic<uint32_t> taken;
  Head heads[2];

  std::byte* letter(uint32_t number, size_t size) { return reinterpret_cast<std::byte*>(this + 1) + number % 2 * size; }
};

Communicator::Communicator(std::shared_ptr<Segment> segment, int rank, int ranks, Options options)
    : segment_(std::move(segment)),
      options_(checked(std::move(options), ranks)),
      rounds_(segment_, 0, rank, ranks, options_.timeout, options_.names, options_.timeout_setting, options_.registry),
      cursor_(Rounds::bytes(ranks)) {
  stages_ = allocate(kStages * options_.stage_bytes, "the ranks' staging buffers");
  letter_bytes_ =
      std::clamp(kLetterRoom / static_cast<size_t>(ranks) / space::kLine * space::kLine, kLeastLetter, kMostLetter);
  mails_ = allocate((sizeof(Mail) + 2 * letter_bytes_) * static_cast<size_t>(ranks), "the ranks' mailboxes");
}

// ---- memory ----

SharedBlock Communicator::allocate(size_t bytes, const char* purpose) {
  complete_open();
  const size_t stride = round_up(bytes, kPage);
  const Fingerprint what = about(Kind::allocate, bytes, DType::u8, purpose);
  const uint32_t agreed = rounds_.arrive(what, kPrivate, purpose);
  rounds_.await_arrivals(agreed);
  rounds_.finish(agreed);
  std::byte* base = segment_->map(cursor_, std::max(kPage, stride * static_cast<size_t>(size())), purpose);
  cursor_ += std::max(kPage, stride * static_cast<size_t>(size()));
  barrier(purpose);
  SharedBlock block{.parts = {}, .bytes = bytes};
  for (int r = 0; r < size(); r++) block.parts.push_back(base + stride * static_cast<size_t>(r));
  return block;
}

// ---- allreduce ----

void Communicator::reduce_slice(uint32_t round, size_t count, DType type, Op op) {
  const size_t width = size_of(type);
  const space::Range slice = space::part_of({0, count * width}, rank(), size());
  if (slice.empty() || size() == 1) return;
  Pointers data;
  for (int r = 0; r < size(); r++)
    data[static_cast<size_t>(r)] = segment_->at(rounds_.offset_of(r, round)) + slice.begin;
  space::kernels().reduce(type, op, data.data(), size(), as_sources(data), size(), slice.size() / width);
}

void Communicator::allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
  complete_open();
  if (size() == 1) return;
  auto* const begin = static_cast<std::byte*>(data);
  const space::Range all{0, count * size_of(type)}, first{0, std::min(all.end, options_.stage_bytes)};
  const uint64_t offset = locate(data);
  Fingerprint what = about(Kind::allreduce, count, type, name);
  what.op = op;
  if (offset == kPrivate) copy_bytes(stage(rank(), claim_stage()), begin, first.size());
  const uint32_t round = rounds_.arrive(what, offset, name, Then::wait);
  rounds_.await_arrivals(round);
  int in_segment = 0;
  for (int r = 0; r < size(); r++) in_segment += rounds_.offset_of(r, round) != kPrivate;
  if (in_segment == size()) {
    reduce_slice(round, count, type, op);
    rounds_.finish(round, Then::wait);
    return rounds_.await_finished(round);
  }
  // Everybody private: the first piece is staged already. Some of each: this round only served to find that out, and
  // all count the stage as used.
  if (offset != kPrivate) turn_++;
  const uint32_t turn = turn_ - 1;
  stage_round_[turn % kStages] = round;
  if (in_segment == 0) reduce_staged(begin, first.size(), turn, type, op);
  rounds_.finish(round);
  what.part = 1;
  const size_t done = in_segment == 0 ? first.end : 0;
  if (done < all.end || in_segment != 0) allreduce_staged(begin, {done, all.end}, what, name);
}

void Communicator::reduce_staged(std::byte* data, size_t bytes, uint32_t turn, DType type, Op op) {
  Pointers sources;
  for (int r = 0; r < size(); r++) sources[static_cast<size_t>(r)] = r == rank() ? data : stage(r, turn);
  void* const out = data;
  space::kernels().reduce(type, op, &out, 1, as_sources(sources), size(), bytes / size_of(type));
}

void Communicator::allreduce_staged(std::byte* data, space::Range bytes, Fingerprint what, std::string_view name) {
  staged(
      what, bytes, options_.stage_bytes, name,
      [&](std::byte* stage, size_t begin, size_t length) { copy_bytes(stage, data + begin, length); },
      [&](uint32_t turn, size_t begin, size_t length) {
        reduce_staged(data + begin, length, turn, what.dtype, what.op);
      });
}

class Communicator::Handle final : public Work {
 public:
  Handle(Communicator& group, uint32_t round) : group_(group), round_(round) {}
  bool test() override {
    group_.advance(false);
    return done();
  }
  void wait() override {
    while (!done()) group_.advance(true);
  }

 private:
  bool done() const { return group_.open_.empty() || static_cast<int32_t>(group_.open_.front().round - round_) > 0; }
  Communicator& group_;
  uint32_t round_;
};

std::unique_ptr<Work> Communicator::start_allreduce(void* data, size_t count, DType type, Op op,
                                                    std::string_view name) {
  const uint64_t offset = locate(data);
  if (offset == kPrivate && size() > 1)
    fail<InvalidArgument>("start_allreduce '{}' needs memory from allocate(); use allreduce for private memory", name);
  if (open_.size() >= kAhead / 2) complete_open();
  Fingerprint what = about(Kind::allreduce, count, type, name);
  what.op = op;
  what.part = kStarted;  // never takes the private path
  const uint32_t round = rounds_.arrive(what, offset, name);
  open_.push_back({round, count, type, op});
  return std::make_unique<Handle>(*this, round);
}

/// Moves the open allreduces as far as they go now; with `block`, until the oldest is complete.
void Communicator::advance(bool block) {
  if (block && !open_.empty() && !open_.front().reduced) rounds_.await_arrivals(open_.front().round);
  for (Open& open : open_) {  // slices as soon as everybody has arrived, in order
    if (open.reduced) continue;
    if (!rounds_.all_arrived(open.round)) break;
    reduce_slice(open.round, open.count, open.type, open.op);
    rounds_.finish(open.round);
    open.reduced = true;
  }
  while (!open_.empty() && open_.front().reduced) {
    if (block) rounds_.await_finished(open_.front().round);
    if (!rounds_.all_finished(open_.front().round)) return;
    open_.pop_front();
    block = false;
  }
}

void Communicator::complete_open() {
  while (!open_.empty()) advance(true);
}

// ---- through the stages ----

/// The turn of the next stage, when everybody has read what was in it.
uint32_t Communicator::claim_stage() {
  const uint32_t turn = turn_++;
  if (const auto& last = stage_round_[turn % kStages]) rounds_.await_finished(*last);
  return turn;
}

/// Runs a range of bytes through the stages in pieces: copy in and arrive, up to kLead pieces ahead of consuming, so
/// that ranks rarely wait for each other.
template <class CopyIn, class Consume>
void Communicator::staged(Fingerprint what, space::Range bytes, size_t chunk, std::string_view name,
                          const CopyIn& copy_in, const Consume& consume) {
  complete_open();
  struct Piece {
    uint32_t turn, round;
    size_t begin, length;
  };
  const size_t pieces = std::max<size_t>(1, (bytes.size() + chunk - 1) / chunk);  // an empty collective meets too
  std::array<Piece, kLead> ahead{};
  size_t issued = 0;
  for (size_t next = 0; next < pieces; next++) {
    for (; issued < std::min(pieces, next + kLead); issued++) {
      Piece& piece = ahead[issued % kLead];
      piece.begin = bytes.begin + issued * chunk;
      piece.length = std::min(chunk, bytes.end - piece.begin);
      piece.turn = claim_stage();
      copy_in(stage(rank(), piece.turn), piece.begin, piece.length);
      piece.round = rounds_.arrive(what, kPrivate, name);
      stage_round_[piece.turn % kStages] = piece.round;
      what.part++;
    }
    const Piece& piece = ahead[next % kLead];
    rounds_.await_arrivals(piece.round);
    consume(piece.turn, piece.begin, piece.length);
    rounds_.finish(piece.round);
  }
}

void Communicator::reduce_scatter(const void* input, void* output, size_t count, DType type, Op op,
                                  std::string_view name) {
  const size_t width = size_of(type), block = count * width;
  const size_t chunk = options_.stage_bytes / static_cast<size_t>(size()) / space::kLine * space::kLine;
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  Fingerprint what = about(Kind::reduce_scatter, count, type, name);
  what.op = op;
  Pointers sources;
  staged(
      what, {0, block}, chunk, name,
      [&](std::byte* stage, size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++)
          copy_bytes(stage + static_cast<size_t>(r) * chunk, in + static_cast<size_t>(r) * block + begin, bytes);
      },
      [&](uint32_t turn, size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++)
          sources[static_cast<size_t>(r)] = stage(r, turn) + static_cast<size_t>(rank()) * chunk;
        void* const to = out + begin;
        space::kernels().reduce(type, op, &to, 1, as_sources(sources), size(), bytes / width);
      });
}

void Communicator::all_gather(const void* input, void* output, size_t count, DType type, std::string_view name) {
  const size_t block = count * size_of(type);
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  staged(
      about(Kind::all_gather, count, type, name), {0, block}, options_.stage_bytes, name,
      [&](std::byte* stage, size_t begin, size_t bytes) { copy_bytes(stage, in + begin, bytes); },
      [&](uint32_t turn, size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++)
          copy_bytes(out + static_cast<size_t>(r) * block + begin, stage(r, turn), bytes);
      });
}

void Communicator::broadcast(void* data, size_t count, DType type, int root, std::string_view name) {
  if (root < 0 || root >= size())
    fail<InvalidArgument>("broadcast '{}' from rank {}, but there are ranks 0 to {}", name, root, size() - 1);
  Fingerprint what = about(Kind::broadcast, count, type, name);
  what.root = static_cast<uint8_t>(root);
  auto* bytes_of_data = static_cast<std::byte*>(data);
  staged(
      what, {0, count * size_of(type)}, options_.stage_bytes, name,
      [&](std::byte* stage, size_t begin, size_t bytes) {
        if (rank() == root) copy_bytes(stage, bytes_of_data + begin, bytes);
      },
      [&](uint32_t turn, size_t begin, size_t bytes) {
        if (rank() != root) copy_bytes(bytes_of_data + begin, stage(root, turn), bytes);
      });
}

void Communicator::all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) {
  const size_t block = count * size_of(type);
  const size_t chunk = options_.stage_bytes / static_cast<size_t>(size()) / space::kLine * space::kLine;
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  staged(
      about(Kind::all_to_all, count, type, name), {0, block}, chunk, name,
      [&](std::byte* stage, size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++)
          copy_bytes(stage + static_cast<size_t>(r) * chunk, in + static_cast<size_t>(r) * block + begin, bytes);
      },
      [&](uint32_t turn, size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++)
          copy_bytes(out + static_cast<size_t>(r) * block + begin, stage(r, turn) + static_cast<size_t>(rank()) * chunk,
                     bytes);
      });
}

void Communicator::barrier(std::string_view name) {
  complete_open();
  const uint32_t round = rounds_.arrive(about(Kind::barrier, 0, DType::u8, name), kPrivate, name);
  rounds_.await_arrivals(round);
  rounds_.finish(round);
}

// ---- point to point ----

Communicator::Mail& Communicator::mail(int from, int to) const {
  return *reinterpret_cast<Mail*>(mails_.parts[static_cast<size_t>(from)] +
                                  static_cast<size_t>(to) * (sizeof(Mail) + 2 * letter_bytes_));
}

void Communicator::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  if (to < 0 || to >= size() || to == rank())
    fail<InvalidArgument>("rank {} cannot send '{}' to rank {}", rank(), name, to);
  Mail& box = mail(rank(), to);
  const auto* bytes = static_cast<const std::byte*>(data);
  size_t begin = 0;
  do {
    const size_t length = std::min(letter_bytes_, count * size_of(type) - begin);
    const uint32_t number = box.posted.load();
    rounds_.await(
        to, [&] { return number - box.taken.load() < 2; }, [&] { return fmt::format("send '{}'", name); });
    Mail::Head& head = box.heads[number % 2];
    head.count = count;
    head.type = type;
    const size_t text = std::min(name.size(), kNameBytes - 1);
    std::memcpy(head.name, name.data(), text);
    head.name[text] = 0;
    copy_bytes(box.letter(number, letter_bytes_), bytes + begin, length);
    box.posted.store(number + 1);
    rounds_.ring();
    begin += length;
  } while (begin < count * size_of(type));
}

void Communicator::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  if (from < 0 || from >= size() || from == rank())
    fail<InvalidArgument>("rank {} cannot receive '{}' from rank {}", rank(), name, from);
  Mail& box = mail(from, rank());
  auto* bytes = static_cast<std::byte*>(data);
  size_t begin = 0;
  do {
    const size_t length = std::min(letter_bytes_, count * size_of(type) - begin);
    const uint32_t number = box.taken.load();
    rounds_.await(
        from, [&] { return box.posted.load() != number; }, [&] { return fmt::format("receive '{}'", name); });
    const Mail::Head& head = box.heads[number % 2];
    if (head.count != count || head.type != type || name.substr(0, kNameBytes - 1) != head.name)
      fail<Mismatch>("rank {} expects '{}' of {} × {} from rank {}, which sent '{}' of {} × {}", rank(), name, count,
                     trireme::name_of(type), from, head.name, head.count, trireme::name_of(head.type));
    copy_bytes(bytes + begin, box.letter(number, letter_bytes_), length);
    box.taken.store(number + 1);
    rounds_.ring();
    begin += length;
  } while (begin < count * size_of(type));
}

}  // namespace trireme::comm::shm
