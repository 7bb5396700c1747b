#pragma once
// The ways in which gradients become parameters, by name.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::exchange {

/// `Sync::shared`, or `Sync::stale_by(3)`.
struct Sync {
  enum Kind : uint8_t {
    shared,       // all ranks of a machine map one copy of the parameters, and update it together (the default)
    allreduce,    // each rank has its own copy
    central,      // everything through rank 0
    server,       // parameter servers wait for all workers, and update once
    async,        // parameter servers apply each gradient when it arrives
    stale,        // the same, but nobody may be more than `bound` steps ahead of the slowest
    trylock,      // a worker tries with some probability to get the update lock; if it fails, it drops its gradient
    round_robin,  // parameter servers apply the workers' gradients in a rotating order
    hogwild,      // all ranks of one machine update one copy of the parameters without any lock
    local,        // each rank trains alone for `period` steps, then all average their parameters
    elastic,      // each rank trains alone; every `period` steps it and a centre on the servers draw each other nearer
    diloco        // each rank trains alone for `period` steps, then all make one step of an outer optimizer together,
                  // with the mean of what they have moved by as its gradient
  };
  Kind kind = shared;
  int64_t bound = 0;                              // stale
  double probability = 1;                         // trylock
  int period = 10;                                // local, elastic, diloco
  double rho = 0.3;                               // elastic: how far each moves, as a part of the distance
  double outer_rate = 0.7, outer_momentum = 0.9;  // diloco: of the outer optimizer, which is Nesterov's

  Sync() = default;
  Sync(Kind kind) : kind(kind) {}  // NOLINT: a kind alone is a way to synchronise
  bool operator==(const Sync&) const = default;

  static Sync stale_by(int64_t bound);
  static Sync trylock_with(double probability);
  static Sync local_for(int period);
  static Sync elastic_with(int period, double rho);
  static Sync diloco_for(int period);

  /// Every update is one of all ranks together; otherwise each rank goes at its own pace.
  bool lockstep() const {
    return kind == shared || kind == allreduce || kind == central || kind == server || (kind == stale && bound == 0);
  }
  /// Parameters live on servers; there must be one at least.
  bool needs_servers() const {
    return kind == server || kind == async || kind == stale || kind == trylock || kind == round_robin ||
           kind == elastic;
  }
  /// Gradients are pushed to them.
  bool pushes() const { return needs_servers() && kind != elastic; }
  /// Servers are of use, if there are some.
  bool takes_servers() const { return needs_servers() || kind == local; }
  /// Every worker's gradient is an update of its own, of parameters that all have: `Rate` says what it counts.
  bool one_by_one() const {
    return kind == async || (kind == stale && bound > 0) || kind == trylock || kind == round_robin || kind == hogwild;
  }
};

/// What an update with one worker's gradient counts, where gradients are applied one by one.
enum class Rate : uint8_t {
  share,  // the learning rate times the gradient's part of its step's samples: those of a step move the parameters
          // together as far as one update with their mean. The learning rate means the same in every mode
  full    // the learning rate as it is: N workers move the parameters N times as far in a step
};

/// "shared", "stale:3", "trylock:0.8", "local:10", "elastic:10,0.3", "diloco:50". Throws InvalidArgument with the
/// nearest valid name, or what is wrong with a number.
Sync sync_named(const std::string& text);
std::string name_of(const Sync& sync);
/// The kinds, with their settings as in "stale:S".
std::vector<std::string> sync_names();

/// "share", "full". Throws InvalidArgument with the nearest valid name.
Rate rate_named(const std::string& name);
std::string name_of(Rate rate);
std::vector<std::string> rate_names();
/// Whether updates count as shares of a step: gradients of several workers, one by one, at Rate::share.
bool in_shares(const Sync& sync, Rate rate, int workers);
/// Throws InvalidArgument when `rate` has no meaning with `sync`.
void check_rate(const Sync& sync, Rate rate);

}  // namespace trireme::exchange
