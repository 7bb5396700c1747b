#pragma once
// A job's state for tests: every byte is a known function of vector, place and step, and each rank has a part of it.
#include <cstring>
#include <string>
#include <vector>

#include <trireme/base/sha256.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/checkpoint/plan.h>
#include <trireme/checkpoint/writer.h>

namespace trireme::tests {

using checkpoint::Attempt;
using checkpoint::Buffer;
using checkpoint::Contents;
using checkpoint::Files;
using checkpoint::Manifest;
using checkpoint::Plan;
using checkpoint::Writer;
using space::Range;

/// Two convolutions, one stored channels last, types of several sizes, an empty slot, a scalar.
inline space::Layout sample_layout(bool channels_last = true) {
  return space::Layout({{.name = "conv1.weight", .shape = {5, 3, 3, 2}, .channels_last = channels_last},
                        {.name = "conv1.bias", .shape = {5}},
                        {.name = "half", .dtype = DType::f16, .shape = {7, 2, 1, 3}, .channels_last = channels_last},
                        {.name = "none", .shape = {0, 4}},
                        {.name = "one", .dtype = DType::f64, .shape = {}},
                        {.name = "fc.weight", .shape = {9, 31}}});
}

inline std::vector<Buffer> sample_buffers() { return {{"bn.running_mean", "F32", {5}}, {"bn.batches", "I64", {}}}; }

inline std::vector<std::string> sample_vectors() {
  return {"parameters",
          "optimizer/momentum",
          "optimizer/steps",
          "buffers/bn.running_mean",
          "buffers/bn.batches",
          "worker/0/optimizer/residual",
          "worker/1/optimizer/residual"};
}

inline Contents sample_contents(bool channels_last = true) {
  return {
      sample_layout(channels_last), sample_buffers(), sample_vectors(), {{"tied", "fc.weight"}}, {{"model", "toy"}}};
}

/// Of byte `at` of a *logical* tensor.
inline std::byte logical_byte(const std::string& tensor, size_t at, int64_t step) {
  return static_cast<std::byte>(space::hash_text(tensor) * 31 + at * 7 + at / 256 + static_cast<size_t>(step) * 13);
}

/// A tensor as it lies in memory, worked out index by index, apart from what is tested.
inline std::vector<std::byte> memory_of(const std::string& tensor, const space::Slot& slot, int64_t step) {
  const size_t element = size_of(slot.dtype);
  std::vector<std::byte> bytes(slot.elements() * element);
  const bool turned = slot.channels_last && slot.shape.size() == 4;
  const auto extent = [&](size_t dim) { return turned ? static_cast<size_t>(slot.shape[dim]) : 1; };
  for (size_t logical = 0; logical < slot.elements(); logical++) {
    size_t place = logical;
    if (turned) {
      const size_t w = logical % extent(3), h = logical / extent(3) % extent(2),
                   c = logical / extent(3) / extent(2) % extent(1), n = logical / extent(3) / extent(2) / extent(1);
      place = ((n * extent(2) + h) * extent(3) + w) * extent(1) + c;
    }
    for (size_t b = 0; b < element; b++) bytes[place * element + b] = logical_byte(tensor, logical * element + b, step);
  }
  return bytes;
}

/// A whole vector as it lies in memory; padding is 0xee.
inline std::vector<std::byte> vector_bytes(const std::string& vector, const space::Layout& layout, int64_t step) {
  const std::string name(checkpoint::split_worker(vector).name);
  const auto tensor = [&](const std::string& part) { return checkpoint::tensor_name(vector, part); };
  std::vector<std::byte> bytes;
  if (name.starts_with("buffers/")) {
    const size_t size = name == "buffers/bn.batches" ? 8 : 20;
    for (size_t i = 0; i < size; i++) bytes.push_back(logical_byte(tensor(name.substr(8)), i, step));
  } else if (name == "optimizer/steps") {
    for (const space::Slot& slot : layout.slots())
      for (size_t i = 0; i < 8; i++) bytes.push_back(logical_byte(tensor(slot.name), i, step));
  } else {
    bytes.assign(layout.bytes(), std::byte{0xee});
    for (const space::Slot& slot : layout.slots()) {
      const std::vector<std::byte> slot_bytes = memory_of(tensor(slot.name), slot, step);
      std::copy(slot_bytes.begin(), slot_bytes.end(), bytes.begin() + static_cast<long>(slot.range.begin));
    }
  }
  return bytes;
}

inline Manifest sample_manifest(const Contents& contents, int64_t step) {
  Manifest manifest;
  manifest.epoch = step / 100;
  manifest.time = 1'700'000'000 + step;
  manifest.about = {.layout = contents.layout.describe(), .optimizer = "momentum", .tables = {{"words", 3, "adam"}}};
  manifest.options = {{"--lr", "0.1"}};
  manifest.metadata = {{"model", "toy"}};
  manifest.metrics = {{"loss", 1.0 / static_cast<double>(step + 1)}};
  manifest.crew = {.workers = 2, .machines = 1, .sync = "allreduce"};
  return manifest;
}

/// A manifest's text as a hand would have changed it: with a hash that fits.
inline std::string hashed_anew(const std::string& text) {
  const size_t end = text.rfind(",\n \"sha256\"");
  if (end == std::string::npos) return text;
  Sha256 hash;
  hash.add(text.data(), end);
  return text.substr(0, end) + ",\n \"sha256\": \"" + hash.finish() + "\"\n}\n";
}

/// What rank `rank` of `ranks` gives: bytes of every vector in `cuts` pieces, the pieces by turns.
inline void show(Writer& writer, const Contents& contents, int rank, int ranks, size_t cuts, int64_t step) {
  for (const std::string& vector : contents.vectors) {
    const std::vector<std::byte> bytes = vector_bytes(vector, contents.layout, step);
    for (size_t i = 0; i < cuts; i++) {
      const Range range{bytes.size() * i / cuts, bytes.size() * (i + 1) / cuts};
      if (static_cast<int>(i) % ranks == rank)
        writer.part(vector, range, std::span(bytes).subspan(range.begin, range.size()));
    }
  }
  writer.scalar("step", step);
  if (contents.buffers.empty() && step % 200 == 0) return;  // without files of single writers, which sync the folder
  for (uint64_t key = static_cast<uint64_t>(rank); key < 20; key += static_cast<uint64_t>(ranks)) {
    const std::vector<float> values(3, static_cast<float>(key) + static_cast<float>(step)), state(6, 0.5f);
    writer.row("words", {key, values, state, static_cast<uint32_t>(key), 2});
  }
  const std::string dice = "rng of " + std::to_string(rank) + " at " + std::to_string(step);
  writer.blob("worker/" + std::to_string(rank) + "/rng", std::as_bytes(std::span(dice)));
}

/// A whole checkpoint by ranks one after another. Returns its path.
inline std::string save(Files& files, const std::string& folder, int64_t step, const Contents& contents, int ranks = 2,
                        size_t cuts = 7, size_t file_bytes = 1000, size_t row_bytes = 100) {
  const Plan plan(contents, file_bytes);
  const Attempt attempt = checkpoint::Folder(files, folder).attempt(step);
  try {
    for (int rank = 0; rank < ranks; rank++) {
      Writer writer(files, attempt, plan, {.rank = rank, .row_bytes = row_bytes});
      show(writer, contents, rank, ranks, cuts, step);
      writer.finish();
    }
    commit(files, attempt, plan, sample_manifest(contents, step),
           {.writers = ranks, .limit = Seconds(0.2), .threads = 1});
  } catch (const Error&) {
    abandon(files, attempt);
    throw;
  }
  return attempt.path;
}

}  // namespace trireme::tests
