#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include <trireme/base/error.h>
#include <trireme/base/segment.h>

namespace trireme {
namespace {

size_t read_number(const char* path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : std::numeric_limits<size_t>::max();
}

/// Pages of files that the control group would give back before anything else: they count as used, but are free to
/// take.
size_t reclaimable() {
  std::ifstream file("/sys/fs/cgroup/memory.stat");
  std::string key;
  for (size_t value = 0; file >> key >> value;)
    if (key == "inactive_file") return value;
  return 0;
}

constexpr double kMiB = 1 << 20;
constexpr size_t kLargePage = 2 << 20;

/// Half of what is left: the other half is for the rest of the program.
size_t within_limit(size_t addresses) {
  const std::optional<size_t> left = addresses_left();
  return addresses < Segment::kAddresses || !left ? addresses : std::min(addresses, *left / 2);
}

/// Whether `bytes` more can be had, of which `reserved` are there already.
void expect_room(size_t offset, size_t bytes, size_t reserved, size_t addresses, const char* purpose,
                 size_t available) {
  const size_t left = offset < addresses ? addresses - offset : 0, room = std::min(available, left);
  if (bytes > left || bytes - reserved > room)
    fail<IoError>(
        "no room in shared memory for {}: {:.1f} MiB wanted, {:.1f} MiB free. {}", purpose, bytes / kMiB, room / kMiB,
        bytes <= left      ? "Make it smaller, use fewer workers, or free memory on this machine"
        : addresses_left() ? "'ulimit -v' limits the addresses of this process: raise it"
                           : "All addresses of the segment have been given out; each new crew of a job takes others: "
                             "start the job again, from its newest checkpoint");
}

void allocate(int file, size_t offset, size_t bytes, const char* purpose) {
  if (fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0)
    fail<IoError>("no room in shared memory for {} ({:.1f} MiB): {}", purpose, bytes / kMiB, errno_text());
}

/// For files that grow from their beginning: what was reserved by another process counts.
void grow(int file, size_t offset, size_t bytes, size_t addresses, const char* purpose) {
  const size_t before = available_memory();
  struct stat now {};  // after the memory was looked at: another rank may be reserving the same bytes at this moment,
                       // and they must not count twice
  fstat(file, &now);
  const size_t reserved = static_cast<size_t>(now.st_blocks) * 512;
  if (bytes <= addresses && offset <= addresses - bytes && offset + bytes <= reserved) return;
  expect_room(offset, bytes, std::min(bytes, reserved > offset ? reserved - offset : 0), addresses, purpose, before);
  allocate(file, offset, bytes, purpose);
}

}  // namespace

std::shared_ptr<Segment> Segment::create(size_t addresses) {
  Descriptor file(memfd_create("trireme", MFD_CLOEXEC));
  if (!file) fail<IoError>("cannot make shared memory (memfd_create): {}", errno_text());
  return std::make_shared<Segment>(std::move(file), addresses);
}

Segment::Segment(Descriptor file, size_t addresses)
    : file_(std::move(file)), addresses_(round_up(within_limit(addresses), kPage)) {
  void* base = mmap(nullptr, addresses_ + kLargePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    fail<IoError>("cannot reserve {} MiB of addresses: {}. Is 'ulimit -v' set?", addresses_ >> 20, errno_text());
  // What is at a multiple in the file is at one in memory: only such blocks can have large pages.
  base_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(base), kLargePage));
  const auto before = static_cast<size_t>(base_ - static_cast<std::byte*>(base));
  if (before > 0) munmap(base, before);
  munmap(base_ + addresses_, kLargePage - before);
}

Segment::~Segment() {
  munmap(base_, addresses_);
  for (const auto& [begin, bytes] : lent_) munmap(begin, bytes);
}

std::byte* Segment::lend(size_t bytes, const char* purpose) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail<IoError>("no memory for {} ({} bytes): {}", purpose, bytes, errno_text());
  const Lock lock(mutex_);
  lent_.emplace_back(memory, bytes);
  return static_cast<std::byte*>(memory);
}

