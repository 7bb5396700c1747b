#pragma once
// The file system as checkpoints use it: the seam below which tests lose power, fill the disk and kill the writer.
//
// Files has the system calls, with their return values and errno. File and the functions below it are what the rest of
// the folder uses: they go on after EINTR and short counts, and throw IoError that says what, where and why.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/base/clock.h>

namespace trireme::checkpoint {

/// Tells that something happened in a folder.
class Changes {
 public:
  virtual ~Changes() = default;
  /// Until something has changed since the last call (the first: since it was made), or `limit`, or for no reason.
  virtual void wait(Seconds limit) = 0;
};

/// Each is the system call of the same name: -1 and errno when it fails. Thread-safe.
class Files {
 public:
  virtual ~Files() = default;
  virtual int open(const std::string& path, int flags, int mode) = 0;
  virtual int close(int file) = 0;
  virtual ssize_t pread(int file, void* data, size_t bytes, uint64_t at) = 0;
  virtual ssize_t pwrite(int file, const void* data, size_t bytes, uint64_t at) = 0;
  virtual int fsync(int file) = 0;
  /// Room for `bytes` from the beginning, without a change of its size.
  virtual int fallocate(int file, uint64_t bytes) = 0;
  virtual int ftruncate(int file, uint64_t bytes) = 0;
  virtual int64_t size(int file) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int mkdir(const std::string& path, int mode) = 0;
  virtual int rmdir(const std::string& path) = 0;
  /// The names in a folder, in any order.
  virtual int list(const std::string& path, std::vector<std::string>& names) = 0;
  /// A hint that this part will not change: it may go to the disk.
  virtual void start_writing(int /*file*/, uint64_t /*at*/, uint64_t /*bytes*/) {}
  /// A hint that all of it will be read, from the beginning on.
  virtual void expect_reading(int /*file*/) {}
  virtual std::unique_ptr<Changes> watch(const std::string& folder) = 0;
};

/// The system's own.
Files& system_files();

/// An open file. Not thread-safe, but for read_at() and write_at().
class File {
 public:
  /// Flags and mode are those of open(2). Throws IoError.
  File(Files& files, const std::string& path, int flags, int mode = 0644);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const;
  /// All of it. Throws Corruption when the file ends before.
  void read_at(uint64_t at, std::span<std::byte> into) const;
  void write_at(uint64_t at, std::span<const std::byte> bytes) const;
  void start_writing(uint64_t at, uint64_t bytes) const;
  void expect_reading() const;
  /// Its size becomes `bytes`, with room on the disk for all of them where the file system can promise that.
  void reserve(uint64_t bytes) const;
  void resize(uint64_t bytes) const;
  void sync() const;

 private:
  Files& files_;
  std::string path_;
  int file_ = -1;
};

/// Its names are durable afterwards. Throws IoError.
void sync_folder(Files& files, const std::string& path);
/// The folder may be there already. Its own name is durable after sync_folder() of the one that it is in.
void make_folder(Files& files, const std::string& path);
/// With those above it, where they are missing; the names of all that are new are durable. Throws IoError.
void make_folders(Files& files, const std::string& path);
/// Names in it, sorted; nothing when there is no such folder (or it is no folder). Throws IoError.
std::optional<std::vector<std::string>> names_in(Files& files, const std::string& path);
/// A small file, at most `most` bytes. Throws IoError, Corruption when it is larger.
std::string read_text(Files& files, const std::string& path, size_t most);
/// The file is the old one or the whole new one at any moment, and the new one durable when this returns: temporary
/// name, fsync, rename, fsync of the folder. Throws IoError, and leaves nothing behind.
void replace_file(Files& files, const std::string& path, const std::function<void(const File&)>& write);
void replace_file(Files& files, const std::string& path, std::string_view text);
/// Of a folder without folders in it: `first` goes first, durably, then all the rest. Throws IoError.
void remove_folder(Files& files, const std::string& path, const std::string& first = "");
/// The folder that a path is in: "." for "a".
std::string folder_of(const std::string& path);
/// The last part of a path.
std::string name_in(const std::string& path);

}  // namespace trireme::checkpoint
