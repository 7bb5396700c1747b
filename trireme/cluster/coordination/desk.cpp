#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/cluster/coordination/crews.h>
#include <trireme/cluster/coordination/desk.h>
#include <trireme/cluster/coordination/desk_image.h>
#include <trireme/cluster/coordination/held_line.h>
#include <trireme/cluster/coordination/tls.h>

namespace trireme::cluster {
namespace {

constexpr size_t kMostEvents = 10'000;  // that wait to be taken; older ones are dropped
constexpr size_t kMostFailures = 1'000;
constexpr size_t kNameBytes = 255, kReportBytes = 4096;

double wall_clock() { return Seconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

/// Texts of members end on terminals: no control characters, no novels.
std::string tame(const std::string& text, size_t most) {
  std::string result = text.substr(0, most);
  std::replace_if(
      result.begin(), result.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return result;
}

/// A member's last word on what it counts.
struct Counted {
  metrics::Snapshot snapshot;
  Clock::time_point at;
};

/// What cannot be read is nothing.
std::optional<metrics::Snapshot> decoded(const std::string& bytes) {
  if (bytes.empty() || bytes.size() > MetricsNews::kMostBytes) return std::nullopt;
  try {
    return metrics::Snapshot::decode(bytes);
  } catch (const Corruption&) {
    return std::nullopt;
  }
}

struct Waiter {
  std::string key;
  Desk::Answer answer;
};

/// Answers that are given once the lock is released.
using Answers = std::vector<std::pair<Desk::Answer, std::variant<std::string, Refusal>>>;

void give(const Answers& answers) {
  for (const auto& [answer, what] : answers) answer(what);
}

}  // namespace

struct Desk::State {
  explicit State(DeskOptions given) : options(std::move(given)), bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    target = options.membership.ranks;
    next_number = options.membership.ranks;
    reset_crew();
    if (options.journal) open_journal();
  }

  const DeskOptions options;
  const Descriptor bell;

  mutable Mutex mutex;
  mutable Condition changed;
  std::vector<Attendee> attendees TRIREME_GUARDED_BY(mutex);                            // sorted by id
  std::unordered_map<uint64_t, std::shared_ptr<Line>> lines TRIREME_GUARDED_BY(mutex);  // of those present
  std::map<std::string, std::string> values TRIREME_GUARDED_BY(mutex);
  size_t bytes TRIREME_GUARDED_BY(mutex) = 0;
  std::map<uint64_t, Waiter> waiters TRIREME_GUARDED_BY(mutex);            // by ticket
  std::multimap<std::string, uint64_t> waiting TRIREME_GUARDED_BY(mutex);  // key, ticket
  TRIREME_GUARDED_BY(mutex) uint64_t next_id = 1, next_ticket = 1, past_epochs = 0;
  std::vector<Failure> failures TRIREME_GUARDED_BY(mutex);
  Decision decision TRIREME_GUARDED_BY(mutex);        // the last one
  CrewBook book TRIREME_GUARDED_BY(mutex);            // who rows
  bool over TRIREME_GUARDED_BY(mutex) = false;        // the crew has done its work
  std::string crew_reason TRIREME_GUARDED_BY(mutex);  // of its last change
  TRIREME_GUARDED_BY(mutex) int target = 1, next_number = 0;
  std::string hurry TRIREME_GUARDED_BY(mutex);  // why too few wait for nobody; "": they do
  std::map<uint64_t, int> called
      TRIREME_GUARDED_BY(mutex);  // by agent: workers that it was asked for and has not brought
  std::deque<std::string> events TRIREME_GUARDED_BY(mutex);
  bool closed TRIREME_GUARDED_BY(mutex) = false;
  std::unordered_map<uint64_t, Counted> counted TRIREME_GUARDED_BY(mutex);  // by member

  // ---- the journal ----
  // Under `mutex`, changes are noted and what depends on them goes to the outbox; flush() makes the changes durable
  // and then lets the words go. Who comes while another one waits for the disk has its changes written with others'.

  const std::shared_ptr<Outbox> outbox = std::make_shared<Outbox>();
  Mutex journal_mutex;                                                // before `mutex`
  std::vector<Outbox::Word> going TRIREME_GUARDED_BY(journal_mutex);  // words whose changes are being written
  ImageChanges image TRIREME_GUARDED_BY(mutex);
  std::set<std::string> dirty TRIREME_GUARDED_BY(mutex);            // keys of values that have changed
  journal::Changes pending TRIREME_GUARDED_BY(mutex);               // that are not written yet
  std::map<uint64_t, uint64_t> attempts TRIREME_GUARDED_BY(mutex);  // the latest connection of those who came back
  CrewChange latest TRIREME_GUARDED_BY(mutex);                      // change of the crew
  CrewChange interrupting TRIREME_GUARDED_BY(mutex);                // the last that followed a loss

  Seconds patience() const { return options.journal ? options.patience : Seconds(0); }

  std::shared_ptr<Line> held(const std::shared_ptr<Line>& line) const {
    if (!options.journal) return line;
    return std::make_shared<HeldLine>(line, outbox);
  }

  DeskFacts facts() const {
    const MembershipOptions& membership = options.membership;
    return {options.job, fingerprint(options.token), membership.ranks, membership.servers, elastic()};
  }

  void note() TRIREME_REQUIRES(mutex) {
    if (!options.journal) return dirty.clear();
    const DeskBooks books{next_id, past_epochs, next_number, target, over, book, crew_reason, latest, interrupting};
    for (journal::Change& change : image.since(facts(), books, attendees, failures))
      pending.push_back(std::move(change));
    note_values();
  }

  void note_values() TRIREME_REQUIRES(mutex) {
    if (!options.journal) return dirty.clear();
    for (const std::string& key : dirty) {
      const auto value = values.find(key);
      pending.push_back({ImageChanges::key_of_value(key),
                         value == values.end() ? std::nullopt : std::optional<std::string>(value->second)});
    }
    dirty.clear();
  }

  /// Blocks as long as the journal's disk does.
  void flush() TRIREME_EXCLUDES(mutex) {
    if (!options.journal) return;
    const Lock turn(journal_mutex);
    journal::Changes changes;
    {
      const Lock lock(mutex);
      changes.swap(pending);
      going = outbox->take();
    }
    options.journal->write(changes);
    for (const Outbox::Word& word : going) word();
    going.clear();
    const std::vector<std::string> remarks = options.journal->take_remarks();
    if (remarks.empty()) return;
    const Lock lock(mutex);
    for (const std::string& remark : remarks) tell(remark);
  }

  /// After every request, without the lock.
  void settle(const Answers& answers) TRIREME_EXCLUDES(mutex) {
    flush();
    give(answers);
  }

  void open_journal() TRIREME_REQUIRES(mutex) {
    std::optional<DeskImage> found = image_of(*options.journal);
    for (const std::string& remark : options.journal->take_remarks()) tell(remark);
    if (found && !found->concluded) {
      const std::string refusal = facts_refusal(found->facts, facts(), options.journal->name());
      if (!refusal.empty()) fail<InvalidArgument>("{}", refusal);
      take_over(std::move(*found));
    } else {
      for (const auto& [key, value] : options.journal->contents()) pending.push_back({key, std::nullopt});
    }
    note();
  }

  void take_over(DeskImage found) TRIREME_REQUIRES(mutex) {
    const auto now = Clock::now();
    attendees = std::move(found.attendees);
    size_t awaited = 0;
    for (Attendee& attendee : attendees) {
      attendee.heard = attendee.gone = now;
      attendee.away = attendee.standing == Standing::present && !attendee.exit_code;
      awaited += attendee.away ? 1 : 0;
    }
    values = std::move(found.values);
    for (const auto& [key, value] : values) bytes += key.size() + value.size();
    failures = std::move(found.failures);
    DeskBooks& books = found.books;
    next_id = books.next_id, past_epochs = books.past_epochs;
    next_number = books.next_number, target = books.target, over = books.over;
    book = std::move(books.book);
    book.since = now;
    crew_reason = std::move(books.crew_reason);
    latest = std::move(books.latest), interrupting = std::move(books.interrupting);
    tell(fmt::format("job '{}' is taken over from the journal {}: {} of {} members are awaited", options.job,
                     options.journal->name(), awaited, attendees.size()));
    Answers nobody;
    review(nobody);
  }

  /// Who was there before, as its secret shows; nullptr: nobody.
  Attendee* known(const Hello& hello) TRIREME_REQUIRES(mutex) {
    if (!options.journal || hello.secret.empty()) return nullptr;
    const std::string secret = fingerprint(hello.secret);
    for (Attendee& attendee : attendees)
      if (!attendee.secret.empty() && same_secret(attendee.secret, secret) &&
          (hello.returning == 0 || hello.returning == attendee.id))
        return &attendee;
    return nullptr;
  }

  Welcome welcome_for(uint64_t id) const {
    const MembershipOptions& membership = options.membership;
    return {id,           options.job, membership.ranks, membership.servers, membership.heartbeat_limit,
            options.host, {},          options.spec,     elastic(),          patience()};
  }

  /// What it may have missed.
  void bring_up_to_date(Line& line, const Attendee& attendee, uint64_t heard) TRIREME_REQUIRES(mutex) {
    if (attendee.member.rank >= 0) line.placed(attendee.member);
    if (!failures.empty()) line.notice(failures.front());
    if (interrupting.epoch > heard) line.crew(interrupting);
    if (latest.epoch > std::max(heard, interrupting.epoch)) line.crew(latest);
    if (!attendee.dismissal.empty()) line.dismissed(attendee.dismissal);
  }

  /// With another connection. The id, or 0 where the line has been closed.
  uint64_t come_back(Attendee& attendee, const Hello& hello, const std::shared_ptr<Line>& line, Answers& answers)
      TRIREME_REQUIRES(mutex) {
    if (attendee.standing == Standing::lost)
      return line->close(failures.empty() ? given_up(attendee.loss) : failed_refusal()), 0;
    uint64_t& attempt = attempts[attendee.id];
    if (hello.attempt != 0 && hello.attempt <= attempt)
      return line->close(Refusal{Refused::cancelled, "has a newer connection of this process"}), 0;
    attempt = hello.attempt;
    if (hello.heard > book.epoch)
      note_failure({-1, options.host,
                    fmt::format("{} has heard of epoch {}, but the journal {} ends at epoch {}: it is older than the "
                                "job. Resume from the newest checkpoint",
                                name_of(attendee.member), hello.heard, options.journal->name(), book.epoch)},
                   answers);
    line->welcome(welcome_for(attendee.id));
    if (attendee.standing == Standing::left || attendee.exit_code) {  // its goodbye was heard, but not the answer to it
      line->farewell();
      return line->close(std::nullopt), 0;
    }
    if (Line* before = line_of(attendee.id))
      before->close(Refusal{Refused::cancelled, "has a newer connection of this process"});
    lines[attendee.id] = line;
    attendee.away = false;
    attendee.connected = attendee.fresh = true;
    attendee.heard = Clock::now();
    tell(fmt::format("{} is back", name_of(attendee.member)));
    bring_up_to_date(*line, attendee, hello.heard);
    review(answers);
    return attendee.id;
  }

  static Refusal given_up(const std::string& why) {
    return {Refused::failed, why + ". It was given up for lost, and the others go on without it"};
  }

  static void hear(Attendee& attendee) {
    attendee.heard = Clock::now();
    attendee.fresh = false;
  }

  Attendee* find(uint64_t id) TRIREME_REQUIRES(mutex) {
    const auto place = std::lower_bound(attendees.begin(), attendees.end(), id,
                                        [](const Attendee& a, uint64_t wanted) { return a.id < wanted; });
    return place == attendees.end() || place->id != id || place->standing != Standing::present ? nullptr : &*place;
  }

  /// nullptr for one that gave up, and for all after close().
  Line* line_of(uint64_t id) const TRIREME_REQUIRES(mutex) {
    const auto place = lines.find(id);
    return place == lines.end() ? nullptr : place->second.get();
  }

  void tell(std::string event) TRIREME_REQUIRES(mutex) {
    events.push_back(std::move(event));
    if (events.size() > kMostEvents) events.pop_front();
    eventfd_write(bell.get(), 1);
  }

  /// Takes a waiting get out of the books.
  Desk::Answer take_waiter(uint64_t ticket) TRIREME_REQUIRES(mutex) {
    const auto place = waiters.find(ticket);
    if (place == waiters.end()) return nullptr;
    const auto [begin, end] = waiting.equal_range(place->second.key);
    waiting.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == ticket; }));
    Desk::Answer answer = std::move(place->second.answer);
    waiters.erase(place);
    return answer;
  }

  void refuse_waiters(const Refusal& refusal, Answers& answers) TRIREME_REQUIRES(mutex) {
    for (auto& [ticket, waiter] : waiters) answers.emplace_back(std::move(waiter.answer), refusal);
    waiters.clear();
    waiting.clear();
  }

  Refusal failed_refusal() const TRIREME_REQUIRES(mutex) {
    return {Refused::failed, fmt::format("the job has failed: {}", failures.front().reason)};
  }

  void note_failure(const Failure& failure, Answers& answers) TRIREME_REQUIRES(mutex) {
    const bool first = failures.empty();
    if (failures.size() < kMostFailures) failures.push_back(failure);
    if (!first) return;
    for (auto& [id, line] : lines) line->notice(failure);
    refuse_waiters(failed_refusal(), answers);
  }

  // ---- crews ----

  bool elastic() const { return options.membership.on_loss == OnLoss::change_crew; }

  void reset_crew() TRIREME_REQUIRES(mutex) {
    book = {};
    latest = interrupting = {};
    for (int rank = 0; rank < options.membership.ranks; rank++) book.ranks.push_back(rank);
    over = false;
    hurry.clear();
    crew_reason.clear();
  }

  std::vector<Hand> hands() const TRIREME_REQUIRES(mutex) {
    std::vector<Hand> result;
    const auto now = Clock::now();
    for (const Attendee& a : attendees) {
      if (a.member.kind != Member::worker || a.member.rank < 0) continue;
      const bool gave_up = a.standing == Standing::present && a.exit_code;  // it is not known yet why
      result.push_back({.rank = a.member.rank,
                        .standing = gave_up ? Standing::lost : a.standing,
                        .dead = a.exit_code || (!a.connected && has_ended(now, a)),
                        .ending = !a.connected,
                        .loss = gave_up ? name_of(a.member) + " has given up" : a.loss,
                        .ready = !a.member.newcomer || a.ready,
                        .rowed = !a.member.newcomer || a.confirmed >= 0,
                        .drained = a.drained,
                        .dismissed = a.dismissed,
                        .placed = !a.member.machine.empty(),
                        .confirmed = a.confirmed});
    }
    return result;
  }

  /// Where it waits for a coordinator to come back, it may live on without its stream until its patience has passed.
  bool has_ended(Clock::time_point now, const Attendee& a) const {
    return patience() == Seconds(0) || Seconds(now - a.gone) > patience() + options.membership.heartbeat_limit;
  }

  CrewPolicy policy() const TRIREME_REQUIRES(mutex) {
    return {options.membership.least, target, hurry.empty() ? options.membership.rejoin_timeout : Seconds(0), hurry};
  }

  /// Workers that a host brings are wanted, as far as they may be.
  void want_more(int slots) TRIREME_REQUIRES(mutex) {
    const auto there = std::count_if(attendees.begin(), attendees.end(), [](const Attendee& a) {
      return a.member.kind == Member::worker && a.standing == Standing::present && !a.dismissed;
    });
    const int most = options.membership.most > 0 ? options.membership.most : kRankNumbers;
    target = std::max(target, std::min(most, static_cast<int>(there) + slots));
  }

  /// nullptr: none that is present.
  Attendee* worker_of(int rank) TRIREME_REQUIRES(mutex) {
    for (Attendee& a : attendees)
      if (a.member.kind == Member::worker && a.member.rank == rank && a.standing == Standing::present) return &a;
    return nullptr;
  }

  void dismiss(Attendee& member, const std::string& reason) TRIREME_REQUIRES(mutex) {
    if (std::exchange(member.dismissed, true)) return;
    member.dismissal = reason;
    if (Line* line = line_of(member.id)) line->dismissed(reason);
  }

  static bool stays(const Attendee& a) { return a.standing == Standing::present && !a.exit_code && !a.dismissed; }

  /// Workers of the agent's host that are there or on their way, for each of its slots.
  double load_of(const Attendee& agent) const TRIREME_REQUIRES(mutex) {
    const auto here = std::count_if(attendees.begin(), attendees.end(), [&](const Attendee& a) {
      return a.member.kind == Member::worker && stays(a) && !a.drained && a.address == agent.address;
    });
    const auto coming = called.find(agent.id);
    return static_cast<double>(here + (coming == called.end() ? 0 : coming->second)) / std::max(1, agent.member.slots);
  }

  const Attendee* least_loaded_agent() const TRIREME_REQUIRES(mutex) {
    const Attendee* best = nullptr;
    for (const Attendee& a : attendees)
      if (a.member.kind == Member::agent && stays(a) && (best == nullptr || load_of(a) < load_of(*best))) best = &a;
    return best;
  }

  int missing_workers() const TRIREME_REQUIRES(mutex) {
    int missing = target;
    for (const Attendee& a : attendees) {
      if (!stays(a)) continue;
      const auto coming = called.find(a.id);
      if (coming != called.end()) missing -= coming->second;
      if (a.member.kind == Member::worker && !a.drained) missing--;
    }
    return missing;
  }

  /// A newcomer has registered: it may be one that its host's agent was asked for.
  void note_arrival(const std::string& address) TRIREME_REQUIRES(mutex) {
    for (const Attendee& a : attendees) {
      const auto coming = called.find(a.id);
      if (coming == called.end() || a.address != address) continue;
      if (--coming->second == 0) called.erase(coming);
      return;
    }
  }

  /// Small numbers, in the order of registration. Empty when somebody's machine is not known: then all are of the first
  /// crew, and know it themselves.
  std::vector<int> machines_of(const std::vector<int>& ranks) TRIREME_REQUIRES(mutex) {
    std::map<std::string, int> known;
    std::map<int, int> numbers;
    for (const Attendee& a : attendees)
      if (a.member.kind == Member::worker && !a.member.machine.empty())
        numbers[a.member.rank] = known.try_emplace(a.member.machine, static_cast<int>(known.size())).first->second;
    std::vector<int> result;
    for (int rank : ranks) {
      const auto found = numbers.find(rank);
      if (found == numbers.end()) return {};
      result.push_back(found->second);
    }
    return result;
  }

  /// What groups of epochs before the last have told one another.
  void forget_meetings() TRIREME_REQUIRES(mutex) {
    const std::string prefix = "epoch ";
    for (auto entry = values.lower_bound(prefix); entry != values.end() && entry->first.starts_with(prefix);) {
      const bool old = std::strtoull(entry->first.c_str() + prefix.size(), nullptr, 10) + 2 <= book.epoch;
      if (old) {
        bytes -= entry->first.size() + entry->second.size();
        dirty.insert(entry->first);
      }
      entry = old ? values.erase(entry) : std::next(entry);
    }
  }

  /// `before`: the book before it.
  void push_crew(const CrewPlan& plan, const CrewBook& before) TRIREME_REQUIRES(mutex) {
    crew_reason = plan.reason;
    latest = {book.epoch, plan.ranks, plan.reason, plan.announced, machines_of(plan.ranks), {}, plan.closing};
    for (const Hand& hand : hands())
      if (hand.standing == Standing::lost &&
          std::find(before.ranks.begin(), before.ranks.end(), hand.rank) != before.ranks.end())
        latest.lost.push_back(hand.rank);
    if (!plan.announced) interrupting = latest;
    for (auto& [id, line] : lines) line->crew(latest);
    for (int rank : plan.leaving) {
      Attendee* worker = worker_of(rank);
      if (worker == nullptr) continue;
      if (worker->member.newcomer && worker->confirmed < 0)
        dismiss(*worker, plan.reason);  // it may not have heard that it was in a crew at all
      else
        worker->dismissed = true;  // the crew tells it
    }
    forget_meetings();
  }

  void end_crews(const CrewPlan& plan) TRIREME_REQUIRES(mutex) {
    if (std::exchange(over, true)) return;
    for (Attendee& attendee : attendees)
      if (attendee.standing == Standing::present && attendee.member.kind != Member::server)
        dismiss(attendee, plan.reason);
  }

  /// Who rows next, if it is not who rows now.
  void review_crew(Answers& answers) TRIREME_REQUIRES(mutex) {
    while (elastic() && decision.underway && failures.empty()) {
      const auto now = Clock::now();
      const CrewPlan plan = plan_crew(now, hands(), book, policy());
      const CrewBook before = std::exchange(book, book_after(now, book, plan));
      if (plan.kind == CrewPlan::over) return end_crews(plan);
      if (plan.kind == CrewPlan::stay) return;
      if (plan.kind == CrewPlan::give_up)
        note_failure({-1, options.host, plan.reason}, answers);
      else
        push_crew(plan, before);
      if (plan.announced || plan.closing || plan.kind != CrewPlan::change) tell(plan.reason);  // a loss has been told
    }
  }

  void carry_out(const Departure& departure, Answers& answers) TRIREME_REQUIRES(mutex) {
    Attendee* gone = find(departure.id);
    gone->standing = departure.standing;
    gone->loss = departure.reason;
    const auto line = lines.find(departure.id);
    if (departure.failure)
      note_failure(*departure.failure,
                   answers);  // before its line goes: one that was only silent may learn why it is out
    tell(departure.reason);
    if (line == lines.end()) return;
    if (gone->exit_code) line->second->farewell();
    const bool others_go_on = departure.standing == Standing::lost && !departure.failure;
    const Refusal refusal = others_go_on ? given_up(departure.reason) : Refusal{Refused::failed, departure.reason};
    line->second->close(gone->exit_code ? std::nullopt : std::optional(refusal));
    lines.erase(line);
  }

  /// After every change: judge, and carry out.
  void review(Answers& answers) TRIREME_REQUIRES(mutex) {
    const bool was_complete = decision.complete;
    do {
      decision = judge(Clock::now(), attendees, options.membership, !failures.empty());
      for (const Departure& departure : decision.departures) carry_out(departure, answers);
    } while (!decision.departures.empty());  // a failure settles the case of those who gave up because of it
    const bool had_failed = !failures.empty();
    review_crew(answers);
    if (!had_failed && !failures.empty()) return review(answers);
    if (book.held && failures.empty()) decision.ended = false;  // newcomers may come
    if (decision.complete && !was_complete) tell(decision.reason);
    note();
    changed.notify_all();
  }

  void place() TRIREME_REQUIRES(mutex) {
    const std::vector<int> ranks = assign(attendees, options.membership);
    for (size_t i = 0; i < ranks.size(); i++) {
      Attendee& attendee = attendees[i];
      if (attendee.member.rank == ranks[i] || attendee.standing != Standing::present) continue;
      attendee.member.rank = ranks[i];
      if (Line* line = line_of(attendee.id)) line->placed(attendee.member);
      tell(fmt::format("{} has its place", name_of(attendee.member)));
    }
  }

  /// When all of a complete job have left in peace, the next to come begins anew: addresses of the old ones would lead
  /// it astray.
  void begin_anew() TRIREME_REQUIRES(mutex) {
    past_epochs += epoch_of(attendees);
    attendees.clear();
    attempts.clear();
    counted.clear();
    for (const auto& [key, value] : values) dirty.insert(key);
    values.clear();
    called.clear();
    bytes = 0;
    reset_crew();
    decision = {};
  }

  /// Members that come and go all the time must not fill the books.
  void forget_replaced() TRIREME_REQUIRES(mutex) {
    if (attendees.size() < options.limits.members) return;
    std::set<std::pair<int, int>> held;
    for (const Attendee& attendee : attendees)
      if (attendee.standing == Standing::present) held.emplace(attendee.member.kind, attendee.member.rank);
    const auto replaced = [&](const Attendee& a) {
      return a.standing == Standing::left && (a.member.rank < 0 || held.contains({a.member.kind, a.member.rank}) ||
                                              !held.emplace(a.member.kind, a.member.rank).second);
    };
    past_epochs += epoch_of(attendees);
    std::erase_if(attendees, replaced);
    past_epochs -= epoch_of(attendees);
    std::set<uint64_t> kept;
    for (const Attendee& attendee : attendees) kept.insert(attendee.id);
    std::erase_if(counted, [&](const auto& entry) { return !kept.contains(entry.first); });
  }

  /// For the first time. The id, or 0 where the line has been closed.
  uint64_t come(const Hello& hello, const std::shared_ptr<Line>& given, Answers& answers) TRIREME_REQUIRES(mutex) {
    if (decision.ended && !hello.member.newcomer) begin_anew();
    forget_replaced();
    const MembershipOptions& membership = options.membership;
    Member wanted = hello.member;
    if (wanted.kind == Member::agent && elastic() && decision.underway)
      wanted.newcomer = true;  // a host that comes later brings more workers, up to the most
    if (wanted.newcomer && wanted.rank < 0) wanted.rank = next_number;
    const Admission admission = admit(wanted, hello.address, attendees, membership);
    if (!admission.refusal.empty()) return given->close(Refusal{Refused::argument, "refuses: " + admission.refusal}), 0;
    if (admission.member.kind == Member::agent && admission.member.newcomer) want_more(admission.member.slots);
    const uint64_t id = next_id++;
    attendees.push_back({id, admission.member, hello.address, Standing::present, Clock::now()});
    if (options.journal && !hello.secret.empty()) attendees.back().secret = fingerprint(hello.secret);
    if (admission.member.kind != Member::server)
      next_number = std::max(next_number, cluster::next_number(attendees, membership));
    const std::shared_ptr<Line> line = lines[id] = held(given);
    if (admission.member.kind == Member::worker && admission.member.newcomer) note_arrival(hello.address);
    const std::string warning = clock_warning(hello.member.host, hello.wall_clock, options.host, wall_clock());
    Welcome welcome = welcome_for(id);
    if (!warning.empty()) welcome.warnings.push_back(warning);
    line->welcome(welcome);
    tell(fmt::format("{} has registered{}{}", name_of(admission.member), warning.empty() ? "" : "; ", warning));
    if (admission.member.rank >= 0) line->placed(admission.member);
    place();
    review(answers);
    return id;
  }

  CrewSnapshot crew_now() const TRIREME_REQUIRES(mutex) {
    const MembershipOptions& membership = options.membership;
    CrewSnapshot crew{.elastic = elastic(),
                      .epoch = book.epoch,
                      .spares = spares_of(hands(), book),
                      .underway = decision.underway,
                      .over = over,
                      .settled = !book.held,
                      .waiting = book.held,
                      .closing = book.closing,
                      .least = membership.least,
                      .target = target,
                      .most = membership.most,
                      .reason = crew_reason};
    for (const Hand& hand : hands()) {
      const bool member = std::find(book.ranks.begin(), book.ranks.end(), hand.rank) != book.ranks.end();
      if (hand.standing == Standing::lost) {
        crew.lost.push_back(hand.rank);
        crew.losses.push_back(hand.loss);
      }
      if (hand.standing != Standing::lost && member) crew.ranks.push_back(hand.rank);
      if (member && hand.confirmed < static_cast<int64_t>(book.epoch)) crew.settled = false;
      if (hand.standing != Standing::present) continue;
      if (!member && !hand.ready) crew.preparing.push_back(hand.rank);
      if (hand.drained || hand.dismissed) crew.leaving.push_back(hand.rank);
    }
    for (const Attendee& a : attendees)
      if (a.away && a.member.kind == Member::worker && a.standing == Standing::present)
        crew.away.push_back(a.member.rank);
    std::sort(crew.ranks.begin(), crew.ranks.end());
    return crew;
  }

  /// Also of one that comes back.
  std::optional<Refusal> refusal_of_stranger(const Hello& hello) const TRIREME_REQUIRES(mutex) {
    const std::string host = tame(hello.member.host, kNameBytes);
    if (closed) return Refusal{Refused::cancelled, "is shutting down"};
    if (hello.version != options.version)
      return Refusal{Refused::mismatch, fmt::format("refuses: host {} runs trireme {}, the coordinator on host {} runs "
                                                    "{}: install the same version on all hosts",
                                                    host, tame(hello.version, 32), options.host, options.version)};
    if (!hello.job.empty() && hello.job != options.job)
      return Refusal{Refused::argument,
                     fmt::format("serves job '{}', not '{}': start one coordinator per job, with another --port",
                                 options.job, tame(hello.job, kNameBytes))};
    return std::nullopt;
  }

  std::optional<Refusal> refusal_of(const Hello& hello) const TRIREME_REQUIRES(mutex) {
    const std::string host = tame(hello.member.host, kNameBytes);
    if (hello.returning != 0)
      return Refusal{
          Refused::argument,
          fmt::format("does not know host {} (process {}) as member {}: it serves another job now, or has no "
                      "journal of this one",
                      host, hello.member.pid, hello.returning)};
    if (!failures.empty()) return failed_refusal();
    const bool comes_late = hello.member.newcomer || (hello.member.kind == Member::agent && decision.underway);
    if (comes_late && over)
      return Refusal{Refused::over, "serves a job that is over: newcomers are not needed any more"};
    if (elastic() && decision.underway && !decision.ended && !hello.member.newcomer &&
        hello.member.kind == Member::worker)
      return Refusal{Refused::argument,
                     fmt::format("refuses: the job is under way, and host {} (process {}) does not come as a newcomer: "
                                 "start it with TRIREME_NEWCOMER=1 and a rank that nobody has had, such as {}",
                                 host, hello.member.pid, next_number)};
    if (host.size() != hello.member.host.size() || host != hello.member.host)
      return Refusal{Refused::argument,
                     fmt::format("refuses: the host name '{}' is too long or has control characters", host)};
    return std::nullopt;
  }

  std::optional<Refusal> refusal_of_key(uint64_t member, const std::string& key) TRIREME_REQUIRES(mutex) {
    if (!failures.empty()) return failed_refusal();
    if (closed) return Refusal{Refused::cancelled, "is shutting down"};
    if (find(member) == nullptr)
      return Refusal{Refused::argument, fmt::format("refuses: there is no member {}: register first", member)};
    if (key.empty() || key.size() > options.limits.key_bytes)
      return Refusal{Refused::limit,
                     fmt::format("refuses: a key has 1 to {} bytes, not {}", options.limits.key_bytes, key.size())};
    return std::nullopt;
  }

  std::optional<Refusal> refusal_of_value(const std::string& key, const std::string& value) const
      TRIREME_REQUIRES(mutex) {
    const CoordinatorLimits& limits = options.limits;
    if (value.size() > limits.value_bytes)
      return Refusal{Refused::limit,
                     fmt::format("refuses: the value has {} bytes, the limit is {}", value.size(), limits.value_bytes)};
    const auto old = values.find(key);
    if (old == values.end() && values.size() >= limits.keys)
      return Refusal{Refused::limit, fmt::format("keeps {} keys at most", limits.keys)};
    const size_t freed = old == values.end() ? 0 : key.size() + old->second.size();
    if (bytes - freed + key.size() + value.size() > limits.total_bytes)
      return Refusal{Refused::limit, fmt::format("keeps {} bytes at most", limits.total_bytes)};
    return std::nullopt;
  }
};

