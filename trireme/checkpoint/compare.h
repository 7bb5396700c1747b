#pragma once
// Tensors of a file or a checkpoint by name, for tools: which differ, and one file of a model's.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <trireme/checkpoint/files.h>
#include <trireme/checkpoint/reader.h>

namespace trireme::checkpoint {

/// What a path names: a safetensors file, a checkpoint, or a folder of them, of which the newest is taken.
struct Tensors {
  std::string path;                        // of the file, or of the checkpoint that was taken
  std::vector<std::string> skipped;        // sentences: which newer checkpoints are of no use, and why
  std::unique_ptr<Checkpoint> checkpoint;  // or
  std::unique_ptr<SafetensorsFile> file;
  std::map<std::string, Checkpoint::Found> by_name;

  /// With `verify`, a checkpoint's hashes must be right, as in Folder::newest(). Throws IoError, InvalidArgument,
  /// Corruption. `files` must outlive it.
  static Tensors open(Files& files, const std::string& path, bool verify = false);
  /// Those of the model alone; tied ones under all their names.
  std::map<std::string, Checkpoint::Found> model() const;
  /// What the model says of itself.
  const std::map<std::string, std::string>& metadata() const;
};

struct TensorDifference {
  std::string name;
  std::string kind;       // "only in the first", "only in the second", "F32[3] and F32[4]"; "": values differ
  uint64_t elements = 0;  // that differ; NaN and NaN of the same bits do not
  double largest = 0;     // of their differences; NaN when one of them is
};

/// Empty when all are alike. Reads both, some at a time; blocks.
std::vector<TensorDifference> compare_tensors(const std::map<std::string, Checkpoint::Found>& first,
                                              const std::map<std::string, Checkpoint::Found>& second);

/// How many rows of a table are in one alone, or different.
struct RowsDifference {
  uint64_t only_first = 0, only_second = 0, different = 0, same = 0;
};
RowsDifference compare_rows(const Checkpoint& first, const Checkpoint& second, const std::string& table);

/// One file of all parameters and buffers, tied ones under all their names. Durable when it returns; the old file stays
/// until then. Blocks.
void export_model(Files& files, const Checkpoint& checkpoint, const std::string& path);

}  // namespace trireme::checkpoint
