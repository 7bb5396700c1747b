#pragma once
// Memory as it was at one moment, while its owner writes on: copy on write, by range.
//
// The owner of some memory says which spans of it to follow, and goes on. Before it writes to one it calls save(),
// which copies what nobody has released yet aside, chunk by chunk; a reader in another thread gets what was saved, or,
// where nothing was written so far, the memory itself. A chunk is
//   live      as it was, in the owner's memory
//   reading   the same, and a reader copies it: the owner waits until it has, which is a copy of one chunk
//   saving    the owner copies it aside
//   saved     aside
//   released  of no more use: the owner writes without a word, and what was aside is given back or kept for the next
// so that at most one copy of each byte exists besides the owner's, and none of what is read before it is overwritten.
//
// The place aside is address space at first. To get memory for it takes longer than to fill it: a reader calls
// prepare(), so that the owner finds pages that are there.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <trireme/space/arena.h>
#include <trireme/space/range.h>

namespace trireme::space {

/// One thread makes it: copy(), follow() and then seal(). From then on save() is for those who write to the memory, and
/// the rest for readers, in any number of threads. Nothing here throws but what says so. What was followed must stay
/// where it is until all of it was saved or released.
class Originals {
 public:
  /// What a reader or save() takes at a time, in bytes.
  static constexpr size_t kChunk = size_t{64} << 10;

  /// Room for this much, of which a byte of memory is used only when something is written there.
  explicit Originals(size_t bytes);
  /// The same, but memory is not given back: it is kept for the next one. That of `before` is taken over if all of that
  /// was released, and it is enough; null: there is none. `before` may go then.
  Originals(size_t bytes, const Originals* before);

  /// Each returns the number of the new span, from 0 on. `bytes` are copied at once.
  size_t copy(std::span<const std::byte> bytes);
  /// They are copied when somebody writes to them. Spans that are followed do not overlap, and need room from one
  /// kLine to the next.
  size_t follow(std::span<const std::byte> live);
  void seal();

  // ---- who writes ----

  /// Before writing to [begin, begin + bytes), which need not be followed. May wait for a reader's copy of a chunk.
  void save(const std::byte* begin, size_t bytes);
  /// Before writing to whatever is followed.
  void save_all();

  // ---- readers ----

  /// Once, before reading: brings memory to where save() will need some. Takes a while for large spans.
  void prepare();
  /// Bytes of a span as they were. Throws InvalidArgument when they were released, or are not in the span.
  void read(size_t span, size_t offset, std::span<std::byte> into);
  /// Nobody will read the first `end` bytes of a span: chunks that are all in there are released.
  void release(size_t span, size_t end);
  void release_all();
  /// All was released: save() has nothing to do any more.
  bool released() const { return left_.load(std::memory_order_acquire) == 0; }

  size_t size_of(size_t span) const { return spans_[span].size; }
  /// Bytes that save() has copied aside so far.
  size_t saved_bytes() const { return saved_bytes_.load(std::memory_order_relaxed); }

 private:
  enum State : uint32_t { live, reading, saving, saved, freed };
  using Word = std::atomic<uint32_t>;
  struct Span {
    const std::byte* live;  // null: it was copied
    size_t size;
    size_t home;         // where it is aside
    size_t first_chunk;  // of all chunks
    size_t chunks() const { return (size + kChunk - 1) / kChunk; }
  };

  size_t add(const std::byte* live, size_t size);
  size_t room() const;
  Range home_of(const Span& span, size_t chunk) const;
  template <class Visit>
  static void each_block(Range home, const Visit& visit);
  bool enter(Word& state, State from, State to);
  void leave(Word& state, State to);
  void save_chunk(const Span& span, size_t chunk);
  void read_chunk(const Span& span, size_t chunk, size_t offset, std::span<std::byte> into);
  void release_chunk(const Span& span, size_t chunk);

  Arena room_;
  bool keep_ = false;
  std::byte* start_ = nullptr;    // of the first block in it
  size_t used_ = 0, chunks_ = 0;  // so far
  std::vector<Span> spans_;
  std::vector<size_t> followed_;                 // spans, by address
  std::unique_ptr<Word[]> states_;               // of all chunks
  std::unique_ptr<std::atomic<size_t>[]> next_;  // by span: chunks before this one were released
  std::unique_ptr<std::atomic<size_t>[]> rest_;  // by block: bytes that were not released yet
  std::atomic<size_t> left_{0};                  // chunks that were not
  std::atomic<size_t> saved_bytes_{0};
  std::atomic<bool> prepared_{false};
};

}  // namespace trireme::space