std::string describe(const CrewSnapshot& crew) {
  std::string text = fmt::format("epoch {}: rank{} {} {}", crew.epoch, crew.ranks.size() == 1 ? "" : "s",
                                 fmt::join(crew.ranks, ", "), crew.waiting ? "wait for newcomers" : "row");
  const auto add = [&](const char* what, const std::vector<int>& ranks) {
    if (!ranks.empty()) text += fmt::format("; {}: {}", what, fmt::join(ranks, ", "));
  };
  add("spares", crew.spares);
  add("preparing", crew.preparing);
  add("leaving", crew.leaving);
  add("away", crew.away);
  add("lost", crew.lost);
  text += fmt::format("; {} wanted, at least {}", crew.target, crew.least);
  if (crew.most > 0) text += fmt::format(" and at most {}", crew.most);
  return text;
}

Desk::Desk(DeskOptions options) : state_(std::make_unique<State>(std::move(options))) { state_->flush(); }
Desk::~Desk() = default;

bool Desk::knows(const std::string& token) const { return same_secret(token, state_->options.token); }

Refusal Desk::token_refusal() const {
  return {Refused::token, "refuses the token: give the same TRIREME_TOKEN on all hosts"};
}

uint64_t Desk::attend(const std::string& token, const Hello& hello, const std::shared_ptr<Line>& line) {
  if (!knows(token)) return line->close(token_refusal()), 0;
  Answers answers;
  uint64_t id = 0;
  {
    State& state = *state_;
    const Lock lock(state.mutex);
    if (auto refusal = state.refusal_of_stranger(hello)) return line->close(refusal), 0;
    if (Attendee* known = state.known(hello)) {
      id = state.come_back(*known, hello, state.held(line), answers);
    } else {
      if (auto refusal = state.refusal_of(hello)) return line->close(refusal), 0;
      id = state.come(hello, line, answers);
    }
  }
  state_->settle(answers);
  return id;
}

