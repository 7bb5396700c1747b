#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include <trireme/base/advice.h>
#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/comm/counts.h>
#include <trireme/comm/shm/rounds.h>
#include <trireme/space/layout.h>

namespace trireme::comm::shm {
namespace {

std::string describe_call(const Fingerprint& what, std::string_view name) {
  const auto elements = fmt::format(" of {} × {}{}", what.count, trireme::name_of(what.dtype),
                                    what.counts != 0 ? " in uneven blocks" : "");
  switch (what.kind) {
    case Kind::barrier:
      return fmt::format("barrier '{}'", name);
    case Kind::allreduce:
    case Kind::reduce_scatter:
      return fmt::format("{} ({}) '{}'{}", name_of(what.kind), trireme::name_of(what.op), name, elements);
    case Kind::broadcast:
      return fmt::format("broadcast from rank {} '{}'{}", what.root, name, elements);
    default:
      return fmt::format("{} '{}'{}", name_of(what.kind), name, elements);
  }
}

}  // namespace

std::string_view name_of(Kind kind) {
  constexpr std::string_view names[] = {"nothing",   "barrier",    "allreduce",  "reduce-scatter", "all-gather",
                                        "broadcast", "all-to-all", "allocation", "training step"};
  return names[static_cast<size_t>(kind)];
}

Rounds::Rounds(std::shared_ptr<Segment> segment, size_t offset, int rank, int ranks, Seconds timeout,
               std::vector<int> names, std::string timeout_setting, const Excuse& excuse, metrics::Registry* registry)
    : segment_(std::move(segment)),
      rank_(rank),
      ranks_(ranks),
      names_(std::move(names)),
      limit_{timeout, std::move(timeout_setting)},
      count_(registry) {
  stations_ = reinterpret_cast<Station*>(segment_->map(offset, bytes(ranks), "the ranks' control block"));
  counts_ = reinterpret_cast<uint64_t*>(stations_ + ranks);
  patience_ = patience_for(ranks, usable_cores());
  patience_.stubborn = true;
  try {
    join_all(excuse);
  } catch (...) {  // there will be no destructor to tell the others
    stations_[rank_].state.store(kFailed);
    wake(stations_[rank_].bell);
    throw;
  }
}

/// No process is known yet whose end would ring a bell: with an excuse to look for, it sleeps for a short time only.
void Rounds::await_presence(int peer, const Excuse& excuse) {
  constexpr Seconds kBetweenLooks{0.02};
  const auto present = [&] { return stations_[peer].state.load() != kAbsent; };
  const auto start = [] { return std::string("the start of the job"); };
  if (!excuse) return await(peer, present, start);
  const Deadline deadline(limit_.timeout);
  while (!present()) {
    doze(stations_[peer].bell, Deadline(std::min(kBetweenLooks, deadline.left())), present);
    if (present()) return;
    if (const std::exception_ptr cause = excuse(peer)) std::rethrow_exception(cause);
    if (deadline.passed()) time_out(peer, start());
  }
}

void Rounds::join_all(const Excuse& excuse) {
  Station& mine = stations_[rank_];
  mine.pid.store(getpid());
  mine.state.store(kPresent);
  wake(mine.bell);
  for (int peer = 0; peer < ranks_; peer++) await_presence(peer, excuse);

  processes_.resize(static_cast<size_t>(ranks_));
  std::vector<int> watched(static_cast<size_t>(ranks_), -1);
  for (int peer = 0; peer < ranks_; peer++) {
    const pid_t pid = stations_[peer].pid.load();
    if (pid == getpid()) continue;  // this rank, or ranks that are threads of one process
    processes_[static_cast<size_t>(peer)] = open_process(pid);
    if (!processes_[static_cast<size_t>(peer)] && errno == ESRCH && stations_[peer].state.load() == kPresent)
      lost_.store(peer);  // died since
    watched[static_cast<size_t>(peer)] = processes_[static_cast<size_t>(peer)].get();
  }
  watch_.emplace("trireme-watch", std::move(watched), [this](size_t peer) { ended(static_cast<int>(peer)); });
}

Rounds::~Rounds() {
  stations_[rank_].state.store(std::uncaught_exceptions() > 0 ? kFailed : kLeft);
  wake(stations_[rank_].bell);
  watch_.reset();
}

uint32_t Rounds::arrive(const Fingerprint& what, uint64_t offset, std::string_view name, Then then, uint32_t staged,
                        std::span<const uint64_t> counts) {
  const uint32_t round = next_++;
  if (static_cast<int32_t>(past_ - (round + 1 - kAhead)) < 0) await_finished(round - kAhead);
  Station& mine = stations_[rank_];
  Entry &entry = mine.entries[round % kAhead], &own = own_[round % kAhead];
  entry.what = own.what = what;
  entry.offset = own.offset = offset;
  entry.staged = own.staged = staged;
  const size_t listed = std::min(counts.size(), most_counts(ranks_));
  entry.listed = own.listed = static_cast<uint32_t>(listed);
  if (listed > 0) std::copy_n(counts.begin(), listed, counts_at(rank_, round));
  own.round.store(round + 1, std::memory_order_relaxed);
  auto& text = mine.names[round % kAhead];
  const size_t length = std::min(name.size(), kNameBytes - 1);
  std::memcpy(text.data(), name.data(), length);
  text[length] = 0;
  entry.round.store(round + 1, std::memory_order_release);
  unannounced_ = true;
  announce(then);
  return round;
}

bool Rounds::all_arrived(uint32_t round) {
  for (int peer = 0; peer < ranks_; peer++)
    if (!arrived(peer, round)) return false;
  if (static_cast<int32_t>(compared_ - round) <= 0) await_arrivals(round);
  return true;
}

void Rounds::await_arrivals(uint32_t round) {
  for (int step = 1; step < ranks_; step++) {
    const int peer = (rank_ + step) % ranks_;
    await(
        peer, [&] { return arrived(peer, round); }, [&] { return describe(rank_, round); });
    compare(peer, round);
  }
  compared_ = round + 1;
}

void Rounds::compare(int peer, uint32_t round) {
  const Entry &mine = entry(rank_, round), &theirs = entry(peer, round);
  if (mine.what == theirs.what) return;
  announce(Then::work);  // the others are to find the same
  const bool lists = mine.what.counts != theirs.what.counts && mine.listed > 0 && theirs.listed > 0;
  fail<Mismatch>(
      "ranks disagree in collective {}: rank {} called {}, rank {} called {}{}. Every rank must make the same calls in "
      "the same order",
      round, name_of(rank_), describe(rank_, round), name_of(peer), describe(peer, round),
      lists ? difference(name_of(rank_), counts_of(rank_, round), name_of(peer), counts_of(peer, round)) : "");
}

void Rounds::finish(uint32_t round, Then then) {
  if (finished_ != round)
    fail<Error>("round {} finished before an earlier one: a collective was called in the middle of a step", round);
  stations_[rank_].finished.store(++finished_, std::memory_order_release);
  unannounced_ = true;
  announce(then);
}

bool Rounds::all_finished(uint32_t round) const {
  for (int peer = 0; peer < ranks_; peer++)
    if (!finished(peer, round)) return false;
  return true;
}

void Rounds::await_finished(uint32_t round) {
  for (int step = 1; step < ranks_; step++) {
    const int peer = (rank_ + step) % ranks_;
    await(
        peer, [&] { return finished(peer, round); }, [&] { return describe(rank_, round); });
  }
  if (static_cast<int32_t>(round + 1 - past_) > 0) past_ = round + 1;
  announce(Then::work);
}

void Rounds::announce(Then then) {
  if (!unannounced_) return;
  if (then == Then::wait) {
    if (stations_[rank_].bell.sleepers.load(std::memory_order_relaxed) != 0) wake_sleepers();
    return;
  }
  unannounced_ = false;
  ring();
}

/// A change, not only a look: a sleeper either was counted before it, or is counted after it and then sees all that
/// this rank wrote.
void Rounds::ring() {
  if (stations_[rank_].bell.sleepers.fetch_add(0) != 0) wake_sleepers();
}

void Rounds::wake_sleepers() {
  wake(stations_[rank_].bell);
  for (int r = 0; r < ranks_; r++)
    if (r != rank_ && stations_[r].light.load() != 0) nudge(r);
}

/// One who sleeps lightly is counted at every bell, so that whoever rings looks for it.
Rounds::Bed::Bed(Rounds& rounds, int peer, bool light) : rounds_(rounds), light_(light) {
  Station& mine = rounds_.stations_[rounds_.rank_];
  mine.bedside.store(static_cast<uint32_t>(peer) + 1);
  if (!light_) return;
  mine.light.store(1);
  for (int r = 0; r < rounds_.ranks_; r++) rounds_.stations_[r].bell.sleepers.fetch_add(1);
}

Rounds::Bed::~Bed() {
  Station& mine = rounds_.stations_[rounds_.rank_];
  for (int r = 0; light_ && r < rounds_.ranks_; r++) rounds_.stations_[r].bell.sleepers.fetch_sub(1);
  if (light_) mine.light.store(0);
  mine.bedside.store(0);
}

std::string Rounds::describe(int rank, uint32_t round) const {
  return describe_call(entry(rank, round).what, stations_[rank].names[round % kAhead].data());
}

void Rounds::interrupt(std::exception_ptr cause) noexcept {
  if (interrupting_.exchange(true)) return;
  cause_ = std::move(cause);
  interrupted_.store(true);
  for (int rank = 0; rank < ranks_; rank++) wake(stations_[rank].bell);
}

void Rounds::note_cause(std::string_view text, bool victim) noexcept {
  Station& mine = stations_[rank_];
  const size_t length = std::min(text.size(), mine.cause.size() - 1);
  std::memcpy(mine.cause.data(), text.data(), length);
  mine.cause[length] = 0;
  mine.victim.store(victim ? 1 : 0);
}

/// A rank that stopped after an error, and not because of somebody else; -1: there is none.
int Rounds::failed_by_itself() const {
  for (int rank = 0; rank < ranks_; rank++)
    if (rank != rank_ && stations_[rank].state.load() == kFailed && !is_victim(rank)) return rank;
  return -1;
}

bool Rounds::intact() const {
  if (lost_.load() >= 0 || interrupted_.load()) return false;
  return std::none_of(stations_, stations_ + ranks_, [](const Station& one) { return one.state.load() == kFailed; });
}

void Rounds::give_up(int awaited, const std::string& what) const {
  stations_[rank_].victim.store(1);
  if (interrupted_.load()) std::rethrow_exception(cause_);
  const int failed = failed_by_itself();
  if (const int lost = lost_.load(); lost >= 0 && (failed < 0 || !is_victim(lost))) {
    const std::string cause = stations_[lost].cause.data();
    fail<PeerLost>("rank {} (process {}) died{}; rank {} needed it in {}", name_of(lost), stations_[lost].pid.load(),
                   cause.empty() ? "" : " of an uncaught exception: " + cause, name_of(rank_), what);
  }
  if (failed >= 0) awaited = failed;
  if (stations_[awaited].state.load() == kFailed)
    fail<PeerLost>("rank {} stopped after an error of its own (see its output); rank {} waited for it in {}",
                   name_of(awaited), name_of(rank_), what);
  fail<PeerLost>(
      "rank {} has ended its part of the job, but rank {} still waits for it in {}. Do all ranks run the same steps?",
      name_of(awaited), name_of(rank_), what);
}

void Rounds::time_out(int peer, const std::string& what) const {
  const pid_t pid = stations_[peer].pid.load();
  if (pid == 0)
    fail<Timeout>("rank {} did not come to the job within {:.3g} s (waiting: rank {}, in {})", name_of(peer),
                  limit_.timeout.count(), name_of(rank_), what);
  fail<Timeout>("rank {} (process {}, {}) did not come to {} within {:.3g} s; rank {} gave up waiting{}", name_of(peer),
                pid, process_state(pid), what, limit_.timeout.count(), name_of(rank_), longer_helps(limit_.setting));
}

/// The first counts, unless it died because of another: then that one does.
void Rounds::note_lost(int peer) {
  const int before = lost_.load();
  if (before < 0 || (is_victim(before) && !is_victim(peer))) lost_.store(peer);
}

/// In the watch's thread: the failure channel, apart from the data.
void Rounds::ended(int peer) {
  if (stations_[peer].state.load() >= kLeft) return;
  note_lost(peer);
  for (int rank = 0; rank < ranks_; rank++) wake(stations_[rank].bell);
}

}  // namespace trireme::comm::shm
