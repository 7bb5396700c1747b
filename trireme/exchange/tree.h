#pragma once
// Sums that do not depend on who forms them: those of `--virtual V`.
//
// A step's batch is cut into V *pieces*, each with a gradient of its own, and these are the leaves of one binary tree:
// its nodes are the aligned runs [k · 2ʰ, (k + 1) · 2ʰ), cut off at V. The sum of a node is that of its two halves. A
// worker computes a *run* of pieces, one after another, and keeps the sums of the largest nodes that lie in it whole,
// its *roots*; what is left of the tree is summed over the roots of all workers. Floating-point sums depend on their
// order, and this order is V's alone: so are the bits.
//
// A piece without a gradient (without samples, or of a layer that it does not use) is not in the tree: the sum of a
// node is then that of its other half. Pure functions; no memory, no ranks.
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::exchange {

/// Pieces [begin, end) of a step.
struct Pieces {
  int begin = 0, end = 0;

  int size() const { return end - begin; }
  bool operator==(const Pieces&) const = default;
};

/// How many pieces there may be. Sums over them have at most so many summands (space::Source).
constexpr int kMostPieces = 256;

/// Who computes what, by worker: runs in the order of workers that differ by at most one piece.
std::vector<Pieces> even_runs(int pieces, int workers);
/// The same in proportion to `shares`, which are not below 0 and not all 0; everybody has at least one piece.
std::vector<Pieces> runs_by_share(int pieces, std::span<const double> shares);
/// Throws InvalidArgument unless there is at least one piece for everybody, and at most kMostPieces.
void check_runs(int pieces, int workers);

/// The largest nodes that lie in a run whole, in their order.
std::vector<Pieces> roots_of(int pieces, Pieces run);
/// The same of several runs, in their order: of a machine.
std::vector<Pieces> roots_of(int pieces, std::span<const Pieces> runs);

/// The tree over nodes that cover all pieces, or all of a larger node, in their order: after each, how many times the
/// last two sums are added (space::Source::adds). Throws InvalidArgument when they do not.
std::vector<uint8_t> adds_over(int pieces, std::span<const Pieces> nodes);

/// What a worker does with the gradient of a piece, when it comes to it in the order of its run. Sums that stand are in
/// *seats*: vectors, of which seat k is the k-th root of what is done so far.
struct Turn {
  int seat = 0;       // it goes here
  bool adds = false;  // to what is there; otherwise the seat is free
  int folds = 0;      // then so many times the last seat goes to the one before: seat − 1, seat − 2, …
};
Turn turn_of(int pieces, Pieces run, int piece);
/// Seats that a run takes.
int seats_of(int pieces, Pieces run);
/// That any run of at most `longest` of so many pieces takes; 0: of all.
int most_seats(int pieces, int longest = 0);

/// Of one number per piece.
double sum_over(std::span<const double> leaves);

}  // namespace trireme::exchange
