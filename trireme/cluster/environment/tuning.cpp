#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/cluster/environment/tuning.h>

namespace trireme::cluster {
namespace {

namespace fs = std::filesystem;
constexpr size_t kAll = std::numeric_limits<size_t>::max();
constexpr const char* kAllText = "all";  // in the file, where 18446744073709551615 would say nothing to people
constexpr double kClearly = 0.95;        // where both are equally fast, noise must not decide

double tenths_of_us(double seconds) { return std::round(seconds * 1e7) / 10; }

std::string key_of(const std::string& engine, int machines) { return fmt::format("{}, {} machines", engine, machines); }

nlohmann::json read(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();  // unlike the parser's own way to read, this does not throw when it is a folder
  const auto content = nlohmann::json::parse(text.str(), nullptr, false);
  return content.is_object() ? content : nlohmann::json::object();
}

}  // namespace

size_t best_direct_bytes(const Timings& direct, const Timings& ring) {
  bool ring_wins = false;
  // From the largest size down, as long as the ring wins.
  for (auto size = direct.rbegin(); size != direct.rend(); ++size) {
    const auto other = ring.find(size->first);
    if (other == ring.end()) continue;
    if (other->second >= kClearly * size->second) return ring_wins ? size->first : kAll;
    ring_wins = true;
  }
  return ring_wins ? 0 : kAll;
}

void keep_tuning(const std::string& file, const Tuning& tuning) {
  nlohmann::json content = read(file);
  nlohmann::json& entry = content[key_of(tuning.engine, tuning.machines)] = nlohmann::json::object();
  entry["direct_bytes"] = tuning.direct_bytes == kAll ? nlohmann::json(kAllText) : nlohmann::json(tuning.direct_bytes);
  for (const auto& [bytes, seconds] : tuning.direct)
    if (const auto other = tuning.ring.find(bytes); other != tuning.ring.end())
      entry["measured"].push_back(
          {{"bytes", bytes}, {"direct_us", tenths_of_us(seconds)}, {"ring_us", tenths_of_us(other->second)}});
  std::error_code error;
  fs::create_directories(fs::absolute(file).parent_path(), error);
  const std::string temporary = fmt::format("{}.{}.tmp", file, getpid());
  if (!(std::ofstream(temporary) << content.dump(1) << '\n'))
    fail<IoError>("cannot write {}: {}", temporary, errno_text());
  fs::rename(temporary, file, error);
  if (error) fail<IoError>("cannot write {}: {}", file, error.message());
}

std::optional<size_t> kept_direct_bytes(const std::string& file, const std::string& engine, int machines) {
  const nlohmann::json content = file.empty() ? nlohmann::json::object() : read(file);
  const auto entry = content.find(key_of(engine, machines));
  if (entry == content.end() || !entry->is_object()) return std::nullopt;
  const auto value = entry->find("direct_bytes");
  if (value == entry->end()) return std::nullopt;
  if (*value == kAllText) return kAll;
  if (!value->is_number_unsigned()) return std::nullopt;
  return value->get<size_t>();
}

}  // namespace trireme::cluster
