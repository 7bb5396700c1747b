#pragma once
// What is where in a checkpoint's files, before anything is written: a pure function of what the job has, so that all
// writers find the same plan and none has to ask another.
//
// A vector's slots and each buffer are tensors; tensors are in files (model, optimizer, workers), cut where they grow
// too large. Rows of tables and blobs are not planned: each writer has files of its own for them.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <trireme/checkpoint/format.h>
#include <trireme/checkpoint/order.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/space/layout.h>
#include <trireme/state/owners.h>

namespace trireme::checkpoint {

/// A tensor beside the parameters, in row-major order: the vector "buffers/NAME", or "worker/2/buffers/NAME".
struct Buffer {
  std::string name;  // "bn.running_mean"
  std::string type;  // as safetensors has it: "F32"
  std::vector<int64_t> shape;
};

/// What a checkpoint is of.
struct Contents {
  space::Layout layout;
  std::vector<Buffer> buffers;
  std::vector<std::string> vectors;             // of all workers together: names, as in an owner map
  std::map<std::string, std::string> ties;      // other names of slots: "decoder.weight" is "encoder.weight"
  std::map<std::string, std::string> metadata;  // of the model's files: model name, schema, …
};

/// A tensor, and where its bytes are in its vector.
struct PlannedTensor {
  std::string vector;
  space::Range range{};  // of the vector
  Order order;           // of its elements in memory
  size_t file = 0;       // number of it
  uint64_t begin = 0;    // in the file
  std::string name;      // in the file
};

struct PlannedFile {
  std::string name;    // "model.safetensors"
  std::string header;  // its first bytes, length included
  uint64_t bytes = 0;  // all of it
};

/// The tensors of a vector: names, types, shapes and ranges of the vector, in their order. Throws InvalidArgument for a
/// vector that is neither parameters nor buffer nor of the optimizer ("parameters", "optimizer/NAME", "buffers/NAME",
/// each also with "worker/2/" before it).
struct VectorTensor {
  StoredTensor tensor;  // without begin and end
  space::Range range{};
  Order order;
};
std::vector<VectorTensor> tensors_of(const std::string& vector, const space::Layout& layout,
                                     std::span<const Buffer> buffers);

/// Immutable, thread-safe.
class Plan {
 public:
  /// Files of about `file_bytes`, or of one tensor. Throws InvalidArgument for names that are there twice.
  explicit Plan(const Contents& contents, size_t file_bytes = kFileBytes);

  std::span<const PlannedFile> files() const { return files_; }
  /// Ordered by place in the vector; empty when the vector is not planned.
  std::span<const PlannedTensor> of(const std::string& vector) const;
  const std::vector<std::string>& vectors() const { return vectors_; }
  /// Of all files.
  uint64_t bytes() const;
  /// "conv1.weight, byte 12 of 96", for messages: what is at a place of a file.
  std::string what_is_at(size_t file, uint64_t byte) const;
  /// All that has to be written, as holdings of `owner`.
  state::OwnerMap all(int owner = 0) const;

 private:
  std::vector<PlannedFile> files_;
  std::map<std::string, std::vector<PlannedTensor>> tensors_;
  std::vector<std::string> vectors_;
};

/// Who writes what: each byte of the plan once, by one who holds it in `owners`, divided evenly (state::plan_moves).
/// Pure. Throws InvalidArgument that names the first bytes which nobody holds.
state::OwnerMap divide(const state::OwnerMap& owners, const Plan& plan);

}  // namespace trireme::checkpoint
