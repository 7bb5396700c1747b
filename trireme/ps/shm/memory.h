#pragma once
// The memory that a worker shares with the servers of its machine, and what is where in it.
#include <array>
#include <atomic>
#include <memory>
#include <string>

#include <trireme/base/bell.h>
#include <trireme/base/segment.h>
#include <trireme/ps/messages.h>

namespace trireme::ps::shm {

/// One writer, one reader. Zero bytes are an empty ring.
template <class T, uint32_t Entries = 256>
struct Ring {
  static constexpr uint32_t kEntries = Entries;
  alignas(64) std::atomic<uint32_t> written{0};
  alignas(64) std::atomic<uint32_t> read{0};
  alignas(64) std::array<T, kEntries> entries;

  /// False when the ring is full.
  bool push(const T& entry) {
    const uint32_t at = written.load(std::memory_order_relaxed);
    if (at - read.load(std::memory_order_acquire) >= kEntries) return false;
    entries[at % kEntries] = entry;
    written.store(at + 1);  // sequentially consistent: whoever is about to sleep sees it, or we see the sleeper
    return true;
  }
  /// For the writer: whether the next push() will do.
  bool has_room() const { return written.load(std::memory_order_relaxed) - read.load() < kEntries; }
  /// False when the ring is empty.
  bool pop(T& entry) {
    const uint32_t at = read.load(std::memory_order_relaxed);
    if (written.load() == at) return false;
    entry = entries[at % kEntries];
    read.store(at + 1, std::memory_order_release);
    return true;
  }
};

/// Between a worker and one server.
struct Line {
  Ring<Request> requests;
  Ring<Reply> replies;
  alignas(64) std::atomic<uint32_t> awaited{
      0};  // the worker's: before so many replies were written, in all, it need not be woken
  static constexpr size_t kTexts = 16;
  alignas(64) std::array<std::array<char, kMostWords>,
                         kTexts> texts;  // of the last errors and status answers, used in turn: Reply::text says which

  /// For the worker, while nobody is at the other end: as at first.
  void clear() {
    for (auto* count : {&requests.written, &requests.read, &replies.written, &replies.read, &awaited}) count->store(0);
  }
};

/// Where things are in a worker's segment: offsets in bytes. The worker decides, the server checks.
struct Plot {
  uint64_t lines = 0;  // number of them, one per server (with replicas two, used in turn), after the bell
  uint64_t job = 0, job_bytes = 0;
  uint64_t gradients = 0, parameters = 0, flat_bytes = 0;  // the two flat vectors, of equal size
  uint64_t present = 0, slots = 0;                         // a byte per slot
  uint64_t staging = 0, staging_bytes = 0;                 // keys and rows
  uint64_t total = 0;

  static Plot plan(size_t servers, size_t job_bytes, size_t flat_bytes, size_t slots, size_t staging_bytes);
  /// Whether everything lies inside a file of `size` bytes, in order and apart from each other.
  bool fits(uint64_t size) const;
};

/// A view of a worker's segment, on either side.
class Memory {
 public:
  /// Maps it; with `create`, the segment is new and gets the job's text.
  Memory(std::shared_ptr<Segment> segment, const Plot& plot);

  const Plot& plot() const { return plot_; }
  Segment& segment() const { return *segment_; }
  Bell& bell() const { return *reinterpret_cast<Bell*>(base_); }
  Line& line(size_t server) const { return *reinterpret_cast<Line*>(base_ + sizeof(Bell) + server * sizeof(Line)); }
  char* job() const { return reinterpret_cast<char*>(base_ + plot_.job); }
  std::byte* gradients() const { return base_ + plot_.gradients; }
  std::byte* parameters() const { return base_ + plot_.parameters; }
  uint8_t* present() const { return reinterpret_cast<uint8_t*>(base_ + plot_.present); }
  std::byte* staging() const { return base_ + plot_.staging; }

 private:
  std::shared_ptr<Segment> segment_;
  Plot plot_;
  std::byte* base_;
};

// ---- the handshake ----

constexpr uint64_t kMagic = 0x3530737065726974;  // the protocol's version included

enum class Visitor : uint32_t { worker, sibling, control, primary, newcomer };

/// A visitor's first message. A worker's carries its segment. A sibling's asks for a model's parameters, or (flat_bytes
/// is 0) whether this server is here. Where servers have replicas, a primary asks this one to be its backup, with its
/// log and its bell, and a newcomer whether its shard is kept here.
struct Hello {
  uint64_t magic = kMagic;
  Visitor kind = Visitor::worker;
  int32_t worker = -1;  // of a server: its number
  int32_t model = 0;
  int32_t shard = 0;      // that it is about: the server's own, unless there are replicas
  uint32_t line = 0;      // a worker's: which of its lines. A primary's: 1: there is something to be copied first
  uint32_t replicas = 0;  // of the job, as a worker was told
  uint64_t epoch = 0;     // of the shard's charge, as the visitor knows it
  Plot plot{};            // a sibling says how large the model is: flat_bytes
};

/// The server's answer. To a worker it carries the memory with the server's bell and that of the
/// model's parameters; to a sibling the latter alone.
struct Welcome {
  uint64_t magic = kMagic;
  int32_t welcome = 0;
  int32_t shared = 0;     // the parameters are server 0's memory
  int32_t elsewhere = 0;  // not welcome, and another server may be the right one: see Elsewhere
  int32_t backup = -1;    // with replicas: the server that a worker should ask next
  uint64_t epoch = 0;     // and of its charge
  std::array<char, 1000> text{};
};

/// The name of a server's door: "…/ps/JOB/SERVER".
std::string door_name(const std::string& job, int server);

}  // namespace trireme::ps::shm
