#pragma once
// State on its way between workers and servers: how a vector is named by a number, and what a row looks like. For the
// files of service.h and client.h alone. Not installed.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include <trireme/ps/messages.h>
#include <trireme/ps/sparse_table.h>

namespace trireme::ps {

/// Request::table of show_state and take_state: a place in space::state_names() of the job's optimizer, or one of
/// these.
constexpr uint16_t kStepsVector = 0xfffe;     // steps of slots, as in state::kSteps
constexpr uint16_t kPositionVector = 0xffff;  // a Position, see messages.h

/// A row is its head, its values and its state; the next one begins at a multiple of 8 bytes.
struct RowHead {
  uint64_t key = 0;
  uint32_t steps = 0, age = 0;
};

class RowFormat {
 public:
  explicit RowFormat(const SparseTable::Options& table)
      : width_(table.width), state_(width_ * space::state_names(table.optimizer.kind).size()) {}

  size_t bytes() const { return (sizeof(RowHead) + (width_ + state_) * sizeof(float) + 7) / 8 * 8; }

  void write(const SparseTable::Row& row, std::byte* to) const {
    const RowHead head{row.key, row.steps, row.age};
    std::memcpy(to, &head, sizeof head);
    float* floats = reinterpret_cast<float*>(to + sizeof head);
    std::copy(row.state.begin(), row.state.end(), std::copy(row.values.begin(), row.values.end(), floats));
  }
  /// Views of what is at `from`, which is aligned, as `to` above.
  SparseTable::Row read(const std::byte* from) const {
    RowHead head;
    std::memcpy(&head, from, sizeof head);
    const auto* floats = reinterpret_cast<const float*>(from + sizeof head);
    return {head.key, {floats, width_}, {floats + width_, state_}, head.steps, head.age};
  }

 private:
  size_t width_, state_;
};

}  // namespace trireme::ps
