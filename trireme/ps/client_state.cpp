// State of the servers, fetched and brought back.
#include <algorithm>
#include <cstring>
#include <set>

#include <trireme/base/error.h>
#include <trireme/ps/client.h>

#include "operation.h"
#include "state_wire.h"

namespace trireme::ps {
namespace {

using space::Range;

/// Of a chunk: its optimizer states, one or one by worker.
int states_of(const Job& job) { return job.rules.step_updates > 1 ? job.workers : 1; }

std::string named(const Job& job, int worker, const std::string& name) {
  return states_of(job) > 1 ? state::of_worker(worker, name) : name;
}

}  // namespace

state::About Client::about_state() const {
  state::About about{.layout = job_.layout.describe(),
                     .optimizer = space::name_of(job_.optimizer.kind),
                     .workers = job_.rules.order == Order::together ? 0 : job_.workers};
  for (const SparseTable::Options& table : job_.tables)
    about.tables.push_back({table.name, table.width, space::name_of(table.optimizer.kind)});
  return about;
}

/// Chunks by turns: all workers carry the same.
int Client::carrier_of(const Chunk& chunk) const { return static_cast<int>(chunk.index) % job_.workers; }

state::OwnerMap Client::state_owners() const {
  state::OwnerMap map;
  for (const Chunk& chunk : chunks_) {
    const int owner = carrier_of(chunk);
    for (const Range& part : state::slot_parts(job_.layout, chunk.first, chunk.last, chunk.range))
      map.add(state::kParameters, part, owner);
    for (int worker = 0; worker < states_of(job_); worker++)
      state::add_updated(map, owner, job_.layout, chunk.first, chunk.last, chunk.range, job_.optimizer.kind,
                         [&](const std::string& name) { return named(job_, worker, name); });
  }
  return map;
}

std::vector<state::Part> Client::state_parts() const {
  std::vector<state::Part> parts;
  for (const Chunk& chunk : chunks_)
    if (carrier_of(chunk) == worker_)
      for (const Range& part : state::slot_parts(job_.layout, chunk.first, chunk.last, chunk.range))
        parts.push_back({state::kParameters, part, {parameters_ + part.begin, part.size()}});
  return parts;
}

/// A request with its data or its answer in the staging area. Blocks.
Reply Client::ask_staged(size_t server, Request request, std::span<const std::byte> data, std::span<std::byte> answer,
                         const char* what) {
  const auto operation = std::make_shared<Operation>();
  operation->what = what;
  const size_t begin = stage(std::max(data.size(), answer.size()));
  std::byte* const staged = memory_->staging() + begin;
  if (!data.empty()) std::memcpy(staged, data.data(), data.size());
  (answers_staged(request.verb) ? request.extra : request.begin) = begin;
  sparse_open_++;
  send(server, request, operation, {.data = {staged, data.size()}, .done = [this](const Reply&) { sparse_open_--; }});
  wait_for(*operation);
  const Reply& reply = operation->last;
  if (!answer.empty()) std::memcpy(answer.data(), staged, std::min<size_t>(answer.size(), reply.bytes));
  return reply;
}

size_t Client::state_room() const { return std::min<size_t>(kStateRoom, memory_->plot().staging_bytes); }

/// Of a chunk's state vector, all of it, in pieces.
void Client::carry_state(Verb verb, const Chunk& chunk, uint16_t vector, int worker, Range range,
                         std::span<std::byte> bytes) {
  while (!range.empty()) {
    const size_t size = std::min(range.size(), state_room() / space::kLine * space::kLine);
    const Request request{
        .verb = verb, .table = vector, .chunk = chunk.index, .step = worker, .version = range.begin, .bytes = size};
    const std::span<std::byte> piece = bytes.first(size);
    if (verb == Verb::show_state)
      ask_staged(static_cast<size_t>(chunk.server), request, {}, piece, "a server's state");
    else
      ask_staged(static_cast<size_t>(chunk.server), request, piece, {}, "a server to take its state");
    range.begin += size;
    bytes = bytes.subspan(size);
  }
}

/// Calls carry(name, number, worker, range) for each state vector of a chunk.
template <class Carry>
void Client::each_vector(const Chunk& chunk, const Carry& carry) const {
  const std::vector<std::string> names = space::state_names(job_.optimizer.kind);
  for (int worker = 0; worker < states_of(job_); worker++) {
    for (size_t vector = 0; vector < names.size(); vector++)
      carry(named(job_, worker, names[vector]), static_cast<uint16_t>(vector), worker, chunk.range);
    if (space::counts_steps(job_.optimizer.kind))
      carry(named(job_, worker, state::kSteps), kStepsVector, worker,
            Range{chunk.first * sizeof(int64_t), chunk.last * sizeof(int64_t)});
  }
}

/// The parts of a chunk's vector that somebody owns: slots, or their steps.
std::vector<Range> Client::owned_parts(const Chunk& chunk, uint16_t vector) const {
  if (vector != kStepsVector) return state::slot_parts(job_.layout, chunk.first, chunk.last, chunk.range);
  std::vector<Range> parts;
  for (size_t slot : state::slots_of(job_.layout, chunk.first, chunk.last, chunk.range))
    parts.push_back(state::steps_range(slot));
  return parts;
}

void Client::visit_state(state::Visitor& visitor) {
  std::set<std::pair<std::string, size_t>> shown;  // steps of a slot that lies in several chunks, once
  std::vector<std::byte> bytes;
  for (const Chunk& chunk : chunks_) {
    if (carrier_of(chunk) != worker_) continue;
    each_vector(chunk, [&](const std::string& name, uint16_t vector, int worker, Range range) {
      bytes.resize(range.size());
      carry_state(Verb::show_state, chunk, vector, worker, range, bytes);
      for (const Range& part : owned_parts(chunk, vector))
        if (vector != kStepsVector || shown.emplace(name, part.begin).second)
          visitor.part(name, part, std::span(bytes).subspan(part.begin - range.begin, part.size()));
    });
  }
  for (int server = worker_; server < job_.servers; server += job_.workers)
    for (size_t table = 0; table < job_.tables.size(); table++) visit_rows(static_cast<size_t>(server), table, visitor);
}

void Client::visit_rows(size_t server, size_t table, state::Visitor& visitor) {
  const RowFormat format(job_.tables[table]);
  std::vector<std::byte> rows(std::max(state_room() / format.bytes(), size_t{1}) * format.bytes());
  for (int64_t next = 0; next >= 0;) {
    const Reply reply = ask_staged(server,
                                   {.verb = Verb::show_rows,
                                    .table = static_cast<uint16_t>(table),
                                    .version = static_cast<uint64_t>(next),
                                    .bytes = rows.size()},
                                   {}, rows, "a server's rows");
    for (size_t i = 0; i < reply.version; i++)
      visitor.row(job_.tables[table].name, format.read(rows.data() + i * format.bytes()));
    next = reply.value;
  }
}

void Client::restore_state(state::Source& source) {
  forget_rows();
  barrier();
  std::vector<std::byte> bytes;
  for (const Chunk& chunk : chunks_) {
    if (carrier_of(chunk) != worker_) continue;
    set(chunk.range).wait();
    each_vector(chunk, [&](const std::string& name, uint16_t vector, int worker, Range range) {
      bytes.assign(range.size(), std::byte{0});
      for (const Range& part : owned_parts(chunk, vector))
        source.read(name, part, std::span(bytes).subspan(part.begin - range.begin, part.size()));
      carry_state(Verb::take_state, chunk, vector, worker, range, bytes);
    });
  }
  for (size_t table = 0; table < job_.tables.size(); table++) restore_rows(table, source);
  barrier();
}

/// One worker for all.
void Client::forget_rows() {
  for (size_t table = 0; worker_ == 0 && table < job_.tables.size(); table++)
    for (size_t server = 0; server < static_cast<size_t>(job_.servers); server++)
      ask(server, {.verb = Verb::take_rows, .flags = kAnew, .table = static_cast<uint16_t>(table)},
          "a server to forget its rows");
}

void Client::restore_rows(size_t table, state::Source& source) {
  const RowFormat format(job_.tables[table]);
  const size_t most = std::max(state_room() / format.bytes(), size_t{1}) * format.bytes();
  std::vector<std::vector<std::byte>> rows(static_cast<size_t>(job_.servers));
  const auto bring = [&](size_t server) {
    if (rows[server].empty()) return;
    ask_staged(server,
               {.verb = Verb::take_rows,
                .table = static_cast<uint16_t>(table),
                .version = rows[server].size() / format.bytes(),
                .bytes = rows[server].size()},
               rows[server], {}, "a server to take its rows");
    rows[server].clear();
  };
  source.rows(job_.tables[table].name, [&](const state::Row& row) {
    const size_t server = server_of_key(row.key, rows.size());
    rows[server].resize(rows[server].size() + format.bytes());
    format.write(row, rows[server].data() + rows[server].size() - format.bytes());
    if (rows[server].size() >= most) bring(server);
  });
  for (size_t server = 0; server < rows.size(); server++) bring(server);
}

Position Client::position() {
  Position all;
  for (size_t server = 0; server < static_cast<size_t>(job_.servers); server++) {
    Position one;
    ask_staged(server, {.verb = Verb::show_state, .table = kPositionVector, .bytes = sizeof one}, {},
               std::as_writable_bytes(std::span(&one, 1)), "a server's state");
    all.version = std::max(all.version, one.version);
    all.turn = std::max(all.turn, one.turn);
    if (server == 0) all.epoch = one.epoch, all.piece = one.piece;
  }
  return all;
}

void Client::restore_position(const Position& position, int64_t clock) {
  for (size_t server = 0; server < static_cast<size_t>(job_.servers); server++)
    ask_staged(server, {.verb = Verb::take_state, .table = kPositionVector, .step = clock, .bytes = sizeof position},
               std::as_bytes(std::span(&position, 1)), {}, "a server to take its state");
  barrier();
  pull({0, job_.layout.bytes()}).wait();
}

}  // namespace trireme::ps
