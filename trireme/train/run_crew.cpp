// A run whose crew changes: what happens between its steps is done again, or taken from those who have done it.
#include <algorithm>
#include <cmath>
#include <utility>

#include <trireme/data/sampler.h>
#include <trireme/train/run.h>

namespace trireme::train {
namespace {

int missing(const std::vector<int>& from, const std::vector<int>& in) {
  return static_cast<int>(std::count_if(from.begin(), from.end(),
                                        [&](int rank) { return std::find(in.begin(), in.end(), rank) == in.end(); }));
}

std::string counted(int count, const char* what) {
  return fmt::format("{} worker{} {}", count, count == 1 ? "" : "s", what);
}

}  // namespace

/// A part that can be done again from where the run is: its steps have been made whole, and the rest leaves nothing
/// half done. All ranks that are left come here, or go on inside of a step.
void Run::through_changes(Parallel& train, const std::function<void()>& part) {
  crew_ = train.group().ranks();
  world_.tell_newcomers(kTrains, "");
  if (!train.elastic()) return part();
  while (true) {
    try {
      return part();
    } catch (const PeerLost& lost) {
      Step change = train.change_crew();
      if (change.reason.empty()) change.reason = lost.what();
      follow(train, change);
      if (world_.closing()) leave_epoch();
    }
  }
}

/// In the middle of one, or before the first: what is saved and told is that of a run that was stopped there.
void Run::leave_epoch() {
  if (owes_end_ || (history_.partial_steps == 0 && !result_.epochs.empty())) return;
  result_.epochs.push_back(history_.partial);
  stopped_steps_ = std::exchange(history_.partial_steps, 0);
}

/// The crew is another one.
void Run::follow(Parallel& train, const Step& change) {
  const std::vector<int>& now = train.group().ranks();
  const int lost = missing(crew_, now), joined = missing(now, crew_);
  crew_ = now;
  position_ = train.source().next_step();
  result_.updates = change.number;
  result_.stopped = result_.stopped || change.stop;
  if (world_.closing()) result_.closing = change.reason;
  adopt_settled(train);
  if (!train.group().first()) return;
  std::string who = lost > 0 ? counted(lost, "lost") : "";
  if (joined > 0) who += (who.empty() ? "" : ", ") + counted(joined, "joined");
  const std::string workers = counted(static_cast<int>(now.size()), world_.closing()  ? "left"
                                                                    : now.size() == 1 ? "goes on"
                                                                                      : "go on");
  const std::string what = world_.closing() ? fmt::format("after step {}. What there is, is saved", position_)
                                            : fmt::format("with step {}", position_ + 1);
  listener_.note(fmt::format("{}: {} {}, after {:.0f} ms{}{}", who, workers, what, change.change_seconds * 1e3,
                             change.reason.empty() ? "" : ". ", change.reason));
}

/// This worker comes when others have trained for a while.
void Run::join_in(Parallel& train) {
  position_ = train.source().next_step();
  settled_ = 0;
  adopt_settled(train);
  settled_ = std::max(settled_, position_ / steps_ - (position_ % steps_ == 0 && position_ > 0 ? 1 : 0));
}

/// An epoch was trained, evaluated and saved: whoever comes later need not.
void Run::settle(Parallel& train) {
  if (!train.elastic()) return;
  SaveNote note;
  describe(note);
  train.settle_on(settled_, (guard_.ended() ? "1" : "0") + note.more.at("history"));
}

void Run::adopt_settled(const Parallel& train) {
  const auto& [settled, text] = train.settled_on();
  if (settled <= settled_) return;
  settled_ = settled;
  owes_end_ = false;
  guard_.set_ended(text.front() == '1');
  history_ = History::parse(text.substr(1));
  const size_t known = result_.epochs.size();
  result_.epochs = history_.epochs;
  result_.seconds = history_.seconds;
  for (size_t i = known; train.group().first() && i < result_.epochs.size(); i++) listener_.epoch(result_.epochs[i]);
}

/// Whether each sample of the epoch was in exactly one step that was made.
void Run::audit(const Parallel& train, const data::Dataset& set, EpochResult& epoch) {
  if (!train.lockstep()) return;
  const exchange::Ledger& ledger = train.ledger();
  const bool whole = position_ == static_cast<int64_t>(epoch.epoch) * steps_;
  if (!whole || ledger.epoch != epoch.epoch - 1 || std::isnan(ledger.samples)) return;
  epoch.samples = static_cast<int64_t>(ledger.samples);
  epoch.left_out = static_cast<int64_t>(ledger.left_out);
  epoch.each_once =
      epoch.samples + epoch.left_out == static_cast<int64_t>(set.count) && ledger.signs == data::sign_of_all(set.count);
  epoch.lost = static_cast<int>(ledger.lost);
  epoch.joined = static_cast<int>(ledger.joined);
  for (const EpochResult& other : result_.epochs)
    if (other.epoch < epoch.epoch) epoch.lost -= other.lost, epoch.joined -= other.joined;
  if (!train.whole().first()) return;
  std::string text = fmt::format("epoch {}: {} of {} samples, {}", epoch.epoch, epoch.samples, set.count,
                                 epoch.each_once ? "each once" : "NOT each once");
  if (epoch.left_out > 0) text += fmt::format("; {} left out, as their steps were not finite", epoch.left_out);
  if (epoch.lost + epoch.joined > 0)
    text += fmt::format("; {}, {}", counted(epoch.lost, "lost"), counted(epoch.joined, "joined"));
  listener_.note(text);
}

}  // namespace trireme::train
