#include <algorithm>
#include <utility>

#include <trireme/base/areas.h>
#include <trireme/comm/shm/sequence.h>

namespace trireme::comm::shm {
namespace {

/// All of the area that has it, or just these pages where it has no name.
void attach(Segment& segment, space::Range part) {
  constexpr const char* kPurpose = "another group's data";
  for (const auto& [name, area] : Areas(segment).all(""))
    if (area.offset <= part.begin && part.end <= area.offset + area.total())
      return void(segment.attach(area.offset, area.total(), kPurpose));
  const size_t begin = part.begin / kPage * kPage;
  segment.attach(begin, round_up(part.end - begin, kPage), kPurpose);
}

}  // namespace

std::byte* View::memory(int r, space::Range part) const {
  if (r == rank()) return own_ + part.begin;
  const size_t begin = rounds_.offset_of(r, round_) + part.begin, end = begin + part.size();
  space::Range& known = known_[static_cast<size_t>(r)];
  if (!part.empty() && (begin < known.begin || end > known.end)) {
    if (!segment_.mapped(begin, part.size())) attach(segment_, {begin, end});
    const space::Range both{std::min(begin, known.begin), std::max(end, known.end)};
    known = !known.empty() && segment_.mapped(both.begin, both.size()) ? both : space::Range{begin, end};
  }
  return segment_.at(begin);
}

bool View::all_in_segment() const {
  for (int r = 0; r < size(); r++)
    if (rounds_.offset_of(r, round_) == kPrivate) return false;
  return true;
}

Sequence::Sequence(Rounds& rounds, Segment& segment, SharedBlock stages, size_t stage_bytes)
    : rounds_(rounds),
      segment_(segment),
      known_(static_cast<size_t>(rounds.ranks())),
      up_(rounds, std::move(stages), stage_bytes) {}

// ---- the phases of one collective: true when it is past them; block: it is now ----

/// A rank whose memory is private knows that it goes through the stages, and can post before it arrives: then a small
/// collective costs no more than its round.
bool Sequence::enter(Open& open, const Open* before, Mode mode, Then then) {
  if (open.arrived) return true;
  if (before != nullptr && !before->arrived) return false;
  Collective& what = *open.what;
  const uint64_t offset = segment_.offset_of(what.memory).value_or(kPrivate);
  const bool early = rounds_.ranks() > 1 && (offset == kPrivate || !what.may_be_direct()) &&
                     what.what.counts != kOwnCounts && (before == nullptr || before->up.all_posted);
  if (early) open.up.chunks = what.up_chunks();
  while (early && open.up.posted < std::min<size_t>(open.up.chunks, Stages::kLead)) {
    if (mode == Mode::block) up_.await_room(what.name);
    if (!up_.room()) break;
    what.post_up(up_.stage(rounds_.rank(), up_.posted()), open.up.posted++);
    up_.post(true);
  }
  open.round = rounds_.arrive(what.what, offset, what.name, then, up_.posted(), what.counts);
  open.arrived = true;
  return true;
}

bool Sequence::plan(Open& open, const Open* before, Mode mode) {
  if (open.planned) return true;
  if (!open.arrived || (before != nullptr && !before->planned)) return false;
  if (mode == Mode::block) rounds_.await_arrivals(open.round);
  if (mode == Mode::look && !rounds_.all_arrived(open.round)) return false;
  up_.learn(open.round);
  const View seen = view(open);
  open.what->plan(seen);
  open.direct = rounds_.ranks() == 1 || (open.what->may_be_direct() && seen.all_in_segment());
  open.up.chunks = open.direct ? 0 : open.what->up_chunks();
  open.down.chunks = open.what->down_chunks(open.direct);
  open.planned = true;
  return true;
}

/// Posts and takes chunks, in the order of the calls.
template <class Post, class Take>
bool Sequence::pass(Stages* stages, Way& way, const Way* before, Mode mode, std::string_view name, const Post& post,
                    const Take& take) {
  const bool may_post = before == nullptr || before->all_posted, may_take = before == nullptr || before->all_taken;
  while (way.taken < way.chunks) {
    while (may_post && way.posted < std::min<size_t>(way.chunks, way.taken + Stages::kLead)) {
      if (mode == Mode::block) stages->await_room(name);
      if (mode == Mode::look && !stages->room()) break;
      post(stages->stage(rounds_.rank(), stages->posted()), way.posted++);
      stages->post();
    }
    if (!may_take || way.taken == way.posted) break;
    if (mode == Mode::block) stages->await_posted(stages->taken(), name);
    if (mode == Mode::look && !stages->posted_by_all(stages->taken())) break;
    take(Posted(*stages, stages->taken()), way.taken++);
    stages->take(mode == Mode::block && way.taken == way.chunks);  // who blocks will tell it soon
  }
  way.all_posted = may_post && way.posted == way.chunks;
  way.all_taken = may_take && way.taken == way.chunks;
  return way.all_taken;
}

bool Sequence::go_up(Open& open, const Open* before, Mode mode) {
  return pass(
      &up_, open.up, before == nullptr ? nullptr : &before->up, mode, open.what->name,
      [&](std::byte* stage, size_t chunk) { open.what->post_up(stage, chunk); },
      [&](const Posted& posted, size_t chunk) { open.what->take_up(view(open), posted, chunk); });
}

bool Sequence::launch(Open& open, const Open* before, Mode mode) {
  if (open.launched) return true;
  if (!plan(open, before, mode) || !go_up(open, before, mode)) return false;
  if (before != nullptr && !before->launched) return false;
  if (open.direct) open.what->work_direct(view(open));
  open.between = open.what->launch();
  open.launched = true;
  return true;
}

bool Sequence::land(Open& open, Mode mode) {
  if (open.landed) return true;
  if (!open.launched) return false;
  if (open.between) {
    if (mode == Mode::block) rounds_.await_threads([&] { return open.between->test(); });
    if (mode == Mode::look && !open.between->test()) return false;
  }
  open.what->land(view(open), open.direct);
  open.landed = true;
  return true;
}

bool Sequence::go_down(Open& open, const Open* before, Mode mode) {
  if (!land(open, mode)) return false;
  return pass(
      down_ ? &*down_ : nullptr, open.down, before == nullptr ? nullptr : &before->down, mode, open.what->name,
      [&](std::byte* stage, size_t chunk) { open.what->post_down(stage, chunk); },
      [&](const Posted& posted, size_t chunk) { open.what->take_down(view(open), posted, chunk); });
}

bool Sequence::finish(Open& open, const Open* before, Mode mode, Then then) {
  if (!open.finished) {
    if (!launch(open, before, mode) || !go_down(open, before, mode)) return false;
    if (before != nullptr && !before->finished) return false;
    rounds_.finish(open.round, then);
    open.finished = true;
  }
  if (mode == Mode::block && open.what->together(open.direct)) rounds_.await_finished(open.round);
  return true;
}

bool Sequence::move(Open& open, const Open* before, Mode mode) {
  return enter(open, before, mode, Then::work) && finish(open, before, mode, Then::work);
}

bool Sequence::complete(const Open& open) const {
  return open.finished && (!open.what->together(open.direct) || rounds_.all_finished(open.round));
}

// ---- all of them ----

class Sequence::Busy {
 public:
  explicit Busy(Sequence& sequence) : sequence_(sequence), before_(std::exchange(sequence.busy_, true)) {}
  ~Busy() { sequence_.busy_ = before_; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Sequence& sequence_;
  bool before_;
};

bool Sequence::attend() {
  if (busy_ || open_.empty()) return false;
  advance(Mode::look);
  return !open_.empty();
}

/// Moves everything as far as it goes now; blocking, until the oldest is complete.
void Sequence::advance(Mode mode) {
  const Busy busy(*this);
  const Open* before = nullptr;
  uint32_t room = kAhead / 2;
  for (Open& open : open_) {
    if (room-- == 0) break;
    move(open, before, Mode::look);
    before = &open;
  }
  if (mode == Mode::block && !open_.empty()) {
    // First all parts of its call, as far as they go without the others' help between: no rank stops in the middle of a
    // call, and one part travels while the next goes up.
    before = nullptr;
    for (Open& open : open_) {
      if (open.call != open_.front().call) break;
      enter(open, before, Mode::block, Then::work);
      launch(open, before, Mode::block);
      before = &open;
    }
    move(open_.front(), nullptr, Mode::block);
  }
  while (!open_.empty() && complete(open_.front())) open_.pop_front();
}

void Sequence::complete() {
  while (!open_.empty()) advance(Mode::block);
}

bool Sequence::between() const {
  return std::any_of(open_.begin(), open_.end(), [](const Open& open) { return open.between && !open.landed; });
}

void Sequence::abandon() noexcept {
  for (Open& open : open_) try {
      if (open.between && !open.landed) open.between->wait();
    } catch (...) {  // nobody waits for it any more
    }
  open_.clear();
}

class Sequence::Handle final : public Work {
 public:
  Handle(Sequence& sequence, uint64_t number) : sequence_(sequence), number_(number) {}
  bool test() override {
    if (!done()) sequence_.advance(Mode::look);
    return done();
  }
  void wait() override {
    while (!done()) sequence_.advance(Mode::block);
  }

