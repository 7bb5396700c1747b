#pragma once
// Memory for messages, used again and again: fresh pages for every megabyte cost as much as the copy.
#include <cstddef>
#include <memory>

namespace trireme::ps::network {

/// Thread-safe. Blocks may outlive it.
class Blocks {
 public:
  Blocks();
  /// At least so many bytes, aligned to 64. Its memory comes back when the last copy of the pointer is gone.
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace trireme::ps::network
