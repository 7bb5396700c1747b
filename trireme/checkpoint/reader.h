#pragma once
// Reading a checkpoint: its tensors by name for tools, and as a source of state for a job, whatever crew wrote it.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/checkpoint/files.h>
#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/plan.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/state/visitor.h>

namespace trireme::checkpoint {

/// A complete checkpoint, open to read. Immutable, thread-safe.
class Checkpoint {
 public:
  /// `path` is that of one checkpoint ("DIR/step-000000500"). Reads the manifest and all headers, not the tensors.
  /// `files` must outlive it. Throws IoError, NewerFormat, InvalidArgument when it is no checkpoint, Corruption when it
  /// is half-written or damaged (a file is missing, of another size, or has a bad header).
  Checkpoint(Files& files, const std::string& path);

  struct Found {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
    explicit operator bool() const { return tensor != nullptr; }
  };

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  /// In the order of the manifest.
  std::span<const std::unique_ptr<SafetensorsFile>> files() const { return files_; }
  /// Planned tensors and blobs; not those of rows, whose names are in several files.
  Found find(const std::string& name) const;
  const std::map<std::string, Found>& tensors() const { return tensors_; }
  std::optional<std::vector<std::byte>> blob(const std::string& name) const;
  /// Names of all blobs, sorted.
  std::vector<std::string> blobs() const;
  /// The model's tensors, without those of the optimizer and of single workers; ties are not among them.
  std::vector<Found> model() const;
  /// What else a tensor of the model is called: other name -> name.
  std::map<std::string, std::string> ties() const;
  /// All rows of a table, in the order of the files.
  void rows(const std::string& table, const std::function<void(const state::Row&)>& take) const;

  /// One flipped bit in any file is found: compares SHA-256 of files `share`, share + shares, … with the manifest, by
  /// up to `threads` threads. Throws Corruption that names all files that differ. Blocks.
  void verify(int threads = 2, int share = 0, int shares = 1) const;

 private:
  Files& system_;
  std::string path_;
  Manifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Found> tensors_;
};

/// A checkpoint as the state of a job: ranges and order of bytes are those of the reading job. Not thread-safe; each
/// rank has its own, and reads what it needs.
class Reader final : public state::Source {
 public:
  /// `checkpoint` must outlive it. Throws InvalidArgument that names the tensors in which the checkpoint and this model
  /// differ (a few, and how many more there are).
  Reader(const Checkpoint& checkpoint, const space::Layout& layout, std::vector<Buffer> buffers);

  /// That of the checkpoint, with the layout of the reading job: tensors were compared, and how a job stores their
  /// elements is its own affair.
  const state::About& about() const override { return about_; }
  const state::OwnerMap& contents() const override { return contents_; }
  std::optional<int64_t> scalar(const std::string& name) const override;
  void read(const std::string& vector, space::Range range, std::span<std::byte> into) override;
  void rows(const std::string& table, const std::function<void(const state::Row&)>& take) override;
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  struct Piece {
    space::Range range{};
    Order order;
    Checkpoint::Found found;
  };
  void read_piece(const Piece& piece, space::Range range, std::byte* into) const;

  const Checkpoint& checkpoint_;
  state::About about_;
  state::OwnerMap contents_;
  std::map<std::string, std::vector<Piece>> vectors_;  // by place
};

}  // namespace trireme::checkpoint