void Desk::heartbeat(const std::string& token, uint64_t member, const std::string& metrics) {
  if (!knows(token)) return;
  std::optional<metrics::Snapshot> news = decoded(metrics);
  const Lock lock(state_->mutex);
  Attendee* attendee = state_->find(member);
  if (attendee == nullptr || attendee->exit_code) return;
  State::hear(*attendee);
  if (news) state_->counted[member] = {std::move(*news), attendee->heard};
  if (Line* line = state_->line_of(member)) line->heartbeat(attendee->member.rank < 0 ? state_->decision.reason : "");
}

void Desk::leave(const std::string& token, uint64_t member, int exit_code, const std::string& reason, int rank,
                 int server) {
  if (!knows(token)) return;
  Answers answers;
  {
    const Lock lock(state_->mutex);
    Attendee* attendee = state_->find(member);
    if (attendee == nullptr || attendee->exit_code) return;
    attendee->exit_code = exit_code;
    attendee->report = tame(reason, kReportBytes);
    attendee->reported_rank =
        rank >= 0 && rank < (state_->elastic() ? kRankNumbers : state_->options.membership.ranks) ? rank : -1;
    attendee->reported_server = server >= 0 && server < state_->options.membership.servers ? server : -1;
    State::hear(*attendee);
    state_->review(answers);
    // One that gave up stays in the books until somebody else is known to be the cause, but need not wait for that
    // itself.
    if (const auto line = state_->lines.find(member); line != state_->lines.end()) {
      line->second->farewell();
      line->second->close(std::nullopt);
      state_->lines.erase(line);
    }
  }
  state_->settle(answers);
}

