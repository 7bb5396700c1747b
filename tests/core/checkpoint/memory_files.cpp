#include "memory_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme::tests {
namespace {

/// Nobody else is there who could change anything.
class NoChanges final : public checkpoint::Changes {
 public:
  void wait(Seconds) override {}
};

int refuse(int error) { return errno = error, -1; }

}  // namespace

MemoryFiles::MemoryFiles() : root_(std::make_shared<Node>()) { root_->folder = true; }

bool MemoryFiles::begin(bool writes) {
  if (dead_) return errno = EIO, false;
  calls_++;
  if (number_ != 0 && calls_ == number_) {
    if (fate_ == Fate::kill) {
      dead_ = true;
      throw Killed{};
    }
    if (fate_ == Fate::io_error) return errno = EIO, false;
  }
  if (writes && number_ != 0 && calls_ >= number_ && fate_ == Fate::no_space) return errno = ENOSPC, false;
  if (writes && refused_ != 0) return errno = refused_, false;
  return true;
}

std::shared_ptr<MemoryFiles::Node> MemoryFiles::find(const std::string& path) const {
  std::shared_ptr<Node> node = root_;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) {
      const auto found = node->names.find(path.substr(begin, end - begin));
      if (found == node->names.end()) return nullptr;
      node = found->second;
    }
    begin = end + 1;
  }
  return node;
}

std::vector<std::byte>& MemoryFiles::bytes_of(const std::string& path) { return find(path)->bytes; }

int MemoryFiles::open(const std::string& path, int flags, int) {
  const Lock lock(mutex_);
  if (!begin((flags & O_ACCMODE) != O_RDONLY)) return -1;
  std::shared_ptr<Node> node = find(path);
  if (node == nullptr) {
    const std::shared_ptr<Node> folder = find(checkpoint::folder_of(path));
    if ((flags & O_CREAT) == 0 || folder == nullptr) return refuse(ENOENT);
    node = folder->names[checkpoint::name_in(path)] = std::make_shared<Node>();
  }
  if ((flags & O_TRUNC) != 0) node->bytes.clear();
  open_[next_] = node;
  return next_++;
}

int MemoryFiles::close(int file) {
  const Lock lock(mutex_);
  return open_.erase(file) > 0 ? 0 : refuse(EBADF);
}

ssize_t MemoryFiles::pread(int file, void* data, size_t bytes, uint64_t at) {
  const Lock lock(mutex_);
  if (!begin(false)) return -1;
  const std::vector<std::byte>& content = open_.at(file)->bytes;
  if (at >= content.size()) return 0;
  const size_t some = std::min<size_t>(bytes, content.size() - at);
  std::memcpy(data, content.data() + at, some);
  return static_cast<ssize_t>(some);
}

ssize_t MemoryFiles::pwrite(int file, const void* data, size_t bytes, uint64_t at) {
  const Lock lock(mutex_);
  if (!begin(true)) return -1;
  std::vector<std::byte>& content = open_.at(file)->bytes;
  const size_t some = bytes > 100 ? bytes - bytes / 3 : bytes;  // a file system may take less than it is given
  if (content.size() < at + some) content.resize(at + some);
  std::memcpy(content.data() + at, data, some);
  return static_cast<ssize_t>(some);
}

int MemoryFiles::fsync(int file) {
  const Lock lock(mutex_);
  if (!begin(false)) return -1;
  Node& node = *open_.at(file);
  node.durable_bytes = node.bytes;
  node.durable_names = node.names;
  return 0;
}

int MemoryFiles::fallocate(int, uint64_t) {
  const Lock lock(mutex_);
  return begin(true) ? 0 : -1;
}

int MemoryFiles::ftruncate(int file, uint64_t bytes) {
  const Lock lock(mutex_);
  if (!begin(true)) return -1;
  open_.at(file)->bytes.resize(bytes);
  return 0;
}

int64_t MemoryFiles::size(int file) {
  const Lock lock(mutex_);
  return static_cast<int64_t>(open_.at(file)->bytes.size());
}

int MemoryFiles::rename(const std::string& from, const std::string& to) {
  const Lock lock(mutex_);
  if (!begin(true)) return -1;
  const std::shared_ptr<Node> node = find(from), folder = find(checkpoint::folder_of(to));
  if (node == nullptr || folder == nullptr) return refuse(ENOENT);
  find(checkpoint::folder_of(from))->names.erase(checkpoint::name_in(from));
  folder->names[checkpoint::name_in(to)] = node;
  return 0;
}

int MemoryFiles::unlink(const std::string& path) {
  const Lock lock(mutex_);
  if (!begin(false)) return -1;
  const std::shared_ptr<Node> node = find(path);
  if (node == nullptr || node->folder) return refuse(node == nullptr ? ENOENT : EISDIR);
  find(checkpoint::folder_of(path))->names.erase(checkpoint::name_in(path));
  return 0;
}

int MemoryFiles::mkdir(const std::string& path, int) {
  const Lock lock(mutex_);
  if (!begin(true)) return -1;
  if (find(path) != nullptr) return refuse(EEXIST);
  const std::shared_ptr<Node> folder = find(checkpoint::folder_of(path));
  if (folder == nullptr) return refuse(ENOENT);
  (folder->names[checkpoint::name_in(path)] = std::make_shared<Node>())->folder = true;
  return 0;
}

int MemoryFiles::rmdir(const std::string& path) {
  const Lock lock(mutex_);
  if (!begin(false)) return -1;
  const std::shared_ptr<Node> node = find(path);
  if (node == nullptr || !node->names.empty()) return refuse(node == nullptr ? ENOENT : ENOTEMPTY);
  find(checkpoint::folder_of(path))->names.erase(checkpoint::name_in(path));
  return 0;
}

int MemoryFiles::list(const std::string& path, std::vector<std::string>& names) {
  const Lock lock(mutex_);
  if (!begin(false)) return -1;
  const std::shared_ptr<Node> node = find(path);
  if (node == nullptr || !node->folder) return refuse(node == nullptr ? ENOENT : ENOTDIR);
  for (const auto& [name, there] : node->names) names.push_back(name);
  return 0;
}

std::unique_ptr<checkpoint::Changes> MemoryFiles::watch(const std::string&) { return std::make_unique<NoChanges>(); }

void MemoryFiles::lose_power(std::mt19937* dice) {
  restart();
  after_power_loss(*root_, dice);
}

void MemoryFiles::after_power_loss(Node& node, std::mt19937* dice) {
  const auto survives = [&] { return dice != nullptr && (*dice)() % 2 == 0; };
  std::vector<std::byte> bytes = node.durable_bytes;
  if (survives()) bytes.resize(node.bytes.size());  // the size may be there without the data
  constexpr size_t kBlock = 64;
  for (size_t at = 0; at < std::min(bytes.size(), node.bytes.size()); at += kBlock)
    if (survives())
      std::copy_n(node.bytes.begin() + static_cast<long>(at),
                  std::min(kBlock, std::min(bytes.size(), node.bytes.size()) - at),
                  bytes.begin() + static_cast<long>(at));
  Names names = node.durable_names;
  for (const auto& [name, there] : node.names)
    if (!names.contains(name) || names[name] != there)
      if (survives()) names[name] = there;
  for (auto name = names.begin(); name != names.end();)
    name = !node.names.contains(name->first) && survives() ? names.erase(name) : std::next(name);
  node.bytes = node.durable_bytes = std::move(bytes);
  node.names = node.durable_names = std::move(names);
  for (const auto& [name, there] : node.names) after_power_loss(*there, dice);
}

}  // namespace trireme::tests
