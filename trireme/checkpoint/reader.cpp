#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <set>

#include <trireme/base/error.h>
#include <trireme/checkpoint/hashing.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/checkpoint/rows.h>

namespace trireme::checkpoint {
namespace {

using space::Range;

bool is_rows(const std::string& file) { return file.starts_with(kRowsPrefix); }
bool is_extra(const std::string& file) { return file.starts_with(kExtraPrefix); }

Manifest manifest_at(Files& files, const std::string& path) {
  const auto names = names_in(files, path);
  if (!names) fail<InvalidArgument>("there is no checkpoint at {}", path);
  const std::string name = path + "/" + kManifestName;
  if (std::binary_search(names->begin(), names->end(), std::string(kManifestName)))
    return Manifest::parse(read_text(files, name, kMostManifestBytes), name);
  const bool ours =
      std::any_of(names->begin(), names->end(), [](const std::string& n) { return n.ends_with(kSuffix); });
  if (ours || name_in(path).starts_with(kStepPrefix))
    fail<Corruption>("{} is half-written: it has no {}", path, kManifestName);
  fail<InvalidArgument>("{} is no checkpoint: it has no {}", path, kManifestName);
}

std::unique_ptr<SafetensorsFile> open_noted(Files& files, const std::string& path, const FileNote& note) {
  const auto names = names_in(files, path).value_or(std::vector<std::string>{});
  if (!std::binary_search(names.begin(), names.end(), note.name))
    fail<Corruption>("{} is damaged: its file {} is missing", path, note.name);
  const std::string name = path + "/" + note.name;
  const uint64_t bytes = File(files, name, 0).size();
  if (bytes != note.bytes)
    fail<Corruption>("{} is damaged: its file {} has {} bytes, and had {} when it was written", path, note.name, bytes,
                     note.bytes);
  return std::make_unique<SafetensorsFile>(files, name);
}

/// What differs between a checkpoint and a model, for one message.
class Differences {
 public:
  void add(std::string sentence) { sentences_.push_back(std::move(sentence)); }
  bool empty() const { return sentences_.empty(); }
  [[noreturn]] void refuse(const std::string& path) const {
    constexpr size_t kShown = 5;
    const size_t shown = std::min(kShown, sentences_.size());
    const std::string more = sentences_.size() > shown ? fmt::format("; and {} more", sentences_.size() - shown) : "";
    fail<InvalidArgument>("{} is a checkpoint of another model: {}{}", path,
                          fmt::join(sentences_.begin(), sentences_.begin() + static_cast<long>(shown), "; "), more);
  }

 private:
  std::vector<std::string> sentences_;
};

std::string shape_text(const StoredTensor& tensor) {
  return fmt::format("{}[{}]", tensor.type, fmt::join(tensor.shape, ","));
}

bool described(const std::string& vector, std::span<const Buffer> buffers) {
  constexpr std::string_view kBuffers = "buffers/";
  const std::string_view name = split_worker(vector).name;
  return !name.starts_with(kBuffers) || std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& buffer) {
    return buffer.name == name.substr(kBuffers.size());
  });
}

/// Those of the model first: where they differ, nothing more needs to be said.
bool of_model(const std::string& vector) { return !split_worker(vector).name.starts_with("optimizer/"); }

}  // namespace

Checkpoint::Checkpoint(Files& files, const std::string& path)
    : system_(files), path_(path), manifest_(manifest_at(files, path)) {
  for (const FileNote& note : manifest_.files) {
    files_.push_back(open_noted(files, path, note));
    if (is_rows(note.name)) continue;
    for (const StoredTensor& tensor : files_.back()->header().tensors)
      if (!tensors_.emplace(tensor.name, Found{files_.back().get(), &tensor}).second)
        fail<Corruption>("{} is damaged: two of its files have a tensor '{}'", path, tensor.name);
  }
}

Checkpoint::Found Checkpoint::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? Found{} : found->second;
}

std::optional<std::vector<std::byte>> Checkpoint::blob(const std::string& name) const {
  const Found found = find(name);
  if (!found || !is_extra(name_in(found.file->path()))) return std::nullopt;
  return found.file->read(*found.tensor);
}

std::vector<std::string> Checkpoint::blobs() const {
  std::vector<std::string> names;
  for (const auto& [name, found] : tensors_)
    if (is_extra(name_in(found.file->path()))) names.push_back(name);
  return names;
}

std::vector<Checkpoint::Found> Checkpoint::model() const {
  std::vector<Found> tensors;
  for (const auto& file : files_)
    if (name_in(file->path()).starts_with(kModelPrefix))
      for (const StoredTensor& tensor : file->header().tensors) tensors.push_back({file.get(), &tensor});
  return tensors;
}

std::map<std::string, std::string> Checkpoint::ties() const {
  for (const auto& file : files_) {
    const auto found = file->header().metadata.find(kTiesEntry);
    if (!name_in(file->path()).starts_with(kModelPrefix) || found == file->header().metadata.end()) continue;
    try {
      return nlohmann::json::parse(found->second).get<std::map<std::string, std::string>>();
    } catch (const nlohmann::json::exception&) {
      fail<Corruption>("{}: the metadata '{}' is no map of names", file->path(), kTiesEntry);
    }
  }
  return {};
}

void Checkpoint::rows(const std::string& table, const std::function<void(const state::Row&)>& take) const {
  for (const auto& file : files_)
    if (is_rows(name_in(file->path()))) read_rows(*file, table, take);
}

