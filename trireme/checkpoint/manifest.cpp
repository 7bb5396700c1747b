#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <set>

#include <trireme/base/sha256.h>
#include <trireme/checkpoint/manifest.h>

#ifndef TRIREME_VERSION
#define TRIREME_VERSION "unknown"
#endif

namespace trireme::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no NaN and no infinity.
Json number_json(double value) {
  if (std::isnan(value)) return "nan";
  return std::isinf(value) ? Json(value > 0 ? "inf" : "-inf") : Json(value);
}

double number_of(const Json& value, const std::string& what) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return kInfinity;
  if (text == "-inf") return -kInfinity;
  fail<Corruption>("{} is no number", what);
}

/// The fields of an object, each asked for once; whatever else is there is refused.
class Fields {
 public:
  Fields(const Json& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object.is_object()) fail<Corruption>("{} is no object", what_);
  }

  const Json& at(const char* name) {
    const auto found = object_.find(name);
    if (found == object_.end()) fail<Corruption>("{} has no '{}'", what_, name);
    seen_.insert(name);
    return *found;
  }
  std::string text(const char* name) { return text_of(at(name), name); }
  int64_t whole(const char* name, int64_t least, int64_t most) { return whole_of(at(name), name, least, most); }

  template <class Value, class Read>
  std::map<std::string, Value> map(const char* name, Read read) {
    const Json& object = at(name);
    if (!object.is_object()) fail<Corruption>("'{}' of {} is no object", name, what_);
    std::map<std::string, Value> values;
    for (const auto& [key, value] : object.items()) values.emplace(key, read(value, key));
    return values;
  }
  std::map<std::string, std::string> texts(const char* name) {
    return map<std::string>(name, [this](const Json& value, const std::string& key) { return text_of(value, key); });
  }
  std::map<std::string, int64_t> wholes(const char* name) {
    return map<int64_t>(
        name, [this](const Json& value, const std::string& key) { return whole_of(value, key, INT64_MIN, INT64_MAX); });
  }
  std::map<std::string, double> numbers(const char* name) {
    return map<double>(name, [](const Json& value, const std::string& key) { return number_of(value, key); });
  }
  template <class Take>
  void each(const char* name, Take take) {
    const Json& list = at(name);
    if (!list.is_array()) fail<Corruption>("'{}' of {} is no list", name, what_);
    for (const Json& item : list) take(item);
  }
  void nothing_else() const {
    for (const auto& [key, value] : object_.items())
      if (!seen_.contains(key)) fail<Corruption>("{} has '{}', which this version of the format has not", what_, key);
  }
  std::string text_of(const Json& value, const std::string& name) const {
    if (!value.is_string()) fail<Corruption>("'{}' of {} is no text", name, what_);
    return value.get<std::string>();
  }

 private:
  int64_t whole_of(const Json& value, const std::string& name, int64_t least, int64_t most) const {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most)
      fail<Corruption>("'{}' of {} is no whole number from {} to {}", name, what_, least, most);
    return value.get<int64_t>();
  }

  const Json& object_;
  std::string what_;
  std::set<std::string> seen_;
};

constexpr int kMostRanks = 1 << 20;

Json json_of_about(const state::About& about) {
  Json json{{"layout", about.layout}, {"optimizer", about.optimizer}, {"workers", about.workers}};
  json["tables"] = Json::array();
  for (const state::Table& table : about.tables)
    json["tables"].push_back({{"name", table.name}, {"width", table.width}, {"optimizer", table.optimizer}});
  return json;
}

state::About about_of(const Json& json) {
  Fields fields(json, "'about'");
  state::About about{.layout = fields.text("layout"),
                     .optimizer = fields.text("optimizer"),
                     .workers = static_cast<int>(fields.whole("workers", 0, kMostRanks))};
  fields.each("tables", [&](const Json& item) {
    Fields table(item, "a table");
    about.tables.push_back(
        {table.text("name"), static_cast<size_t>(table.whole("width", 1, int64_t{1} << 40)), table.text("optimizer")});
    table.nothing_else();
  });
  fields.nothing_else();
  return about;
}

CrewNote crew_of(const Json& json) {
  Fields fields(json, "'crew'");
  const auto count = [&](const char* name) { return static_cast<int>(fields.whole(name, 0, kMostRanks)); };
  CrewNote crew{count("workers"), count("machines"), count("servers"), fields.text("sync")};
  fields.nothing_else();
  return crew;
}

/// A file of the folder itself: no path leads out of it.
bool plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && name != kManifestName;
}

