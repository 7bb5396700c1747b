#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <unordered_map>

#include <trireme/base/error.h>
#include <trireme/checkpoint/compare.h>
#include <trireme/checkpoint/folder.h>

namespace trireme::checkpoint {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;  // that are compared or copied at a time

template <class T>
T bits_at(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

/// An element as a number; 0 for types that have no plain value.
double value_at(const std::byte* data, const std::string& type) {
  if (type == "F32") return bits_at<float>(data);
  if (type == "F64") return bits_at<double>(data);
  if (type == "BF16") return std::bit_cast<float>(static_cast<uint32_t>(bits_at<uint16_t>(data)) << 16);
  if (type == "F16") return half_value(bits_at<uint16_t>(data));
  if (type == "I64") return static_cast<double>(bits_at<int64_t>(data));
  if (type == "U64") return static_cast<double>(bits_at<uint64_t>(data));
  if (type == "I32") return bits_at<int32_t>(data);
  if (type == "U32") return bits_at<uint32_t>(data);
  if (type == "I16") return bits_at<int16_t>(data);
  if (type == "U16") return bits_at<uint16_t>(data);
  if (type == "I8") return bits_at<int8_t>(data);
  if (type == "U8" || type == "BOOL") return bits_at<uint8_t>(data);
  return 0;
}

void compare_block(std::span<const std::byte> a, std::span<const std::byte> b, const std::string& type,
                   TensorDifference& difference) {
  const size_t element = element_bytes(type);
  for (size_t at = 0; at < a.size(); at += element) {
    if (std::memcmp(a.data() + at, b.data() + at, element) == 0) continue;
    const double distance = std::abs(value_at(a.data() + at, type) - value_at(b.data() + at, type));
    difference.elements++;
    if (std::isnan(distance) || distance > difference.largest) difference.largest = distance;
  }
}

TensorDifference compare_values(const Checkpoint::Found& first, const Checkpoint::Found& second) {
  TensorDifference difference{.name = first.tensor->name};
  std::vector<std::byte> a, b;
  for (uint64_t at = 0; at < first.tensor->bytes(); at += kBlockBytes) {
    a.resize(std::min<uint64_t>(kBlockBytes, first.tensor->bytes() - at));
    b.resize(a.size());
    first.file->read(*first.tensor, at, a);
    second.file->read(*second.tensor, at, b);
    if (a != b) compare_block(a, b, first.tensor->type, difference);
  }
  return difference;
}

std::string kind_text(const StoredTensor& tensor) {
  return fmt::format("{}[{}]", tensor.type, fmt::join(tensor.shape, ","));
}

using RowHashes = std::unordered_map<uint64_t, uint64_t>;

RowHashes hashes_of(const Checkpoint& checkpoint, const std::string& table) {
  RowHashes hashes;
  checkpoint.rows(table, [&](const state::Row& row) {
    const auto text = [](std::span<const float> floats) {
      return std::string_view(reinterpret_cast<const char*>(floats.data()), floats.size_bytes());
    };
    hashes[row.key] =
        space::hash_text(text(row.values)) * 3 + space::hash_text(text(row.state)) * 5 + row.steps * 7 + row.age;
  });
  return hashes;
}

void copy_tensor(const Checkpoint::Found& found, const File& into, uint64_t at) {
  std::vector<std::byte> block;
  for (uint64_t done = 0; done < found.tensor->bytes(); done += block.size()) {
    block.resize(std::min<uint64_t>(kBlockBytes, found.tensor->bytes() - done));
    found.file->read(*found.tensor, done, block);
    into.write_at(at + done, block);
  }
}

}  // namespace

Tensors Tensors::open(Files& files, const std::string& path, bool verify) {
  Tensors tensors{.path = path};
  if (std::filesystem::is_regular_file(path)) {
    tensors.file = std::make_unique<SafetensorsFile>(files, path);
    for (const StoredTensor& tensor : tensors.file->header().tensors)
      tensors.by_name[tensor.name] = {tensors.file.get(), &tensor};
    return tensors;
  }
  Folder::Usable usable = Folder(files, path).newest(verify);
  tensors.path = usable.entry.path;
  tensors.skipped = std::move(usable.skipped);
  tensors.checkpoint = std::make_unique<Checkpoint>(files, tensors.path);
  tensors.by_name = tensors.checkpoint->tensors();
  return tensors;
}

std::map<std::string, Checkpoint::Found> Tensors::model() const {
  if (!checkpoint) return by_name;
  std::map<std::string, Checkpoint::Found> tensors;
  for (const Checkpoint::Found& found : checkpoint->model()) tensors[found.tensor->name] = found;
  for (const auto& [name, first] : checkpoint->ties())
    if (const auto found = tensors.find(first); found != tensors.end()) tensors.emplace(name, found->second);
  return tensors;
}

const std::map<std::string, std::string>& Tensors::metadata() const {
  return checkpoint ? checkpoint->manifest().metadata : file->header().metadata;
}

std::vector<TensorDifference> compare_tensors(const std::map<std::string, Checkpoint::Found>& first,
                                              const std::map<std::string, Checkpoint::Found>& second) {
  std::vector<TensorDifference> differences;
  for (const auto& [name, a] : first) {
    const auto found = second.find(name);
    if (found == second.end()) {
      differences.push_back({name, "only in the first"});
      continue;
    }
    const Checkpoint::Found& b = found->second;
    if (a.tensor->type != b.tensor->type || a.tensor->shape != b.tensor->shape)
      differences.push_back({name, fmt::format("{} and {}", kind_text(*a.tensor), kind_text(*b.tensor))});
    else if (TensorDifference difference = compare_values(a, b); difference.elements > 0)
      difference.name = name, differences.push_back(std::move(difference));
  }
  for (const auto& [name, b] : second)
    if (!first.contains(name)) differences.push_back({name, "only in the second"});
  return differences;
}

RowsDifference compare_rows(const Checkpoint& first, const Checkpoint& second, const std::string& table) {
  const RowHashes a = hashes_of(first, table), b = hashes_of(second, table);
  RowsDifference difference;
  for (const auto& [key, hash] : a) {
    const auto found = b.find(key);
    (found == b.end() ? difference.only_first : found->second == hash ? difference.same : difference.different)++;
  }
  difference.only_second = b.size() - difference.same - difference.different;
  return difference;
}

void export_model(Files& files, const Checkpoint& checkpoint, const std::string& path) {
  const std::vector<Checkpoint::Found> model = checkpoint.model();
  std::vector<std::pair<std::string, Checkpoint::Found>> tensors;
  for (const Checkpoint::Found& found : model) tensors.emplace_back(found.tensor->name, found);
  for (const auto& [name, first] : checkpoint.ties()) {
    const auto found = std::find_if(model.begin(), model.end(), [&](const auto& f) { return f.tensor->name == first; });
    if (found != model.end()) tensors.emplace_back(name, *found);
  }
  std::vector<StoredTensor> stored;
  for (const auto& [name, found] : tensors) stored.push_back({name, found.tensor->type, found.tensor->shape});
  std::map<std::string, std::string> metadata = checkpoint.manifest().metadata;
  metadata.emplace("producer", "trireme");
  const std::string header = make_header(stored, metadata);
  replace_file(files, path, [&](const File& file) {
    file.write_at(0, std::as_bytes(std::span(header)));
    for (size_t i = 0; i < tensors.size(); i++) copy_tensor(tensors[i].second, file, stored[i].begin);
  });
}

}  // namespace trireme::checkpoint
