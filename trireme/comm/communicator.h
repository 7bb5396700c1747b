#pragma once
// What ranks can do together. One interface, one folder per engine.
#include <cstddef>
#include <memory>
#include <string_view>

#include <trireme/space/dtype.h>

namespace trireme::comm {

/// A collective that was started and not yet completed. Destroying it without wait() leaves the group unusable.
class Work {
 public:
  virtual ~Work() = default;
  /// Does what can be done now without waiting. True when the collective is complete.
  virtual bool test() = 0;
  /// Blocks until it is complete. Throws like the collective itself.
  virtual void wait() = 0;
};

/// A group of ranks. Every collective is called by all ranks in the same order with the same kind, type, count and
/// name; a difference is a Mismatch that names both ranks, never a hang. Calls block, each with the group's deadline
/// (Timeout), and a dead peer ends them at once (PeerLost). After such an error the group is of no more use. Not
/// thread-safe: one thread at a time. Counts are in elements. `name` is for messages and for telling collectives apart.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// data[i] = op over all ranks; the same bits on every rank. Integers: mean rounds towards zero.
  virtual void allreduce(void* data, size_t count, DType type, Op op, std::string_view name) = 0;
  /// The same, in two halves; collectives started together complete in the order of their start. `data` is off limits
  /// until then.
  virtual std::unique_ptr<Work> start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) = 0;
  /// `input` holds size() blocks of `count`; block r, reduced over all ranks, arrives in `output` of rank r.
  virtual void reduce_scatter(const void* input, void* output, size_t count, DType type, Op op,
                              std::string_view name) = 0;
  /// Block r of `output` is the `input` (of `count`) of rank r.
  virtual void all_gather(const void* input, void* output, size_t count, DType type, std::string_view name) = 0;
  virtual void broadcast(void* data, size_t count, DType type, int root, std::string_view name) = 0;
  /// Block d of `input` goes to rank d; block s of `output` came from rank s. `count` per block.
  virtual void all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) = 0;
  /// Point to point, in order per pair. The receiver's count and type must be the sender's. To itself: not allowed.
  virtual void send(const void* data, size_t count, DType type, int to, std::string_view name) = 0;
  virtual void receive(void* data, size_t count, DType type, int from, std::string_view name) = 0;
  virtual void barrier(std::string_view name) = 0;
};

}  // namespace trireme::comm
