#pragma once
// How many elements of a vector are whose, where ranks need not have equally many.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/space/range.h>

namespace trireme::comm {

/// The same count for every rank, or one for each. Does not own the list, which may contain zeros.
class Counts {
 public:
  Counts(size_t each) : each_(each) {}                                           // NOLINT(google-explicit-constructor)
  Counts(std::span<const size_t> of_rank) : of_rank_(of_rank), uneven_(true) {}  // NOLINT(google-explicit-constructor)
  Counts(const std::vector<size_t>& of_rank)                                     // NOLINT(google-explicit-constructor)
      : Counts(std::span<const size_t>(of_rank)) {}

  bool is_list() const { return uneven_; }
  size_t of(int rank) const { return uneven_ ? of_rank_[static_cast<size_t>(rank)] : each_; }
  /// Throws InvalidArgument, in the words of `call` and `name`, where a list has not `ranks` counts.
  const Counts& checked(int ranks, std::string_view call, std::string_view name) const;

 private:
  size_t each_ = 0;
  std::span<const size_t> of_rank_;
  bool uneven_ = false;
};

/// The blocks of all ranks in one vector, one after another, in bytes. Its own copy of the counts.
class Blocks {
 public:
  Blocks(const Counts& counts, int ranks, size_t width);

  int ranks() const { return ranks_; }
  space::Range of(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return ends_.empty() ? space::Range{r * each_, (r + 1) * each_} : space::Range{r > 0 ? ends_[r - 1] : 0, ends_[r]};
  }
  size_t bytes() const { return of(ranks_ - 1).end; }
  size_t largest() const { return largest_; }
  /// True where all have the same count, however it was given.
  bool even() const { return ends_.empty(); }
  /// What ranks compare: that of each block where they are even, else that of all.
  size_t count() const { return (even() ? each_ : bytes()) / width_; }
  /// The counts, in elements.
  std::vector<uint64_t> list() const;
  /// Not 0 where they are uneven.
  uint64_t hash() const;

 private:
  int ranks_;
  size_t width_, each_ = 0, largest_ = 0;
  std::vector<size_t> ends_;
};

/// Throws InvalidArgument where what an all-to-all sends and receives cannot both be so.
void check_all_to_all(const Counts& sends, const Counts& receives, int ranks, std::string_view name);

/// Where two ranks' lists differ: "; block 2 has 5 elements on rank 0, 7 on rank 1". "" where they do not.
std::string difference(int me, std::span<const uint64_t> mine, int peer, std::span<const uint64_t> theirs);
/// The end of a Mismatch of an all-to-all: "rank 0 sends 5 elements to rank 1, which expects 7".
std::string sends_and_expects(int from, uint64_t sent, int to, uint64_t expected);

}  // namespace trireme::comm
