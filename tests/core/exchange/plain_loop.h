#pragma once
// What every exchange must come to, as one loop in one thread: gradients that are made up, summed in double or applied
// one by one, torch's formulas of optimizers and of clipping, means and elastic averages. Knows nothing of the library
// but names of settings.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <trireme/exchange/sync.h>
#include <trireme/space/layout.h>
#include <trireme/space/updater.h>

namespace trireme::exchange::tests {

constexpr int kSteps = 20;
using Values = std::vector<std::vector<double>>;  // by slot

inline double noise(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b * 0xbf58476d1ce4e5b9 + c * 0x94d049bb133111eb + d * 0xd6e8feb86659fd93 + 1;
  for (int i = 0; i < 3; i++) x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<double>(x >> 11) * 0x1p-52 - 1;
}

inline double start_value(size_t slot, size_t i) { return noise(77, slot, i, 0); }
/// Small in every third step, so that clipping has something to leave alone.
inline double gradient(int rank, int step, size_t slot, size_t i) {
  return noise(static_cast<uint64_t>(rank) + 1, static_cast<uint64_t>(step), slot, i) * (step % 3 == 0 ? 0.05 : 1);
}
inline double rate(int step) { return 0.02 / (1 + 0.1 * step); }

/// Some slots have no gradient on some ranks, some on none; slot 6 never has one.
inline bool has_gradient(int rank, int step, size_t slot) {
  if (slot == 6) return false;
  if (step % 5 == 3 && slot == 2) return false;
  if (step % 4 == 1 && slot % 3 == 0) return rank % 2 == 1;
  return true;
}

/// An optimizer's state for one copy of the parameters.
struct PlainState {
  explicit PlainState(const Values& like) : m(like), v(like), steps(like.size()) {
    for (Values* all : {&m, &v})
      for (auto& slot : *all) std::fill(slot.begin(), slot.end(), 0.0);
  }
  Values m, v;
  std::vector<int> steps;  // of each slot: those with a gradient
};

struct PlainGradient {
  Values values;
  std::vector<bool> present;
};

inline PlainGradient sum_of(const space::Layout& layout, int first, int last, int step) {
  PlainGradient sum;
  for (size_t slot = 0; slot < layout.size(); slot++) {
    sum.values.emplace_back(layout[slot].elements(), 0.0);
    sum.present.push_back(false);
    for (int rank = first; rank < last; rank++) {
      if (!has_gradient(rank, step, slot)) continue;
      sum.present[slot] = true;
      for (size_t i = 0; i < layout[slot].elements(); i++) sum.values[slot][i] += gradient(rank, step, slot, i);
    }
  }
  return sum;
}

/// torch's clip_grad_norm_. Returns whether it had to.
inline bool clip(PlainGradient& gradient, double norm) {
  double squares = 0;
  for (const auto& slot : gradient.values)
    for (double value : slot) squares += value * value;
  const double factor = std::min(1.0, norm / (std::sqrt(squares) + 1e-6));
  for (auto& slot : gradient.values)
    for (double& value : slot) value *= factor;
  return factor < 1;
}

/// The formulas of torch.optim.
inline void apply(const space::UpdaterOptions& o, const PlainGradient& gradient, double lr, PlainState& state,
                  Values& p) {
  using space::Optimizer;
  for (size_t slot = 0; slot < p.size(); slot++) {
    if (!gradient.present[slot]) continue;
    const int count = ++state.steps[slot];
    for (size_t i = 0; i < p[slot].size(); i++) {
      double &x = p[slot][i], &m = state.m[slot][i], &w = state.v[slot][i], g = gradient.values[slot][i];
      if (o.kind == Optimizer::adamw)
        x *= 1 - lr * o.weight_decay;
      else
        g += o.weight_decay * x;
      if (o.kind == Optimizer::sgd) {
        x -= lr * g;
      } else if (o.kind == Optimizer::momentum) {
        m = o.momentum * m + g;
        x -= lr * (o.nesterov ? g + o.momentum * m : m);
      } else if (o.kind == Optimizer::adagrad) {
        m += g * g;
        x -= lr * g / (std::sqrt(m) + 1e-10);
      } else {
        m = o.beta1 * m + (1 - o.beta1) * g;
        w = o.beta2 * w + (1 - o.beta2) * g * g;
        x -= lr / (1 - std::pow(o.beta1, count)) * m / (std::sqrt(w) / std::sqrt(1 - std::pow(o.beta2, count)) + 1e-8);
      }
    }
  }
}

struct Trained {
  std::vector<Values> own;  // by rank: what it has after the last step
  Values agreed;            // what all ranks agree on
  int clipped = 0;          // gradients
};

inline Values mean_of(const std::vector<Values>& all) {
  Values mean = all[0];
  for (size_t slot = 0; slot < mean.size(); slot++)
    for (size_t i = 0; i < mean[slot].size(); i++) {
      double sum = 0;
      for (const Values& one : all) sum += one[slot][i];
      mean[slot][i] = sum / static_cast<double>(all.size());
    }
  return mean;
}

/// A rank and the centre move towards each other by rho of their distance (Zhang, Choromanska, LeCun 2015).
inline void draw_nearer(double rho, Values& own, Values& centre) {
  for (size_t slot = 0; slot < own.size(); slot++)
    for (size_t i = 0; i < own[slot].size(); i++) {
      const double distance = own[slot][i] - centre[slot][i];
      own[slot][i] -= rho * distance;
      centre[slot][i] += rho * distance;
    }
}

/// One step of Nesterov's momentum with the mean of what ranks have moved by, turned around (Douillard et al., 2023).
inline void outer_step(const Sync& sync, const std::vector<Values>& own, Values& agreed, Values& velocity) {
  const Values mean = mean_of(own);
  for (size_t slot = 0; slot < agreed.size(); slot++)
    for (size_t i = 0; i < agreed[slot].size(); i++) {
      const double moved = agreed[slot][i] - mean[slot][i];
      velocity[slot][i] = sync.outer_momentum * velocity[slot][i] + moved;
      agreed[slot][i] -= sync.outer_rate * (moved + sync.outer_momentum * velocity[slot][i]);
    }
}

/// Without lockstep ranks take turns, in their order.
inline Trained plain_loop(const space::Layout& layout, const space::UpdaterOptions& optimizer, const Sync& sync,
                          int ranks, double norm = 0) {
  Values start;
  for (size_t slot = 0; slot < layout.size(); slot++) {
    start.emplace_back(layout[slot].elements());
    for (size_t i = 0; i < start[slot].size(); i++) start[slot][i] = start_value(slot, i);
  }
  const auto n = static_cast<size_t>(ranks);
  const bool diloco = sync.kind == Sync::diloco;
  const bool alone = diloco || sync.kind == Sync::local || sync.kind == Sync::elastic;  // each rank has parameters of
                                                                                        // its own
  const bool own_state = alone || sync.kind == Sync::hogwild;
  std::vector<Values> p(alone ? n : 1, start);
  std::vector<PlainState> states(own_state ? n : 1, PlainState(start));
  Values centre = start, velocity = start;
  for (auto& slot : velocity) std::fill(slot.begin(), slot.end(), 0.0);
  Trained result;
  for (int step = 1; step <= kSteps; step++) {
    for (int rank = 0; rank < (sync.lockstep() ? 1 : ranks); rank++) {
      PlainGradient g = sync.lockstep() ? sum_of(layout, 0, ranks, step) : sum_of(layout, rank, rank + 1, step);
      if (norm > 0) result.clipped += clip(g, norm);
      const auto at = static_cast<size_t>(rank);
      apply(optimizer, g, rate(step), states[own_state ? at : 0], p[alone ? at : 0]);
      if (sync.kind == Sync::elastic && step % sync.period == 0) draw_nearer(sync.rho, p[at], centre);
    }
    if (sync.kind == Sync::local && step % sync.period == 0) p.assign(n, mean_of(p));
    if (diloco && step % sync.period == 0) {
      outer_step(sync, p, centre, velocity);
      p.assign(n, centre);
    }
  }
  result.agreed = sync.kind == Sync::elastic ? centre : mean_of(p);
  if (diloco) {  // they meet when they settle, unless they just did
    if (kSteps % sync.period != 0) outer_step(sync, p, centre, velocity);
    result.agreed = centre;
  }
  result.own = alone ? p : std::vector<Values>(n, p[0]);
  return result;
}

}  // namespace trireme::exchange::tests
