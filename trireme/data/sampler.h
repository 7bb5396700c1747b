#pragma once
// Which samples a worker gets, and when: pure functions of (seed, epoch, step, rank).
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// The order of an epoch's samples: a permutation of 0 … count-1 that depends on (seed, epoch) alone; the identity
/// without shuffling.
std::vector<uint32_t> epoch_order(size_t count, uint64_t seed, int64_t epoch, bool shuffle);

/// How an epoch is cut: step t trains on samples [t · batch, (t + 1) · batch) of the order; the last step may be
/// smaller. Each step's samples are cut into one piece per worker, and each piece into `accumulate` micro-batches;
/// pieces differ by at most one sample and may be empty. With `shares` they differ as these do; which samples a step
/// has does not depend on them.
struct Cut {
  size_t count = 0;  // samples of the set
  size_t batch = 0;  // per step, over all workers
  int ranks = 1;
  int accumulate = 1;
  std::shared_ptr<const std::vector<size_t>> shares{};  // of a step's samples, by worker, in any unit; null: even ones

  size_t steps() const { return (count + batch - 1) / batch; }
};

struct Piece {
  size_t begin, end;  // positions in the epoch's order
  double weight;      // its part of the step's samples; the weights of a step add up to 1

  size_t size() const { return end - begin; }
};

Piece piece_of(const Cut& cut, size_t step, int rank, int micro);

/// A whole number below 2^32 by which a sample is told from others in a sum. Sums of up to 2^20 of them are exact.
double sign_of(uint32_t sample);
/// Of samples 0 … count-1, modulo exchange::kSigns.
double sign_of_all(size_t count);

/// Throws InvalidArgument with what to change when the cut makes no sense: more workers than samples, a batch smaller
/// than the number of workers, …
void check(const Cut& cut, const std::string& data_name);

}  // namespace trireme::data
