#pragma once
// The collectives of one machine.
//
// Where everybody's memory is in the segment, ranks read it where it is (and an allreduce is reduced in place: each
// rank reads its slice of everybody's data and writes the result back to all). Else all of it goes through the stages.
#include <trireme/comm/shm/sequence.h>

namespace trireme::comm::shm {

constexpr int kMaxRanks = 256;

Fingerprint about(Kind kind, size_t count, DType type, std::string_view name);
/// memcpy that takes null pointers when there is nothing to copy, and a block that is where it belongs already.
void copy_bytes(void* to, const void* from, size_t bytes);
/// Chunks of at most `most` bytes.
constexpr size_t chunks_of(size_t bytes, size_t most) { return (bytes + most - 1) / most; }
/// What of `whole` is in a chunk.
inline space::Range chunk_of(space::Range whole, size_t chunk, size_t most) {
  const size_t begin = std::min(whole.end, whole.begin + chunk * most);
  return {begin, std::min(whole.end, begin + most)};
}

class Allreduce final : public Collective {
 public:
  Allreduce(size_t stage_bytes, void* data, size_t count, DType type, Op op, std::string_view name);
  void work_direct(const View& view) override;
  size_t up_chunks() const override { return chunks_of(bytes_, stage_bytes_); }
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const View& view, const Posted& posted, size_t chunk) override;

 private:
  size_t stage_bytes_, bytes_;
  std::byte* data_;
};

class ReduceScatter final : public Collective {
 public:
  ReduceScatter(size_t stage_bytes, const void* input, void* output, const Blocks& blocks, int rank, DType type, Op op,
                std::string_view name);
  void work_direct(const View& view) override;
  size_t up_chunks() const override { return chunks_of(blocks_.largest(), most_); }
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const View& view, const Posted& posted, size_t chunk) override;

 private:
  void reduce(const void* const* sources, int count, space::Range part);

  Blocks blocks_;
  size_t most_;
  space::Range mine_;
  const std::byte* input_;
  std::byte* output_;
};

class AllGather final : public Collective {
 public:
  AllGather(size_t stage_bytes, const void* input, void* output, const Blocks& blocks, int rank, DType type,
            std::string_view name);
  void work_direct(const View& view) override;
  size_t up_chunks() const override { return chunks_of(blocks_.largest(), most_); }
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const View& view, const Posted& posted, size_t chunk) override;

 private:
  Blocks blocks_;
  size_t most_;
  space::Range mine_;
  const std::byte* input_;
  std::byte* output_;
};

class Broadcast final : public Collective {
 public:
  Broadcast(size_t stage_bytes, void* data, size_t count, DType type, int root, int rank, std::string_view name);
  bool may_be_direct() const override { return false; }
  size_t up_chunks() const override { return chunks_of(bytes_, stage_bytes_); }
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const View& view, const Posted& posted, size_t chunk) override;

 private:
  size_t stage_bytes_, bytes_;
  std::byte* data_;
  int root_;
  bool is_root_;
};

class AllToAll final : public Collective {
 public:
  AllToAll(size_t stage_bytes, const void* input, void* output, const Counts& sends, const Counts& receives, int ranks,
           DType type, std::string_view name);
  void plan(const View& view) override;
  void work_direct(const View& view) override;
  size_t up_chunks() const override { return chunks_of(largest_, most_); }
  void post_up(std::byte* stage, size_t chunk) override;
  void take_up(const View& view, const Posted& posted, size_t chunk) override;

 private:
  Blocks sends_, receives_;
  size_t most_, largest_;
  const std::byte* input_;
  std::byte* output_;
};

/// The round is it.
class Barrier final : public Collective {
 public:
  explicit Barrier(std::string_view name) : Collective(about(Kind::barrier, 0, DType::u8, name), name, nullptr) {}
};

}  // namespace trireme::comm::shm