void Desk::ready(const std::string& token, uint64_t member, const std::string& machine) {
  if (!knows(token)) return;
  Answers answers;
  {
    const Lock lock(state_->mutex);
    Attendee* attendee = state_->find(member);
    if (attendee == nullptr || attendee->exit_code || attendee->ready) return;
    attendee->ready = true;
    attendee->member.machine = tame(machine, kNameBytes);
    State::hear(*attendee);
    state_->tell(fmt::format("{} is ready", name_of(attendee->member)));
    state_->review(answers);
  }
  state_->settle(answers);
}

void Desk::confirm(const std::string& token, uint64_t member, uint64_t epoch, const std::string& machine) {
  if (!knows(token)) return;
  Answers answers;
  {
    const Lock lock(state_->mutex);
    Attendee* attendee = state_->find(member);
    if (attendee == nullptr || attendee->exit_code || epoch > state_->book.epoch) return;
    attendee->confirmed = std::max(attendee->confirmed, static_cast<int64_t>(epoch));
    if (attendee->member.machine.empty()) attendee->member.machine = tame(machine, kNameBytes);
    State::hear(*attendee);
    state_->review(answers);
  }
  state_->settle(answers);
}

std::string Desk::set_target(int workers) {
  Answers answers;
  {
    State& state = *state_;
    const Lock lock(state.mutex);
    const MembershipOptions& membership = state.options.membership;
    const int most = membership.most > 0 ? membership.most : kRankNumbers;
    if (!state.elastic())
      return "the number of workers of this job is fixed: start it with --workers LEAST:MOST, or with --on-failure "
             "continue or replace";
    if (workers < membership.least || workers > most)
      return fmt::format("the job was started for {} to {} workers, not for {}", membership.least, most, workers);
    if (state.target != workers) state.tell(fmt::format("{} workers are wanted from now on", workers));
    state.target = workers;
    state.review(answers);
  }
  state_->settle(answers);
  return "";
}

