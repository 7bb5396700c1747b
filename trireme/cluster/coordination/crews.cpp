#include <fmt/format.h>

#include <algorithm>

#include <trireme/cluster/coordination/crews.h>

namespace trireme::cluster {
namespace {

using Ranks = std::vector<int>;

bool has(const Ranks& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

bool is_there(const Hand& hand) { return hand.standing == Standing::present; }

/// "rank 3", "ranks 3 and 5", "ranks 3, 5 and 7".
std::string list(const Ranks& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); i++)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

const char* verb(const Ranks& ranks, const char* one, const char* many) { return ranks.size() == 1 ? one : many; }

Ranks without(const Ranks& all, const Ranks& others) {
  Ranks result;
  std::copy_if(all.begin(), all.end(), std::back_inserter(result), [&](int rank) { return !has(others, rank); });
  return result;
}

/// What happens to the crew, in one pass over its hands.
class Planner {
 public:
  Planner(const std::vector<Hand>& hands, const CrewBook& book, const CrewPolicy& policy)
      : hands_(hands), book_(book), policy_(policy) {
    bool confirmed = true;
    for (const Hand& hand : hands) {
      if (!has(book.ranks, hand.rank)) continue;
      confirmed = confirmed && hand.confirmed >= static_cast<int64_t>(book.epoch);
      at_peace_ += hand.standing == Standing::left && !hand.dismissed ? 1 : 0;
      left_before_ = left_before_ || (hand.standing == Standing::left && !hand.dismissed &&
                                      hand.confirmed < static_cast<int64_t>(book.epoch));
      staying_ += is_there(hand) && hand.rowed && !hand.dismissed ? 1 : 0;
      placed_ = placed_ && (hand.placed || !is_there(hand));
    }
    settled_ = confirmed && !book.held;
    for (const Hand& hand : hands) {
      const bool rows = has(book.ranks, hand.rank) || (!settled_ && has(book.before, hand.rank));
      if (rows && hand.rowed) {
        all_dead_ = all_dead_ && hand.standing == Standing::lost && hand.dead;
        all_end_ = all_end_ && hand.standing == Standing::lost && (hand.dead || hand.ending);
      }
      if (!rows || hand.standing != Standing::lost) continue;
      losses_ += (losses_.empty() ? "" : "; ") + hand.loss;
      lost_++;
    }
  }

  CrewPlan plan(Clock::time_point now) const {
    if (book_.held) return gather(now);
    if (book_.closing) return close_on();
    if (lost_ > 0) return replace();
    if (at_peace_ > 0 && staying_ == 0)
      return {CrewPlan::over, false, {}, {}, "the job is over: the crew has done its work"};
    if (left_before_) return without_the_done();
    return settled_ && at_peace_ == 0 ? adjust() : CrewPlan{};
  }

 private:
  /// Those who can row, up to the target. Of the crew the lowest stay, of the spares the first to come are taken.
  Ranks compose() const {
    Ranks crew, spares, drained;
    for (const Hand& hand : hands_) {
      if (!is_there(hand) || hand.dismissed) continue;
      const bool member = has(book_.ranks, hand.rank);
      if (member)
        (hand.drained ? drained : crew).push_back(hand.rank);
      else if (hand.ready && !hand.drained && hand.placed && placed_)
        spares.push_back(hand.rank);
    }
    for (Ranks* ranks : {&crew, &spares, &drained}) std::sort(ranks->begin(), ranks->end());
    const auto target = static_cast<size_t>(std::max(policy_.target, policy_.least));
    if (crew.size() > target) crew.resize(target);
    for (int spare : spares)
      if (crew.size() < target) crew.push_back(spare);
    for (int rank : drained)  // it has to wait for somebody in its place
      if (crew.size() < static_cast<size_t>(policy_.least)) crew.push_back(rank);
    std::sort(crew.begin(), crew.end());
    return crew;
  }

  bool enough(const Ranks& crew) const {
    return !crew.empty() && static_cast<int>(crew.size()) + at_peace_ >= policy_.least;
  }

  /// Nobody may still row in the crew that this one follows.
  bool safe(const Ranks& crew) const {
    const auto survives = [&](const Hand& hand) {
      return hand.rowed && has(crew, hand.rank) && has(book_.ranks, hand.rank);
    };
    return all_dead_ || std::any_of(hands_.begin(), hands_.end(), survives);
  }

  CrewPlan changed(const Ranks& crew, bool announced, const std::string& losses) const {
    CrewPlan plan{CrewPlan::change, announced, crew, {}, losses};
    const auto add = [&](const std::string& text) { plan.reason += (plan.reason.empty() ? "" : "; ") + text; };
    for (const Hand& hand : hands_)
      if (is_there(hand) && !hand.dismissed && has(book_.ranks, hand.rank) && !has(crew, hand.rank))
        plan.leaving.push_back(hand.rank);
    std::sort(plan.leaving.begin(), plan.leaving.end());
    if (const Ranks come = without(crew, book_.ranks); !come.empty())
      add(fmt::format("{} {} in", list(come), verb(come, "comes", "come")));
    if (!plan.leaving.empty()) add(fmt::format("{} {}", list(plan.leaving), verb(plan.leaving, "goes", "go")));
    if (plan.reason.empty()) plan.reason = fmt::format("{} row", list(crew));
    return plan;
  }

