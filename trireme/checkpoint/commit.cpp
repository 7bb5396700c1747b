// From the notices of all writers to a manifest.
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <set>

#include <trireme/base/error.h>
#include <trireme/checkpoint/hashing.h>
#include <trireme/checkpoint/notice.h>
#include <trireme/checkpoint/writer.h>

namespace trireme::checkpoint {
namespace {

/// Notices as they come.
class Gathered {
 public:
  Gathered(Files& files, const Attempt& attempt, int writers) : files_(files), attempt_(attempt) {
    for (int rank = 0; rank < writers; rank++) missing_.insert(rank);
  }

  /// Whether all are there. Throws what a writer that gave up says.
  bool look() {
    const auto names = names_in(files_, attempt_.path);
    if (!names) fail<IoError>("the folder {} is gone while a checkpoint is written to it", attempt_.path);
    const auto there = [&](int rank) {
      return std::binary_search(names->begin(), names->end(), Notice::name(attempt_, rank));
    };
    for (auto rank = missing_.begin(); rank != missing_.end();) {
      if (!there(*rank)) {
        ++rank;
        continue;
      }
      notices_.push_back(Notice::read(files_, attempt_, *rank));
      if (!notices_.back().error.empty())
        fail<Error>("there is no checkpoint of step {}: rank {} could not write its part: {}", attempt_.step, *rank,
                    notices_.back().error);
      rank = missing_.erase(rank);
    }
    return missing_.empty();
  }

  [[noreturn]] void give_up(Seconds limit) const {
    fail<Timeout>(
        "there is no checkpoint of step {}: rank {} did not say within {:.0f} s that its part is written to {}. Is the "
        "folder on a file system that all machines share?",
        attempt_.step, fmt::join(missing_, ", "), limit.count(), attempt_.path);
  }

  const std::vector<Notice>& notices() const { return notices_; }

 private:
  Files& files_;
  const Attempt& attempt_;
  std::set<int> missing_;
  std::vector<Notice> notices_;
};

std::vector<Notice> gather(Files& files, const Attempt& attempt, const CommitOptions& options) {
  const std::unique_ptr<Changes> changes = files.watch(attempt.path);
  const Deadline deadline(options.limit);
  Gathered gathered(files, attempt, options.writers);
  while (!gathered.look()) {
    if (deadline.passed()) gathered.give_up(options.limit);
    if (options.given_up && options.given_up->load())
      fail<Error>("the checkpoint of step {} was given up before all parts of it were written", attempt.step);
    changes->wait(deadline.left());
  }
  return gathered.notices();
}

/// Throws unless the writers together wrote each byte of the planned file once.
void check_whole(const std::vector<Notice>& notices, const Plan& plan, size_t index) {
  const PlannedFile& file = plan.files()[index];
  std::vector<std::pair<FileRange, int>> parts;
  for (const Notice& notice : notices)
    for (const Notice::Written& written : notice.files)
      if (written.name == file.name)
        for (const FileRange& part : written.parts) parts.emplace_back(part, notice.rank);
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  uint64_t end = 0;
  const auto refuse = [&](const char* who, uint64_t byte) {
    fail<Corruption>("bytes from {} on of {} ({}) were written by {}: this is no checkpoint", byte, file.name,
                     plan.what_is_at(index, byte), who);
  };
  for (const auto& [part, rank] : parts) {
    if (part.begin > end) refuse("no rank", end);
    if (part.begin < end) refuse("two ranks, or twice", part.begin);
    end = part.end;
  }
  if (end < file.bytes) refuse("no rank", end);
}

/// Names and sizes of all files of the checkpoint; those of one writer after the planned ones.
std::vector<FileNote> notes_of(const std::vector<Notice>& notices, const Plan& plan) {
  std::vector<FileNote> notes;
  std::set<std::string> planned;
  for (const PlannedFile& file : plan.files()) {
    notes.push_back({file.name, file.bytes, ""});
    planned.insert(file.name);
  }
  for (const Notice& notice : notices)
    for (const Notice::Written& written : notice.files)
      if (!planned.contains(written.name)) notes.push_back({written.name, written.bytes, ""});
  return notes;
}

void merge_scalars(Manifest& manifest, const std::vector<Notice>& notices) {
  for (const Notice& notice : notices)
    for (const auto& [name, value] : notice.scalars) {
      const auto [found, added] = manifest.scalars.emplace(name, value);
      if (!added && found->second != value)
        fail<Mismatch>("'{}' is {} on rank {}, and {} elsewhere: the ranks are not at the same step", name, value,
                       notice.rank, found->second);
    }
}

/// Notices, and what an earlier try may have left.
void remove_others(Files& files, const std::string& path, const std::vector<FileNote>& notes) {
  std::set<std::string> keep;
  for (const FileNote& note : notes) keep.insert(note.name);
  for (const std::string& name : names_in(files, path).value_or(std::vector<std::string>{}))
    if (!keep.contains(name) && files.unlink(path + "/" + name) < 0 && errno != ENOENT)
      fail<IoError>("cannot remove {}/{}: {}", path, name, errno_text());
}

void hash_notes(Files& files, const std::string& path, std::vector<FileNote>& notes, const CommitOptions& options) {
  std::vector<std::string> paths;
  for (const FileNote& note : notes) {
    paths.push_back(path + "/" + note.name);
    const uint64_t bytes = File(files, paths.back(), 0).size();
    if (bytes != note.bytes)
      fail<Corruption>("{} has {} bytes, where {} were written", paths.back(), bytes, note.bytes);
  }
  const std::vector<std::string> hashes =
      hash_files(files, paths, options.threads, Hurry::background, options.given_up);
  for (size_t i = 0; i < notes.size(); i++) notes[i].sha256 = hashes[i];
}

}  // namespace

Manifest commit(Files& files, const Attempt& attempt, const Plan& plan, Manifest manifest,
                const CommitOptions& options) {
  const std::vector<Notice> notices = gather(files, attempt, options);
  for (size_t i = 0; i < plan.files().size(); i++) check_whole(notices, plan, i);
  merge_scalars(manifest, notices);
  manifest.files = notes_of(notices, plan);
  manifest.vectors = plan.vectors();
  manifest.step = attempt.step;
  if (manifest.library.empty()) manifest.library = library_version();
  if (manifest.time == 0) manifest.time = std::time(nullptr);
  remove_others(files, attempt.path, manifest.files);
  hash_notes(files, attempt.path, manifest.files, options);
  sync_folder(files, folder_of(attempt.path));  // the name of the checkpoint's folder itself
  replace_file(files, attempt.path + "/" + kManifestName, manifest.encode());
  return manifest;
}

void abandon(Files& files, const Attempt& attempt) noexcept try {
  const auto names = names_in(files, attempt.path);
  if (!names || std::binary_search(names->begin(), names->end(), std::string(kManifestName))) return;
  remove_folder(files, attempt.path);
} catch (const std::exception&) {  // the next job with the folder's lock cleans up
}

}  // namespace trireme::checkpoint
