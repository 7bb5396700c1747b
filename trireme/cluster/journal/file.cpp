#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <span>
#include <utility>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/journal/file.h>
#include <trireme/cluster/journal/format.h>
#include <trireme/cluster/journal/reader.h>
#include <trireme/cluster/journal/writer.h>

namespace trireme::cluster::journal {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 32;  // that are read
constexpr uint64_t kSlack = 1 << 20;                // that a file may have beyond twice what it holds
constexpr Seconds kBetweenRetries{1};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// A journal that is locked as long as it lives: in a file beside it, since its own is replaced now and then.
class LockedJournal final : public Journal {
 public:
  explicit LockedJournal(const std::string& path) : lock_(lock(path)), journal_(checkpoint::system_files(), path) {}
  const std::string& name() const override { return journal_.name(); }
  const Contents& contents() const override { return journal_.contents(); }
  void write(const Changes& changes) override { journal_.write(changes); }
  std::vector<std::string> take_remarks() override { return journal_.take_remarks(); }

 private:
  static Descriptor lock(const std::string& journal) {
    const std::string path = journal + ".lock";
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file)
      fail<IoError>("cannot write {}: {}: choose a folder for --journal that this user may write to", path,
                    errno_text());
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
    if (errno != EWOULDBLOCK)
      fail<IoError>("cannot lock {}: {}: choose a file system that has locks (flock) for --journal", path,
                    errno_text());
    fail<InvalidArgument>(
        "another coordinator that runs on this host writes the journal {}: end it, or give --journal "
        "another file",
        journal);
  }

  const Descriptor lock_;
  FileJournal journal_;
};

}  // namespace

FileJournal::FileJournal(checkpoint::Files& files, std::string path) : files_(files), path_(std::move(path)) { open(); }

void FileJournal::open() {
  const int there = files_.open(path_, O_RDONLY | O_CLOEXEC, 0);
  if (there < 0 && errno == ENOENT) return rewrite();
  if (there < 0) fail<IoError>("cannot open the journal {}: {}", path_, errno_text());
  files_.close(there);
  file_ = std::make_unique<checkpoint::File>(files_, path_, O_RDWR);
  const uint64_t size = file_->size();
  if (size > kMostBytes) fail<Corruption>("{} has {} bytes, more than any journal", path_, size);
  std::string bytes(size, '\0');
  file_->read_at(0, std::as_writable_bytes(std::span(bytes)));
  Found found = read_journal(bytes, path_);
  contents_ = std::move(found.contents);
  next_ = found.next;
  end_ = found.end;
  compact_at_ = 2 * end_ + kSlack;
  if (found.remark.empty()) return;
  file_->resize(end_);
  file_->sync();
  remarks_.push_back(std::move(found.remark));
}

void FileJournal::write(const Changes& changes) {
  apply_changes(changes, contents_);
  if (gap_) return close_gap();
  if (changes.empty()) return;
  try {
    append(changes);
  } catch (const IoError& error) {
    note_gap(error.what());
    return close_gap();
  }
  if (end_ > compact_at_) compact();
}

void FileJournal::append(const Changes& changes) {
  const std::string record = record_bytes(next_, changes);
  file_->write_at(end_, bytes_of(record));
  file_->sync();
  end_ += record.size();
  next_++;
}

/// All that it holds, in a new file under the same name.
void FileJournal::rewrite() {
  uint64_t next = next_;
  const std::string records = all_records(contents_, next), header = header_bytes(records.size());
  const std::string fresh = path_ + ".new";
  auto file = std::make_unique<checkpoint::File>(files_, fresh, O_RDWR | O_CREAT | O_TRUNC, 0600);
  try {
    file->write_at(0, bytes_of(header));
    file->write_at(header.size(), bytes_of(records));
    file->sync();
    if (files_.rename(fresh, path_) < 0) fail<IoError>("cannot rename {}: {}", fresh, errno_text());
  } catch (...) {
    files_.unlink(fresh);
    throw;
  }
  file_ = std::move(file);
  next_ = next;
  end_ = header.size() + records.size();
  compact_at_ = 2 * end_ + kSlack;
  checkpoint::sync_folder(files_, checkpoint::folder_of(path_));
}

/// Whoever reads the file is to know that something is missing. Four bytes in their old place need no room.
void FileJournal::note_gap(const std::string& why) {
  gap_ = true;
  remarks_.push_back(
      fmt::format("the journal cannot be written: {}. The job goes on; but should this coordinator die "
                  "before the journal can be written again, no other can take the job over",
                  why));
  try {
    file_->write_at(kStateAt, bytes_of(state_bytes(kGapState)));
    file_->sync();
    file_->resize(end_);
  } catch (const IoError&) {  // then members that know more than the journal say so (Desk)
  }
}

void FileJournal::close_gap() {
  if (Clock::now() < retry_at_) return;
  try {
    rewrite();
    gap_ = false;
    remarks_.push_back(fmt::format("the journal {} is written again, and up to date", path_));
  } catch (const IoError&) {
    retry_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(kBetweenRetries);
  }
}

/// A larger file than necessary is no harm. A new one whose name may not be durable is.
void FileJournal::compact() {
  const checkpoint::File* const before = file_.get();
  try {
    rewrite();
  } catch (const IoError& error) {
    if (file_.get() != before) return note_gap(error.what());
    compact_at_ = 2 * end_;
  }
}

std::vector<std::string> FileJournal::take_remarks() { return std::exchange(remarks_, {}); }

std::unique_ptr<Journal> open_file_journal(const std::string& path) { return std::make_unique<LockedJournal>(path); }

}  // namespace trireme::cluster::journal
