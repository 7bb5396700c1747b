#include <trireme/exchange/exchange.h>

#include <trireme/base/error.h>
#include <trireme/exchange/allreduce.h>
#include <trireme/exchange/central.h>
#include <trireme/exchange/hogwild.h>
#include <trireme/exchange/local.h>
#include <trireme/exchange/servers.h>
#include <trireme/exchange/shared.h>
#include <trireme/exchange/spread.h>
#include <algorithm>

namespace trireme::exchange {
namespace {

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

bool Exchange::begin(double lr) {
  lr_ = lr;
  return begin_step();
}

void Exchange::open() {
  land();
  std::fill_n(flags(), layout_.size(), uint8_t{0});
  if (updater_) updater_->begin_step(lr_);
}

ps::Work Exchange::take(int64_t /*epoch*/, int64_t /*first_step*/, int64_t /*pieces*/) {
  fail<Error>("this exchange gives no work: every rank does its share");
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
  if (!optimizer && options.sync != Sync::allreduce)
    fail<InvalidArgument>("sync '{}' updates the parameters itself; with an optimizer of your own use 'allreduce'", name_of(options.sync));
  if (options.sync.needs_servers() && (group.world == nullptr || group.world->servers() == 0))
    fail<InvalidArgument>("sync '{}' needs parameter servers: start the job with --servers 1 or more", name_of(options.sync));
  switch (options.sync.kind) {
    case Sync::shared:
      if (group.one_machine()) return std::make_unique<Shared>(group.local, layout, *optimizer, options);
      return std::make_unique<Spread>(group, layout, *optimizer, options);
    case Sync::allreduce:
      return std::make_unique<Allreduce>(group, layout, optimizer, options);
    case Sync::central:
      return std::make_unique<Central>(group.all, layout, *optimizer, options);
    case Sync::server:
    case Sync::async:
    case Sync::stale:
    case Sync::trylock:
    case Sync::round_robin:
      return std::make_unique<Servers>(group, layout, *optimizer, options);
    case Sync::hogwild:
      return std::make_unique<Hogwild>(group, layout, *optimizer, options);
    case Sync::local:
    case Sync::elastic:
      return std::make_unique<Local>(group, layout, *optimizer, options);
  }
  fail<InvalidArgument>("unknown sync mode");
}

}  // namespace trireme::exchange