  std::string shortage(const std::string& losses) const {
    const Ranks left = compose();
    return fmt::format("{}{} {} left, and the job needs at least {}", losses.empty() ? "" : losses + "; ",
                       left.empty()       ? "no worker"
                       : left.size() == 1 ? "1 worker"
                                          : fmt::format("{} workers", left.size()),
                       left.size() <= 1 ? "is" : "are", policy_.least);
  }

  static constexpr const char* kAdvice =
      "Start more workers, or lower the least number of workers, and resume from the newest checkpoint";

  CrewPlan unsafe(const std::string& losses) const {
    if (all_end_) return {};
    return {CrewPlan::give_up,
            false,
            {},
            {},
            fmt::format("{}; nobody of the crew is left, and as not all of them are known to be dead, newcomers must "
                        "not go on in their place. Resume from the newest checkpoint",
                        losses)};
  }

  /// Somebody had done its work before it heard of the crew: the others need not wait for it.
  CrewPlan without_the_done() const {
    Ranks crew;
    for (const Hand& hand : hands_)
      if (has(book_.ranks, hand.rank) && is_there(hand) && !hand.dismissed) crew.push_back(hand.rank);
    std::sort(crew.begin(), crew.end());
    return changed(crew, false, "others have done their work");
  }

  CrewPlan replace() const {
    const Ranks crew = compose();
    if (staying_ == 0 && at_peace_ > 0)
      return {CrewPlan::over, false, {}, {}, losses_ + "; the job is over: the others have done their work"};
    if (enough(crew)) return safe(crew) ? changed(crew, false, losses_) : unsafe(losses_);
    if (policy_.rejoin_timeout > Seconds(0))
      return {CrewPlan::hold,
              false,
              {},
              {},
              fmt::format("{}: newcomers are awaited for {:g} s", shortage(losses_), policy_.rejoin_timeout.count()),
              losses_,
              settled_ ? Ranks{} : book_.before};
    const bool nobody = std::none_of(hands_.begin(), hands_.end(), is_there);
    if (nobody) return {};  // the job has ended with its last worker
    return close(without_waiting(losses_));
  }

  std::string without_waiting(const std::string& losses) const {
    return fmt::format("{}. {}{}{}", shortage(losses), policy_.hurry, policy_.hurry.empty() ? "" : ". ", kAdvice);
  }

  /// Those of the crew who have its state.
  Ranks survivors() const {
    Ranks crew;
    for (const Hand& hand : hands_)
      if (is_there(hand) && hand.rowed && !hand.dismissed && has(book_.ranks, hand.rank)) crew.push_back(hand.rank);
    std::sort(crew.begin(), crew.end());
    return crew;
  }

  CrewPlan close(const std::string& reason) const {
    const Ranks left = survivors();
    if (left.empty()) return {CrewPlan::give_up, false, {}, {}, reason};
    CrewPlan plan = changed(left, false, "");
    plan.reason = reason;
    plan.closing = true;
    return plan;
  }

  CrewPlan close_on() const {
    if (lost_ > 0) return close(book_.losses);
    if (staying_ == 0) return {CrewPlan::give_up, false, {}, {}, book_.losses};
    return left_before_ ? close(book_.losses) : CrewPlan{};
  }

  /// Too few were left.
  CrewPlan gather(Clock::time_point now) const {
    const Ranks crew = compose();
    if (enough(crew)) return safe(crew) ? changed(crew, false, book_.losses) : unsafe(book_.losses);
    if (Seconds(now - book_.since) <= policy_.rejoin_timeout) return {};
    return close(policy_.rejoin_timeout > Seconds(0)
                     ? fmt::format("{}. Nobody came in their place within {:g} s. {}", shortage(book_.losses),
                                   policy_.rejoin_timeout.count(), kAdvice)
                     : without_waiting(book_.losses));
  }

  CrewPlan adjust() const {
    const Ranks crew = compose();
    if (crew == book_.ranks || !enough(crew)) return {};
    return changed(crew, true, "");
  }

  const std::vector<Hand>& hands_;
  const CrewBook& book_;
  const CrewPolicy& policy_;
  bool settled_ = false;                       // all of the crew have confirmed that they are in it
  bool placed_ = true;                         // machines of the crew are known
  bool left_before_ = false;                   // somebody of the crew, before it was in it
  bool all_end_ = true;                        // of the same: all are dead, or will be before long
  bool all_dead_ = true;                       // all who may row; newcomers that have not rowed yet do not count
  int at_peace_ = 0, staying_ = 0, lost_ = 0;  // of the crew; newcomers that have not rowed yet do not stay
  std::string losses_;
};

}  // namespace

CrewPlan plan_crew(Clock::time_point now, const std::vector<Hand>& hands, const CrewBook& book,
                   const CrewPolicy& policy) {
  return Planner(hands, book, policy).plan(now);
}

CrewBook book_after(Clock::time_point now, const CrewBook& book, const CrewPlan& plan) {
  if (plan.kind == CrewPlan::change)
    return {book.epoch + 1, plan.ranks, plan.announced ? book.ranks : Ranks{},
            false,          {},         plan.closing ? plan.reason : "",
            plan.closing};
  if (plan.kind == CrewPlan::hold) return {book.epoch + 1, book.ranks, plan.rowing, true, now, plan.losses};
  return book;
}

std::vector<int> spares_of(const std::vector<Hand>& hands, const CrewBook& book) {
  Ranks spares;
  for (const Hand& hand : hands)
    if (is_there(hand) && hand.ready && !hand.dismissed && !has(book.ranks, hand.rank)) spares.push_back(hand.rank);
  std::sort(spares.begin(), spares.end());
  return spares;
}

}  // namespace trireme::cluster
