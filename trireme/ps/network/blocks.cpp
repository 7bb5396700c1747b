#include <cstdlib>
#include <map>
#include <new>
#include <vector>

#include <trireme/base/lock.h>
#include <trireme/ps/network/blocks.h>

namespace trireme::ps::network {
namespace {

constexpr size_t kKept = size_t{64} << 20;  // bytes that wait to be used again
constexpr size_t kSmall = 4096, kLarge = 64 << 10;

size_t size_for(size_t bytes) {
  const size_t step = bytes <= kSmall ? kSmall : kLarge;
  return (bytes + step - 1) / step * step;
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

}  // namespace

struct Blocks::Shelf {
  Memory take(size_t size) {
    {
      const Lock lock(mutex);
      if (auto& same = free[size]; !same.empty()) {
        Memory memory = std::move(same.back());
        same.pop_back();
        kept -= size;
        return memory;
      }
    }
    Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, size)));
    if (!memory) throw std::bad_alloc();
    return memory;
  }
  void give_back(Memory memory, size_t size) {
    const Lock lock(mutex);
    if (kept + size > kKept) return;
    kept += size;
    free[size].push_back(std::move(memory));
  }

  Mutex mutex;
  std::map<size_t, std::vector<Memory>> free TRIREME_GUARDED_BY(mutex);  // by size
  size_t kept TRIREME_GUARDED_BY(mutex) = 0;
};

Blocks::Blocks() : shelf_(std::make_shared<Shelf>()) {}

std::shared_ptr<std::byte> Blocks::take(size_t bytes) {
  const size_t size = size_for(bytes);
  return {shelf_->take(size).release(),
          [shelf = shelf_, size](std::byte* memory) { shelf->give_back(Memory(memory), size); }};
}

}  // namespace trireme::ps::network