void Desk::call_for_workers() {
  {
    State& state = *state_;
    const Lock lock(state.mutex);
    if (!state.elastic() || !state.decision.underway || state.over || !state.failures.empty()) return;
    std::map<uint64_t, int> calls;
    for (int missing = state.missing_workers(); missing > 0; missing--) {
      const Attendee* agent = state.least_loaded_agent();
      if (agent == nullptr) return;
      state.called[agent->id]++;
      calls[agent->id]++;
    }
    for (const auto& [agent, workers] : calls)
      if (Line* line = state.line_of(agent)) line->more(workers);
  }
  state_->settle({});
}

std::string Desk::drain(int rank) {
  Answers answers;
  {
    State& state = *state_;
    const Lock lock(state.mutex);
    if (!state.elastic())
      return "the crew of this job does not change: start it with --workers LEAST:MOST, or with --on-failure continue "
             "or replace";
    Attendee* worker = state.worker_of(rank);
    if (worker == nullptr) return fmt::format("the job has no rank {} now", rank);
    if (worker->drained || worker->dismissed) return "";
    worker->drained = true;
    state.tell(fmt::format("{} is to go", name_of(worker->member)));
    const std::vector<int>& crew = state.book.ranks;
    if (std::find(crew.begin(), crew.end(), rank) == crew.end())
      state.dismiss(*worker, "it was asked to go before it came into the crew");
    state.review(answers);
  }
  state_->settle(answers);
  return "";
}

