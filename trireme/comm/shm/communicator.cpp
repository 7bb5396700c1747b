#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>

#include <trireme/base/error.h>
#include <trireme/comm/shm/collectives.h>
#include <trireme/comm/shm/communicator.h>

namespace trireme::comm::shm {
namespace {

Options checked(Options options, int ranks) {
  if (ranks > kMaxRanks) fail<InvalidArgument>("at most {} ranks per machine, not {}", kMaxRanks, ranks);
  if (options.stage_bytes < space::kLine * static_cast<size_t>(ranks) || options.stage_bytes % space::kLine != 0)
    fail<InvalidArgument>("stage_bytes must be a multiple of {} and at least that much per rank, not {}", space::kLine,
                          options.stage_bytes);
  return options;
}

/// Memory that is read and written from end to end is 3 to 6 % faster with large pages. Where there are none it stays
/// as it is. Each rank sees to its share; a page stays near to who reserved it.
void enlarge_pages(std::byte* begin, size_t bytes, int rank, int ranks) {
  constexpr size_t kLargePage = 2 << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1
  const size_t blocks = bytes / kLargePage;
  const auto cut = [&](int r) { return blocks * static_cast<size_t>(r) / static_cast<size_t>(ranks) * kLargePage; };
  if (cut(rank) < cut(rank + 1)) madvise(begin + cut(rank), cut(rank + 1) - cut(rank), kCollapse);
}

/// Of those that this rank uses most.
size_t touched_bytes(const Communicator::Wish& wish) {
  size_t bytes = 0;
  for (const space::Range& range : wish.touched) bytes += range.size();
  return bytes;
}

/// What the other ranks hear when rank 0 got no memory for all.
[[noreturn]] void refuse_room(size_t bytes, const char* purpose) {
  fail<IoError>(
      "no room in shared memory for {}: {:.1f} MiB wanted, {:.1f} MiB free. Make it smaller, use fewer workers, or "
      "free memory on this machine{}",
      purpose, static_cast<double>(bytes) / (1 << 20), static_cast<double>(available_memory()) / (1 << 20),
      addresses_left() ? "; or raise 'ulimit -v', which limits the addresses of this process" : "");
}

}  // namespace

Communicator::Communicator(Spot spot, int rank, int ranks, Options options)
    : segment_(std::move(spot.segment)),
      options_(checked(std::move(options), ranks)),
      areas_(*segment_),
      rounds_(segment_, spot.offset, rank, ranks, options_.timeout, options_.names, options_.timeout_setting,
              options_.excuse, options_.registry) {
  options_.excuse = nullptr;  // it was for the start
  if (options_.group.empty()) options_.group = fmt::format("at {:x}", spot.offset);
  areas_.begin_behind(spot.offset + Rounds::bytes(ranks));
  const size_t stage = options_.stage_bytes;
  const auto own = [&](const char* what) { return options_.own.empty() ? "" : options_.own + what; };
  sequence_.emplace(rounds_, *segment_, allocate(Stages::bytes(stage), "the ranks' staging buffers", own("stages")),
                    stage);
  mail_.emplace(rounds_, allocate(Mail::bytes(ranks), "the ranks' mailboxes", own("mail")));
  rounds_.attend([this] {
    mail_->serve();
    return sequence_->attend();
  });
}

void Communicator::allow_down() {
  sequence_->add_down(allocate(Stages::bytes(options_.stage_bytes), "the ranks' staging buffers on the way down",
                               options_.own.empty() ? "" : options_.own + "down"));
}

/// Rank 0 claims memory, and all meet with what they think it is for: its offset.
template <class Claim>
uint64_t Communicator::agree_on_place(const Fingerprint& what, size_t bytes, const char* purpose, const Claim& claim) {
  if (sequence_) sequence_->complete();
  uint64_t offset = kPrivate;
  std::exception_ptr refused;
  if (rank() == 0) try {
      offset = claim();
    } catch (const Error&) {
      refused = std::current_exception();
    }
  const uint32_t round = rounds_.arrive(what, offset, purpose);
  rounds_.await_arrivals(round);
  offset = rounds_.offset_of(0, round);
  rounds_.finish(round);
  if (refused) std::rethrow_exception(refused);
  if (offset == kPrivate) refuse_room(bytes, purpose);
  return offset;
}

SharedBlock Communicator::map_parts(const Area& area, const char* purpose, Segment::Pages pages) {
  std::byte* base = segment_->attach(area.offset, area.total(), purpose, pages);
  const uint32_t round = rounds_.arrive(about(Kind::barrier, 0, DType::u8, purpose), kPrivate, purpose);
  rounds_.await_arrivals(round);
  rounds_.finish(round);
  SharedBlock block{.parts = {}, .bytes = area.bytes};
  for (int part = 0; part < area.parts; part++) block.parts.push_back(base + area.stride() * static_cast<size_t>(part));
  return block;
}

SharedBlock Communicator::allocate(size_t bytes, const char* purpose, const std::string& what) {
  if (options_.alone && !what.empty())
    return {.parts = {segment_->lend(std::max<size_t>(1, bytes), purpose)}, .bytes = bytes};
  Area area{0, bytes, size(), options_.epoch};
  const auto claim = [&] {
    if (what.empty()) return areas_.claim(area.total(), purpose);
    std::string name;
    int number = 0;
    do name = fmt::format("{}/{}/{}", options_.group, what, number++);
    while (areas_.find(name, options_.epoch));
    return areas_.room_for(name, options_.epoch) ? areas_.add(name, area, purpose).offset
                                                 : areas_.claim(area.total(), purpose);
  };
  area.offset = agree_on_place(about(Kind::allocate, bytes, DType::u8, purpose), area.total(), purpose, claim);
  return map_parts(area, purpose);
}

SharedBlock Communicator::take(const Wish& wish, const char* purpose) {
  constexpr uint64_t kSame = 1;  // pages are at even offsets
  Area area{0, wish.bytes, wish.parts, options_.epoch, wish.fingerprint};
  const std::string name = options_.group + "/" + wish.what;
  Fingerprint asked = about(Kind::allocate, wish.bytes, DType::u8, purpose);
  asked.part = static_cast<uint32_t>(wish.parts);
  const uint64_t place = agree_on_place(asked, area.total(), purpose, [&]() -> uint64_t {
    if (!areas_.room_for(name, options_.epoch)) return areas_.claim(area.total(), purpose);
    const Areas::Taken taken = areas_.take(name, area, wish.sparse ? touched_bytes(wish) : area.total(), purpose);
    if (wish.sparse) {
      segment_->lengthen(taken.area.offset + area.total(), purpose);
      if (taken.same) segment_->give_back(taken.area.offset, area.total());
    }
    return taken.area.offset + (taken.same && !wish.sparse ? kSame : 0);
  });
  const bool same = place % 2 == kSame;
  area.offset = place - place % 2;
  if (!same) reserve_touched(area, wish, purpose);
  if (wish.sparse) return map_parts(area, purpose, Segment::Pages::when_touched);
  if (!same) enlarge_pages(segment_->attach(area.offset, area.total(), purpose), area.total(), rank(), size());
  SharedBlock block = map_parts(area, purpose);
  if (same) zero_share(block);
  return block;
}

/// Each rank what it uses most, then the first one what is left: pages are near to who reserved them.
void Communicator::reserve_touched(const Area& area, const Wish& wish, const char* purpose) {
  std::vector<space::Range> mine = wish.touched;
  const auto own = static_cast<size_t>(rank());
  if (mine.empty() && !wish.sparse && wish.parts == size()) mine = {{own * area.stride(), (own + 1) * area.stride()}};
  uint64_t refused = 0;
  std::exception_ptr error;
  const auto reserve = [&](space::Range range) {
    const size_t begin = range.begin / kPage * kPage, end = std::min(area.total(), round_up(range.end, kPage));
    if (begin < end) segment_->reserve_now(area.offset + begin, end - begin, purpose);
  };
  for (const bool last : {false, true}) {
    if (!error) try {
        if (!last)
          for (const space::Range& range : mine) reserve(range);
        else if (rank() == 0 && !wish.sparse)
          reserve({0, area.total()});
      } catch (const Error&) {
        error = std::current_exception();
      }
    const uint32_t round =
        rounds_.arrive(about(Kind::barrier, 0, DType::u8, purpose), error ? kPrivate : uint64_t{0}, purpose);
    rounds_.await_arrivals(round);
    for (int peer = 0; peer < size(); peer++) refused += rounds_.offset_of(peer, round) == kPrivate ? 1 : 0;
    rounds_.finish(round);
    if (refused != 0) break;
  }
  if (refused == 0) return;
  if (rank() == 0) areas_.release(options_.group + "/" + wish.what, options_.epoch);
  if (error) std::rethrow_exception(error);
  refuse_room(area.total(), purpose);
}

/// This rank's share of memory that somebody has used before. Then all wait: nobody writes to what another still wipes.
void Communicator::zero_share(const SharedBlock& block) {
  const auto parts = static_cast<int>(block.parts.size());
  for (int part = rank() % parts; part < parts; part += size()) {
    const int sharers = parts < size() ? (size() - part + parts - 1) / parts : 1;
    const space::Range mine = space::part_of({0, block.bytes}, parts < size() ? rank() / parts : 0, sharers);
    std::memset(block.parts[static_cast<size_t>(part)] + mine.begin, 0, mine.size());
  }
  barrier("memory was wiped");
}

SharedBlock Communicator::keep(const char* name, size_t bytes, int parts) {
  Fingerprint what = about(Kind::allocate, bytes, DType::u8, name);
  what.part = static_cast<uint32_t>(parts);
  const uint64_t offset = agree_on_place(what, bytes * static_cast<size_t>(parts), name, [&]() -> uint64_t {
    return areas_.find(name) ? 0 : areas_.add(name, {0, bytes, parts}, name).offset;
  });
  const Area area = areas_.find(name).value();
  if (area.bytes != bytes || area.parts != parts)
    fail<Mismatch>("shared memory has '{}' as {} parts of {} bytes, and {} parts of {} bytes are asked for", name,
                   area.parts, area.bytes, parts, bytes);
  SharedBlock block = map_parts(area, name);
  block.found = offset == 0;  // where the directory is, and nothing else
  return block;
}

void Communicator::allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
  if (size() == 1) return sequence_->complete();
  Allreduce what(options_.stage_bytes, data, count, type, op, name);
  sequence_->run(what);
}

