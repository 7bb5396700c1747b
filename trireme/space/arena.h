#pragma once
// The memory of one flat vector: parameters, gradients or optimizer state.
#include <cstddef>
#include <memory>

#include <trireme/base/segment.h>

namespace trireme::space {

/// Cache-line aligned, zeroed at birth. Private to this process, or a view of a block that other ranks map too.
class Arena {
 public:
  Arena() = default;
  static Arena of_process(size_t bytes);
  static Arena of_segment(std::shared_ptr<Segment> segment, size_t offset, size_t bytes, const char* purpose);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<void> owner_;
};

}  // namespace trireme::space