 private:
  bool done() const { return sequence_.open_.empty() || sequence_.open_.front().number > number_; }
  Sequence& sequence_;
  uint64_t number_;
};

Started Sequence::start(std::unique_ptr<Collective> what) {
  std::vector<std::unique_ptr<Collective>> parts;
  parts.push_back(std::move(what));
  return start(std::move(parts));
}

Started Sequence::start(std::vector<std::unique_ptr<Collective>> parts) {
  const Busy busy(*this);
  const uint64_t call = next_call_++;
  for (auto& part : parts) {
    part->keep_name();
    Collective* const what = part.get();
    open_.push_back({.owned = std::move(part), .what = what, .call = call, .number = next_number_++});
    Open* const before = open_.size() > 1 ? &open_[open_.size() - 2] : nullptr;
    if (open_.size() <= kAhead / 2) enter(open_.back(), before, Mode::look, Then::work);
  }
  if (rounds_.ranks() == 1) advance(Mode::look);  // all have arrived
  return std::make_unique<Handle>(*this, next_number_ - 1);
}

void Sequence::run(Collective& what) {
  complete();
  const Busy busy(*this);
  Open open{.owned = nullptr, .what = &what, .call = next_call_++, .number = next_number_++};
  enter(open, nullptr, Mode::block, Then::wait);
  launch(open, nullptr, Mode::block);
  finish(open, nullptr, Mode::block, open.direct ? Then::wait : Then::work);
}

}  // namespace trireme::comm::shm
