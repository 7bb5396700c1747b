#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/checkpoint/files.h>

namespace trireme::checkpoint {
namespace {

/// What a user can do about it.
std::string advice_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return ": make room there, or choose another folder";
    case EROFS:
    case EACCES:
    case EPERM:
      return ": choose a folder that this user may write to";
    default:
      return "";
  }
}

[[noreturn]] void fail_io(const char* what, const std::string& path) {
  const int error = errno;
  fail<IoError>("cannot {} {}: {}{}", what, path, errno_text(error), advice_for(error));
}

/// Calls again after a signal.
template <class Call>
auto persist(Call call) {
  for (;;)
    if (const auto result = call(); result >= 0 || errno != EINTR) return result;
}

bool not_offered(int error) { return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL || error == ENODEV; }

}  // namespace

File::File(Files& files, const std::string& path, int flags, int mode)
    : files_(files), path_(path), file_(persist([&] { return files.open(path, flags | O_CLOEXEC, mode); })) {
  if (file_ < 0) fail_io((flags & O_ACCMODE) == O_RDONLY ? "open" : "write", path);
}

File::~File() {
  if (file_ >= 0) files_.close(file_);
}

File::File(File&& other) noexcept
    : files_(other.files_), path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

uint64_t File::size() const {
  const int64_t size = files_.size(file_);
  if (size < 0) fail_io("read", path_);
  return static_cast<uint64_t>(size);
}

void File::read_at(uint64_t at, std::span<std::byte> into) const {
  constexpr size_t kMost = size_t{1} << 30;  // of one call
  while (!into.empty()) {
    const ssize_t got = persist([&] { return files_.pread(file_, into.data(), std::min(kMost, into.size()), at); });
    if (got < 0) fail_io("read", path_);
    if (got == 0) fail<Corruption>("{} is cut short: it ends at byte {}", path_, at);
    into = into.subspan(static_cast<size_t>(got));
    at += static_cast<size_t>(got);
  }
}

void File::write_at(uint64_t at, std::span<const std::byte> bytes) const {
  constexpr size_t kMost = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t done = persist([&] { return files_.pwrite(file_, bytes.data(), std::min(kMost, bytes.size()), at); });
    if (done < 0) fail_io("write", path_);
    bytes = bytes.subspan(static_cast<size_t>(done));
    at += static_cast<size_t>(done);
  }
}

void File::start_writing(uint64_t at, uint64_t bytes) const { files_.start_writing(file_, at, bytes); }

void File::expect_reading() const { files_.expect_reading(file_); }

void File::reserve(uint64_t bytes) const {
  if (bytes > 0 && persist([&] { return files_.fallocate(file_, bytes); }) < 0 && !not_offered(errno))
    fail_io("make room for", path_);
  resize(bytes);
}

void File::resize(uint64_t bytes) const {
  if (persist([&] { return files_.ftruncate(file_, bytes); }) < 0) fail_io("write", path_);
}

void File::sync() const {
  if (persist([&] { return files_.fsync(file_); }) < 0) fail_io("write", path_);
}

void sync_folder(Files& files, const std::string& path) { File(files, path, O_RDONLY | O_DIRECTORY).sync(); }

void make_folder(Files& files, const std::string& path) {
  if (files.mkdir(path, 0755) < 0 && errno != EEXIST) fail_io("make the folder", path);
}

void make_folders(Files& files, const std::string& path) {
  const std::string own = path.substr(0, path.find_last_not_of('/') + 1), above = folder_of(own);
  if (files.mkdir(path, 0755) < 0) {
    if (errno == EEXIST) return;
    if (errno != ENOENT || above == own) fail_io("make the folder", path);
    make_folders(files, above);
    make_folder(files, path);
  }
  sync_folder(files, above);
}

std::optional<std::vector<std::string>> names_in(Files& files, const std::string& path) {
  std::vector<std::string> names;
  if (files.list(path, names) < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    fail_io("look into", path);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_text(Files& files, const std::string& path, size_t most) {
  const File file(files, path, O_RDONLY);
  const uint64_t size = file.size();
  if (size > most) fail<Corruption>("{} has {} bytes, where at most {} can be", path, size, most);
  std::string text(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void replace_file(Files& files, const std::string& path, std::string_view text) {
  replace_file(files, path, [&](const File& file) { file.write_at(0, std::as_bytes(std::span(text))); });
}

void replace_file(Files& files, const std::string& path, const std::function<void(const File&)>& write) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  try {
    {
      const File file(files, temporary, O_WRONLY | O_CREAT | O_TRUNC);
      write(file);
      file.sync();
    }
    if (files.rename(temporary, path) < 0) fail_io("rename to", path);
    sync_folder(files, folder_of(path));
  } catch (...) {
    files.unlink(temporary);
    throw;
  }
}

void remove_folder(Files& files, const std::string& path, const std::string& first) {
  const auto names = names_in(files, path);
  if (!names) return;
  const auto remove = [&](const std::string& name) {
    if (files.unlink(path + "/" + name) < 0 && errno != ENOENT) fail_io("remove", path + "/" + name);
  };
  if (!first.empty() && std::binary_search(names->begin(), names->end(), first)) {
    remove(first);
    sync_folder(files, path);
  }
  for (const std::string& name : *names)
    if (name != first) remove(name);
  if (files.rmdir(path) < 0 && errno != ENOENT) fail_io("remove", path);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_in(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace trireme::checkpoint
