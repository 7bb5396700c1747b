#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include <trireme/base/error.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/checkpoint/reader.h>

namespace trireme::checkpoint {
namespace {

struct StepName {
  int64_t step = 0;
  int number = 1;
  bool operator==(const StepName&) const = default;
};

std::string text_of(const StepName& name) {
  const std::string plain = fmt::format("{}{:09}", kStepPrefix, name.step);
  return name.number == 1 ? plain : fmt::format("{}.{}", plain, name.number);
}

/// Of "step-000000500" or "step-000000500.2"; nothing for any other name.
std::optional<StepName> parse_name(const std::string& text) {
  const std::string prefix = kStepPrefix;
  if (!text.starts_with(prefix)) return std::nullopt;
  StepName name;
  const char *const begin = text.data() + prefix.size(), *const end = text.data() + text.size();
  auto [next, error] = std::from_chars(begin, end, name.step);
  if (error == std::errc() && next != end && *next == '.') error = std::from_chars(next + 1, end, name.number).ec;
  return error == std::errc() && text_of(name) == text ? std::optional(name) : std::nullopt;  // no other spelling
}

std::string new_id() {
  uint64_t bits = 0;
  if (getentropy(&bits, sizeof bits) != 0) bits = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  return fmt::format("{:016x}", bits);
}

bool has(const std::vector<std::string>& sorted, const char* name) {
  return std::binary_search(sorted.begin(), sorted.end(), std::string(name));
}

/// One more sentence of those that were skipped, or why not to.
std::optional<std::string> unusable(Files& files, const Entry& entry, bool verify) {
  if (entry.condition != Condition::complete) return entry.reason;
  if (!verify) return std::nullopt;
  try {
    Checkpoint(files, entry.path).verify();
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

[[noreturn]] void fail_none(const std::string& path, const std::optional<std::vector<std::string>>& names) {
  constexpr const char* kDo = "give the folder that `trireme train --checkpoint` has written to";
  if (!names && access(path.c_str(), F_OK) == 0)
    fail<InvalidArgument>("{} is a file, not a folder of checkpoints: {}", path, kDo);
  if (!names) fail<InvalidArgument>("there is no folder {}: {}", path, kDo);
  const bool only_lock = names->empty() || (names->size() == 1 && names->front() == kLockName);
  if (only_lock) fail<InvalidArgument>("there is no checkpoint in {}: the folder is empty; {}", path, kDo);
  fail<InvalidArgument>("{} is no folder of checkpoints: there is nothing called {}… in it; {}", path, kStepPrefix,
                        kDo);
}

}  // namespace

std::string name_of(Condition condition) {
  constexpr const char* kNames[] = {"complete", "half-written", "damaged", "newer"};
  return kNames[static_cast<size_t>(condition)];
}

Entry Folder::look_at(const std::string& name, int64_t step, int number) const {
  Entry entry{path_ + "/" + name, name, step, number};
  try {
    entry.manifest = Checkpoint(files_, entry.path).manifest();
    if (entry.manifest->step == step) return entry;
    entry.condition = Condition::damaged;
    entry.reason = fmt::format("{} has a manifest of step {}", entry.path, entry.manifest->step);
    return entry;
  } catch (const NewerFormat& error) {
    entry.condition = Condition::newer;
    entry.reason = error.what();
  } catch (const Error& error) {
    const auto names = names_in(files_, entry.path);
    entry.condition = names && !has(*names, kManifestName) ? Condition::half_written : Condition::damaged;
    entry.reason = error.what();
  }
  return entry;
}

std::vector<Entry> Folder::list() const {
  std::vector<Entry> entries;
  for (const std::string& name : names_in(files_, path_).value_or(std::vector<std::string>{}))
    if (const auto parsed = parse_name(name)) entries.push_back(look_at(name, parsed->step, parsed->number));
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.step, a.number) > std::pair(b.step, b.number); });
  return entries;
}

bool is_there(Files& files, const std::string& path) {
  const auto names = names_in(files, path);
  return names && has(*names, kManifestName);
}

/// Those of the folder, or the one that it is.
std::vector<Entry> Folder::candidates() const {
  const std::string own = path_.substr(0, path_.find_last_not_of('/') + 1);
  if (const auto parsed = parse_name(name_in(own)); parsed && names_in(files_, own))
    return {Folder(files_, folder_of(own)).look_at(name_in(own), parsed->step, parsed->number)};
  return list();
}

Folder::Usable Folder::newest(bool verify) const {
  constexpr int kLooks = 3;
  for (int look = 1;; look++) {
    Usable usable;
    bool changed = false;
    const auto names = names_in(files_, path_);
    std::vector<Entry> entries = candidates();
    if (entries.empty()) fail_none(path_, names);
    for (Entry& entry : entries) {
      const auto reason = unusable(files_, entry, verify);
      if (!reason) return usable.entry = std::move(entry), usable;
      const bool vanished = entry.condition != Condition::half_written && !is_there(files_, entry.path);
      changed = look < kLooks && (vanished || names_in(files_, path_) != names);
      if (changed) break;
      usable.skipped.push_back(*reason);
    }
    if (!changed)
      fail<InvalidArgument>("there is no checkpoint in {} that is of use: {}", path_, fmt::join(usable.skipped, "; "));
  }
}

Attempt Folder::attempt(int64_t step) const {
  StepName name{step, 1};
  for (const std::string& there : names_in(files_, path_).value_or(std::vector<std::string>{}))
    if (const auto parsed = parse_name(there); parsed && parsed->step == step)
      name.number = std::max(name.number, parsed->number + 1);
  return {path_ + "/" + text_of(name), new_id(), step};
}

std::vector<std::string> Folder::clean() const {
  std::vector<std::string> done;
  for (const Entry& entry : list()) {
    if (entry.condition != Condition::half_written) continue;
    remove_folder(files_, entry.path);
    done.push_back(fmt::format("removed {}, which a job that was interrupted had left half-written", entry.path));
  }
  return done;
}

void Folder::remove(const Entry& entry) const { remove_folder(files_, entry.path, kManifestName); }

}  // namespace trireme::checkpoint
