#pragma once
// What is where in a segment that several groups of ranks use, side by side or one after another.
//
// The first pages of such a segment are its *directory*: how far memory was given out, and the *named areas*, which
// outlive whoever made them: a process that comes later finds them by name and maps them. Memory that is all zero is an
// empty directory, so nobody has to prepare one. A name may be there once for each membership epoch: a crew never
// writes to what the crew before has left, since one that was given up for lost may live and still write there.
//
// Addresses are given out once, so that an offset always means the same to groups that live. Within an epoch an area's
// memory may go to the next one of that name (take()); otherwise what nobody needs any more is given back to the
// machine, and reads as zero. Nothing here blocks, and a process that dies in the middle of a call leaves at most an
// entry without a name behind.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <trireme/base/segment.h>

namespace trireme {

/// A named area: `parts` blocks of `bytes` each, one behind another, each at a page of its own.
struct Area {
  size_t offset = 0, bytes = 0;
  int parts = 1;
  uint64_t epoch = 0;        // of the crew whose it is
  uint64_t fingerprint = 0;  // of what is in it, for its owner's use; 0: none
  size_t stride() const { return round_up(bytes, kPage); }
  /// Of all parts. Never 0, so that every area has an address.
  size_t total() const { return std::max(kPage, stride() * static_cast<size_t>(parts)); }
};

/// The directory of a segment, which outlives this. Thread-safe, and safe between processes.
class Areas {
 public:
  static constexpr size_t kBytes = 48 * kPage;  // of the directory
  static constexpr size_t kLongestName = 71;

  /// Maps the directory. Throws IoError.
  explicit Areas(Segment& segment);

  /// Memory that nobody has: the offset of `bytes`, reserved, not mapped. Throws IoError when there is no room.
  size_t claim(size_t bytes, const char* purpose);
  /// What lies before `end` was given out by other means: to the first group of an empty segment.
  void begin_behind(size_t end);

  /// The one of the latest epoch.
  std::optional<Area> find(std::string_view name) const;
  std::optional<Area> find(std::string_view name, uint64_t epoch) const;
  /// All whose names begin so, in no order.
  std::vector<std::pair<std::string, Area>> all(std::string_view prefix) const;

  /// Whether it can be there: it is, or the directory is not full.
  bool room_for(std::string_view name, uint64_t epoch) const;

  /// Crews from this epoch on may still be read: what they have left stays. Until somebody says so, that is the latest
  /// crew before the one that takes something.
  void need_from(uint64_t epoch);
  std::optional<uint64_t> needed_from() const;

  // One process of a machine at a time does the following for a name.

  /// Claims an area and gives it a name that none of its epoch has: `what` has no offset yet. Throws InvalidArgument
  /// for a name that is empty, too long or taken and when the directory is full, IoError.
  Area add(std::string_view name, const Area& what, const char* purpose);
  /// The area of that name and epoch, as nobody's any more: what is in it is lost. Its addresses are as before where
  /// it was of the same size and parts (then the contents are still there), and otherwise others, whose memory is *not*
  /// reserved yet: see Segment::reserve(). Of earlier epochs only the latest keeps its memory. Throws as add().
  struct Taken {
    Area area;
    bool same = false;  // as it was: reserved, and not zero
  };
  Taken take(std::string_view name, const Area& what, const char* purpose) {
    return take(name, what, what.total(), purpose);
  }
  /// The same, of which only `needed` bytes must be free now.
  Taken take(std::string_view name, const Area& what, size_t needed, const char* purpose);
  /// Gives the memory of an area back to the machine, and forgets the name. Nothing when there is none.
  void release(std::string_view name, uint64_t epoch);
  /// The same for all of epochs before `epoch` whose names have `mark` in them.
  void release_before(uint64_t epoch, std::string_view mark);

 private:
  struct Directory;
  struct Entry;
  Entry* entry_of(std::string_view name, uint64_t epoch) const;
  template <class Fits>
  Entry* seize(uint32_t state, const Fits& fits);
  static void write(Entry& entry, std::string_view name, const Area& area);
  Entry& free_entry(std::string_view name, uint64_t epoch);
  void discard(Entry& entry);
  void discard_older(std::string_view name, uint64_t epoch);

  Segment& segment_;
  Directory* directory_;
};

/// Where a group's control block lies: in the segment's memory, which others may use too.
struct Spot {
  std::shared_ptr<Segment> segment;
  size_t offset = Areas::kBytes;
  /// By default the first group of an empty segment.
  Spot(std::shared_ptr<Segment> memory, size_t at = Areas::kBytes)
      : segment(std::move(memory)), offset(at) {}  // NOLINT
};

}  // namespace trireme
