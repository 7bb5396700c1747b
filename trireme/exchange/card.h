#pragma once
// What a rank writes beside a model's memory in the segment, so that whoever comes later knows what lies where: of
// which model and optimizer it is, which range of which vector is at which offset, and how far the rank's updates are.
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <trireme/base/segment.h>
#include <trireme/space/range.h>
#include <trireme/state/visitor.h>

namespace trireme::exchange {

/// Where something is: `range` of `vector` begins at `offset` of the segment.
struct Location {
  std::string vector;
  space::Range range{};
  size_t offset = 0;
};

/// How far a rank is. It begins a step before it changes anything, and ends it when it has changed all it will.
struct Progress {
  static constexpr size_t kMostNotes = 4;
  std::atomic<uint64_t> written;  // kWritten: the rest of the card is there
  std::atomic<int64_t> begun, ended;
  std::array<std::atomic<int64_t>, kMostNotes> notes;  // scalars of whoever is above the exchange
  int64_t rank;                                        // in the world
  uint64_t bytes;
  static constexpr uint64_t kWritten = 0x3130647261635254;  // "TRcard01"
};

struct Card {
  state::About about;                // without tables
  std::string step;                  // what the scalar is called whose value is Progress::ended; "": there is none
  std::vector<std::string> notes{};  // what the scalars of Progress::notes are called
  std::vector<Location> locations;
};

/// As bytes, to stand behind a Progress.
std::string packed(const Card& card);
/// Nothing when the bytes are no card, or lead outside of `limit` bytes of a segment.
std::optional<Card> unpacked(std::string_view bytes, size_t limit);

}  // namespace trireme::exchange
