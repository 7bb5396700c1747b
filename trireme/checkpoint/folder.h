#pragma once
// A folder of checkpoints: what is in it, which one to go on with, and who may write to it.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/descriptor.h>
#include <trireme/checkpoint/files.h>
#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/writer.h>

namespace trireme::checkpoint {

enum class Condition { complete, half_written, damaged, newer };  // newer: of a version that this one cannot read
/// "complete", "half-written", "damaged", "newer"
std::string name_of(Condition condition);

/// One checkpoint of a folder.
struct Entry {
  std::string path, name;  // "DIR/step-000000500", "step-000000500"
  int64_t step = 0;
  int number = 1;  // 2, 3, … for later ones of the same step
  Condition condition = Condition::complete;
  std::string reason;                // a sentence, when it is not complete
  std::optional<Manifest> manifest;  // when it could be read
};

/// Of one job on one folder, from lock() until it is destroyed or the process ends.
class FolderLock {
 public:
  /// Makes the folder (and those above it) when there is none. Throws InvalidArgument that names host, process and
  /// start of the job that has it, IoError when the folder cannot be written to.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

/// Looks anew with each call. Thread-safe.
class Folder {
 public:
  /// `files` must outlive it.
  Folder(Files& files, std::string path) : files_(files), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  /// By step, newest first. Checks manifests, sizes and headers, not hashes. Empty when there is no such folder.
  std::vector<Entry> list() const;

  /// What to resume from.
  struct Usable {
    Entry entry;
    std::vector<std::string> skipped;  // sentences: which newer ones are of no use, and why
  };
  /// The newest complete one; with `verify`, whose hashes are right. Where one vanishes meanwhile, because another job
  /// removes what is old to it, looks again, up to three times in all. `path` may also be that of one checkpoint, which
  /// then is the only one to choose from. Throws InvalidArgument when there is none: no folder, an empty one, one
  /// without checkpoints, none that is whole (with the reasons), all newer than this program.
  Usable newest(bool verify = false) const;

  /// A try to write a checkpoint of this step, under a name that is free. For rank 0.
  Attempt attempt(int64_t step) const;
  /// Removes what interrupted jobs have left half-written; what it did, as sentences. Only by who has the lock.
  std::vector<std::string> clean() const;
  /// Of a checkpoint: the manifest first, so that a half-removed one is never taken for a whole one.
  void remove(const Entry& entry) const;

 private:
  Entry look_at(const std::string& name, int64_t step, int number) const;
  std::vector<Entry> candidates() const;

  Files& files_;
  std::string path_;
};

/// Whether there is a manifest at this path.
bool is_there(Files& files, const std::string& path);

/// How many to keep.
struct KeepRule {
  int keep = 3;      // the newest; 0: all
  std::string best;  // and the best by this metric; "": none
  bool higher_is_better = true;
};

struct Retired {
  Entry entry;
  std::string reason;  // "older than the 3 newest"
};

/// What to delete, oldest first, each with its reason. Counts complete ones only, and never names the newest of them;
/// half-written ones are not its business, damaged ones go when they are older than the newest that are kept. Pure.
std::vector<Retired> retire(std::span<const Entry> newest_first, const KeepRule& rule);

}  // namespace trireme::checkpoint
