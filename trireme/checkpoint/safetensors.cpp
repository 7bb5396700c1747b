#include <fcntl.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include <trireme/base/error.h>
#include <trireme/checkpoint/format.h>
#include <trireme/checkpoint/header_parser.h>
#include <trireme/checkpoint/safetensors.h>

namespace trireme::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

/// Elements of a shape times `element`; nothing when that is no number of bytes.
std::optional<uint64_t> bytes_of_shape(std::span<const int64_t> shape, uint64_t element) {
  uint64_t bytes = element;
  for (const int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) return std::nullopt;
  return bytes;
}

/// Throws unless the tensors follow each other without holes, from the header to the end of the file.
void check_places(const Header& header, const std::string& where) {
  uint64_t end = header.bytes;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.begin != end)
      fail<Corruption>("{}: tensor '{}' begins at byte {} of the data, where byte {} follows: the format allows no {}",
                       where, tensor.name, tensor.begin - header.bytes, end - header.bytes,
                       tensor.begin > end ? "holes" : "overlap");
    end = tensor.end;
  }
  if (end != header.file_bytes)
    fail<Corruption>("{}: the tensors end at byte {}, the file has {}: it is {}", where, end, header.file_bytes,
                     end > header.file_bytes ? "cut short" : "followed by bytes that belong to no tensor");
}

void check_tensor(const StoredTensor& tensor, const std::string& where) {
  const size_t element = element_bytes(tensor.type);
  if (element == 0) fail<Corruption>("{}: tensor '{}' has the unknown type '{}'", where, tensor.name, tensor.type);
  const auto bytes = bytes_of_shape(tensor.shape, element);
  if (!bytes || tensor.begin > tensor.end || *bytes != tensor.bytes())
    fail<Corruption>("{}: tensor '{}' is at bytes {} to {} of the file, which is not the size of {}", where,
                     tensor.name, tensor.begin, tensor.end, tensor.describe());
}

/// Reads length and header; throws Corruption that begins with the path.
Header read_header(const File& file) {
  const uint64_t size = file.size();
  uint64_t length = 0;
  if (size < sizeof length)
    fail<Corruption>("{} is no safetensors file, or cut short: it has {} bytes", file.path(), size);
  file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMostHeaderBytes || length > size - sizeof length)
    fail<Corruption>("{} is no safetensors file, or cut short: its header would have {} bytes", file.path(), length);
  std::string text(length, '\0');
  file.read_at(sizeof length, std::as_writable_bytes(std::span(text)));
  return Header::parse(text, size, file.path());
}

}  // namespace

uint64_t StoredTensor::elements() const { return bytes_of_shape(shape, 1).value_or(0); }

std::string StoredTensor::describe() const { return fmt::format("{} {}[{}]", name, type, fmt::join(shape, ",")); }

Header Header::parse(std::string_view text, uint64_t file_bytes, const std::string& where) {
  Header header = parse_header(text, where);
  header.bytes = sizeof(uint64_t) + text.size();
  header.file_bytes = file_bytes;
  for (StoredTensor& tensor : header.tensors) {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    if (tensor.begin > kMost || tensor.end > kMost)
      fail<Corruption>("{}: tensor '{}' has offsets beyond any file", where, tensor.name);
    tensor.begin += header.bytes, tensor.end += header.bytes;
    check_tensor(tensor, where);
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_places(header, where);
  return header;
}

std::string make_header(std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata) try {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names{"__metadata__"};
  std::string text = header.dump();
  text.pop_back();  // its last brace: more follows
  uint64_t offset = 0;
  for (StoredTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) fail<InvalidArgument>("two tensors would be called '{}'", tensor.name);
    const auto bytes = bytes_of_shape(tensor.shape, element_bytes(tensor.type));
    if (!bytes || element_bytes(tensor.type) == 0)
      fail<InvalidArgument>("there can be no tensor {}", tensor.describe());
    tensor.begin = offset, tensor.end = offset += *bytes;
    const nlohmann::ordered_json value = {
        {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", nlohmann::json(tensor.name).dump(), value.dump());
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  if (length > kMostHeaderBytes)
    fail<InvalidArgument>("a header of {} bytes for {} tensors: the format allows {}", length, tensors.size(),
                          kMostHeaderBytes);
  for (StoredTensor& tensor : tensors) tensor.begin += sizeof length + length, tensor.end += sizeof length + length;
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
} catch (const nlohmann::json::exception& error) {
  fail<InvalidArgument>("a name or text of a model cannot be written, as it is not UTF-8: {}", error.what());
}

SafetensorsFile::SafetensorsFile(Files& files, const std::string& path)
    : file_(files, path, O_RDONLY), header_(read_header(file_)) {
  for (size_t i = 0; i < header_.tensors.size(); i++) by_name_.emplace(header_.tensors[i].name, i);
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsFile::read(const StoredTensor& tensor, uint64_t at, std::span<std::byte> into) const {
  if (at > tensor.bytes() || into.size() > tensor.bytes() - at)
    fail<InvalidArgument>("bytes {} to {} of {}, which has {}", at, at + into.size(), tensor.describe(),
                          tensor.bytes());
  file_.read_at(tensor.begin + at, into);
}

std::vector<std::byte> SafetensorsFile::read(const StoredTensor& tensor) const {
  std::vector<std::byte> bytes(tensor.bytes());
  read(tensor, 0, bytes);
  return bytes;
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  write_safetensors(system_files(), path, tensors, metadata);
}

void write_safetensors(Files& files, const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<StoredTensor> places;
  for (const NamedTensor& tensor : tensors) places.push_back({tensor.name, tensor.type, tensor.shape});
  const std::string header = make_header(places, metadata);
  for (size_t i = 0; i < tensors.size(); i++)
    if (places[i].bytes() != tensors[i].bytes)
      fail<InvalidArgument>("{} bytes for tensor {}", tensors[i].bytes, places[i].describe());
  replace_file(files, path, [&](const File& file) {
    file.write_at(0, std::as_bytes(std::span(header)));
    for (size_t i = 0; i < tensors.size(); i++)
      file.write_at(places[i].begin, {static_cast<const std::byte*>(tensors[i].data), tensors[i].bytes});
  });
}

std::map<std::string, std::string> read_metadata(const std::string& path) {
  return SafetensorsFile(system_files(), path).header().metadata;
}

}  // namespace trireme::checkpoint
