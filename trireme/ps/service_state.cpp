// State shown to workers, and taken from them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <trireme/ps/sparse_table.h>

#include "chunk_state.h"
#include "state_wire.h"

namespace trireme::ps {
namespace {

constexpr size_t kMostShown = 64 << 20;  // bytes of rows in one answer

bool possible(const Position& position, int workers) {
  constexpr int64_t kMost = int64_t{1} << 40;  // of anything that is counted
  const auto within = [](int64_t value, int64_t least, int64_t end) { return value >= least && value < end; };
  return within(position.version, -1, kMost) && within(position.turn, -1, workers) &&
         within(position.epoch, -1, kMost) && within(position.piece, 0, kMost);
}

}  // namespace

Position Service::position() const {
  Position position{.epoch = epoch_, .piece = next_piece_};
  for (const auto& state : states_) {
    if (!state) continue;
    position.version = std::max(position.version, static_cast<int64_t>(state->version));
    position.turn = state->turn;
  }
  return position;
}

void Service::take_position(const Position& position, Worker& worker, int64_t clock) {
  for (const auto& state : states_) {
    if (!state) continue;
    if (position.version >= 0) state->version = static_cast<uint64_t>(position.version);
    if (position.turn >= 0) state->turn = static_cast<int>(position.turn % job_->workers);
  }
  epoch_ = position.epoch;
  next_piece_ = position.piece;
  worker.clock = worker.begun = clock;
  release_waiting();
}

/// A vector of a chunk: where it begins, and its bytes. Of no bytes: there is no such vector.
Service::Held Service::held(const Request& r) const {
  ChunkState& state = *states_[r.chunk];
  space::Updater& updater = state.updaters[static_cast<size_t>(r.step)];
  if (r.table == kStepsVector)
    return {state.chunk.first * sizeof(int64_t),
            std::as_writable_bytes(updater.slot_steps(0, state.chunk.last - state.chunk.first))};
  const std::vector<space::Updater::View> views = updater.views();
  if (r.table >= views.size()) return {};
  return {views[r.table].range.begin, views[r.table].bytes};
}

bool Service::check_state(const Incoming& in, std::string& why) const {
  const Request& r = in.request;
  const bool brings = r.verb == Verb::take_state;
  if (brings && in.data.size() != r.bytes)
    return why = fmt::format("{} bytes came for {} of state", in.data.size(), r.bytes), false;
  if (r.table == kPositionVector) {
    if (r.bytes != sizeof(Position)) return why = fmt::format("a position of {} bytes", r.bytes), false;
    Position position;
    if (brings) std::memcpy(&position, in.data.data(), sizeof position);
    const bool clock = r.step >= 0 && r.step < int64_t{1} << 40;
    return (clock && possible(position, job_->workers)) || (why = "a position that cannot be", false);
  }
  if (r.chunk >= chunks_.size() || !states_[r.chunk])
    return why = fmt::format("chunk {} is not on server {}", r.chunk, server_), false;
  const ChunkState& state = *states_[r.chunk];
  if (r.step < 0 || static_cast<size_t>(r.step) >= state.updaters.size())
    return why = fmt::format("state of worker {} in chunk {}, which has that of {}", r.step, r.chunk,
                             state.updaters.size()),
           false;
  if (std::any_of(state.pushed.begin(), state.pushed.end(), [](const auto& push) { return push.has_value(); }))
    return why = fmt::format("gradients of chunk {} wait to be applied", r.chunk), false;
  const Held held = this->held(r);
  if (r.version < held.begin || r.version - held.begin > held.bytes.size() ||
      r.bytes > held.bytes.size() - (r.version - held.begin) || r.bytes == 0)
    return why = fmt::format("bytes {} to {} are not in state vector {} of chunk {}, which has {} from {} on",
                             r.version, r.version + r.bytes, r.table, r.chunk, held.bytes.size(), held.begin),
           false;
  return true;
}

bool Service::check_rows(const Incoming& in, std::string& why) const {
  const Request& r = in.request;
  if (r.table >= tables_.size())
    return why = fmt::format("there is no table {}; the job has {}", r.table, tables_.size()), false;
  if (r.verb == Verb::show_rows) return true;
  const size_t row = RowFormat(job_->tables[r.table]).bytes();
  if (reinterpret_cast<uintptr_t>(in.data.data()) % alignof(RowHead) != 0)
    return why = "rows that begin in the middle of a word", false;
  if (in.data.size() == r.bytes && r.bytes % row == 0 && r.bytes / row == r.version) return true;
  return why = fmt::format("{} bytes for {} rows of table '{}': {} are needed for each", in.data.size(), r.version,
                           job_->tables[r.table].name, row),
         false;
}

void Service::show_state(const Incoming& in) {
  const Request& r = in.request;
  if (r.table == kPositionVector) {
    const Position now = position();
    return answer(in, {.begin = r.extra}, std::as_bytes(std::span(&now, 1)));
  }
  const Held held = this->held(r);
  answer(in, {.begin = r.extra}, held.bytes.subspan(r.version - held.begin, r.bytes));
}

void Service::take_state(const Incoming& in) {
  const Request& r = in.request;
  if (!worker_of(in).seen.add(r.id)) return count_.repeated.add(), answer(in, {});
  if (r.table == kPositionVector) {
    Position position;
    std::memcpy(&position, in.data.data(), sizeof position);
    take_position(position, worker_of(in), r.step);
  } else {
    const Held held = this->held(r);
    std::memcpy(held.bytes.data() + (r.version - held.begin), in.data.data(), r.bytes);
  }
  answer(in, {});
}

void Service::show_rows(const Incoming& in) {
  const Request& r = in.request;
  const RowFormat format(job_->tables[r.table]);
  std::vector<std::byte> rows;
  const size_t most = std::min<size_t>(r.bytes, kMostShown) / format.bytes();
  const auto next = tables_[r.table]->for_some(r.version, most, [&](const SparseTable::Row& row) {
    rows.resize(rows.size() + format.bytes());
    format.write(row, rows.data() + rows.size() - format.bytes());
  });
  const int64_t go_on = next ? static_cast<int64_t>(*next) : -1;
  answer(in, {.version = rows.size() / format.bytes(), .value = go_on, .begin = r.extra}, rows);
}

void Service::take_rows(const Incoming& in) try {
  const Request& r = in.request;
  if (!worker_of(in).seen.add(r.id)) return count_.repeated.add(), answer(in, {});
  SparseTable& table = *tables_[r.table];
  const RowFormat format(job_->tables[r.table]);
  if ((r.flags & kAnew) != 0) table.clear();
  for (size_t at = 0; at < in.data.size(); at += format.bytes()) table.restore(format.read(in.data.data() + at));
  answer(in, {});
} catch (const Error& error) {
  refuse(in, Status::invalid, error.what());
}

}  // namespace trireme::ps
