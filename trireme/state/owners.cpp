#include <algorithm>
#include <numeric>
#include <tuple>

#include <trireme/base/error.h>
#include <trireme/state/owners.h>

namespace trireme::state {
namespace {

using space::Range;

/// A range of one vector that one owner needs, and everybody who has all of it.
struct Need {
  std::string vector;
  Range range;
  int to = 0;
  std::vector<int> senders{};
  std::vector<size_t> shares{};  // by sender: bytes
};

/// Cuts a range where holdings begin or end, so that each piece has the same holders throughout: visit(piece, them).
template <class Visit>
void each_piece(Range range, std::span<const Holding> holdings, const Visit& visit) {
  std::vector<Holding> near, holders;  // in the order of `holdings`
  std::vector<size_t> cuts = {range.begin, range.end};
  for (const Holding& holding : holdings) {
    if (intersect(holding.range, range).empty()) continue;
    near.push_back(holding);
    for (size_t cut : {holding.range.begin, holding.range.end})
      if (cut > range.begin && cut < range.end) cuts.push_back(cut);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  auto next = near.begin();
  for (size_t i = 0; i + 1 < cuts.size(); i++) {
    std::erase_if(holders, [&](const Holding& holding) { return holding.range.end <= cuts[i]; });
    for (; next != near.end() && next->range.begin <= cuts[i]; ++next) holders.push_back(*next);
    visit(Range{cuts[i], cuts[i + 1]}, holders);
  }
}

std::vector<Need> needs_of(const OwnerMap& from, const OwnerMap& to) {
  std::vector<Need> needs;
  for (const std::string& vector : to.vectors()) {
    const std::span<const Holding> before = from.of(vector);
    for (const Holding& wanted : to.of(vector))
      for (const Range& missing : from.lacking(vector, wanted.range, wanted.owner))
        each_piece(missing, before, [&](Range piece, const std::vector<Holding>& holders) {
          Need need{vector, piece, wanted.owner};
          for (const Holding& holding : holders) need.senders.push_back(holding.owner);
          if (need.senders.empty())
            fail<InvalidArgument>("nobody holds bytes {} to {} of '{}', which owner {} needs", piece.begin, piece.end,
                                  vector, wanted.owner);
          need.shares.resize(need.senders.size());
          needs.push_back(std::move(need));
        });
  }
  return needs;
}

/// Divides needs over their senders like water over basins of different depth: whoever has the least to send gets the
/// most. Each is poured again when the others have found their level.
class Division {
 public:
  void pour(Need& need) {
    const size_t count = need.senders.size();
    for (size_t i = 0; i < count; i++) load_[need.senders[i]] -= need.shares[i];
    std::vector<size_t> order(count);  // the least busy first
    std::iota(order.begin(), order.end(), size_t{0});
    const auto load = [&](size_t i) { return load_[need.senders[order[i]]]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return load_[need.senders[a]] < load_[need.senders[b]]; });
    const size_t level = level_for(count, need.range.size(), load);
    size_t rest = need.range.size();
    for (size_t i = 0; i < count; i++) {
      const bool last = i + 1 == count || load(i + 1) >= level;
      const size_t share = last ? rest : round_up_to_line(level - std::min(level, load(i)));
      need.shares[order[i]] = std::min(rest, share);
      rest -= need.shares[order[i]];
    }
    for (size_t i = 0; i < count; i++) load_[need.senders[i]] += need.shares[i];
  }

 private:
  static size_t round_up_to_line(size_t bytes) { return (bytes + space::kLine - 1) / space::kLine * space::kLine; }

  /// How high the water stands when `bytes` were poured over basins with these loads, the lowest first.
  template <class Load>
  static size_t level_for(size_t count, size_t bytes, const Load& load) {
    size_t sum = bytes;
    for (size_t basins = 1;; basins++) {
      sum += load(basins - 1);
      const size_t level = (sum + basins - 1) / basins;
      if (basins == count || level <= load(basins)) return level;
    }
  }

  std::map<int, size_t> load_;  // bytes that a sender has to send so far
};

void add_moves(const Need& need, std::vector<Move>& moves) {
  size_t begin = need.range.begin;
  for (size_t i = 0; i < need.senders.size(); i++) {
    if (need.shares[i] > 0) moves.push_back({need.vector, {begin, begin + need.shares[i]}, need.senders[i], need.to});
    begin += need.shares[i];
  }
}

/// Neighbouring moves between the same two become one.
std::vector<Move> merged(std::vector<Move> moves) {
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::tie(a.vector, a.to, a.range.begin) < std::tie(b.vector, b.to, b.range.begin);
  });
  std::vector<Move> result;
  for (Move& move : moves) {
    if (!result.empty() && result.back().vector == move.vector && result.back().to == move.to &&
        result.back().from == move.from && result.back().range.end == move.range.begin)
      result.back().range.end = move.range.end;
    else
      result.push_back(std::move(move));
  }
  std::stable_sort(result.begin(), result.end(), [](const Move& a, const Move& b) {
    return std::tie(a.vector, a.range.begin, a.to) < std::tie(b.vector, b.range.begin, b.to);
  });
  return result;
}

}  // namespace

