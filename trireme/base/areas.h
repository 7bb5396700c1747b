#pragma once
// What is where in a segment that several groups of ranks use, side by side or one after another.
//
// The first pages of such a segment are its *directory*: how far memory was given out, and the *named areas*, which
// outlive whoever made them: a process that comes later finds them by name and maps them. Memory that is all zero is an
// empty directory, so nobody has to prepare one. Memory is given out once and never again, so that all of it is zero at
// first and an offset always means the same. Nothing here blocks, and a process that dies in the middle of a call
// leaves at most an entry without a name behind.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <trireme/base/segment.h>

namespace trireme {

/// A named area: `parts` blocks of `bytes` each, one behind another, each at a page of its own.
struct Area {
  size_t offset = 0, bytes = 0;
  int parts = 1;
  size_t stride() const { return round_up(bytes, kPage); }
  /// Of all parts. Never 0, so that every area has an address.
  size_t total() const { return std::max(kPage, stride() * static_cast<size_t>(parts)); }
};

/// The directory of a segment, which outlives this. Thread-safe, and safe between processes.
class Areas {
 public:
  static constexpr size_t kBytes = 8 * kPage;  // of the directory
  static constexpr size_t kLongestName = 39;

  /// Maps the directory. Throws IoError.
  explicit Areas(Segment& segment);

  /// Memory that nobody has: the offset of `bytes`, reserved, not mapped. Throws IoError when there is no room.
  size_t claim(size_t bytes, const char* purpose);
  /// What lies before `end` was given out by other means: to the first group of an empty segment.
  void begin_behind(size_t end);

  std::optional<Area> find(std::string_view name) const;
  /// Claims an area and gives it a name that none has: one process of a machine at a time does that for a name. Throws
  /// InvalidArgument for a name that is empty, too long or taken and when the directory is full, IoError.
  Area add(std::string_view name, size_t bytes, int parts, const char* purpose);

 private:
  struct Directory;
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
