#include <trireme/base/error.h>
#include <trireme/exchange/hogwild.h>

namespace trireme::exchange {

Hogwild::Hogwild(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
                 const Options& options)
    : Exchange(layout, options, {.lockstep = false, .gives_work = true, .shared = true}), local_(group.local) {
  if (!group.one_machine())
    fail<InvalidArgument>(
        "sync 'hogwild' is for the workers of one machine, which share its memory; across machines use 'async'");
  berth_.emplace(group.all, local_, layout_.fingerprint());
  const auto here = static_cast<size_t>(local_.rank());
  vectors_.parameters = berth_->one("parameters", layout_.bytes(), "the model's parameters");
  vectors_.gradients = berth_->each("gradients", layout_.bytes(), "the ranks' gradients").parts[here];
  vectors_.present =
      reinterpret_cast<uint8_t*>(berth_->each("flags", layout_.size(), "the gradients' flags").parts[here]);
  auto pile = std::make_unique<Pile>(*berth_, local_.rank(), local_.size());
  pile_ = pile.get();
  source_ = std::move(pile);
  updater_.emplace(optimizer, bucket_ranges(), false,
                   berth_->state(optimizer.kind, layout_, buckets_, bucket_ranges(), false));
}

void Hogwild::publish() {
  local_.barrier("parameters");
  complete();
}

/// Whoever has taken a piece does it to the end.
bool Hogwild::begin_step(std::optional<int64_t> leased) {
  if (!leased) outcome_.stopped = pile_->stopped();
  return !outcome_.stopped;
}

void Hogwild::ready(size_t bucket) {
  if (whole_first()) return;  // what is decided by the whole gradient waits for it
  const space::Source own[] = {{gradients(), flags() + buckets_[bucket].first}};
  update(bucket, buckets_[bucket].range, own);
}

void Hogwild::close() {
  if (whole_first() && clip_here()) update_all();
  complete();
}

Exchange::Share Hogwild::share_of(int rank, size_t bucket) const {
  const space::Range all = buckets_[bucket].range;
  return {.parameters = space::part_of(all, rank, local_.size()), .updated = all, .own_state = true};
}

Exchange::Scalars Hogwild::scalars() {
  Scalars all = Exchange::scalars();
  const Pile::Position next = pile_->position();
  all.insert(all.end(), {{kWorkEpoch, next.course, 0}, {kWorkPiece, next.piece, 0}});
  const Scalars course = course_scalars();
  all.insert(all.end(), course.begin(), course.end());
  return all;
}

void Hogwild::restore_scalars(const std::vector<int64_t>& values) {
  Exchange::restore_scalars(values);
  pile_->restore_position({.course = std::max<int64_t>(values[1], 0), .piece = values[2]});
  source_->restore({.number = values[3], .first_step = values[4]});
}

}  // namespace trireme::exchange
