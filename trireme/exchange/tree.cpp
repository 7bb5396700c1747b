#include <algorithm>
#include <bit>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/exchange/tree.h>

namespace trireme::exchange {
namespace {

bool contains(Pieces outer, Pieces inner) { return outer.begin <= inner.begin && inner.end <= outer.end; }
bool meet(Pieces a, Pieces b) { return a.begin < b.end && b.begin < a.end; }

/// Where a node of more than one piece is divided: behind its first half, whose size is a power of two.
int middle_of(Pieces node) {
  return node.begin + static_cast<int>(std::bit_ceil(static_cast<unsigned>(node.size())) / 2);
}

/// Nodes below `node`, in their order: visit(node) says whether to go deeper, and is asked about halves before what is
/// behind them; `after` is told when both halves of one were visited.
template <class Visit, class After>
void descend(Pieces node, const Visit& visit, const After& after) {
  if (!visit(node)) return;
  const int middle = middle_of(node);
  descend({node.begin, middle}, visit, after);
  descend({middle, node.end}, visit, after);
  after(node);
}

std::vector<Pieces> join(std::span<const Pieces> runs) {
  std::vector<Pieces> joined(runs.begin(), runs.end());
  std::sort(joined.begin(), joined.end(), [](Pieces a, Pieces b) { return a.begin < b.begin; });
  std::vector<Pieces> all;
  for (const Pieces& run : joined) {
    if (run.size() == 0) continue;
    if (!all.empty() && all.back().end == run.begin)
      all.back().end = run.end;
    else
      all.push_back(run);
  }
  return all;
}

}  // namespace

void check_runs(int pieces, int workers) {
  if (pieces < 1 || pieces > kMostPieces)
    fail<InvalidArgument>("virtual workers are from 1 to {}, not {}", kMostPieces, pieces);
  if (workers > pieces)
    fail<InvalidArgument>(
        "{} workers cannot divide {} virtual worker{} among them: each computes at least one. Use at most {} worker{}, "
        "or --virtual {} (virtual_workers), which gives other bits",
        workers, pieces, pieces == 1 ? "" : "s", pieces, pieces == 1 ? "" : "s", workers);
}

std::vector<Pieces> even_runs(int pieces, int workers) {
  check_runs(pieces, workers);
  std::vector<Pieces> runs;
  for (int worker = 0; worker < workers; worker++)
    runs.push_back({pieces * worker / workers, pieces * (worker + 1) / workers});
  return runs;
}

std::vector<Pieces> runs_by_share(int pieces, std::span<const double> shares) {
  const int workers = static_cast<int>(shares.size());
  check_runs(pieces, workers);
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (!(all > 0) || std::any_of(shares.begin(), shares.end(), [](double share) { return !(share >= 0); }))
    fail<InvalidArgument>("shares of the work are numbers of at least 0, and not all of them 0");
  std::vector<Pieces> runs;
  double upto = 0;
  for (int worker = 0; worker < workers; worker++) {
    upto += shares[static_cast<size_t>(worker)];
    const int begin = runs.empty() ? 0 : runs.back().end, behind = workers - worker - 1;
    const int wanted = static_cast<int>(static_cast<double>(pieces) * (upto / all) + 0.5);
    runs.push_back({begin, behind == 0 ? pieces : std::clamp(wanted, begin + 1, pieces - behind)});
  }
  return runs;
}

std::vector<Pieces> roots_of(int pieces, Pieces run) { return roots_of(pieces, std::span<const Pieces>(&run, 1)); }

std::vector<Pieces> roots_of(int pieces, std::span<const Pieces> runs) {
  const std::vector<Pieces> all = join(runs);
  std::vector<Pieces> roots;
  const auto visit = [&](Pieces node) {
    if (std::any_of(all.begin(), all.end(), [&](Pieces run) { return contains(run, node); })) {
      roots.push_back(node);
      return false;
    }
    return std::any_of(all.begin(), all.end(), [&](Pieces run) { return meet(run, node); });
  };
  descend({0, pieces}, visit, [](Pieces) {});
  return roots;
}

std::vector<uint8_t> adds_over(int pieces, std::span<const Pieces> nodes) {
  std::vector<uint8_t> adds(std::max<size_t>(nodes.size(), 1), 0);
  size_t taken = 0;
  const auto visit = [&](Pieces node) {
    if (taken < nodes.size() && nodes[taken] == node) return taken++, false;
    return node.size() > 1 && taken < nodes.size() && meet(node, nodes[taken]);
  };
  // From the node that holds all of them.
  Pieces top{0, pieces};
  const auto inside = [&](Pieces node) {
    return std::all_of(nodes.begin(), nodes.end(), [&](Pieces one) { return contains(node, one); });
  };
  for (bool deeper = top.size() > 1; deeper;) {
    const Pieces halves[] = {{top.begin, middle_of(top)}, {middle_of(top), top.end}};
    const auto half = std::find_if(std::begin(halves), std::end(halves), inside);
    deeper = half != std::end(halves);
    if (deeper) top = *half;
    deeper = deeper && top.size() > 1;
  }
  int covered = 0;
  for (const Pieces& node : nodes) covered += node.size();
  descend(top, visit, [&](Pieces) { adds[std::max<size_t>(taken, 1) - 1]++; });
  if (nodes.empty() || taken != nodes.size() || covered != top.size())
    fail<InvalidArgument>("these are no nodes that make up one of a tree over {} pieces", pieces);
  adds[0] = 1;  // it does not matter, and in order all are 1
  return adds;
}

Turn turn_of(int pieces, Pieces run, int piece) {
  const int before = static_cast<int>(roots_of(pieces, {run.begin, piece}).size());
  const int after = static_cast<int>(roots_of(pieces, {run.begin, piece + 1}).size());
  const int sums = before + 1 - after;
  return {.seat = sums > 0 ? before - 1 : before, .adds = sums > 0, .folds = std::max(0, sums - 1)};
}

int seats_of(int pieces, Pieces run) {
  int most = 1;
  for (int piece = run.begin; piece < run.end; piece++) most = std::max(most, turn_of(pieces, run, piece).seat + 1);
  return most;
}

int most_seats(int pieces, int longest) {
  int most = 1;
  for (int begin = 0; begin < pieces; begin++)
    most = std::max(most, seats_of(pieces, {begin, std::min(pieces, begin + (longest > 0 ? longest : pieces))}));
  return most;
}

double sum_over(std::span<const double> leaves) {
  if (leaves.size() < 2) return leaves.empty() ? 0 : leaves[0];
  const auto middle = static_cast<size_t>(middle_of({0, static_cast<int>(leaves.size())}));
  return sum_over(leaves.first(middle)) + sum_over(leaves.subspan(middle));
}

}  // namespace trireme::exchange
