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

Assembly::Assembly(const Group& whole, const Group& data, const Group& model, const space::Layout& layout,
                   const state::OwnerMap& owners)
    : model_(model), map_(std::make_shared<state::Whole>(layout)), places_(static_cast<size_t>(whole.size())) {
  const Place mine{data.rank(), model.rank()};
  whole.comm().all_gather(&mine, places_.data(), 2, DType::i32, "places in a mesh");
  find_parts(layout);
  share(owners);
}

void Assembly::find_parts(const space::Layout& layout) {
  std::vector<int32_t> mine;
  for (const space::Slot& slot : layout.slots()) mine.push_back(slot.cut ? slot.cut->index : -1);
  indices_.resize(mine.size() * static_cast<size_t>(model_.size()));
  model_.comm().all_gather(mine.data(), indices_.data(), mine.size(), DType::i32, "which parts ranks have");
  for (size_t slot = 0; slot < mine.size(); slot++) {
    if (!layout[slot].cut) continue;
    std::vector<int> holders(static_cast<size_t>(layout[slot].cut->count));
    for (size_t at = slot; at < indices_.size(); at += mine.size()) holders[static_cast<size_t>(indices_[at])]++;
    if (const auto none = std::find(holders.begin(), holders.end(), 0); none != holders.end())
      fail<InvalidArgument>("parameter {}: nobody has part {}. Give its layer the group of the mesh's other axis",
                            layout[slot].describe(), none - holders.begin());
  }
}

/// Vectors are the same everywhere: ranks have agreed on the optimizer.
void Assembly::share(const state::OwnerMap& owners) {
  const std::vector<std::string> vectors = owners.vectors();
  for (const auto& numbers : gather_lists(model_.comm(), packed(owners, vectors), "who holds what"))
    owned_.push_back(unpacked(numbers, vectors));
}

/// Of a rank of the replica: that of this one with other parts.
space::Layout Assembly::layout_of(int part) const {
  const space::Layout& mine = map_->here();
  std::vector<space::Slot> slots(mine.slots().begin(), mine.slots().end());
  for (size_t slot = 0; slot < slots.size(); slot++)
    if (slots[slot].cut) slots[slot].cut->index = indices_[static_cast<size_t>(part) * slots.size() + slot];
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
    const state::OwnerMap there = state::Whole(layout_of(part)).whole_of(owned);
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
  const space::Slot& here = map_->here()[slot];
  if (!here.cut) return part.detach().clone(torch::MemoryFormat::Contiguous);
  std::vector<int64_t> sizes = here.shape;
  sizes.insert(sizes.begin(), model_.size());
  const torch::Tensor mine = part.detach().contiguous(), parts = at::empty(sizes, mine.options());
  model_.comm().all_gather(mine.data_ptr(), parts.data_ptr(), static_cast<size_t>(mine.numel()), here.dtype, here.name);
  std::vector<torch::Tensor> in_order(static_cast<size_t>(here.cut->count));
  for (int rank = model_.size(); rank-- > 0;)
    in_order[static_cast<size_t>(indices_[static_cast<size_t>(rank) * map_->here().size() + slot])] = parts[rank];
  return at::cat(in_order, here.cut->dim);
}

}  // namespace trireme
