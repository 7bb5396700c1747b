#pragma once
// Checkpoints of one Parallel in a folder, written in the background while training goes on.
//
//   Saver saver(train, {.dir = "out/run"});
//   …                                        // some steps
//   saver.save({.step = 500, .epoch = 1});   // returns at once
//
// Every rank that can see the folder writes what falls to it; what only others have travels to rank 0 when it is saved.
// Rank 0 makes the checkpoint whole, and removes old ones (checkpoint/writer.h, checkpoint/folder.h).
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/parallel/parallel.h>

namespace trireme {

struct SaverOptions {
  std::string dir;
  checkpoint::KeepRule keep;                      // which older ones stay
  std::map<std::string, std::string> metadata{};  // of the model's files: model name, schema, …
  std::map<std::string, std::string> options{};   // of the job, for people and for who resumes
  Seconds limit{300};                             // for all ranks' parts of one checkpoint
  checkpoint::Files* files = nullptr;  // that it writes to, but for the lock; outlives it. Null: the system's own
};

/// What a checkpoint says besides the state.
struct SaveNote {
  int64_t step = 0, epoch = 0;                // of the run: steps that are done, epochs that are done
  std::map<std::string, double> metrics{};    // such as test_accuracy
  std::map<std::string, std::string> more{};  // beside SaverOptions::options: how far the run is
};

/// What became of a checkpoint.
struct Saved {
  std::string path;
  int64_t step = 0;
  uint64_t bytes = 0;
  double seconds = 0;                // from save() until it was complete
  std::vector<std::string> removed;  // sentences: which older ones went, and why
  std::string error;                 // "": it is complete
};

/// All of it is collective unless said otherwise, and of the thread that trains. Outlived by the Parallel.
class Saver {
 public:
  /// Rank 0 locks the folder, which is made if need be, and clears away what interrupted jobs have left half-written.
  /// Throws on all ranks what rank 0 finds wrong with the folder.
  Saver(Parallel& train, const SaverOptions& options);
  /// Waits for what is under way, as long as SaverOptions::limit.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Between updates. Blocks while the one before is still being written (see busy()), otherwise hardly at all. False
  /// when that takes longer than `limit` (or SaverOptions::limit), or the folder is of no use any more: nothing is
  /// saved then, and news() says why.
  bool save(const SaveNote& note);
  bool save(const SaveNote& note, Seconds limit);
  /// Until no rank writes any more; false when that takes longer than `limit` on rank 0.
  bool settle(Seconds limit);

  /// Not collective. This rank still writes. On rank 0: somebody may.
  bool busy() const;
  /// Not collective: until it does not; false after `limit`.
  bool wait(Seconds limit);

  /// Collective: waits for the last one, as long as SaverOptions::limit, and tells all ranks what became of it. Throws
  /// IoError on all of them when it is not complete.
  Saved complete();

  // ---- not collective ----

  /// The crew has changed, or there is no more time: what is under way is not waited for, and will not be complete
  /// unless it is nearly so. It ends with the MiB, or the call to the file system, that it is at.
  void give_up();
  /// On rank 0: what became of checkpoints since the last call. Elsewhere nothing.
  std::vector<Saved> news();
  /// What was noticed in the beginning: leftovers that were removed, ranks that do not see the folder.
  const std::vector<std::string>& remarks() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// What load_state() found.
struct Loaded {
  std::string path;  // of the checkpoint
  checkpoint::Manifest manifest;
  std::vector<std::string> skipped;  // sentences: newer ones that are of no use, and why
  std::string remark;                // what was adapted to this crew, or ""
};

/// Collective, between updates: the newest usable checkpoint of a folder, or the one that `path` is, becomes the state
/// of `train`. The random numbers of each rank go on too, if it was kept by as many ranks, in the same mesh. All hashes
/// are checked. Throws InvalidArgument when there is none, or it is of another model or optimizer; nothing has changed
/// then. `accept` is called on all ranks before that, and may throw.
Loaded load_state(Parallel& train, const std::string& path,
                  const std::function<void(const checkpoint::Manifest&)>& accept = nullptr);

}  // namespace trireme
