#include <sys/mman.h>

#include <trireme/base/error.h>
#include <trireme/space/arena.h>

namespace trireme::space {

Arena Arena::of_process(size_t bytes) {
  Arena arena;
  if (bytes == 0) return arena;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail<IoError>("no memory for {} bytes: {}", bytes, errno_text());
  madvise(data, bytes, MADV_HUGEPAGE);
  arena.data_ = static_cast<std::byte*>(data);
  arena.bytes_ = bytes;
  arena.owner_ = std::shared_ptr<void>(data, [bytes](void* begin) { munmap(begin, bytes); });
  return arena;
}

Arena Arena::of_segment(std::shared_ptr<Segment> segment, size_t offset, size_t bytes, const char* purpose) {
  Arena arena;
  arena.data_ = segment->map(offset, bytes, purpose);
  arena.bytes_ = bytes;
  arena.owner_ = std::move(segment);
  return arena;
}

}  // namespace trireme::space