int Desk::next_rank() {
  int rank = 0;
  {
    const Lock lock(state_->mutex);
    rank = state_->next_number++;
    state_->note();
  }
  state_->flush();
  return rank;
}

void Desk::disconnected(uint64_t member, const Line* line) {
  Answers answers;
  {
    const Lock lock(state_->mutex);
    Attendee* attendee = state_->find(member);
    if (attendee == nullptr || state_->closed) return;
    const auto place = state_->lines.find(member);
    if (line != nullptr && (place == state_->lines.end() || place->second->origin() != line)) return;
    if (attendee->fresh) {  // one of several connections with which it tried to come back
      attendee->away = true;
      attendee->heard = Clock::now();
      if (place != state_->lines.end()) state_->lines.erase(place);
    } else {
      attendee->connected = false;
      attendee->gone = Clock::now();
    }
    state_->review(answers);
  }
  state_->settle(answers);
}

std::optional<Refusal> Desk::put(const std::string& token, uint64_t member, const std::string& key,
                                 const std::string& value) {
  if (!knows(token)) return token_refusal();
  Answers answers;
  {
    State& state = *state_;
    const Lock lock(state.mutex);
    if (auto refusal = state.refusal_of_key(member, key)) return refusal;
    if (auto refusal = state.refusal_of_value(key, value)) return refusal;
    const auto [place, fresh] = state.values.try_emplace(key);
    state.bytes += (fresh ? key.size() : 0) + value.size() - place->second.size();
    place->second = value;
    state.dirty.insert(key);
    state.note_values();
    while (true) {
      const auto first = state.waiting.find(key);
      if (first == state.waiting.end()) break;
      answers.emplace_back(state.take_waiter(first->second), value);
    }
  }
  state_->settle(answers);
  return std::nullopt;
}

