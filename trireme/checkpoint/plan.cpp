#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>

#include <trireme/base/error.h>
#include <trireme/checkpoint/plan.h>
#include <trireme/state/visitor.h>

namespace trireme::checkpoint {
namespace {

using space::Range;

constexpr std::string_view kBuffers = "buffers/", kOptimizer = "optimizer/";
enum Group { model, optimizer, workers };
constexpr const char* kGroups[] = {"model", "optimizer", "workers"};

Group group_of(const std::string& vector) {
  const VectorName split = split_worker(vector);
  if (split.worker >= 0) return workers;
  return split.name.starts_with(kOptimizer) ? optimizer : model;
}

/// A tensor that has no place yet.
struct Unplaced {
  std::string vector;
  VectorTensor item;
  uint64_t bytes() const { return item.range.size(); }
};

std::vector<Unplaced> unplaced_of(const Contents& contents, Group group) {
  std::vector<Unplaced> tensors;
  const std::set<std::string> vectors(contents.vectors.begin(), contents.vectors.end());  // sorted, each once
  for (const std::string& vector : vectors)
    if (group_of(vector) == group)
      for (VectorTensor& item : tensors_of(vector, contents.layout, contents.buffers))
        tensors.push_back({vector, std::move(item)});
  // Large elements first: every tensor is aligned to its elements then.
  std::stable_sort(tensors.begin(), tensors.end(), [](const Unplaced& a, const Unplaced& b) {
    return element_bytes(a.item.tensor.type) > element_bytes(b.item.tensor.type);
  });
  return tensors;
}

/// Where each file ends, as numbers of tensors.
std::vector<size_t> cuts_of(std::span<const Unplaced> tensors, size_t file_bytes) {
  std::vector<size_t> cuts;
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); i++) {
    if (bytes > 0 && bytes + tensors[i].bytes() > file_bytes) cuts.push_back(i), bytes = 0;
    bytes += tensors[i].bytes();
  }
  cuts.push_back(tensors.size());
  return cuts;
}

std::string file_name(Group group, size_t index, size_t count) {
  return count == 1 ? fmt::format("{}{}", kGroups[group], kSuffix)
                    : fmt::format("{}-{:05}-of-{:05}{}", kGroups[group], index + 1, count, kSuffix);
}

std::map<std::string, std::string> metadata_of(const Contents& contents, Group group) {
  std::map<std::string, std::string> entries = contents.metadata;
  entries.emplace("format", "pt");  // what readers for PyTorch look for
  if (group == model && !contents.ties.empty()) entries.emplace(kTiesEntry, nlohmann::json(contents.ties).dump());
  return entries;
}

VectorTensor steps_tensor(const std::string& vector, const space::Slot& slot, size_t index) {
  return {{tensor_name(vector, slot.name), "I64", {}}, state::steps_range(index), {}};
}

VectorTensor slot_tensor(const std::string& vector, const space::Slot& slot) {
  return {
      {tensor_name(vector, slot.name), std::string(format_name(slot.dtype)), slot.shape}, slot.range, Order::of(slot)};
}

std::vector<VectorTensor> buffer_tensor(const std::string& vector, std::string_view name,
                                        std::span<const Buffer> buffers) {
  for (const Buffer& buffer : buffers) {
    if (buffer.name != name) continue;
    StoredTensor tensor{tensor_name(vector, buffer.name), buffer.type, buffer.shape};
    const size_t bytes = tensor.elements() * element_bytes(buffer.type);
    return {{std::move(tensor), {0, bytes}, {}}};
  }
  fail<InvalidArgument>("there is a vector '{}', and no buffer '{}' is described", vector, name);
}

}  // namespace

std::vector<VectorTensor> tensors_of(const std::string& vector, const space::Layout& layout,
                                     std::span<const Buffer> buffers) {
  const std::string_view name = split_worker(vector).name;
  if (name.starts_with(kBuffers)) return buffer_tensor(vector, name.substr(kBuffers.size()), buffers);
  if (name != state::kParameters && !name.starts_with(kOptimizer))
    fail<InvalidArgument>(
        "a checkpoint has no place for a vector '{}': it is neither of parameters nor a buffer nor "
        "of the optimizer; keep it as a blob",
        vector);
  std::vector<VectorTensor> tensors;
  for (size_t i = 0; i < layout.size(); i++)
    tensors.push_back(name == state::kSteps ? steps_tensor(vector, layout[i], i) : slot_tensor(vector, layout[i]));
  return tensors;
}

Plan::Plan(const Contents& contents, size_t file_bytes) {
  std::set<std::string> names;
  for (const Group group : {model, optimizer, workers}) {
    const std::vector<Unplaced> tensors = unplaced_of(contents, group);
    if (tensors.empty() && group != model) continue;
    const std::vector<size_t> cuts = cuts_of(tensors, file_bytes);
    for (size_t f = 0, first = 0; f < cuts.size(); first = cuts[f++]) {
      std::vector<StoredTensor> stored;
      for (size_t i = first; i < cuts[f]; i++) stored.push_back(tensors[i].item.tensor);
      PlannedFile file{file_name(group, f, cuts.size()), make_header(stored, metadata_of(contents, group))};
      file.bytes = stored.empty() ? file.header.size() : stored.back().end;
      for (size_t i = first; i < cuts[f]; i++) {
        const Unplaced& tensor = tensors[i];
        if (!names.insert(tensor.item.tensor.name).second)
          fail<InvalidArgument>("two tensors of a checkpoint would be called '{}'", tensor.item.tensor.name);
        tensors_[tensor.vector].push_back({tensor.vector, tensor.item.range, tensor.item.order, files_.size(),
                                           stored[i - first].begin, tensor.item.tensor.name});
      }
      files_.push_back(std::move(file));
    }
  }
  for (auto& [vector, tensors] : tensors_) {
    vectors_.push_back(vector);
    std::sort(tensors.begin(), tensors.end(), [](const PlannedTensor& a, const PlannedTensor& b) {
      return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
    });
  }
}

std::span<const PlannedTensor> Plan::of(const std::string& vector) const {
  const auto found = tensors_.find(vector);
  return found == tensors_.end() ? std::span<const PlannedTensor>{} : found->second;
}

uint64_t Plan::bytes() const {
  uint64_t sum = 0;
  for (const PlannedFile& file : files_) sum += file.bytes;
  return sum;
}

std::string Plan::what_is_at(size_t file, uint64_t byte) const {
  if (byte < files_[file].header.size()) return "the header";
  for (const auto& [vector, tensors] : tensors_)
    for (const PlannedTensor& tensor : tensors)
      if (tensor.file == file && byte >= tensor.begin && byte - tensor.begin < tensor.range.size())
        return fmt::format("'{}', byte {} of {}", tensor.name, byte - tensor.begin, tensor.range.size());
  return "nothing";
}

state::OwnerMap Plan::all(int owner) const {
  state::OwnerMap map;
  for (const auto& [vector, tensors] : tensors_)
    for (const PlannedTensor& tensor : tensors) map.add(vector, tensor.range, owner);
  return map;
}

state::OwnerMap divide(const state::OwnerMap& owners, const Plan& plan) {
  constexpr int kFiles = -1;  // an owner that nobody else is
  state::OwnerMap writers;
  for (const state::Move& move : plan_moves(owners, plan.all(kFiles))) writers.add(move.vector, move.range, move.from);
  return writers;
}

}  // namespace trireme::checkpoint
