// A crew that changes, on one machine: steps that are made whole, and state that the next crew goes on with.
#include <algorithm>
#include <cstring>

#include <trireme/base/areas.h>
#include <trireme/base/error.h>
#include <trireme/base/marks.h>
#include <trireme/exchange/shared.h>
#include <trireme/space/kernels.h>

namespace trireme::exchange {

namespace {

/// What a rank has of a crew before.
struct Standing {
  int64_t crew = 0;  // its epoch, + 1; 0: the rank has nothing
  int64_t size = 0;  // ranks that were in it
  Reached reached;
};

}  // namespace

void Shared::begin_crew() {
  transaction_->begin_at({});
  local_.barrier("a crew begins");
  local_.keep_areas();
}

void Shared::begin_rewriting() {
  if (transaction_) transaction_->spoil();
}

void Shared::rewritten(const Reached& now) {
  Reached reached = now;
  reached.steps = updater_->steps();
  transaction_->kept(reached);
}

void Shared::update_whole(bool applies) {
  Reached reached = aim_;
  reached.steps = updater_->steps();
  reached.loss = outcome_.told[0];
  reached.stops = outcome_.told[1] > 0 ? 1 : 0;
  reached.ledger.add(outcome_.told[kToldSamples], outcome_.told[kToldSamples + 1], applies);
  transaction_->decide(step_, {reached, lr_, updater_->scale(), applies});
  space::Journal& journal = transaction_->own();
  journal.begin(step_, {steps_of(local_.rank()), updater_->counts() ? layout_.size() : 0});
  mark("update: begun");
  for (size_t b = 0; applies && b < buckets_.size(); b++) {
    mark("update: bucket", b);
    update_slice(b, slices_[b], sources_on(local_.rank(), b));
    mark("update: bucket done", b);
  }
  journal.end(step_);
  mark("update: ended");
}

/// Of all slots; null where nobody counts them.
int64_t* Shared::steps_of(int rank) const {
  const auto& parts = berth_->steps().parts;
  return parts.empty() ? nullptr : reinterpret_cast<int64_t*>(parts[static_cast<size_t>(rank)]);
}

std::vector<space::Source> Shared::sources_on(int rank, size_t bucket) {
  if (!whole_first() || !(watches() || squares_by_block())) return sources_of(bucket);
  if (rank == local_.rank()) return {{gradients(), any_.data() + buckets_[bucket].first}};
  any_of_rank_.assign(layout_.size(), 0);
  for (const Seated& one : seated_)
    for (size_t slot = 0; slot < layout_.size(); slot++) any_of_rank_[slot] |= flags_of(one.rank, one.seat)[slot];
  return {{gradients_of(rank), any_of_rank_.data() + buckets_[bucket].first}};
}

Reached Shared::give_up() {
  transaction_->give_up();
  return transaction_->last().reached;
}

void Shared::copy_slice(const Shared& before, int rank, size_t bucket) {
  const space::Range slice = before.slice_on(rank, bucket);
  const auto copy = [&](std::byte* to, const std::byte* from) {
    std::memcpy(to + slice.begin, from + slice.begin, slice.size());
  };
  copy(parameters(), before.parameters());
  for (size_t vector = 0; vector < state_.vectors.size(); vector++)
    copy(state_.vectors[vector], before.state_.vectors[vector]);
}

/// What a rank of the crew before has updated, or would have: into this crew's memory, which nobody uses yet. Its own
/// is only read, as the rank may live and write there.
void Shared::take_slices(Shared& before, int rank, const Decided& last, std::span<int64_t> steps) {
  const space::Journal& journal = before.transaction_->of(rank);
  const uint64_t step = before.transaction_->give_up();
  const bool missing = last.applies && !journal.ended(step);
  const std::optional<space::Journal::Entry> entry = missing ? journal.latest(step) : std::nullopt;
  const int64_t* const live = before.steps_of(rank);
  std::vector<int64_t> counted(live != nullptr ? layout_.size() : 0);
  if (live != nullptr)
    std::copy_n(missing && journal.begun(step) ? journal.steps_before().data() : live, counted.size(), counted.data());
  std::vector<space::Range> owned;
  space::StateMemory memory{state_.vectors, {}};
  for (size_t b = 0; b < buckets_.size(); b++) {
    owned.push_back(before.slice_on(rank, b));
    if (live != nullptr) memory.steps.push_back(counted.data() + buckets_[b].first);
  }
  space::Updater updater(updater_->options(), owned, false, memory);
  updater.restart(last.reached.steps - 1);
  updater.begin_step(last.lr);
  updater.scale(last.scale);
  updater.watch(watches() && !whole_first());
  for (size_t b = 0; b < buckets_.size(); b++) {
    const space::Bucket& bucket = buckets_[b];
    copy_slice(before, rank, b);
    if (missing) {
      space::Range rest = owned[b];
      const std::vector<space::Source> sources = before.sources_on(rank, b);
      updater.count(b, layout_, bucket.first, bucket.last, rest, sources);
      if (entry && b < entry->owned) rest.begin = rest.end;
      if (entry && b == entry->owned) {
        rest.begin = entry->piece.begin;
        std::byte* homes[] = {parameters(), state_.vectors.empty() ? nullptr : state_.vectors[0],
                              state_.vectors.size() < 2 ? nullptr : state_.vectors[1]};
        for (size_t i = 0; i < entry->homes.size(); i++)
          std::memcpy(homes[i] + rest.begin, entry->homes[i].data(), entry->homes[i].size());
      }
      if (!rest.empty())
        update_present(updater, b, layout_, bucket.first, bucket.last, rest, bucket.dtype, parameters(), sources);
    }
    for (size_t slot = bucket.first; live != nullptr && slot < bucket.last; slot++)
      if (!intersect(owned[b], layout_[slot].range).empty()) steps[slot] = counted[slot];
  }
}

/// All that are left of a machine divide the slices of the crew before among them. Where nobody is left of it, or a
/// machine came too late to decide the last step, others bring it.
Reached Shared::take_over(Exchange* exchange, const Reached& reached) {
  auto* const before = dynamic_cast<Shared*>(exchange);
  if (before != nullptr && before->transaction_->spoiled())
    fail<StateLost>("a rank was lost while the state of the model was restored: resume from a checkpoint");
  comm::Communicator& all = group();
  std::vector<Standing> everywhere(static_cast<size_t>(all.size())), here(static_cast<size_t>(local_.size()));
  const Standing mine =
      before == nullptr ? Standing{}
                        : Standing{static_cast<int64_t>(before->local_.epoch()) + 1, before->group().size(), reached};
  constexpr size_t kNumbers = sizeof(Standing) / sizeof(int64_t);  // of which one is not whole, but moved as it is
  all.all_gather(&mine, everywhere.data(), kNumbers, DType::i64, "where the crew before was");
  local_.all_gather(&mine, here.data(), kNumbers, DType::i64, "where it was on this machine");
  const auto further = [](const Standing& a, const Standing& b) {
    return std::pair(a.crew != 0 ? a.reached.position : -1, a.crew) <
           std::pair(b.crew != 0 ? b.reached.position : -1, b.crew);
  };
  Standing best = *std::max_element(everywhere.begin(), everywhere.end(), further);
  if (best.crew == 0)
    fail<StateLost>("nobody is left of the crew before, and its state with it: resume from a checkpoint");
  const auto stays = std::count_if(everywhere.begin(), everywhere.end(), [](const Standing& s) { return s.crew != 0; });
  best.reached.ledger.lost += best.size - stays;
  best.reached.ledger.joined += all.size() - stays;
  const Standing best_here = *std::max_element(here.begin(), here.end(), further);
  const bool up_to_date = best_here.crew != 0 && best_here.reached.position == best.reached.position;
  const auto shares = [&](const Standing& one) { return up_to_date && one.crew == best_here.crew; };
  std::span<int64_t> steps(reinterpret_cast<int64_t*>(handed_), layout_.size());
  if (shares(mine)) {
    const Decided last = before->transaction_->last();
    const auto sharers = static_cast<int>(std::count_if(here.begin(), here.end(), shares));
    const auto number = static_cast<int>(std::count_if(here.begin(), here.begin() + local_.rank(), shares));
    for (int rank = number; rank < before->local_.size(); rank += sharers) take_slices(*before, rank, last, steps);
  }
  mark("take over: copied");
  local_.barrier("the state of the crew before");
  bring(up_to_date, steps);
  if (int64_t* const counted = steps_of(local_.rank())) std::copy(steps.begin(), steps.end(), counted);
  updater_->restart(best.reached.steps);
  transaction_->begin_at(best.reached);
  began_ = true;
  complete();
  all.barrier("a crew begins");
  local_.keep_areas();
  mark("take over: done");
  return best.reached;
}

}  // namespace trireme::exchange
