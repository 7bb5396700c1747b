#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <trireme/base/error.h>
#include <trireme/checkpoint/manifest.h>
#include <trireme/models/about.h>

namespace trireme::models {
namespace {

using Json = nlohmann::json;
using Metadata = std::map<std::string, std::string>;

std::string text_of(const data::Split& split) {
  return nlohmann::ordered_json{
      {"file", split.file}, {"rows", split.rows}, {"tests", split.tests}, {"seed", split.seed}}
      .dump();
}

data::Split split_of(const Json& json) { return {json.at("file"), json.at("rows"), json.at("tests"), json.at("seed")}; }

/// Calls take(value) where the key is there.
template <class Take>
void with(const Metadata& metadata, const char* key, const Take& take) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return;
  try {
    take(found->second);
  } catch (const Json::exception& error) {
    fail<Corruption>("its '{}' cannot be read ('{}'): {}", key, found->second.substr(0, 60), error.what());
  }
}

std::string one_of(const std::string& text, const char* key, const char* first, const char* second) {
  if (text != first && text != second)
    fail<Corruption>("its '{}' is '{}'; expected {} or {}", key, text.substr(0, 60), first, second);
  return text;
}

void check_shape(const About& about) {
  for (const int64_t extent : about.shape)
    if (extent < 1) fail<Corruption>("its 'input_shape' has an extent of {}", extent);
  if (about.outputs < 0) fail<Corruption>("its 'outputs' are {}", about.outputs);
}

}  // namespace

std::string About::class_name(int64_t number) const {
  const auto at = static_cast<size_t>(number);
  return schema && at < schema->classes.size() ? schema->classes[at] : std::to_string(number);
}

Metadata metadata_of(const About& about) {
  Metadata entries = {{"producer", "trireme"},
                      {"version", checkpoint::library_version()},
                      {"model", about.model},
                      {"input_shape", Json(about.shape).dump()},
                      {"outputs", std::to_string(about.outputs)},
                      {"task", about.task == data::Task::classify ? "classify" : "regress"},
                      {"dtype", about.dtype},
                      {"scale", Json(about.scale).dump()},
                      {"seed", std::to_string(about.seed)}};
  if (about.schema) entries["schema"] = data::to_json(*about.schema);
  if (about.split) entries["split"] = text_of(*about.split);
  return entries;
}

About about_of(const Metadata& metadata) {
  About about;
  with(metadata, "producer", [&](const std::string& text) { about.producer = text; });
  with(metadata, "version", [&](const std::string& text) { about.version = text; });
  with(metadata, "model", [&](const std::string& text) { about.model = text; });
  with(metadata, "input_shape",
       [&](const std::string& text) { about.shape = Json::parse(text).get<decltype(about.shape)>(); });
  with(metadata, "outputs", [&](const std::string& text) { about.outputs = Json::parse(text).get<int64_t>(); });
  with(metadata, "dtype", [&](const std::string& text) { about.dtype = one_of(text, "dtype", "f32", "f64"); });
  with(metadata, "scale", [&](const std::string& text) { about.scale = Json::parse(text).get<double>(); });
  with(metadata, "seed", [&](const std::string& text) { about.seed = Json::parse(text).get<uint64_t>(); });
  with(metadata, "schema", [&](const std::string& text) { about.schema = data::schema_from_json(text); });
  with(metadata, "split", [&](const std::string& text) { about.split = split_of(Json::parse(text)); });
  if (about.schema) about.task = about.schema->task;
  with(metadata, "task", [&](const std::string& text) {
    about.task = one_of(text, "task", "classify", "regress") == "classify" ? data::Task::classify : data::Task::regress;
  });
  check_shape(about);
  return about;
}

}  // namespace trireme::models
