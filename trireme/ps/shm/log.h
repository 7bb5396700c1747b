#pragma once
// What the primary of a shard tells its backup: all that happened, in order. The backup does the same to a service of
// its own, which therefore has the same bits.
//
// The log is memory of the two; gradients are not in it: the backup reads them where the primary does, in the worker's
// memory, which stays as it is until the worker has its answer. What is rare and long goes beside it, through their
// socket: an Aside, in the order of the records that announce one.
#include <array>
#include <atomic>
#include <cstdint>

#include <trireme/ps/messages.h>
#include <trireme/ps/shm/memory.h>

namespace trireme::ps::shm {

enum class Event : uint32_t {
  open,     // a worker has come to a model. An aside brings its memory
  request,  // of a worker
  lost,     // a worker died
  tick,     // time has come for what was delayed
  control,  // words of `trireme ctl`, in an aside
  fill,     // a part of the state that there was before the log began, in an aside
  filled    // that was all of it
};

struct Record {
  uint64_t order = 0;  // from 1 in each log
  Event event = Event::request;
  int32_t model = 0, worker = -1;
  uint32_t reserved = 0;
  int64_t now = 0;  // of the clock, in its own unit: the two have the same
  uint64_t unused[4] = {};
  Request request{};
};
static_assert(sizeof(Record) == 128);

struct Log {
  Ring<Record, 1024> records;                    // written by the primary
  alignas(64) std::atomic<uint64_t> applied{0};  // by the backup: the order of the last record that it has carried out
  alignas(64) std::atomic<uint32_t> dropped{0};  // by the primary: it goes on without this backup
  std::atomic<uint32_t> given_up{0};             // by the backup: it lives, and cannot be it
};

struct Aside {
  uint64_t magic = kMagic;
  Event event = Event::open;
  int32_t model = 0, worker = -1;
  int32_t process = 0;            // open: the worker's
  uint64_t bytes = 0;             // fill: of the memory that comes with it
  Plot plot{};                    // open: of the memory that comes with it
  std::array<char, 256> words{};  // control
};

}  // namespace trireme::ps::shm
