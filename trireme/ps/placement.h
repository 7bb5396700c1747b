#pragma once
// Who keeps which part of a job's parameters where servers have replicas: decisions as pure functions of what is known,
// each with its reason as a sentence. No clock, no I/O, no lock.
//
// A *shard* is all chunks and rows that the plan gives to one server (plan.h). It has a *charge*: the server that
// answers for it (primary), and one that has everything which was acknowledged (backup). Every change of who may answer
// begins a new epoch. A backup alone may become the primary: one that is still being filled may not, and a server that
// comes back has nothing.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::ps {

constexpr int kNobody = -1;

struct Charge {
  int shard = 0;
  uint64_t epoch = 1;
  int primary = kNobody;  // nobody: the shard is lost
  int backup = kNobody;   // has all that was acknowledged
  int filling = kNobody;  // becomes the backup when it has everything
  bool operator==(const Charge&) const = default;
};

/// What becomes of a charge.
struct Move {
  enum class Why : uint8_t { nothing, promoted, lost, alone, unfilled, appointed, nobody_left, filled };
  Charge charge;
  Why why = Why::nothing;
  int server = kNobody;  // that it is about

  std::string reason() const;
};

/// The first charges: shard s on server s, and its backup on the next server of another host, or on the next one where
/// all are on one host. `hosts`: of each server; empty: all on one.
std::vector<Charge> place(int servers, int replicas, std::span<const std::string> hosts = {});

/// Why so many replicas cannot be, or "".
std::string why_no_replicas(int replicas, int servers, bool several_hosts);

/// A server has died.
Move after_death(const Charge& charge, int dead);
/// A charge without a backup gets one: of those that live, the first after the primary, on another host where there is
/// one. `lives`: of each server.
Move appoint(const Charge& charge, const std::vector<bool>& lives, std::span<const std::string> hosts = {});
/// The one that was being filled has everything.
Move filled(const Charge& charge);

/// May `server` carry out what somebody asks who knows the charge as it was in `epoch`?
struct Hearing {
  enum class Verdict : uint8_t {
    accept,
    wait,       // it is the backup of a primary that it has not seen die
    elsewhere,  // it is not the primary, and will not be
    fenced      // the other one knows of a later epoch: this server's time is over
  };
  Verdict verdict = Verdict::accept;
  uint64_t epoch = 0;  // of the charge, for who knows an older one
  std::string reason(int server, int shard) const;
};
Hearing hear(const Charge& charge, int server, uint64_t epoch);

/// May the primary acknowledge what the event number `order` has done, when the backup has carried out all up to
/// `applied`? With nobody to wait for it may; and one that is being filled need not have it.
bool may_acknowledge(const Charge& charge, uint64_t order, uint64_t applied);

/// Whom a worker asks for a shard whose primary is gone: the backup that it was told of, then the others in turn.
std::vector<int> whom_to_ask(int servers, int gone, int backup);

}  // namespace trireme::ps
