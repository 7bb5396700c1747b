#pragma once
// What workers and servers say to each other: a line of 64 bytes and, for most, data. The same over shared memory and
// over the network.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme::ps {

enum class Verb : uint8_t {
  push,   // a gradient of a range; answered when it has been applied, or with kHold when those of all workers are there
  pull,   // the parameters of a range; answered when they have the wanted version
  set,    // parameters as the worker gives them
  begin,  // a step; answered when the consistency rules allow it
  take,   // the next piece of work of an epoch, and begin its step
  lock,   // the update lock, if it is free
  unlock,
  barrier,      // answered when all workers have come
  sparse_push,  // keys and gradients of rows
  sparse_pull,  // rows by key
  status,       // what the server has counted: a metrics::Snapshot, encoded
  explain,      // why a request has not been answered, as a sentence
  leave,        // nothing more will come from this worker
  norm,         // the sum of squares of the gradients that the server holds, summed over workers
  apply,        // these gradients, times a factor
  show_state,   // a part of a chunk's optimizer state, or of what the server knows besides
  take_state,   // the same, as the worker gives it
  show_rows,    // some of a table's rows, with their state
  take_rows,    // rows as the worker gives them
  count
};
std::string_view name_of(Verb verb);
constexpr size_t kMostWords = 8192;  // bytes of an answer in words, or of an error
/// Answers that are words, or a snapshot.
constexpr bool answers_in_words(Verb verb) { return verb == Verb::status || verb == Verb::explain; }

/// Data that a worker brings in its staging area, and answers that go there.
constexpr bool brings_staged(Verb verb) {
  return verb == Verb::sparse_push || verb == Verb::sparse_pull || verb == Verb::take_state || verb == Verb::take_rows;
}
constexpr bool answers_staged(Verb verb) {
  return verb == Verb::sparse_pull || verb == Verb::show_state || verb == Verb::show_rows;
}

/// In the place of a model's number: the roll, which a worker is on for as long as it is in the job.
constexpr int kRoll = -1;

constexpr uint8_t kAnswerWithParameters = 1;  // push: the answer brings the new parameters, as a pull would
constexpr uint8_t kInPlace = 2;               // pull, set: the worker sees the server's memory; nothing is copied
constexpr uint8_t kStop = 4;                  // take, begin: this worker wants everybody to stop
constexpr uint8_t kSkip = 8;                  // lock: this worker did not try; count the drop

constexpr uint8_t kCoded = 4;  // push: the data are a message of the job's codec (coded.h), of `extra` bytes

constexpr uint8_t kAnew = 1;  // take_rows: the table has no other rows

constexpr uint8_t kFailed = 16;  // leave: after an error of its own
constexpr uint8_t kVictim = 32;  // leave: because somebody else is gone

constexpr uint8_t kWatch = 64;  // push: leave out what is NaN or infinite, and say so
constexpr uint8_t kHold = 128;  // push, where all workers wait for each other: do not apply it before Verb::apply

/// Little endian, as it stands in memory.
struct Request {
  uint64_t id = 0;  // from 1, grows with every request of a worker to a server; sent again with the same id, it is
                    // answered again and applied once
  Verb verb = Verb::push;
  uint8_t flags = 0;
  uint16_t table = 0;  // sparse, show_rows, take_rows. show_state, take_state: which vector (see state_wire.h)
  uint32_t chunk = 0;  // push, pull, set, show_state, take_state
  int64_t step = 0;    // push, begin: the worker's step. pull: answer without data when this is the version; -1: always
                       // with. take: the epoch's first step. show_state, take_state: whose, where each worker has one;
                       // of the position: this worker's clock
  double lr = 0;       // push, sparse_push. apply: the factor; 0: leave the parameters as they are
  uint64_t version = 0;  // pull: at least. take: the epoch. sparse, take_rows: number of keys. explain: the request's
                         // id. show_state, take_state: where the part begins in its vector. show_rows: where to go on
  uint64_t begin = 0;  // push, pull, set: in the flat space. Of data in the worker's staging area: where they are there
  uint64_t bytes = 0;  // of the range. Of the data. take: pieces of work in the epoch. show_…: as many as are wanted,
                       // or as there is room for
  uint64_t extra = 0;  // take: pieces per step. push with kCoded: bytes of the data. sparse_pull, show_…: where the
                       // answer goes in the staging area
};
static_assert(sizeof(Request) == 64);

enum class Status : uint8_t { ok, unchanged, denied, end, stopped, invalid, mismatch, peer_lost };

struct Reply {
  uint64_t id = 0;
  Verb verb = Verb::push;
  Status status = Status::ok;
  uint16_t table = 0;
  uint32_t chunk = 0;
  uint64_t version = 0;  // of the chunk, after this. show_rows: number of rows
  int64_t value = 0;     // take: the piece of work. norm: the bits of a double. show_rows: where to go on; -1: the end
  uint64_t begin = 0;    // where the data belong: in the flat space, or in the staging area
  uint64_t bytes = 0;    // of the data that come with it
  uint64_t text = 0;     // shared memory: which place has the text of an error, or an answer in words
  uint64_t flawed = 0;   // push, pull: 1 when the chunk's last update left out gradients that were not finite
};
static_assert(sizeof(Reply) == 64);

/// What a server knows besides vectors and rows, as state. -1: nothing.
struct Position {
  int64_t version = -1;           // of its chunks; the highest
  int64_t turn = -1;              // whose, where workers take turns
  int64_t epoch = -1, piece = 0;  // of the work that comes next: server 0 gives it
};
static_assert(sizeof(Position) == 32);

}  // namespace trireme::ps
