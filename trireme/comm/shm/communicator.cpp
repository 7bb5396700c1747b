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

}  // namespace

Communicator::Communicator(std::shared_ptr<Segment> segment, int rank, int ranks, Options options)
    : segment_(std::move(segment)),
      options_(checked(std::move(options), ranks)),
      rounds_(segment_, 0, rank, ranks, options_.timeout, options_.names, options_.timeout_setting),
      cursor_(Rounds::bytes(ranks)) {
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

SharedBlock Communicator::allocate(size_t bytes, const char* purpose) {
  if (sequence_) sequence_->complete();
  const auto meet = [&](Kind kind) {
    const uint32_t round =
        rounds_.arrive(about(kind, kind == Kind::allocate ? bytes : 0, DType::u8, purpose), kPrivate, purpose);
    rounds_.await_arrivals(round);
    rounds_.finish(round);
  };
  meet(Kind::allocate);
  const size_t stride = round_up(bytes, kPage);
  const size_t all = std::max(kPage, stride * static_cast<size_t>(size()));
  std::byte* const base = segment_->map(cursor_, all, purpose);
  cursor_ += all;
  meet(Kind::barrier);
  SharedBlock block{.parts = {}, .bytes = bytes};
  for (int r = 0; r < size(); r++) block.parts.push_back(base + stride * static_cast<size_t>(r));
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
