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
  count
};
std::string_view name_of(Verb verb);
constexpr size_t kMostWords = 8192;  // bytes of an answer in words, or of an error
/// Answers that are words, or a snapshot.
constexpr bool answers_in_words(Verb verb) { return verb == Verb::status || verb == Verb::explain; }

/// In the place of a model's number: the roll, which a worker is on for as long as it is in the job.
constexpr int kRoll = -1;

constexpr uint8_t kAnswerWithParameters = 1;  // push: the answer brings the new parameters, as a pull would
constexpr uint8_t kInPlace = 2;               // pull, set: the worker sees the server's memory; nothing is copied
constexpr uint8_t kStop = 4;                  // take, begin: this worker wants everybody to stop
constexpr uint8_t kSkip = 8;                  // lock: this worker did not try; count the drop

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
  uint16_t table = 0;  // sparse
  uint32_t chunk = 0;  // push, pull, set
  int64_t step = 0;    // push, begin: the worker's step. pull: answer without data when this is the version; -1: always
                       // with. take: the epoch's first step
  double lr = 0;       // push, sparse_push. apply: the factor; 0: leave the parameters as they are
  uint64_t version = 0;  // pull: at least. take: the epoch. sparse: number of keys. explain: the request's id
  uint64_t begin = 0;    // push, pull, set: in the flat space. sparse: of the data in the worker's staging area
  uint64_t bytes = 0;    // of the range. sparse: of the data. take: pieces of work in the epoch
  uint64_t extra = 0;    // take: pieces per step. sparse_pull: where the rows go in the staging area
};
static_assert(sizeof(Request) == 64);

enum class Status : uint8_t { ok, unchanged, denied, end, stopped, invalid, mismatch, peer_lost };

struct Reply {
  uint64_t id = 0;
  Verb verb = Verb::push;
  Status status = Status::ok;
  uint16_t table = 0;
  uint32_t chunk = 0;
  uint64_t version = 0;  // of the chunk, after this
  int64_t value = 0;     // take: the piece of work. norm: the bits of a double
  uint64_t begin = 0;    // where the data belong: in the flat space, or in the staging area
  uint64_t bytes = 0;    // of the data that come with it
  uint64_t text = 0;     // shared memory: which place has the text of an error, or an answer in words
  uint64_t flawed = 0;   // push, pull: 1 when the chunk's last update left out gradients that were not finite
};
static_assert(sizeof(Reply) == 64);

}  // namespace trireme::ps
