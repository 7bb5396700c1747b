// All of a service, for a backup that is filled.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <trireme/ps/copy.h>
#include <trireme/ps/sparse_table.h>

#include "chunk_state.h"
#include "state_wire.h"

namespace trireme::ps {
namespace {

void put(CopyWriter& out, const Incoming& in) {
  out.put(in.from->worker);
  out.put(in.request);
}

void put(CopyWriter& out, const std::vector<Incoming>& all) {
  out.put(all.size());
  for (const Incoming& in : all) put(out, in);
}

}  // namespace

/// It was checked when it came to the other server: one that is wrong was damaged since.
Incoming Service::next(CopyReader& in, const Again& again, std::initializer_list<Verb> verbs,
                       const ChunkState* of) const {
  const int worker = in.get(job_->workers - 1);
  Incoming incoming = again(worker, in.get<Request>());
  const Request& r = incoming.request;
  std::string why;
  if (std::find(verbs.begin(), verbs.end(), r.verb) == verbs.end())
    why = fmt::format("a request {} where none waits", static_cast<int>(r.verb));
  else if (check_content(incoming, why) && of != nullptr && &of->chunk != &chunks_[r.chunk])
    why = fmt::format("a request of chunk {} in another", r.chunk);
  if (!why.empty()) fail<Corruption>("the copy of a shard has {}", why);
  return incoming;
}

void Service::copy_workers_to(CopyWriter& out) const {
  out.put(failure_);
  out.put(job_from_);
  for (const Worker& worker : workers_) {
    out.put(worker.standing);
    out.put(worker.seen);
    out.put(worker.clock);
    out.put(worker.begun);
    out.put(worker.delay);
    out.put(worker.answer);
    out.put(worker.passed);
  }
  out.put(beginning_.size());
  for (const Waiting& waiting : beginning_) {
    put(out, waiting.incoming);
    out.put(waiting.step);
    out.put(waiting.piece);
  }
  put(out, at_barrier_);
  out.put(delayed_.size());
  for (const auto& [due, in] : delayed_) {
    out.put(due);
    put(out, in);
  }
  out.put(lock_holder_);
  out.put(epoch_);
  out.put(next_piece_);
  out.put(stopped_);
  out.put(stop_before_);
}

void Service::copy_workers_from(CopyReader& in, const Again& again) {
  failure_ = in.text();
  job_from_ = in.get(job_->workers - 1);
  away_ = 0;
  for (Worker& worker : workers_) {
    worker.standing = static_cast<Worker::Standing>(in.get<uint8_t>(Worker::victim));
    worker.seen = in.get<SeenIds>();
    worker.clock = in.get<int64_t>();
    worker.begun = in.get<int64_t>();
    worker.delay = Seconds(in.get(kLongestDelay / 1e3));
    worker.answer = in.get<Reply>();
    worker.passed = in.get<uint64_t>();
    if (worker.standing > Worker::present) away_++;
  }
  for (size_t count = in.get<size_t>(); count > 0; count--) {
    Incoming incoming = next(in, again, {Verb::begin, Verb::take});
    const auto step = in.get<int64_t>(), piece = in.get<int64_t>();
    beginning_.push_back({std::move(incoming), step, piece});
  }
  for (size_t count = in.get<size_t>(); count > 0; count--) at_barrier_.push_back(next(in, again, {Verb::barrier}));
  for (size_t count = in.get<size_t>(); count > 0; count--) {
    const auto due = in.get<Clock::time_point>();
    delayed_.emplace_back(due, next(in, again, {Verb::push}));
  }
  lock_holder_ = in.get<int>();
  if (lock_holder_ < -1 || lock_holder_ >= job_->workers)
    fail<Corruption>("the copy of a shard has a lock of nobody's");
  epoch_ = in.get<int64_t>();
  next_piece_ = in.get<int64_t>();
  stopped_ = in.get<bool>();
  stop_before_ = in.get<int64_t>();
}

void Service::copy_chunk_to(CopyWriter& out, ChunkState& state) const {
  const space::Range range = state.chunk.range;
  out.put(state.version);
  out.put(state.turn);
  out.put(state.gathered);
  out.put(state.squares);
  out.put(state.fine);
  for (uint64_t version : state.pulled) out.put(version);
  for (const auto& then : state.then) {
    out.put(then.size());
    out.put_bytes(then);
  }
  for (const auto& in : state.pushed) {
    out.put(in.has_value());
    if (in) put(out, *in);
  }
  put(out, state.pulls);
  out.put_bytes({parameters_ + range.begin, range.size()});
  for (space::Updater& updater : state.updaters) {
    out.put(updater.steps());
    for (const auto& view : updater.views()) out.put_bytes(view.bytes);
    out.put_bytes(std::as_bytes(updater.slot_steps(0, state.chunk.last - state.chunk.first)));
  }
}

void Service::copy_chunk_from(CopyReader& in, const Again& again, ChunkState& state) {
  const space::Range range = state.chunk.range;
  state.version = in.get<uint64_t>();
  state.turn = in.get(job_->workers - 1);
  state.gathered = in.get<bool>();
  state.squares = in.get<double>();
  state.fine = in.get<bool>();
  for (uint64_t& version : state.pulled) version = in.get<uint64_t>();
  for (auto& then : state.then) {
    const auto bytes = in.take(in.get(range.size()));
    if (!bytes.empty() && bytes.size() != range.size()) fail<Corruption>("the copy of a shard has a part of a chunk");
    then.assign(bytes.begin(), bytes.end());
  }
  for (auto& pushed : state.pushed)
    if (in.get<bool>()) pushed = next(in, again, {Verb::push}, &state);
  const bool whole =
      std::all_of(state.pushed.begin(), state.pushed.end(), [](const auto& one) { return one.has_value(); });
  if (state.gathered && !whole) fail<Corruption>("the copy of a shard has a sum of gradients that are not there");
  for (size_t count = in.get<size_t>(); count > 0; count--)
    state.pulls.push_back(next(in, again, {Verb::pull}, &state));
  in.get_bytes({parameters_ + range.begin, range.size()});
  for (space::Updater& updater : state.updaters) {
    updater.restart(in.get<int64_t>());
    for (const auto& view : updater.views()) in.get_bytes(view.bytes);
    in.get_bytes(std::as_writable_bytes(updater.slot_steps(0, state.chunk.last - state.chunk.first)));
  }
}

namespace {

/// Rows by key: two tables with the same rows need not have them in the same order.
void copy_rows_to(CopyWriter& out, const SparseTable& table) {
  const RowFormat format(table.options());
  std::vector<std::byte> rows(table.rows() * format.bytes());
  std::vector<std::pair<uint64_t, const std::byte*>> sorted;
  std::byte* at = rows.data();
  table.for_each([&](const SparseTable::Row& row) {
    format.write(row, at);
    sorted.emplace_back(row.key, at);
    at += format.bytes();
  });
  std::sort(sorted.begin(), sorted.end());
  out.put(table.ages());
  out.put(sorted.size());
  for (const auto& [key, row] : sorted) out.put_bytes({row, format.bytes()});
}

void copy_rows_from(CopyReader& in, SparseTable& table) {
  const RowFormat format(table.options());
  table.set_ages(in.get<SparseTable::Ages>());
  std::vector<std::byte> row(format.bytes());  // aligned, unlike what comes
  for (size_t count = in.get<size_t>(); count > 0; count--) {
    in.get_bytes(row);
    table.restore(format.read(row.data()));
  }
}

}  // namespace

void Service::copy_to(CopyWriter& out) const {
  copy_workers_to(out);
  for (const auto& state : states_)
    if (state) copy_chunk_to(out, *state);
  for (const auto& table : tables_) copy_rows_to(out, *table);
}

void Service::copy_from(CopyReader& in, const Again& again) {
  copy_workers_from(in, again);
  for (const auto& state : states_)
    if (state) copy_chunk_from(in, again, *state);
  for (const auto& table : tables_) copy_rows_from(in, *table);
}

}  // namespace trireme::ps
