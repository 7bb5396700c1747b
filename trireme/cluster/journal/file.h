#pragma once
// A journal in a file (docs/journal-format.md): what is written goes to its end, and when that has grown much larger
// than what it holds, a new file takes its place.
#include <memory>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/checkpoint/files.h>
#include <trireme/cluster/journal/journal.h>

namespace trireme::cluster::journal {

/// Where it cannot be written, such as on a full disk, it tries again with every change, once a second at most; until
/// that works, the file says of itself that it is not up to date.
class FileJournal final : public Journal {
 public:
  /// Makes the file when there is none, and cuts a damaged tail off. Throws Corruption (reader.h), IoError.
  FileJournal(checkpoint::Files& files, std::string path);

  const std::string& name() const override { return path_; }
  const Contents& contents() const override { return contents_; }
  void write(const Changes& changes) override;
  std::vector<std::string> take_remarks() override;

 private:
  void open();
  void append(const Changes& changes);
  void rewrite();
  void note_gap(const std::string& why);
  void close_gap();
  void compact();

  checkpoint::Files& files_;
  const std::string path_;
  Contents contents_;
  std::unique_ptr<checkpoint::File> file_;
  uint64_t next_ = 1;             // sequence number
  uint64_t end_ = 0;              // bytes that count
  uint64_t compact_at_ = 0;       // bytes
  bool gap_ = false;              // not all of the contents are durable
  Clock::time_point retry_at_{};  // of that
  std::vector<std::string> remarks_;
};

/// The same, of the system's files, for this process alone: InvalidArgument when another one has it.
std::unique_ptr<Journal> open_file_journal(const std::string& path);

}  // namespace trireme::cluster::journal
