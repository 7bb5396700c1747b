#include <trireme/data/dataset.h>
#include <trireme/data/random.h>

namespace trireme::data {

Dataset make_synthetic(comm::shm::Communicator& group, size_t count, uint64_t seed) {
  constexpr size_t kSide = 28, kPixels = kSide * kSide;
  constexpr uint64_t kPatterns =
      0x7472697265;  // the ten patterns are the same for every seed, so that a test set fits its training set
  Dataset set{.name = "synthetic",
              .count = count,
              .shape = {1, kSide, kSide},
              .dtype = DType::u8,
              .scale = 1.0 / 255,
              .classes = 10};
  auto* inputs = reinterpret_cast<uint8_t*>(allocate_shared(group, count * kPixels, "inputs"));
  auto* labels = reinterpret_cast<int64_t*>(allocate_shared(group, count * sizeof(int64_t), "labels"));
  const Share share = share_of(count, group.rank(), group.size());
  for (size_t i = share.begin; i < share.end; i++) {
    Random noise(mix(seed, i));
    labels[i] = static_cast<int64_t>(noise.below(10));
    Random pattern(mix(kPatterns, static_cast<uint64_t>(labels[i])));
    for (size_t p = 0; p < kPixels; p++) {
      const uint64_t ink = pattern.next() % 4 == 0 ? 100 : 0;
      inputs[i * kPixels + p] = static_cast<uint8_t>(ink + noise.next() % 156);
    }
  }
  group.barrier("synthetic data");
  set.inputs = reinterpret_cast<const std::byte*>(inputs);
  set.labels = labels;
  return set;
}

}  // namespace trireme::data