std::vector<Holding>::iterator OwnerMap::Held::place(const Holding& holding) {
  return std::lower_bound(list.begin(), list.end(), holding, [](const Holding& a, const Holding& b) {
    return std::tie(a.range.begin, a.owner) < std::tie(b.range.begin, b.owner);
  });
}

void OwnerMap::add(const std::string& vector, Range range, int owner) {
  if (range.empty()) return;
  Held& held = holdings_[vector];
  std::map<size_t, size_t>& ends = held.ends[owner];
  const auto next = ends.upper_bound(range.begin);  // that begins behind it; the one before may reach into it
  std::vector<Range> neighbours;
  if (next != ends.begin()) neighbours.push_back({std::prev(next)->first, std::prev(next)->second});
  if (next != ends.end()) neighbours.push_back({next->first, next->second});
  for (const Range& other : neighbours)
    if (!intersect(other, range).empty())
      fail<InvalidArgument>("owner {} holds bytes {} to {} of '{}' already, and is given {} to {}", owner, other.begin,
                            other.end, vector, range.begin, range.end);
  for (const Range& other : neighbours) {
    if (other.end != range.begin && other.begin != range.end) continue;
    range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
    held.list.erase(held.place({other, owner}));
    ends.erase(other.begin);
  }
  ends[range.begin] = range.end;
  const Holding added{range, owner};
  held.list.insert(held.place(added), added);
}

std::span<const Holding> OwnerMap::of(const std::string& vector) const {
  const auto found = holdings_.find(vector);
  return found == holdings_.end() ? std::span<const Holding>{} : std::span<const Holding>{found->second.list};
}

std::vector<std::string> OwnerMap::vectors() const {
  std::vector<std::string> names;
  for (const auto& [name, holdings] : holdings_) names.push_back(name);
  return names;
}

std::vector<Range> OwnerMap::lacking(const std::string& vector, Range range, int owner) const {
  std::vector<Range> rest;
  const auto held = holdings_.find(vector);
  if (held == holdings_.end() || !held->second.ends.contains(owner)) return range.empty() ? rest : std::vector{range};
  const std::map<size_t, size_t>& ends = held->second.ends.at(owner);
  auto at = ends.upper_bound(range.begin);
  if (at != ends.begin()) --at;
  for (; at != ends.end() && at->first < range.end; ++at) {
    if (at->second <= range.begin) continue;
    if (at->first > range.begin) rest.push_back({range.begin, at->first});
    range.begin = std::min(range.end, at->second);
  }
  if (!range.empty()) rest.push_back(range);
  return rest;
}

std::vector<Move> plan_moves(const OwnerMap& from, const OwnerMap& to) {
  std::vector<Need> needs = needs_of(from, to);
  // What only one can send comes first: copies fill up what that leaves.
  const auto copies =
      std::stable_partition(needs.begin(), needs.end(), [](const Need& need) { return need.senders.size() == 1; });
  constexpr int kPasses = 8;  // one is up to 60 % off for random maps, two 10 %, four nothing
  Division division;
  for (int pass = 0; pass < kPasses; pass++)
    for (auto need = pass == 0 ? needs.begin() : copies; need != needs.end(); ++need) division.pour(*need);
  std::vector<Move> moves;
  for (const Need& need : needs) add_moves(need, moves);
  return merged(std::move(moves));
}

}  // namespace trireme::state
