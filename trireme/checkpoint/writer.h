#pragma once
// Writing a checkpoint, by several ranks side by side.
//
// Rank 0 names an Attempt (Folder::attempt) and tells it to all. Each rank has a Writer with the same Plan, gives it
// the state that falls to it (divide() says which), and finishes: its bytes are durable then, and a notice says which
// they were. Rank 0 commits: it waits for all notices, checks that together they are everything, hashes the files and
// writes the manifest. Until then there is no checkpoint, and whatever goes wrong, the one before it is still there.
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/checkpoint/files.h>
#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/plan.h>
#include <trireme/state/visitor.h>

namespace trireme::checkpoint {

/// One try to write one checkpoint. A value, the same on all ranks.
struct Attempt {
  std::string path;  // of the checkpoint: "DIR/step-000000500"
  std::string id;    // of this try alone: notices have it
  int64_t step = 0;

  /// As one line, to pass it on.
  std::string text() const;
  static Attempt parse(const std::string& text);
};

/// Of one rank; used by one thread. All but the constructor may block for the disk.
class Writer final : public state::Visitor {
 public:
  struct Options {
    int rank = 0;  // number of this writer; 0 writes the headers
    /// Of all that it is shown it writes what rank `rank` has in this map (see divide()); without one, everything. Must
    /// outlive it.
    const state::OwnerMap* mine = nullptr;
    size_t row_bytes = kRowBytes;  // rows are kept until they are so many, then written as a file
  };

  /// `files` and `plan` must outlive it. Makes the folder. Throws IoError, and InvalidArgument when there is a complete
  /// checkpoint already.
  Writer(Files& files, const Attempt& attempt, const Plan& plan, const Options& options);
  ~Writer() override;

  /// Not needed: rank 0 has it in the manifest.
  void about(const state::About&) override {}
  /// Any cut, in any order; bytes between slots are passed over. Throws InvalidArgument for what is not planned.
  void part(const std::string& vector, space::Range range, std::span<const std::byte> bytes) override;
  /// Several ranks may show the same: commit() refuses different values.
  void scalar(const std::string& name, int64_t value) override;
  /// Rows that are shown are written, whatever `mine` is.
  void row(const std::string& table, const state::Row& row) override;
  /// Bytes under a name of their own, such as "worker/2/rng".
  void blob(const std::string& name, std::span<const std::byte> bytes);

  /// All is durable and the notice there when it returns. Call once, last.
  void finish();
  /// Instead: tells rank 0 why there will be no checkpoint; false when not even that could be written. Never throws.
  bool give_up(const std::string& why) noexcept;

  /// Bytes that it has given to the system so far.
  uint64_t written() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The same for a rank whose Writer could not be made.
bool give_up(Files& files, const Attempt& attempt, int rank, const std::string& why) noexcept;

struct CommitOptions {
  int writers = 1;
  Seconds limit{300};                           // for the notices of all writers
  int threads = 2;                              // that hash, at low priority; 1: the caller's, at its own
  const std::atomic<bool>* given_up = nullptr;  // when it becomes true, commit() soon throws Error, or is done
};

/// Rank 0's last act, after its own finish(); blocks. `manifest` has everything but files, vectors and the writers'
/// scalars; returns it whole. Throws Timeout that names the ranks whose notice is missing, Error with the reason of a
/// writer that gave up, Corruption that names the first bytes which nobody or more than one has written. Only when it
/// returns may older checkpoints be removed.
Manifest commit(Files& files, const Attempt& attempt, const Plan& plan, Manifest manifest,
                const CommitOptions& options);

/// Removes what an attempt that failed has left, as far as that goes. Never throws; does nothing when the attempt was
/// committed.
void abandon(Files& files, const Attempt& attempt) noexcept;

}  // namespace trireme::checkpoint
