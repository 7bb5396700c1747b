#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include <trireme/base/lock.h>
#include <trireme/parallel/placement.h>
#include <trireme/torch/compat.h>

namespace trireme {

/// A slot's place in the gradient vector.
struct Placement::Home {
  void* data = nullptr;
  size_t bytes = 0;
  bool settled = false;  // what is there is the slot's gradient
  std::shared_ptr<std::atomic<bool>> taken =
      std::make_shared<std::atomic<bool>>(false);  // shared with the tenant, which may outlive us
};

namespace {

thread_local Placement* watching = nullptr;

/// Tensors that live in a home now. Of the process, because libtorch's deleters are plain functions: from a pointer
/// they must find out whose it is.
struct Tenants {
  Mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<std::atomic<bool>>> taken TRIREME_GUARDED_BY(mutex);  // by address
};

Tenants& tenants() {
  static Tenants all;
  return all;
}

}  // namespace

/// libtorch's own CPU allocator, but for threads inside a Use.
struct PlacingAllocator final : torch_compat::AllocatorWrapper {
  using AllocatorWrapper::AllocatorWrapper;

  at::DataPtr hand_out(size_t bytes) const override {
    Placement* const placement = watching;
    if (placement == nullptr || bytes < Placement::kLeast) return original->allocate(bytes);
    if (void* home = placement->take(bytes)) return {home, home, &release, at::kCPU};
    at::DataPtr data = original->allocate(bytes);
    placement->born(data.get());
    return data;
  }

  /// Also for what was allocated raw (oneDNN does): the pointer tells.
  at::DeleterFnPtr raw_deleter() const override { return &release; }

  static void release(void* data);
};

namespace {

PlacingAllocator& allocator() {
  static PlacingAllocator only(c10::GetCPUAllocator());
  return only;
}

/// Once per process, and for good: other allocations pass through.
void install() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&allocator(), /*priority=*/100); });
}

}  // namespace

void PlacingAllocator::release(void* data) {
  {
    Tenants& all = tenants();
    const Lock lock(all.mutex);
    if (const auto tenant = all.taken.find(data); tenant != all.taken.end()) {
      tenant->second->store(false);
      all.taken.erase(tenant);
      return;
    }
  }
  allocator().original->raw_deleter()(data);
}

Placement::Placement(const std::vector<torch::Tensor>& homes) {
  for (const torch::Tensor& home : homes) {
    homes_.push_back(nullptr);
    if (home.nbytes() < kLeast) continue;
    homes_.back() = std::make_unique<Home>();
    homes_.back()->data = home.data_ptr();
    homes_.back()->bytes = home.nbytes();
  }
  install();
}

Placement::~Placement() = default;

Placement::Use::Use(Placement& placement) {
  if (!placement.active_) return;
  placement.number_ = 0;
  placement.births_.clear();
  for (auto& home : placement.homes_)
    if (home) home->settled = false;
  watching = &placement;
}

Placement::Use::~Use() { watching = nullptr; }

/// The home for this allocation of the pass, if the last pass says so and it is free.
void* Placement::take(size_t bytes) {
  const auto found = plan_.find(number_);
  if (found == plan_.end()) return nullptr;
  Home& home = *homes_[found->second];
  if (home.bytes != bytes || home.taken->exchange(true)) return nullptr;
  {
    Tenants& all = tenants();
    const Lock lock(all.mutex);
    all.taken[home.data] = home.taken;
  }
  born(home.data);
  return home.data;
}

void Placement::born(const void* data) { births_.push_back({data, number_++}); }

bool Placement::settle(size_t slot, const torch::Tensor& gradient) {
  Home* const home = homes_[slot].get();
  if (home == nullptr) return false;
  home->settled = gradient.data_ptr() == home->data;
  if (home->settled || !active_) return home->settled;
  const auto birth =
      std::find_if(births_.rbegin(), births_.rend(), [&](const Birth& b) { return b.data == gradient.data_ptr(); });
  if (birth == births_.rend() || gradient.storage().nbytes() != home->bytes)
    return false;  // the last birth counts: memory is used again
  std::erase_if(plan_, [&](const auto& entry) { return entry.second == slot; });
  plan_[birth->number] = slot;
  return false;
}

bool Placement::occupied(size_t slot) const {
  Home* const home = homes_[slot].get();
  return home != nullptr && home->taken->load() && !home->settled;
}

void Placement::give_up() {
  active_ = false;
  plan_.clear();
}

}  // namespace trireme