uint64_t Desk::get(const std::string& token, uint64_t member, const std::string& key, Answer answer) {
  if (!knows(token)) return answer(token_refusal()), 0;
  Lock lock(state_->mutex);
  std::optional<std::variant<std::string, Refusal>> now;
  if (auto refusal = state_->refusal_of_key(member, key)) {
    now = *refusal;
  } else if (const auto place = state_->values.find(key); place != state_->values.end()) {
    now = place->second;
  } else if (state_->waiters.size() >= state_->options.limits.waiting) {
    now = Refusal{Refused::limit, fmt::format("refuses: {} gets wait already", state_->waiters.size())};
  }
  if (now) {
    lock.unlock();
    state_->flush();  // the value may have been put a moment ago
    return answer(*now), 0;
  }
  const uint64_t ticket = state_->next_ticket++;
  state_->waiting.emplace(key, ticket);
  state_->waiters.emplace(ticket, Waiter{key, std::move(answer)});
  return ticket;
}

void Desk::cancel(uint64_t ticket) {
  Lock lock(state_->mutex);
  const Answer answer = state_->take_waiter(ticket);
  lock.unlock();
  if (answer) answer(Refusal{Refused::cancelled, "nobody waits for this any more"});
}

void Desk::tick(Seconds blind) {
  Answers answers;
  {
    const Lock lock(state_->mutex);
    if (blind > Seconds(0))
      for (Attendee& attendee : state_->attendees)
        attendee.heard = std::min(Clock::now(), attendee.heard + std::chrono::duration_cast<Clock::duration>(blind));
    state_->review(answers);
  }
  state_->settle(answers);
}