FileNote file_of(const Json& json) {
  Fields fields(json, "a file");
  FileNote note{fields.text("name"), static_cast<uint64_t>(fields.whole("bytes", 0, INT64_MAX)), fields.text("sha256")};
  fields.nothing_else();
  if (!plain_name(note.name)) fail<Corruption>("'{}' is no name of a file in a checkpoint", note.name);
  if (note.sha256.size() != 64 || note.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
    fail<Corruption>("'{}' has no SHA-256", note.name);
  return note;
}

// The end of a manifest: ',\n "sha256": "' 64 digits '"\n}\n'. The hash is of all bytes before it.
constexpr std::string_view kBeforeHash = ",\n \"sha256\": \"", kAfterHash = "\"\n}\n";
constexpr size_t kHashDigits = 64, kEnd = kBeforeHash.size() + kHashDigits + kAfterHash.size();
constexpr int kFirstHashed = 2;  // version that has it

std::string ending_of(std::string_view body) {
  Sha256 hash;
  hash.add(body.data(), body.size());
  return fmt::format("{}{}{}", kBeforeHash, hash.finish(), kAfterHash);
}

/// Whether it ends with a hash. Throws where that is of other bytes.
bool check_hash(std::string_view text) {
  if (text.size() < kEnd) return false;
  const std::string_view body = text.substr(0, text.size() - kEnd), end = text.substr(body.size());
  if (!end.starts_with(kBeforeHash) || !end.ends_with(kAfterHash)) return false;
  if (end != ending_of(body)) fail<Corruption>("its own SHA-256 is another");
  return true;
}

int check_kind(Fields& fields, const std::string& where) {
  if (fields.text("format") != kFormat) fail<Corruption>("its format is not '{}'", kFormat);
  const int64_t version = fields.whole("version", 1, INT32_MAX);
  if (version > kFormatVersion)
    fail<NewerFormat>(
        "{}: version {} of the format, by Trireme {}; this Trireme ({}) reads up to version {}: use a newer one", where,
        version, fields.text("library"), library_version(), kFormatVersion);
  return static_cast<int>(version);
}

Manifest manifest_of(const Json& json, const std::string& where, bool hashed) {
  Fields fields(json, "it");
  Manifest manifest;
  manifest.version = check_kind(fields, where);
  if (manifest.version >= kFirstHashed) {
    if (!hashed) fail<Corruption>("it does not end with its SHA-256");
    fields.text("sha256");
  }
  manifest.library = fields.text("library");
  manifest.step = fields.whole("step", 0, INT64_MAX);
  manifest.epoch = fields.whole("epoch", 0, INT64_MAX);
  manifest.time = fields.whole("time", 0, int64_t{1} << 40);
  manifest.scalars = fields.wholes("scalars");
  manifest.about = about_of(fields.at("about"));
  manifest.options = fields.texts("options");
  manifest.metadata = fields.texts("metadata");
  manifest.metrics = fields.numbers("metrics");
  manifest.crew = crew_of(fields.at("crew"));
  fields.each("vectors", [&](const Json& item) { manifest.vectors.push_back(fields.text_of(item, "vectors")); });
  std::set<std::string> names;
  fields.each("files", [&](const Json& item) {
    manifest.files.push_back(file_of(item));
    const std::string& name = manifest.files.back().name;
    if (!names.insert(name).second) fail<Corruption>("it lists '{}' twice", name);
  });
  fields.nothing_else();
  return manifest;
}

/// Refuses names that are there twice, and depths that no manifest has, while it is read.
class Strict {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    constexpr int kDeepest = 5;
    if (depth > kDeepest) fail<Corruption>("it is nested too deeply");
    if (event == Json::parse_event_t::object_start) names_.emplace_back();
    if (event == Json::parse_event_t::object_end) names_.pop_back();
    if (event == Json::parse_event_t::key && !names_.back().insert(value.get<std::string>()).second)
      fail<Corruption>("it has '{}' twice", value.get<std::string>());
    return true;
  }

 private:
  std::vector<std::set<std::string>> names_;
};

}  // namespace

uint64_t Manifest::bytes() const {
  uint64_t sum = 0;
  for (const FileNote& file : files) sum += file.bytes;
  return sum;
}

std::string Manifest::encode() const try {
  Json json{{"format", kFormat},  {"version", version},  {"library", library}, {"step", step},
            {"epoch", epoch},     {"time", time},        {"scalars", scalars}, {"about", json_of_about(about)},
            {"options", options}, {"metadata", metadata}};
  json["metrics"] = Json::object();
  for (const auto& [name, value] : metrics) json["metrics"][name] = number_json(value);
  json["crew"] = {
      {"workers", crew.workers}, {"machines", crew.machines}, {"servers", crew.servers}, {"sync", crew.sync}};
  json["vectors"] = vectors;
  json["files"] = Json::array();
  for (const FileNote& file : files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  std::string text = json.dump(1);
  if (version < kFirstHashed) return text + "\n";
  text.resize(text.size() - 2);  // "\n}"
  return text + ending_of(text);
} catch (const nlohmann::json::exception& error) {
  fail<InvalidArgument>("an option or a text of the model cannot be written, as it is not UTF-8: {}", error.what());
}

Manifest Manifest::parse(std::string_view text, const std::string& where) try {
  if (text.size() > kMostManifestBytes) fail<Corruption>("it has {} bytes", text.size());
  const bool hashed = check_hash(text);
  return manifest_of(Json::parse(text.begin(), text.end(), Strict()), where, hashed);
} catch (const nlohmann::json::exception& error) {
  fail<Corruption>("{} is damaged, or no manifest of a checkpoint: {}", where, error.what());
} catch (const Corruption& error) {
  fail<Corruption>("{} is damaged, or no manifest of a checkpoint: {}", where, error.what());
}

std::string library_version() { return TRIREME_VERSION; }

}  // namespace trireme::checkpoint
