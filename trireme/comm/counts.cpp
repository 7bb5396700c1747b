#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/comm/counts.h>
#include <trireme/space/layout.h>

namespace trireme::comm {

const Counts& Counts::checked(int ranks, std::string_view call, std::string_view name) const {
  if (uneven_ && of_rank_.size() != static_cast<size_t>(ranks))
    fail<InvalidArgument>("{} '{}' with {} counts, but there are {} ranks", call, name, of_rank_.size(), ranks);
  return *this;
}

Blocks::Blocks(const Counts& counts, int ranks, size_t width)
    : ranks_(ranks), width_(width), each_(counts.of(0) * width), largest_(each_) {
  if (!counts.is_list()) return;
  bool even = true;
  for (int r = 0; r < ranks; r++) {
    even = even && counts.of(r) == counts.of(0);
    largest_ = std::max(largest_, counts.of(r) * width);
  }
  if (even) return;
  ends_.reserve(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; r++) ends_.push_back((r > 0 ? ends_.back() : 0) + counts.of(r) * width);
}

std::vector<uint64_t> Blocks::list() const {
  std::vector<uint64_t> all;
  for (int r = 0; r < ranks_; r++) all.push_back(of(r).size() / width_);
  return all;
}

uint64_t Blocks::hash() const {
  if (even()) return 0;
  return space::hash_text({reinterpret_cast<const char*>(ends_.data()), ends_.size() * sizeof(size_t)}) | 1;
}

void check_all_to_all(const Counts& sends, const Counts& receives, int ranks, std::string_view name) {
  sends.checked(ranks, "all-to-all", name);
  receives.checked(ranks, "all-to-all", name);
  if (sends.is_list() != receives.is_list() || (!sends.is_list() && sends.of(0) != receives.of(0)))
    fail<InvalidArgument>("all-to-all '{}' needs either one count or two lists", name);
}

std::string difference(int me, std::span<const uint64_t> mine, int peer, std::span<const uint64_t> theirs) {
  for (size_t r = 0; r < std::min(mine.size(), theirs.size()); r++)
    if (mine[r] != theirs[r])
      return fmt::format("; block {} has {} elements on rank {}, {} on rank {}", r, mine[r], me, theirs[r], peer);
  return "";
}

std::string sends_and_expects(int from, uint64_t sent, int to, uint64_t expected) {
  return fmt::format("rank {} sends {} elements to rank {}, which expects {}", from, sent, to, expected);
}

}  // namespace trireme::comm
