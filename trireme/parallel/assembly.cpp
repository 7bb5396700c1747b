#include <ATen/ops/cat.h>
#include <torch/utils.h>

#include <algorithm>
#include <tuple>

#include <trireme/base/error.h>
#include <trireme/parallel/assembly.h>
#include <trireme/torch/compat.h>

namespace trireme {
namespace {

/// Each rank's numbers, in their order. Collective.
std::vector<std::vector<int64_t>> gather_lists(comm::Communicator& ranks, const std::vector<int64_t>& mine,
                                               std::string_view name) {
  const auto size = static_cast<int64_t>(mine.size());
  std::vector<int64_t> sizes(static_cast<size_t>(ranks.size()));
  ranks.all_gather(&size, sizes.data(), 1, DType::i64, name);
  const std::vector<size_t> counts(sizes.begin(), sizes.end());
  std::vector<int64_t> all;
  for (const size_t count : counts) all.resize(all.size() + count);
  ranks.all_gather(mine.data(), all.data(), counts, DType::i64, name);
  std::vector<std::vector<int64_t>> lists;
  auto next = all.begin();
  for (const int64_t count : sizes) lists.emplace_back(next, next + count), next += count;
  return lists;
}

/// Of the vectors that all know: how many holdings, and begin, end and owner of each.
std::vector<int64_t> packed(const state::OwnerMap& map, const std::vector<std::string>& vectors) {
  std::vector<int64_t> numbers;
  for (const std::string& vector : vectors) {
    numbers.push_back(static_cast<int64_t>(map.of(vector).size()));
    for (const auto& [range, owner] : map.of(vector))
      numbers.insert(numbers.end(), {static_cast<int64_t>(range.begin), static_cast<int64_t>(range.end), owner});
  }
  return numbers;
}

state::OwnerMap unpacked(const std::vector<int64_t>& numbers, const std::vector<std::string>& vectors) {
  state::OwnerMap map;
  auto next = numbers.begin();
  for (const std::string& vector : vectors)
    for (int64_t left = *next++; left > 0; left--, next += 3)
      map.add(vector, {static_cast<size_t>(next[0]), static_cast<size_t>(next[1])}, static_cast<int>(next[2]));
  return map;
}

}  // namespace

Assembly::Assembly(const Group& whole, const Group& data, const Group& model, const space::Layout& all,
                   const std::vector<bool>& here, const state::OwnerMap& owners)
    : model_(model), all_(all), places_(static_cast<size_t>(whole.size())) {
  const Place mine{data.rank(), model.rank()};
  whole.comm().all_gather(&mine, places_.data(), 2, DType::i32, "places in a mesh");
  find_parts(here);
  map_ = std::make_shared<state::Whole>(layout_of(model.rank()), space::whole_of(all_));
  share(owners);
}

void Assembly::find_parts(const std::vector<bool>& here) {
  std::vector<int32_t> mine;
  for (size_t slot = 0; slot < all_.size(); slot++)
    mine.push_back(!here[slot] ? kAbsent : all_[slot].cut ? all_[slot].cut->index : kWhole);
  indices_.resize(mine.size() * static_cast<size_t>(model_.size()));
  model_.comm().all_gather(mine.data(), indices_.data(), mine.size(), DType::i32, "which parts ranks have");
  for (size_t slot = 0; slot < mine.size(); slot++) {
    std::vector<int> holders(all_[slot].cut ? static_cast<size_t>(all_[slot].cut->count) : 1);
    for (int rank = 0; rank < model_.size(); rank++)
      if (has(rank, slot)) holders[static_cast<size_t>(std::max(0, index_of(rank, slot)))]++;
    if (const auto none = std::find(holders.begin(), holders.end(), 0); none != holders.end())
      fail<InvalidArgument>("parameter {}: nobody has part {}. Give its layer the group of the mesh's other axis",
                            all_[slot].describe(), none - holders.begin());
  }
}

/// Vectors are the same everywhere: ranks have agreed on the optimizer.
void Assembly::share(const state::OwnerMap& owners) {
  const std::vector<std::string> vectors = owners.vectors();
  for (const auto& numbers : gather_lists(model_.comm(), packed(owners, vectors), "who holds what"))
    owned_.push_back(unpacked(numbers, vectors));
}

/// Of a rank of the replica: what it has of all, with its parts.
space::Layout Assembly::layout_of(int part) const {
  std::vector<space::Slot> slots;
  for (size_t slot = 0; slot < all_.size(); slot++) {
    if (!has(part, slot)) continue;
    slots.push_back(all_[slot]);
    if (slots.back().cut) slots.back().cut->index = index_of(part, slot);
  }
  return space::Layout(std::move(slots));
}

int Assembly::rank_at(int data, int model) const {
  const auto place =
      std::find_if(places_.begin(), places_.end(), [&](Place p) { return p.data == data && p.model == model; });
  return static_cast<int>(place - places_.begin());
}

state::OwnerMap Assembly::owners() const {
  std::map<std::string, std::vector<state::Holding>> all;
  for (int part = 0; part < model_.size(); part++) {
    const state::OwnerMap& owned = owned_[static_cast<size_t>(part)];
    const state::OwnerMap there = state::Whole(layout_of(part), map_->layout()).whole_of(owned);
    for (const std::string& vector : there.vectors())
      for (const auto& [range, owner] : there.of(vector)) all[vector].push_back({range, rank_at(owner, part)});
  }
  state::OwnerMap map;
  for (auto& [vector, holdings] : all) {  // in their order, as the map has them
    std::sort(holdings.begin(), holdings.end(), [](const state::Holding& a, const state::Holding& b) {
      return std::tie(a.range.begin, a.owner) < std::tie(b.range.begin, b.owner);
    });
    for (const auto& [range, owner] : holdings) map.add(vector, range, owner);
  }
  return map;
}

torch::Tensor Assembly::tensor(size_t slot, const torch::Tensor& part) const {
  const torch::NoGradGuard no_grad;
  const space::Slot& one = all_[slot];
  if (!one.cut) return from_first_holder(slot, part);
  std::vector<size_t> counts;
  for (int rank = 0; rank < model_.size(); rank++) counts.push_back(has(rank, slot) ? one.elements() : 0);
  std::vector<int64_t> sizes = one.shape;
  sizes.insert(sizes.begin(), std::count(counts.begin(), counts.end(), one.elements()));
  const auto options = torch::TensorOptions().dtype(torch_compat::type_of(one.dtype));
  const torch::Tensor mine = has(model_.rank(), slot) ? part.detach().contiguous() : torch::empty({0}, options);
  const torch::Tensor parts = at::empty(sizes, options);
  model_.comm().all_gather(mine.data_ptr(), parts.data_ptr(), counts, one.dtype, one.name);
  std::vector<torch::Tensor> in_order(static_cast<size_t>(one.cut->count));
  for (int rank = 0, at = 0; rank < model_.size(); rank++) {
    if (!has(rank, slot)) continue;
    torch::Tensor& place = in_order[static_cast<size_t>(index_of(rank, slot))];
    if (!place.defined()) place = parts[at];  // the first that has it
    at++;
  }
  return at::cat(in_order, one.cut->dim);
}

torch::Tensor Assembly::from_first_holder(size_t slot, const torch::Tensor& part) const {
  const space::Slot& one = all_[slot];
  int first = model_.size(), holders = 0;
  for (int rank = model_.size(); rank-- > 0;)
    if (has(rank, slot)) first = rank, holders++;
  torch::Tensor whole = has(model_.rank(), slot)
                            ? part.detach().clone(torch::MemoryFormat::Contiguous)
                            : at::empty(one.shape, torch::TensorOptions().dtype(torch_compat::type_of(one.dtype)));
  if (holders < model_.size())
    model_.comm().broadcast(whole.data_ptr(), static_cast<size_t>(whole.numel()), one.dtype, first, one.name);
  return whole;
}

}  // namespace trireme
