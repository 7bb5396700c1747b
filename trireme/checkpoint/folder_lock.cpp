#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/folder.h>

namespace trireme::checkpoint {
namespace {

constexpr Seconds kPatience{2};  // with one who is just being ended

/// "process 123 on host a since 2026-11-18 04:34:28 UTC"
std::string who_am_i() {
  std::array<char, 256> host{}, when{};
  gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::strftime(when.data(), when.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return fmt::format("process {} on {} since {}", getpid(), host.data(), when.data());
}

std::string text_in(int file) {
  std::array<char, 512> text{};
  const ssize_t bytes = pread(file, text.data(), text.size(), 0);
  const std::string line(text.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return line.empty() ? "a process that has not said who it is" : line.substr(0, line.find('\n'));
}

/// Nothing tells when a lock is free: it is asked for every now and then.
bool locked(int file) {
  const Deadline deadline(kPatience);
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || deadline.passed()) return false;
    poll(nullptr, 0, 10);
  }
  return true;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  make_folders(system_files(), folder);
  const std::string path = folder + "/" + kLockName;
  file_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file_)
    fail<IoError>("cannot write checkpoints to {}: {}: choose a folder that this user may write to", folder,
                  errno_text());
  if (!locked(file_.get())) {
    if (errno != EWOULDBLOCK)
      fail<IoError>("cannot lock {}: {}: choose a file system that has locks (flock)", path, errno_text());
    fail<InvalidArgument>("another job writes checkpoints to {}: {}. End it, or choose another folder", folder,
                          text_in(file_.get()));
  }
  const std::string text = who_am_i() + "\n";
  if (ftruncate(file_.get(), 0) != 0 || pwrite(file_.get(), text.data(), text.size(), 0) < 0)
    fail<IoError>("cannot write {}: {}", path, errno_text());
}

}  // namespace trireme::checkpoint
