#include <algorithm>
#include <numeric>

#include <trireme/comm/gathering.h>

namespace trireme::comm {

Gathering::Gathering(Communicator& group, std::vector<int> machine_of)
    : group_(group), machine_of_(std::move(machine_of)), everybody_(static_cast<size_t>(group.size())) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
  present_ = everybody_;
}

void Gathering::call(bool present) {
  std::vector<double> here(everybody_.size());
  here[static_cast<size_t>(group_.rank())] = present ? 1 : 0;
  merge(everybody_, here, add, "who has samples");
  present_.clear();
  for (const int rank : everybody_)
    if (here[static_cast<size_t>(rank)] > 0) present_.push_back(rank);
}

std::vector<int> Gathering::absent() const {
  std::vector<int> others;
  std::set_difference(everybody_.begin(), everybody_.end(), present_.begin(), present_.end(),
                      std::back_inserter(others));
  return others;
}

void Gathering::merge(std::span<double> numbers, const Merge& merge, std::string_view name) {
  this->merge(present_, numbers, merge, name);
}

void Gathering::merge(const std::vector<int>& ranks, std::span<double> numbers, const Merge& merge,
                      std::string_view name) {
  // Whom this rank hears, and whom it tells: the others of its machine if it is their first, the other machines' firsts
  // if it is the first of all.
  const auto machine = [&](int rank) { return machine_of_[static_cast<size_t>(rank)]; };
  const auto first_on = [&](int m) {
    return *std::find_if(ranks.begin(), ranks.end(), [&](int r) { return machine(r) == m; });
  };
  const int me = group_.rank(), first = first_on(machine(me)), top = ranks.front();
  std::vector<int> below;
  for (const int rank : ranks) {
    const bool neighbour = first == me && machine(rank) == machine(me);
    const bool other_first = top == me && first_on(machine(rank)) == rank;
    if (rank != me && (neighbour || other_first)) below.push_back(rank);
  }
  const int above = first != me ? first : top;

  std::vector<double> other(numbers.size());
  for (const int rank : below) {
    group_.receive(other.data(), other.size(), DType::f64, rank, name);
    merge(numbers, other);
  }
  if (above != me) {
    group_.send(numbers.data(), numbers.size(), DType::f64, above, name);
    group_.receive(numbers.data(), numbers.size(), DType::f64, above, name);
  }
  for (const int rank : below) group_.send(numbers.data(), numbers.size(), DType::f64, rank, name);
}

void add(std::span<double> into, std::span<const double> other) {
  std::transform(into.begin(), into.end(), other.begin(), into.begin(), std::plus<>());
}

}  // namespace trireme::comm
