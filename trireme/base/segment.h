#pragma once
// Memory that processes share. It has no name in any file system: when the last process ends, however it ends, it is
// gone.
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <trireme/base/descriptor.h>
#include <trireme/base/lock.h>

namespace trireme {

/// One growing memory file. Every rank that holds its descriptor maps the same bytes at the same offsets. Thread-safe.
/// The address range is reserved once, so that pointers and offsets turn into each other by an addition. A process has
/// room for a few hundred ranges of the default size: who knows the final size says it. Where `ulimit -v` limits the
/// addresses, one of the default size takes half of what is left.
class Segment {
 public:
  static constexpr size_t kAddresses = size_t{1} << 38;  // 256 GiB of addresses; memory is taken only by map()
  /// For a job's one segment, whose addresses no crew uses again that another one had: 8 TiB, thousands of crews of a
  /// large model. (Under ThreadSanitizer a process has fewer.)
#ifdef __SANITIZE_THREAD__
  static constexpr size_t kAddressesOfJob = kAddresses;
#else
  static constexpr size_t kAddressesOfJob = size_t{1} << 43;
#endif
  /// When this process gets the pages of a block: when it maps it, so that no later access waits for one; or each when
  /// it is touched, which leaves holes as they are.
  enum class Pages { at_once, when_touched };

  /// A new, empty one (a memfd) that grows to `addresses` bytes at most.
  static std::shared_ptr<Segment> create(size_t addresses = kAddresses);
  /// One that another process made and whose descriptor it passed on.
  explicit Segment(Descriptor file, size_t addresses = kAddresses);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int descriptor() const { return file_.get(); }
  /// Whether that descriptor is of the same memory.
  bool is(int descriptor) const;

  /// Maps [offset, offset + bytes), growing the file where needed; the same block may be mapped again. The pages are
  /// reserved now, so that a full machine is an IoError here and not a SIGBUS later. `offset` must be a multiple of the
  /// page size. Throws IoError as well when it does not fit in the reserved addresses.
  std::byte* map(size_t offset, size_t bytes, const char* purpose);
  /// The two halves of that where several blocks grow at a time (areas.h): one process reserves a block, all map it.
  void reserve(size_t offset, size_t bytes, const char* purpose);
  std::byte* attach(size_t offset, size_t bytes, const char* purpose, Pages pages = Pages::at_once);
  /// As reserve(), for who has looked whether there is room.
  void reserve_now(size_t offset, size_t bytes, const char* purpose) const;
  /// Throws IoError when that much more could not be reserved there now.
  void check_room(size_t offset, size_t bytes, const char* purpose) const;
  /// Offsets below `end` (a multiple of the page size) may be mapped and touched, though they have no memory yet.
  void lengthen(size_t end, const char* purpose) const;
  /// The machine gets the memory back; whoever maps it reads zeros. Blocks of whole pages.
  void give_back(size_t offset, size_t bytes) const;

  /// Whether this process has mapped all of it.
  bool mapped(size_t offset, size_t bytes) {
    const Lock lock(mutex_);
    return has(offset, bytes);
  }

  /// Blocks of whole pages that are about to be written to get their memory now: at once it takes half as long as page
  /// by page. Where that fails they get it when they are touched.
  static void populate(std::byte* begin, size_t bytes);

  /// Memory of this process alone, zeroed, as long as this lives. Throws IoError.
  std::byte* lend(size_t bytes, const char* purpose);

  /// Where a mapped offset is in this process.
  std::byte* at(size_t offset) const { return base_ + offset; }

  /// The offset of a pointer into the segment; nothing for the caller's private memory.
  std::optional<size_t> offset_of(const void* pointer) const {
    const auto* wanted = static_cast<const std::byte*>(pointer);
    if (wanted < base_ || wanted >= base_ + addresses_) return std::nullopt;
    return static_cast<size_t>(wanted - base_);
  }

 private:
  bool has(size_t offset, size_t bytes) const TRIREME_REQUIRES(mutex_);
  std::byte* map_reserved(size_t offset, size_t bytes, const char* purpose, Pages pages) TRIREME_REQUIRES(mutex_);

  Descriptor file_;
  size_t addresses_;
  std::byte* base_;
  Mutex mutex_;
  std::map<size_t, size_t> mapped_ TRIREME_GUARDED_BY(mutex_);  // blocks: their bytes by offset
  std::vector<std::pair<void*, size_t>> lent_ TRIREME_GUARDED_BY(mutex_);
};

/// Bytes that this process could still use without swapping: the least of what the machine and its control group allow.
size_t available_memory();

/// Bytes of addresses that `ulimit -v` still leaves to this process; nothing when it is not set.
std::optional<size_t> addresses_left();

constexpr size_t kPage = 4096;
constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace trireme