Started Communicator::start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
  return sequence_->start(std::make_unique<Allreduce>(options_.stage_bytes, data, count, type, op, name));
}

Started Communicator::start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                                           std::string_view name) {
  const Blocks blocks(counts.checked(size(), "reduce-scatter", name), size(), size_of(type));
  return sequence_->start(
      std::make_unique<ReduceScatter>(options_.stage_bytes, input, output, blocks, rank(), type, op, name));
}

Started Communicator::start_all_gather(const void* input, void* output, const Counts& counts, DType type,
                                       std::string_view name) {
  const Blocks blocks(counts.checked(size(), "all-gather", name), size(), size_of(type));
  return sequence_->start(std::make_unique<AllGather>(options_.stage_bytes, input, output, blocks, rank(), type, name));
}

Started Communicator::start_broadcast(void* data, size_t count, DType type, int root, std::string_view name) {
  if (root < 0 || root >= size())
    fail<InvalidArgument>("broadcast '{}' from rank {}, but there are ranks 0 to {}", name, root, size() - 1);
  return sequence_->start(std::make_unique<Broadcast>(options_.stage_bytes, data, count, type, root, rank(), name));
}

Started Communicator::start_all_to_all(const void* input, void* output, const Counts& sends, const Counts& receives,
                                       DType type, std::string_view name) {
  check_all_to_all(sends, receives, size(), name);
  return sequence_->start(
      std::make_unique<AllToAll>(options_.stage_bytes, input, output, sends, receives, size(), type, name));
}

Started Communicator::start_barrier(std::string_view name) { return sequence_->start(std::make_unique<Barrier>(name)); }

}  // namespace trireme::comm::shm
