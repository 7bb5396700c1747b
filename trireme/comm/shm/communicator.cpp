#include <trireme/comm/shm/communicator.h>

#include <array>
#include <cstring>
#include <trireme/base/error.h>
#include <trireme/space/kernels.h>
#include <trireme/space/layout.h>
#include <trireme/space/range.h>

namespace trireme::comm::shm {
namespace {

constexpr int kMaxRanks = 256;
constexpr size_t kLetterBytes = 1 << 16;
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
    fail<InvalidArgument>("stage_bytes must be a multiple of {} and at least that much per rank, not {}", space::kLine, options.stage_bytes);
  return options;
}

const void* const* as_sources(const Pointers& pointers) { return const_cast<const void* const*>(pointers.data()); }

}  // namespace

/// A one-way channel between two ranks: two letters in turn, so that one is written while the other is read.
struct Communicator::Mail {
  struct alignas(64) Letter {
    size_t count;  // elements of the whole message
    DType type;
    char name[kNameBytes];
    std::byte data[kLetterBytes];
  };
  alignas(64) std::atomic<uint32_t> posted;
  alignas(64) std::atomic<uint32_t> taken;
  Letter letters[2];
};

Communicator::Communicator(std::shared_ptr<Segment> segment, int rank, int ranks, Options options)
    : segment_(std::move(segment)), options_(checked(options, ranks)), rounds_(segment_, 0, rank, ranks, options.timeout), cursor_(Rounds::bytes(ranks)) {
  stages_ = allocate(2 * options_.stage_bytes, "the ranks' staging buffers");
  const SharedBlock mails = allocate(sizeof(Mail) * static_cast<size_t>(ranks), "the ranks' mailboxes");
  mails_ = mails.parts[0];
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
  for (int r = 0; r < size(); r++) data[static_cast<size_t>(r)] = segment_->at(rounds_.offset_of(r, round)) + slice.begin;
  space::kernels().reduce(type, op, data.data(), size(), as_sources(data), size(), slice.size() / width);
}

void Communicator::allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
  complete_open();
  if (size() == 1) return;
  const uint64_t offset = locate(data);
  if (offset == kPrivate) return allreduce_staged(static_cast<std::byte*>(data), count, type, op, name);
  Fingerprint what = about(Kind::allreduce, count, type, name);
  what.op = op;
  const uint32_t round = rounds_.arrive(what, offset, name);
  rounds_.await_arrivals(round);
  for (int r = 0; r < size(); r++) {
    if (rounds_.offset_of(r, round) != kPrivate) continue;
    rounds_.finish(round);
    return allreduce_staged(static_cast<std::byte*>(data), count, type, op, name);  // as the others do; see there
  }
  reduce_slice(round, count, type, op);
  rounds_.finish(round);
  rounds_.await_finished(round);
}

/// Private memory. The first round also tells whether everybody is private; if not, it only served to find that out, and all start over.
void Communicator::allreduce_staged(std::byte* data, size_t count, DType type, Op op, std::string_view name) {
  const size_t width = size_of(type);
  Fingerprint what = about(Kind::allreduce, count, type, name);
  what.op = op;
  if (locate(data) == kPrivate) {
    const uint32_t round = rounds_.arrive(what, kPrivate, name);
    rounds_.await_arrivals(round);
    rounds_.finish(round);
  }
  Pointers sources;
  const auto copy_in = [&](std::byte* stage, size_t begin, size_t bytes) { copy_bytes(stage, data + begin, bytes); };
  const auto reduce_all = [&](size_t begin, size_t bytes) {
    for (int r = 0; r < size(); r++) sources[static_cast<size_t>(r)] = stage(r);
    void* const out = data + begin;
    space::kernels().reduce(type, op, &out, 1, as_sources(sources), size(), bytes / width);
  };
  what.part = 1;
  staged(what, count * width, options_.stage_bytes, name, copy_in, reduce_all);
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

std::unique_ptr<Work> Communicator::start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
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

/// Runs `bytes` through the stages in pieces: copy in, meet, consume. A stage is safe to overwrite two pieces later: whoever arrived at the piece
/// in between had consumed this one before.
template <class CopyIn, class Consume>
void Communicator::staged(Fingerprint what, size_t bytes, size_t chunk, std::string_view name, const CopyIn& copy_in, const Consume& consume) {
  complete_open();
  size_t begin = 0;
  do {
    const size_t length = std::min(chunk, bytes - begin);
    turn_ ^= 1;
    copy_in(stage(rank()), begin, length);
    const uint32_t round = rounds_.arrive(what, kPrivate, name);
    rounds_.await_arrivals(round);
    consume(begin, length);
    rounds_.finish(round);
    begin += length;
    what.part++;
  } while (begin < bytes);
}

void Communicator::reduce_scatter(const void* input, void* output, size_t count, DType type, Op op, std::string_view name) {
  const size_t width = size_of(type), block = count * width;
  const size_t chunk = options_.stage_bytes / static_cast<size_t>(size()) / space::kLine * space::kLine;
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  Fingerprint what = about(Kind::reduce_scatter, count, type, name);
  what.op = op;
  Pointers sources;
  staged(
      what, block, chunk, name,
      [&](std::byte* stage, size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++) copy_bytes(stage + static_cast<size_t>(r) * chunk, in + static_cast<size_t>(r) * block + begin, bytes);
      },
      [&](size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++) sources[static_cast<size_t>(r)] = stage(r) + static_cast<size_t>(rank()) * chunk;
        void* const to = out + begin;
        space::kernels().reduce(type, op, &to, 1, as_sources(sources), size(), bytes / width);
      });
}

