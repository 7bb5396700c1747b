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
  areas_.begin_behind(spot.offset + Rounds::bytes(ranks));
  const size_t stage = options_.stage_bytes;
  sequence_.emplace(rounds_, *segment_, allocate(Stages::bytes(stage), "the ranks' staging buffers"), stage);
  mail_.emplace(rounds_, allocate(Mail::bytes(ranks), "the ranks' mailboxes"));
  rounds_.attend([this] {
    mail_->serve();
    return sequence_->attend();
  });
}

void Communicator::allow_down() {
  sequence_->add_down(allocate(Stages::bytes(options_.stage_bytes), "the ranks' staging buffers on the way down"));
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

SharedBlock Communicator::map_parts(const Area& area, const char* purpose) {
  std::byte* base = segment_->attach(area.offset, area.total(), purpose);
  const uint32_t round = rounds_.arrive(about(Kind::barrier, 0, DType::u8, purpose), kPrivate, purpose);
  rounds_.await_arrivals(round);
  rounds_.finish(round);
  SharedBlock block{.parts = {}, .bytes = area.bytes};
  for (int part = 0; part < area.parts; part++) block.parts.push_back(base + area.stride() * static_cast<size_t>(part));
  return block;
}

SharedBlock Communicator::allocate(size_t bytes, const char* purpose) {
  Area area{0, bytes, size()};
  area.offset = agree_on_place(about(Kind::allocate, bytes, DType::u8, purpose), area.total(), purpose,
                               [&] { return areas_.claim(area.total(), purpose); });
  return map_parts(area, purpose);
}

SharedBlock Communicator::keep(const char* name, size_t bytes, int parts) {
  Fingerprint what = about(Kind::allocate, bytes, DType::u8, name);
  what.part = static_cast<uint32_t>(parts);
  const uint64_t offset = agree_on_place(what, bytes * static_cast<size_t>(parts), name, [&]() -> uint64_t {
    return areas_.find(name) ? 0 : areas_.add(name, bytes, parts, name).offset;
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