bool Segment::is(int descriptor) const {
  struct stat mine {
  }, theirs{};
  return fstat(file_.get(), &mine) == 0 && fstat(descriptor, &theirs) == 0 && mine.st_dev == theirs.st_dev &&
         mine.st_ino == theirs.st_ino;
}

void Segment::reserve(size_t offset, size_t bytes, const char* purpose) {
  check_room(offset, bytes, purpose);
  reserve_now(offset, bytes, purpose);
}

void Segment::reserve_now(size_t offset, size_t bytes, const char* purpose) const {
  allocate(file_.get(), offset, bytes, purpose);
}

void Segment::check_room(size_t offset, size_t bytes, const char* purpose) const {
  expect_room(offset, bytes, 0, addresses_, purpose, available_memory());
}

void Segment::lengthen(size_t end, const char* purpose) const {
  struct stat now {};
  if (fstat(file_.get(), &now) == 0 && static_cast<size_t>(now.st_size) >= end) return;
  // Its last page alone: another process may lengthen it further at this moment, so that it must not be set to a size.
  allocate(file_.get(), end - kPage, kPage, purpose);
  give_back(end - kPage, kPage);
}

void Segment::give_back(size_t offset, size_t bytes) const {
  fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

void Segment::populate(std::byte* begin, size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
  if (bytes > 0) madvise(begin, bytes, kPopulateWrite);
}

bool Segment::has(size_t offset, size_t bytes) const {
  const auto behind = mapped_.upper_bound(offset);
  if (behind == mapped_.begin()) return false;
  const auto& [begin, size] = *std::prev(behind);
  return offset - begin <= size && bytes <= size - (offset - begin);
}

std::byte* Segment::map(size_t offset, size_t bytes, const char* purpose) {
  const Lock lock(mutex_);
  if (has(offset, bytes)) return at(offset);
  grow(file_.get(), offset, bytes, addresses_, purpose);
  return map_reserved(offset, bytes, purpose, Pages::at_once);
}

std::byte* Segment::attach(size_t offset, size_t bytes, const char* purpose, Pages pages) {
  const Lock lock(mutex_);
  if (has(offset, bytes)) return at(offset);
  expect_room(offset, bytes, bytes, addresses_, purpose, addresses_);
  return map_reserved(offset, bytes, purpose, pages);
}

std::byte* Segment::map_reserved(size_t offset, size_t bytes, const char* purpose, Pages pages) {
  const int flags = MAP_SHARED | MAP_FIXED | (pages == Pages::at_once ? MAP_POPULATE : 0);
  void* data = mmap(at(offset), bytes, PROT_READ | PROT_WRITE, flags, file_.get(), static_cast<off_t>(offset));
  if (data == MAP_FAILED)
    fail<IoError>("cannot map {} bytes of shared memory for {}: {}", bytes, purpose, errno_text());
  mapped_[offset] = bytes;
  return at(offset);
}

std::optional<size_t> addresses_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const size_t pages = read_number("/proc/self/statm");  // the first number there: of all mappings
  const size_t used = pages == std::numeric_limits<size_t>::max() ? 0 : pages * kPage;
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

size_t available_memory() {
  size_t machine = std::numeric_limits<size_t>::max();
  std::ifstream info("/proc/meminfo");
  std::string key;
  for (size_t value = 0; info >> key >> value; info.ignore(16, '\n'))
    if (key == "MemAvailable:") machine = value * 1024;
  const size_t limit = read_number("/sys/fs/cgroup/memory.max");
  if (limit == std::numeric_limits<size_t>::max()) return machine;
  const size_t used = read_number("/sys/fs/cgroup/memory.current"), given_back = std::min(used, reclaimable());
  return std::min(machine, limit > used - given_back ? limit - (used - given_back) : 0);
}

}  // namespace trireme
