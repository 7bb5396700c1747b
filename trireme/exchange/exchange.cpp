#include <trireme/exchange/exchange.h>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/exchange/allreduce.h>
#include <trireme/exchange/central.h>
#include <trireme/exchange/shared.h>
#include <algorithm>
#include <array>

namespace trireme::exchange {
namespace {

constexpr std::array kNames = {"shared", "allreduce", "central"};

/// Every rank learns whether all agree; if not, every rank learns where it differs from rank 0.
void compare_layouts(comm::Communicator& group, const space::Layout& layout) {
  const uint64_t mine = layout.fingerprint();
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  group.all_gather(&mine, all.data(), 1, DType::i64, "layout fingerprints");
  const auto other = std::find_if(all.begin(), all.end(), [&](uint64_t theirs) { return theirs != all[0]; });
  if (other == all.end()) return;

  const int odd = static_cast<int>(other - all.begin());
  const auto share = [&](int root) {
    std::string text = layout.describe();
    int64_t size = static_cast<int64_t>(text.size());
    group.broadcast(&size, 1, DType::i64, root, "layout size");
    text.resize(static_cast<size_t>(size));
    group.broadcast(text.data(), text.size(), DType::u8, root, "layout");
    return text;
  };
  const std::string first = share(0), second = share(odd);
  fail<Mismatch>("the ranks' models differ. {}", space::first_difference(first, 0, second, odd));
}

}  // namespace

Exchange::Exchange(space::Layout layout, const Options& options)
    : layout_(std::move(layout)), options_(options), buckets_(space::plan_buckets(layout_, options.bucket_bytes)) {}

void Exchange::begin(double lr) {
  std::fill_n(flags(), layout_.size(), uint8_t{0});
  if (updater_) updater_->begin_step(lr);
}

void Exchange::update_all() {
  for (size_t i = 0; i < buckets_.size(); i++) {
    const space::Bucket& b = buckets_[i];
    const space::Source own[] = {{gradients(), flags() + b.first}};
    update_present(*updater_, i, layout_, b.first, b.last, b.range, b.dtype, parameters(), own);
  }
}

std::unique_ptr<Exchange> make_exchange(const Group& group, const space::Layout& layout, const std::optional<space::UpdaterOptions>& optimizer,
                                        const Options& options) {
  if (layout.size() == 0) fail<InvalidArgument>("the model has no parameters");
  compare_layouts(group.all, layout);
  switch (options.sync) {
    case Sync::shared:
      if (!optimizer) fail<InvalidArgument>("sync 'shared' updates the parameters itself; with an optimizer of your own use 'allreduce'");
      return std::make_unique<Shared>(group, layout, *optimizer, options);
    case Sync::allreduce:
      return std::make_unique<Allreduce>(group, layout, optimizer, options);
    case Sync::central:
      if (!optimizer) fail<InvalidArgument>("sync 'central' updates the parameters itself; with an optimizer of your own use 'allreduce'");
      return std::make_unique<Central>(group.all, layout, *optimizer, options);
  }
  fail<InvalidArgument>("unknown sync mode");
}

std::vector<std::string> sync_names() { return {kNames.begin(), kNames.end()}; }
std::string name_of(Sync sync) { return kNames[static_cast<size_t>(sync)]; }

Sync sync_named(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); i++)
    if (name == kNames[i]) return static_cast<Sync>(i);
  fail<InvalidArgument>("unknown sync mode '{}'{}", name, did_you_mean(name, sync_names()));
}

}  // namespace trireme::exchange
