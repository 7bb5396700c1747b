#pragma once
// A file system in memory that keeps apart what is durable and what is not: it can lose power, fill up, refuse writes
// and stop the process at any system call.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <trireme/base/lock.h>
#include <trireme/checkpoint/files.h>

namespace trireme::tests {

/// The process was killed: nothing that it calls afterwards has an effect.
struct Killed {};

/// Thread-safe.
class MemoryFiles final : public checkpoint::Files {
 public:
  MemoryFiles();

  /// What happens at the call with this number, counted from 1 (those of close(), size() and hints are not counted);
  /// 0: nothing.
  enum class Fate { kill, no_space, io_error };
  void at_call(size_t number, Fate fate) { number_ = number, fate_ = fate, calls_ = 0, dead_ = false; }
  size_t calls() const { return calls_; }
  /// From now on nothing may be written: EROFS, EACCES.
  void refuse_writes(int error) { refused_ = error; }

  /// Power is lost and comes back: only what was synced is there. With `dice`, of the rest any part may be there too: a
  /// name or not, of a file's new bytes any blocks.
  void lose_power(std::mt19937* dice = nullptr);
  /// The same process starts anew: nothing is lost.
  void restart() { at_call(0, Fate::kill), open_.clear(); }

  /// Of a file, to damage it.
  std::vector<std::byte>& bytes_of(const std::string& path);
  bool exists(const std::string& path) { return find(path) != nullptr; }

  int open(const std::string& path, int flags, int mode) override;
  int close(int file) override;
  ssize_t pread(int file, void* data, size_t bytes, uint64_t at) override;
  ssize_t pwrite(int file, const void* data, size_t bytes, uint64_t at) override;
  int fsync(int file) override;
  int fallocate(int file, uint64_t bytes) override;
  int ftruncate(int file, uint64_t bytes) override;
  int64_t size(int file) override;
  int rename(const std::string& from, const std::string& to) override;
  int unlink(const std::string& path) override;
  int mkdir(const std::string& path, int mode) override;
  int rmdir(const std::string& path) override;
  int list(const std::string& path, std::vector<std::string>& names) override;
  std::unique_ptr<checkpoint::Changes> watch(const std::string& folder) override;

 private:
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  struct Node {
    bool folder = false;
    std::vector<std::byte> bytes, durable_bytes;
    Names names, durable_names;
  };

  /// Whether the call goes on; `writes`: it needs room or permission.
  bool begin(bool writes);
  std::shared_ptr<Node> find(const std::string& path) const;
  static void after_power_loss(Node& node, std::mt19937* dice);

  Mutex mutex_;  // of each call
  std::shared_ptr<Node> root_;
  std::map<int, std::shared_ptr<Node>> open_;
  int next_ = 3;
  size_t number_ = 0, calls_ = 0;
  Fate fate_ = Fate::kill;
  bool dead_ = false;
  int refused_ = 0;
};

}  // namespace trireme::tests
