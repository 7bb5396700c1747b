#include <algorithm>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/exchange/sharded.h>
#include <trireme/space/kernels.h>

namespace trireme::exchange {
namespace {

/// What a rank needs to know of its group before it has memory.
Shares shares_of(const Group& group) {
  int32_t machines = group.lane != nullptr ? group.lane->size() : 0;
  group.local.broadcast(&machines, 1, DType::i32, 0, "the number of machines");
  return {group.lanes, machines};
}

}  // namespace

Sharded::Sharded(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
                 const Options& options)
    : Shared(group, layout, optimizer, options,
             [&](space::Range bucket) {
               if (group.lane == nullptr) return space::Range{};
               const Shares shares{group.lanes, group.lane->size()};
               return shares.part(bucket, group.local.rank(), group.lane->rank());
             }),
      all_(group.all),
      lane_(group.lane),
      shares_(shares_of(group)),
      lane_flags_(layout_.size()),
      pinned_(buckets_.size()),
      published_(buckets_.size()) {
  traits_.patient = true;
  if (stage3()) paging_ = this;
  source_ = std::make_unique<OwnShare>(all_.rank(), all_.size());
  // From stage 2 on ready() waits for sums, see relieve().
  if (options_.backward_waits == BackwardWaits::anywhere && options_.zero >= 2) options_.overlap = false;
  total_ = berth_->each("total", sizeof(Told), "what ranks of all machines tell");
  milestones_ = berth_->each("milestones", sizeof(Milestones), "what ranks have come to");
  int32_t machine = lane_ != nullptr ? lane_->rank() : 0;
  local_.broadcast(&machine, 1, DType::i32, 0, "the number of this machine");
  machine_ = machine;
  if (lane_ != nullptr) {
    if (!group.second_lane) fail<InvalidArgument>("ZeRO over several machines needs a group with second_lane");
    second_lane_ = group.second_lane();
  }
  for (const space::Bucket& b : buckets_) {
    lane_slices_.push_back(lane_ != nullptr ? shares_.slice(b.range, local_.rank()) : space::Range{});
    counts_.push_back(shares_.counts(b.range, local_.rank(), size_of(b.dtype)));
  }
  while (shares_.slice(buckets_.back().range, speaker_).empty()) speaker_++;
  gatherer_.emplace(*berth_, local_, second_lane_, shares_, machine_, buckets_, parameters(), stage3());
  find_limits();
  const Place mine{lane_ != nullptr ? local_.rank() : -1, machine_};
  places_.resize(static_cast<size_t>(all_.size()));
  all_.all_gather(&mine, places_.data(), 2, DType::i32, "the ranks' places");
  if (options_.codes() && lane_ != nullptr) begin_coding(group);
}

void Sharded::begin_coding(const Group& group) {
  std::vector<std::vector<space::Range>> parts(buckets_.size());
  for (size_t b = 0; b < buckets_.size(); b++)
    for (int machine = 0; machine < lane_->size(); machine++)
      parts[b].push_back(shares_.part(buckets_[b].range, local_.rank(), machine));
  coding_.emplace(layout_, buckets_, parts, options_, *lane_,
                  group.world != nullptr ? &group.world->registry() : nullptr);
}

/// Of the whole slice of its lane: parts of all machines.
space::Range Sharded::kept_of(int rank, size_t bucket) const {
  const Place place = places_[static_cast<size_t>(rank)];
  return place.lane < 0 ? space::Range{} : shares_.slice(buckets_[bucket].range, place.lane);
}

Sharded::~Sharded() {
  const auto end = [](const std::unique_ptr<comm::Work>& work) {
    if (work) try {
        work->wait();
      } catch (...) {  // after an error all of them fail, and it was thrown before
      }
  };
  for (const Sum& sum : travelling_) {
    end(sum.flags);
    end(sum.work);
  }
  end(verdict_);
}

/// Half of the window is for gradients, half for parameters.
void Sharded::find_limits() {
  size_t largest = 0;
  std::vector<size_t> foreign;
  for (size_t b = 0; b < buckets_.size(); b++) {
    largest = std::max(largest, buckets_[b].range.size());
    foreign.push_back(shares_.foreign_bytes(buckets_[b].range));
  }
  const size_t half = window_of(options_, layout_.bytes(), largest) / 2;
  if (stage3()) window_.emplace(foreign, half);
  size_t first = 0, bytes = 0;
  for (const space::Bucket& b : buckets_) {
    bytes += b.range.size();
    while (bytes > half) bytes -= buckets_[first++].range.size();
    limits_.push_back(first);
  }
}

// ---- parameters that somebody has written ----

void Sharded::publish_bucket(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  if (local_.rank() == 0) {
    lane_->broadcast(parameters() + b.range.begin, b.range.size(), DType::u8, 0, b.name);
    for (int lane = 0; lane < shares_.lanes; lane++) gatherer_->give_back(bucket, lane);
  }
  published_[bucket] = true;
}

void Sharded::publish() {
  before_writing();
  local_.barrier("before parameters come");
  if (!stage3() && local_.rank() == 0) lane_->broadcast(parameters(), layout_.bytes(), DType::u8, 0, "parameters");
  for (size_t b = 0; stage3() && b < buckets_.size(); b++)
    if (!published_[b]) publish_bucket(b);
  published_.assign(buckets_.size(), false);
  local_.barrier("parameters");
  resume();
  complete();
}

/// What was gathered is of before.
void Sharded::forget_gathered() {
  if (!window_) return;
  uses_.clear();
  std::fill(pinned_.begin(), pinned_.end(), 0);
  act(window_->abandon());
}

/// Each rank has its own parts; where machines have all of them, the others' come.
void Sharded::restore_elsewhere(state::Source& /*source*/) {
  for (size_t b = 0; !stage3() && b < buckets_.size(); b++) gatherer_->start(b);
  gatherer_->land();
  local_.barrier("restored parameters");
}

// ---- the backward pass ----

void Sharded::open() {
  if (window_) window_->note_open();
  Shared::open();
  std::fill(squares_.begin(), squares_.end(), 0.0);
  ready_ = summed_here_ = departed_ = relieved_ = 0;
  flawed_ = 0;
  outcome_.landed = false;
  expect_gradients(0);
}

/// The backward pass fills this one next.
void Sharded::expect_gradients(size_t bucket) {
  if (options_.zero < 2 || !options_.overlap || bucket >= buckets_.size()) return;
  const space::Range pages = whole_pages(buckets_[bucket].range);
  Segment::populate(gradients() + pages.begin, pages.size());
}

void Sharded::ready(size_t bucket) {
  ready_ = bucket + 1;
  if (window_) window_->note_ready();
  Shared::ready(bucket);
  if (options_.zero >= 2 && options_.overlap)
    while (relieved_ < limits_[bucket]) relieve(relieved_);
  expect_gradients(bucket + 1);
}

void Sharded::proceed() {
  work_arrived();
  depart();
  while (!travelling_.empty() && travelling_.front().done()) land_sum();
  while (!waiting_.empty() && unused(waiting_.front())) update_next();
  gatherer_->poll();
}

/// By the backward pass of any rank of this machine, see Traits::patient.
bool Sharded::unused(size_t bucket) {
  if (last(bucket)) return true;  // its sum began when all ranks had ended theirs
  return bucket + 1 < ready_ && local_.rounds().all_arrived(rounds_of_[bucket + 1]);
}

void Sharded::work(size_t bucket) {
  look(bucket, keeps_gradients() ? lane_slices_[bucket] : buckets_[bucket].range);
  if (!lane_slices_[bucket].empty()) sum_here(bucket, lane_slices_[bucket], lane_flags_.data());
  summed_here_ = bucket + 1;
}

void Sharded::depart() {
  for (; departed_ < summed_here_; departed_++) start_sum(departed_);
}

void Sharded::start_sum(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  const space::Range slice = lane_slices_[bucket];
  Sum sum{bucket, nullptr, nullptr};
  if (slice.empty()) return travelling_.push_back(std::move(sum));
  if (coding_) {
    const bool tells = last(bucket) && local_.rank() == speaker_;
    sum.work =
        coding_->depart(bucket, gradients(), {lane_flags_.data() + b.first, b.last - b.first},
                        tells ? std::span<const double>(outcome_.told) : std::span<const double>(), updater_->steps());
    return travelling_.push_back(std::move(sum));
  }
  comm::network::Along along{.flags = {lane_flags_.data() + b.first, b.last - b.first}, .sums = {}};
  if (along.flags.size() > lane_->kMostFlags) {
    sum.flags = lane_->start_allreduce(along.flags.data(), along.flags.size(), DType::u8, Op::max, b.name);
    along.flags = {};
  }
  if (last(bucket) && local_.rank() == speaker_) along.sums = outcome_.told;
  sum.work = lane_->start_reduce_scatter(gradients() + slice.begin, gradients() + slices_[bucket].begin,
                                         counts_[bucket], b.dtype, Op::sum, along, b.name);
  travelling_.push_back(std::move(sum));
}

void Sharded::land_sum() {
  for (const auto* work : {&travelling_.front().flags, &travelling_.front().work})
    if (*work) (*work)->wait();
  const size_t bucket = travelling_.front().bucket;
  const bool tells = last(bucket) && local_.rank() == speaker_;
  if (coding_ && travelling_.front().work)
    coding_->land(bucket, gradients(),
                  {lane_flags_.data() + buckets_[bucket].first, buckets_[bucket].last - buckets_[bucket].first},
                  tells ? std::span<double>(outcome_.told) : std::span<double>());
  travelling_.pop_front();
  waiting_.push_back(bucket);
  if (!tells) return;
  total() = outcome_.told;
  milestones(local_.rank()).told.store(step_);
  local_.rounds().ring();
}

/// Blocks until the gradients of a bucket, the next in order, are summed; then only this rank's part of them stays.
/// What it waits for, each rank has done when it leaves its own ready() of the same bucket, or has arrived at before.
/// So ranks that wait for their replica between two calls of ready() close no circle: of those that have made the
/// fewest calls, and of these the one that is furthest behind in its replica's program, somebody can always go on.
void Sharded::relieve(size_t bucket) {
  while (!open_.empty() && open_.front().bucket <= bucket) work_next();
  depart();
  while (!travelling_.empty() && travelling_.front().bucket <= bucket) land_sum();
  local_.rounds().await_finished(rounds_of_[bucket]);  // the others have read theirs
  give_back_gradients_of(bucket);
  relieved_ = bucket + 1;
}

void Sharded::give_back_gradients_of(size_t bucket) {
  const space::Range all = buckets_[bucket].range, own = slices_[bucket];
  if (own.empty()) return give_back_gradients(all);
  give_back_gradients({all.begin, own.begin});
  give_back_gradients({own.end, all.end});
}

/// The owner's part, and on with it to the other machines. With clip, only what its norm needs.
void Sharded::update_next() {
  const size_t bucket = waiting_.front();
  waiting_.pop_front();
  const space::Bucket& b = buckets_[bucket];
  const space::Source sum[] = {{gradients(), lane_flags_.data() + b.first}};
  if (whole_first()) {
    squares_[bucket] = space::squares_present(layout_, b.first, b.last, slices_[bucket], b.dtype, nullptr, sum);
    return;
  }
  const bool sound_before = std::exchange(outcome_.sound, true);
  update_slice(bucket, slices_[bucket], sum);
  if (!outcome_.sound) look_at_sum(bucket, slices_[bucket]);
  outcome_.sound = outcome_.sound && sound_before;
  if (options_.zero >= 2) give_back_gradients(slices_[bucket]);
  if (!stage3()) gatherer_->start(bucket);
}

// ---- the end of a step ----

void Sharded::close() {
  while (!open_.empty()) {
    work_next();
    depart();
  }
  if (whole_first()) return close_clipped();
  while (!travelling_.empty() || !waiting_.empty()) {
    if (waiting_.empty()) land_sum();
    update_next();
  }
  finish_updates();
  hear();
}

/// All sums are needed before the first update.
void Sharded::close_clipped() {
  while (!travelling_.empty()) land_sum();
  while (!waiting_.empty()) update_next();
  const auto update_sum = [&](size_t b) {
    const space::Source sum[] = {{gradients(), lane_flags_.data() + buckets_[b].first}};
    update(b, slices_[b], sum);
  };
  clip_and_update(squares_together(), update_sum, [&](size_t b) {
    if (!outcome_.sound) return look_at_sum(b, slices_[b]);
    if (!stage3()) gatherer_->start(b);
  });
  finish_updates();
  hear();
  land();
}

void Sharded::finish_updates() {
  if (options_.zero >= 2) {
    local_.rounds().await_finished(last_round_);
    give_back_gradients({0, round_up(layout_.bytes(), kPage)});
  }
  if (window_) act(window_->clear());
  if (!watches() || whole_first() || second_lane_ == nullptr) return;
  flawed_ = outcome_.sound ? 0 : 1;
  verdict_ = second_lane_->start_allreduce(&flawed_, 1, DType::i64, Op::max, "whether gradients are finite");
}

void Sharded::hear() {
  local_.rounds().await(
      speaker_, [&] { return static_cast<int32_t>(milestones(speaker_).told.load() - step_) >= 0; },
      [] { return "what ranks of all machines tell"; });
  outcome_.told = total();
}

void Sharded::land() {
  if (outcome_.landed) return;
  gatherer_->land();
  if (verdict_) std::exchange(verdict_, nullptr)->wait();
  if (flawed_ != 0) note_flaw();
  complete();
  milestones(local_.rank()).ended.store(step_);
  local_.rounds().ring();
  for (int peer = 0; peer < local_.size(); peer++)
    local_.rounds().await(
        peer, [&] { return static_cast<int32_t>(milestones(peer).ended.load() - step_) >= 0; },
        [] { return "the end of its update"; });
  outcome_.landed = true;
  if (!whole_first()) outcome_.sound = sound_here();
  if (coding_) coding_->settle(outcome_.sound);
  gatherer_->poll();
}

void Sharded::await(space::Range part) {
  const space::Range parts[] = {part};
  if (stage3()) {
    use(parts);
    return release();
  }
  if (outcome_.landed) return;
  for (size_t b = 0; b < buckets_.size(); b++)
    if (!intersect(part, buckets_[b].range).empty()) gatherer_->await(b);
}

// ---- stage 3: parameters come and go ----

void Sharded::act(const Window::Actions& actions) {
  for (const Window::Action& action : actions)
    if (action.kind == Window::Action::gather)
      gatherer_->start(action.bucket);
    else
      gatherer_->give_up(action.bucket);
}

void Sharded::begin_pass(Pass pass) {
  pass_ = pass;
  uses_.clear();
  std::fill(pinned_.begin(), pinned_.end(), 0);
  act(window_->begin(static_cast<int>(pass)));
}

void Sharded::use(std::span<const space::Range> parts) {
  std::vector<size_t> buckets;
  for (size_t b = 0; b < buckets_.size(); b++)
    if (std::any_of(parts.begin(), parts.end(),
                    [&](space::Range part) { return !intersect(part, buckets_[b].range).empty(); }))
      buckets.push_back(b);
  use_buckets(std::move(buckets));
}

void Sharded::use_buckets(std::vector<size_t> buckets) {
  if (!settled_) {
    gatherer_->poll();
    act(window_->use(buckets, pinned_));
    for (size_t b : buckets) gatherer_->await(b);
  }
  for (size_t b : buckets) pinned_[b]++;
  uses_.push_back(std::move(buckets));
}

void Sharded::release() {
  if (uses_.empty()) return;
  for (size_t b : uses_.back()) pinned_[b]--;
  uses_.pop_back();
  if (!settled_) window_->note_release();
}

void Sharded::replay(const std::function<void()>& open, const std::function<void()>& ready) {
  const std::vector<Window::Event> events = window_->learned(static_cast<int>(pass_));
  if (events.empty())
    fail<InvalidArgument>(
        "rank {} has no samples in the first step, and has not seen yet in which order the model uses its parameters: "
        "with zero 3 every rank needs samples in the first step of each kind. Choose a batch that all of them share",
        all_.rank());
  for (const Window::Event& event : events) {
    if (event.kind == Window::Event::use) use_buckets(event.buckets);
    if (event.kind == Window::Event::release) release();
    if (event.kind == Window::Event::open) open();
    if (event.kind == Window::Event::ready) ready();
  }
}

void Sharded::settle() {
  if (!window_ || settled_) return;
  act(window_->clear());
  for (size_t b = 0; b < buckets_.size(); b++) gatherer_->start(b);
  for (size_t b = 0; b < buckets_.size(); b++) gatherer_->await(b);
  settled_ = true;
}

void Sharded::resume() {
  if (!settled_) return;
  for (size_t b = 0; b < buckets_.size(); b++) gatherer_->give_up(b);
  settled_ = false;
}

Exchange::Share Sharded::share_of(int rank, size_t bucket) const {
  const Place place = places_[static_cast<size_t>(rank)];
  if (place.lane < 0) return {};
  const space::Range part = shares_.part(buckets_[bucket].range, place.lane, place.machine);
  return {.parameters = part, .updated = part};
}

}  // namespace trireme::exchange