void Communicator::all_gather(const void* input, void* output, size_t count, DType type, std::string_view name) {
  const size_t block = count * size_of(type);
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  staged(
      about(Kind::all_gather, count, type, name), block, options_.stage_bytes, name,
      [&](std::byte* stage, size_t begin, size_t bytes) { copy_bytes(stage, in + begin, bytes); },
      [&](size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++) copy_bytes(out + static_cast<size_t>(r) * block + begin, stage(r), bytes);
      });
}

void Communicator::broadcast(void* data, size_t count, DType type, int root, std::string_view name) {
  if (root < 0 || root >= size()) fail<InvalidArgument>("broadcast '{}' from rank {}, but there are ranks 0 to {}", name, root, size() - 1);
  Fingerprint what = about(Kind::broadcast, count, type, name);
  what.root = static_cast<uint8_t>(root);
  auto* bytes_of_data = static_cast<std::byte*>(data);
  staged(
      what, count * size_of(type), options_.stage_bytes, name,
      [&](std::byte* stage, size_t begin, size_t bytes) {
        if (rank() == root) copy_bytes(stage, bytes_of_data + begin, bytes);
      },
      [&](size_t begin, size_t bytes) {
        if (rank() != root) copy_bytes(bytes_of_data + begin, stage(root), bytes);
      });
}

void Communicator::all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) {
  const size_t block = count * size_of(type);
  const size_t chunk = options_.stage_bytes / static_cast<size_t>(size()) / space::kLine * space::kLine;
  const auto* in = static_cast<const std::byte*>(input);
  auto* out = static_cast<std::byte*>(output);
  staged(
      about(Kind::all_to_all, count, type, name), block, chunk, name,
      [&](std::byte* stage, size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++) copy_bytes(stage + static_cast<size_t>(r) * chunk, in + static_cast<size_t>(r) * block + begin, bytes);
      },
      [&](size_t begin, size_t bytes) {
        for (int r = 0; r < size(); r++) copy_bytes(out + static_cast<size_t>(r) * block + begin, stage(r) + static_cast<size_t>(rank()) * chunk, bytes);
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
  return reinterpret_cast<Mail*>(mails_)[static_cast<size_t>(from) * static_cast<size_t>(size()) + static_cast<size_t>(to)];
}

void Communicator::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  if (to < 0 || to >= size() || to == rank()) fail<InvalidArgument>("rank {} cannot send '{}' to rank {}", rank(), name, to);
  Mail& box = mail(rank(), to);
  const auto* bytes = static_cast<const std::byte*>(data);
  size_t begin = 0;
  do {
    const size_t length = std::min(kLetterBytes, count * size_of(type) - begin);
    const uint32_t number = box.posted.load();
    rounds_.await(to, [&] { return number - box.taken.load() < 2; }, [&] { return fmt::format("send '{}'", name); });
    Mail::Letter& letter = box.letters[number % 2];
    letter.count = count;
    letter.type = type;
    const size_t text = std::min(name.size(), kNameBytes - 1);
    std::memcpy(letter.name, name.data(), text);
    letter.name[text] = 0;
    copy_bytes(letter.data, bytes + begin, length);
    box.posted.store(number + 1);
    rounds_.ring();
    begin += length;
  } while (begin < count * size_of(type));
}

void Communicator::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  if (from < 0 || from >= size() || from == rank()) fail<InvalidArgument>("rank {} cannot receive '{}' from rank {}", rank(), name, from);
  Mail& box = mail(from, rank());
  auto* bytes = static_cast<std::byte*>(data);
  size_t begin = 0;
  do {
    const size_t length = std::min(kLetterBytes, count * size_of(type) - begin);
    const uint32_t number = box.taken.load();
    rounds_.await(from, [&] { return box.posted.load() != number; }, [&] { return fmt::format("receive '{}'", name); });
    const Mail::Letter& letter = box.letters[number % 2];
    if (letter.count != count || letter.type != type || name.substr(0, kNameBytes - 1) != letter.name)
      fail<Mismatch>("rank {} expects '{}' of {} × {} from rank {}, which sent '{}' of {} × {}", rank(), name, count, trireme::name_of(type), from,
                     letter.name, letter.count, trireme::name_of(letter.type));
    copy_bytes(bytes + begin, letter.data, length);
    box.taken.store(number + 1);
    rounds_.ring();
    begin += length;
  } while (begin < count * size_of(type));
}

}  // namespace trireme::comm::shm