void Checkpoint::verify(int threads, int share, int shares) const {
  std::vector<std::string> paths, wrong;
  std::vector<const FileNote*> notes;
  for (size_t i = static_cast<size_t>(share); i < manifest_.files.size(); i += static_cast<size_t>(shares)) {
    notes.push_back(&manifest_.files[i]);
    paths.push_back(path_ + "/" + notes.back()->name);
  }
  const std::vector<std::string> hashes = hash_files(system_, paths, threads, Hurry::foreground);
  for (size_t i = 0; i < notes.size(); i++)
    if (hashes[i] != notes[i]->sha256) wrong.push_back(notes[i]->name);
  if (!wrong.empty())
    fail<Corruption>("{} is damaged: the SHA-256 of {} {} not the one in its manifest", path_, fmt::join(wrong, ", "),
                     wrong.size() == 1 ? "is" : "are");
}

Reader::Reader(const Checkpoint& checkpoint, const space::Layout& layout, std::vector<Buffer> buffers)
    : checkpoint_(checkpoint), about_(checkpoint.manifest().about) {
  std::vector<std::string> vectors = checkpoint.manifest().vectors;
  std::stable_partition(vectors.begin(), vectors.end(), of_model);
  Differences differences;
  std::set<std::string> wanted;
  bool model_done = false;
  for (const std::string& vector : vectors) {
    if (!model_done && !of_model(vector)) {
      model_done = true;
      if (!differences.empty()) break;
    }
    if (!described(vector, buffers)) continue;  // the tensor is found to be one too many below
    for (VectorTensor& item : tensors_of(vector, layout, buffers)) {
      const Checkpoint::Found found = checkpoint.find(item.tensor.name);
      wanted.insert(item.tensor.name);
      if (!found)
        differences.add(fmt::format("'{}' is not in the checkpoint", item.tensor.describe()));
      else if (found.tensor->type != item.tensor.type || found.tensor->shape != item.tensor.shape)
        differences.add(fmt::format("'{}' is {} in the checkpoint and {} here", item.tensor.name,
                                    shape_text(*found.tensor), shape_text(item.tensor)));
      else if (!item.range.empty())
        vectors_[vector].push_back({item.range, item.order, found}), contents_.add(vector, item.range, 0);
    }
  }
  for (const Buffer& buffer : buffers) {
    const bool there = std::any_of(vectors.begin(), vectors.end(), [&](const std::string& vector) {
      return split_worker(vector).name == "buffers/" + buffer.name;
    });
    if (!there) differences.add(fmt::format("the buffer '{}' is not in the checkpoint", buffer.name));
  }
  for (const Checkpoint::Found& found : checkpoint.model())
    if (!wanted.contains(found.tensor->name))
      differences.add(fmt::format("the checkpoint's '{}' is not in this model", found.tensor->describe()));
  if (!differences.empty()) differences.refuse(checkpoint.path());
  about_.layout = layout.describe();
}

std::optional<int64_t> Reader::scalar(const std::string& name) const {
  const auto& scalars = checkpoint_.manifest().scalars;
  const auto found = scalars.find(name);
  return found == scalars.end() ? std::nullopt : std::optional(found->second);
}

void Reader::read(const std::string& vector, Range range, std::span<std::byte> into) {
  if (range.size() != into.size())
    fail<InvalidArgument>("room for {} bytes, where {} to {} of '{}' are asked for", into.size(), range.begin,
                          range.end, vector);
  const std::vector<Piece>& pieces = vectors_[vector];
  auto piece =
      std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.range.end <= range.begin; });
  size_t at = range.begin;
  for (; at < range.end && piece != pieces.end() && piece->range.begin <= at; ++piece) {
    const Range here = intersect(piece->range, {at, range.end});
    read_piece(*piece, {here.begin - piece->range.begin, here.end - piece->range.begin},
               into.data() + (at - range.begin));
    at = here.end;
  }
  if (at < range.end)
    fail<InvalidArgument>("bytes {} to {} of '{}' are asked for, and those from {} on are not in {}", range.begin,
                          range.end, vector, at, checkpoint_.path());
}

/// `range` is relative to the tensor, in the order of memory.
void Reader::read_piece(const Piece& piece, Range range, std::byte* into) const {
  const auto& [file, tensor] = piece.found;
  if (piece.order.same()) return file->read(*tensor, range.begin, {into, range.size()});
  constexpr size_t kMost = size_t{1} << 20;
  const size_t row = piece.order.row_bytes(), rows_at_once = std::max<size_t>(1, kMost / row);
  std::vector<std::byte> block, turned(row);
  for (size_t first = range.begin / row; first * row < range.end; first += rows_at_once) {
    const size_t rows = std::min(rows_at_once, (range.end + row - 1) / row - first);
    block.resize(rows * row);
    file->read(*tensor, first * row, block);
    for (size_t i = 0; i < rows; i++) {
      const size_t begin = (first + i) * row;
      const Range here = intersect({begin, begin + row}, range);
      if (here.size() == row) {
        piece.order.to_memory(block.data() + i * row, into + (begin - range.begin));
      } else {
        piece.order.to_memory(block.data() + i * row, turned.data());
        std::memcpy(into + (here.begin - range.begin), turned.data() + (here.begin - begin), here.size());
      }
    }
  }
}

void Reader::rows(const std::string& table, const std::function<void(const state::Row&)>& take) {
  checkpoint_.rows(table, take);
}

}  // namespace trireme::checkpoint
