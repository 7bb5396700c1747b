#pragma once
// What ranks can do together. One interface, one folder per engine.
//
// Everything can be started and waited for later. The blocking forms are the same thing, waited for at once: ranks need
// not agree on which of the two they use.
#include <cstddef>
#include <memory>
#include <string_view>

#include <trireme/comm/counts.h>
#include <trireme/space/dtype.h>

namespace trireme::comm {

/// Something that was started and is not yet complete. Destroying it without wait() leaves the group unusable.
class Work {
 public:
  virtual ~Work() = default;
  /// Does what can be done now without waiting. True when it is complete. Throws like wait().
  virtual bool test() = 0;
  /// Blocks until it is complete. Throws like the collective itself.
  virtual void wait() = 0;
};

using Started = std::unique_ptr<Work>;

/// A group of ranks. Every collective is called by all ranks in the same order with the same kind, type, counts and
/// name; a difference is a Mismatch that names both ranks, never a hang. Waits have the group's deadline (Timeout), and
/// a dead peer ends them at once (PeerLost). After such an error the group is of no more use. Not thread-safe: one
/// thread at a time. Counts are in elements. `name` is for messages and for telling collectives apart. Any memory will
/// do, and ranks need not agree on its kind.
///
/// start_…() never waits for a peer. What was started may be waited for in any order: inside a machine collectives
/// complete in the order of their start, between machines several run at a time. Messages between two ranks arrive in
/// order, and need no collective to be complete. Memory is off limits until then, but counts are copied. What was
/// started moves on when this thread is in a call of the group, and in some engines all the time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// data[i] = op over all ranks; the same bits on every rank. Integers: mean rounds towards zero.
  virtual Started start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) = 0;
  /// `input` holds a block for each rank; block r, reduced over all ranks in one order, arrives in `output` of rank r,
  /// which may be that block of the input.
  virtual Started start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                                       std::string_view name) = 0;
  /// Block r of `output` is the `input` of rank r, which may be there already.
  virtual Started start_all_gather(const void* input, void* output, const Counts& counts, DType type,
                                   std::string_view name) = 0;
  virtual Started start_broadcast(void* data, size_t count, DType type, int root, std::string_view name) = 0;
  /// Block d of `input` goes to rank d; block s of `output` came from rank s. Either all ranks pass one count for both,
  /// or all pass a list for each; then what a rank sends to another must be what that one expects.
  virtual Started start_all_to_all(const void* input, void* output, const Counts& sends, const Counts& receives,
                                   DType type, std::string_view name) = 0;
  virtual Started start_barrier(std::string_view name) = 0;
  /// Point to point, in order per pair. The receiver's count, type and name must be the sender's. To itself: not
  /// allowed.
  virtual Started start_send(const void* data, size_t count, DType type, int to, std::string_view name) = 0;
  virtual Started start_receive(void* data, size_t count, DType type, int from, std::string_view name) = 0;

  // ---- the same, waited for at once; an engine has a form of its own where that is faster ----

  virtual void allreduce(void* data, size_t count, DType type, Op op, std::string_view name) {
    start_allreduce(data, count, type, op, name)->wait();
  }
  void reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op, std::string_view name) {
    start_reduce_scatter(input, output, counts, type, op, name)->wait();
  }
  void all_gather(const void* input, void* output, const Counts& counts, DType type, std::string_view name) {
    start_all_gather(input, output, counts, type, name)->wait();
  }
  void broadcast(void* data, size_t count, DType type, int root, std::string_view name) {
    start_broadcast(data, count, type, root, name)->wait();
  }
  void all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) {
    start_all_to_all(input, output, count, count, type, name)->wait();
  }
  void all_to_all(const void* input, void* output, const Counts& sends, const Counts& receives, DType type,
                  std::string_view name) {
    start_all_to_all(input, output, sends, receives, type, name)->wait();
  }
  void barrier(std::string_view name) { start_barrier(name)->wait(); }
  /// Returns when the memory is the caller's again. Ranks that send to each other first, whatever the size, do not
  /// hang: who waits, for anything, takes in what is sent to it, and keeps it until it is asked for.
  virtual void send(const void* data, size_t count, DType type, int to, std::string_view name) = 0;
  virtual void receive(void* data, size_t count, DType type, int from, std::string_view name) = 0;
};

}  // namespace trireme::comm
