// The system's own file system.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <trireme/base/descriptor.h>
#include <trireme/checkpoint/files.h>

namespace trireme::checkpoint {
namespace {

/// inotify where it works. It does not see what other machines do: there, and without it, a wait ends every second.
class SystemChanges final : public Changes {
 public:
  explicit SystemChanges(const std::string& folder) : inotify_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    if (inotify_ && inotify_add_watch(inotify_.get(), folder.c_str(), IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF) < 0)
      inotify_.reset();
  }

  void wait(Seconds limit) override {
    const int milliseconds = static_cast<int>(std::clamp(limit.count(), 0.0, 1.0) * 1000) + 1;
    pollfd entry{.fd = inotify_.get(), .events = POLLIN};
    poll(&entry, inotify_ ? 1 : 0, milliseconds);
    char seen[4096];
    while (inotify_ && read(inotify_.get(), seen, sizeof seen) > 0) continue;
  }

 private:
  Descriptor inotify_;
};

class SystemFiles final : public Files {
 public:
  int open(const std::string& path, int flags, int mode) override { return ::open(path.c_str(), flags, mode); }
  int close(int file) override { return ::close(file); }
  ssize_t pread(int file, void* data, size_t bytes, uint64_t at) override {
    return ::pread(file, data, bytes, static_cast<off_t>(at));
  }
  ssize_t pwrite(int file, const void* data, size_t bytes, uint64_t at) override {
    return ::pwrite(file, data, bytes, static_cast<off_t>(at));
  }
  int fsync(int file) override { return ::fsync(file); }
  int fallocate(int file, uint64_t bytes) override {
    return ::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
  }
  int ftruncate(int file, uint64_t bytes) override { return ::ftruncate(file, static_cast<off_t>(bytes)); }
  int64_t size(int file) override {
    struct stat status {};
    return fstat(file, &status) < 0 ? -1 : status.st_size;
  }
  int rename(const std::string& from, const std::string& to) override { return std::rename(from.c_str(), to.c_str()); }
  int unlink(const std::string& path) override { return ::unlink(path.c_str()); }
  int mkdir(const std::string& path, int mode) override { return ::mkdir(path.c_str(), static_cast<mode_t>(mode)); }
  int rmdir(const std::string& path) override { return ::rmdir(path.c_str()); }

  int list(const std::string& path, std::vector<std::string>& names) override {
    DIR* const folder = opendir(path.c_str());
    if (folder == nullptr) return -1;
    errno = 0;
    while (const dirent* entry = readdir(folder))
      if (const std::string name = entry->d_name; name != "." && name != "..") names.push_back(name);
    const int error = errno;
    closedir(folder);
    return errno = error, error == 0 ? 0 : -1;
  }

  void start_writing(int file, uint64_t at, uint64_t bytes) override {
    sync_file_range(file, static_cast<off_t>(at), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
  }
  void expect_reading(int file) override { posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL); }
  std::unique_ptr<Changes> watch(const std::string& folder) override { return std::make_unique<SystemChanges>(folder); }
};

}  // namespace

Files& system_files() {
  static SystemFiles files;  // has no state
  return files;
}

}  // namespace trireme::checkpoint