void Desk::fail_job(const std::string& reason) {
  Answers answers;
  {
    const Lock lock(state_->mutex);
    state_->note_failure({-1, state_->options.host, reason}, answers);
    state_->tell(reason);
    state_->review(answers);
  }
  state_->settle(answers);
}

void Desk::hurry(const std::string& why) {
  Answers answers;
  {
    const Lock lock(state_->mutex);
    state_->hurry = why;
    state_->review(answers);
  }
  state_->settle(answers);
}

void Desk::conclude() {
  {
    const Lock lock(state_->mutex);
    if (state_->options.journal) state_->pending.push_back(ImageChanges::conclusion());
  }
  state_->flush();
}

void Desk::close() {
  Answers answers;
  {
    const Lock lock(state_->mutex);
    state_->closed = true;
    const Refusal refusal{Refused::cancelled, "is shutting down"};
    state_->refuse_waiters(refusal, answers);
    for (auto& [id, line] : state_->lines) line->close(refusal);
    state_->lines.clear();
    state_->changed.notify_all();
  }
  state_->settle(answers);
}

Snapshot Desk::snapshot() const {
  const State& state = *state_;
  const Lock lock(state.mutex);
  Snapshot result;
  for (const Attendee& attendee : state.attendees)
    result.members.push_back({attendee.member, attendee.standing, seconds_since(attendee.heard)});
  result.epoch = state.past_epochs + epoch_of(state.attendees);
  result.complete = state.decision.complete;
  result.ended = state.decision.ended;
  result.reason = state.decision.reason;
  result.failures = state.failures;
  result.keys = state.values.size();
  result.crew = state.crew_now();
  return result;
}

std::vector<MemberMetrics> Desk::counted() const {
  const State& state = *state_;
  const Lock lock(state.mutex);
  const std::string job = job_id(state.options.job + "/" + state.options.token);
  std::vector<MemberMetrics> all;
  for (const Attendee& attendee : state.attendees)
    if (const auto found = state.counted.find(attendee.id); found != state.counted.end())
      all.push_back({job, attendee.member, found->second.snapshot, seconds_since(found->second.at)});
  return all;
}

bool Desk::wait_ended(const Deadline& deadline) const {
  const State& state = *state_;
  Lock lock(state.mutex);
  const auto over = [&]() TRIREME_REQUIRES(state.mutex) { return state.decision.ended || state.closed; };
  return state.changed.wait_for(lock, deadline.left(), over) && state.decision.ended;
}

std::vector<std::string> Desk::take_events() {
  const Lock lock(state_->mutex);
  eventfd_t rung = 0;
  eventfd_read(state_->bell.get(), &rung);
  std::vector<std::string> result(state_->events.begin(), state_->events.end());
  state_->events.clear();
  return result;
}

int Desk::descriptor() const { return state_->bell.get(); }

}  // namespace trireme::cluster
