#include <atomic>

#include <trireme/base/error.h>
#include <trireme/exchange/hogwild.h>

namespace trireme::exchange {

/// Where ranks take their work from, in shared memory.
struct Hogwild::Desk {
  static constexpr int64_t kPieces = int64_t{1} << 40;  // more than an epoch has
  std::atomic<int64_t> next;                            // epoch · kPieces + piece
  std::atomic<uint32_t> stopped;
};

Hogwild::Hogwild(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
                 const Options& options)
    : Exchange(layout, options),
      local_(group.local),
      gradients_(space::Arena::of_process(layout_.bytes())),
      flags_(std::make_unique<uint8_t[]>(layout_.size())) {
  if (!group.one_machine())
    fail<InvalidArgument>(
        "sync 'hogwild' is for the workers of one machine, which share its memory; across machines use 'async'");
  const auto ranks = static_cast<size_t>(local_.size());
  parameters_ = local_.allocate((layout_.bytes() + ranks - 1) / ranks, "the model's parameters");
  desk_ = local_.allocate(sizeof(Desk), "the workers' desk");
  std::vector<space::Range> all;
  for (const space::Bucket& bucket : buckets_) all.push_back(bucket.range);
  updater_.emplace(optimizer, all);
}

Hogwild::Desk& Hogwild::desk() const { return *reinterpret_cast<Desk*>(desk_.parts[0]); }

void Hogwild::ready(size_t bucket) {
  if (options_.clip > 0) return;  // what is decided by the whole gradient waits for it
  const space::Source own[] = {{gradients(), flags() + buckets_[bucket].first}};
  update(bucket, buckets_[bucket].range, own);
}

void Hogwild::close() {
  if (options_.clip > 0 && clip_here()) update_all();
  taken_ = false;
}

/// Or hears that somebody has asked.
bool Hogwild::ask_to_stop() {
  if (stop_wanted_) desk().stopped.store(1);
  return stopped_ = desk().stopped.load() != 0;
}

/// Whoever has taken a piece does it to the end.
bool Hogwild::begin_step() { return taken_ || !ask_to_stop(); }

ps::Work Hogwild::take(int64_t epoch, int64_t first_step, int64_t pieces) {
  if (ask_to_stop()) return {ps::Work::stopped};
  for (int64_t seen = desk().next.load();;) {
    const int64_t now = std::max(seen, epoch * Desk::kPieces), piece = now - epoch * Desk::kPieces;
    if (piece >= pieces) return {ps::Work::end};
    if (!desk().next.compare_exchange_weak(seen, now + 1)) continue;
    taken_ = true;
    return {ps::Work::piece, first_step + piece / local_.size(), piece};
  }
}

}  // namespace trireme::exchange
