#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include <trireme/base/error.h>
#include <trireme/base/sha256.h>
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

/// The place of the text among `names`.
template <size_t kCount>
size_t place_in(const std::array<const char*, kCount>& names, const std::string& text, const char* key) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end())
    fail<Corruption>("its '{}' is '{}'; expected {}", key, text.substr(0, 60), fmt::join(names, " or "));
  return static_cast<size_t>(found - names.begin());
}

constexpr std::array kTasks = {"classify", "regress", "next_token", "masked_token"};
constexpr std::array kTypes = {"f32", "f64"};

// ---- tokenizers ----

std::string hash_of(const std::string& bytes) {
  Sha256 hash;
  hash.add(bytes.data(), bytes.size());
  return hash.finish();
}

std::string base64(const std::string& bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

std::string from_base64(const std::string& text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (text.empty() || length < 0) fail<Corruption>("its 'tokenizer_model' is no base64");
  const auto padding = static_cast<size_t>(text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
  bytes.resize(static_cast<size_t>(length) - padding);
  return bytes;
}

void add_tokenizer(const About& about, Metadata& entries) {
  const std::string& model = about.tokenizer->model();
  entries["tokenizer"] = about.tokenizer->by_bytes() ? "bytes" : "sentencepiece";
  if (model.empty()) return;
  if (model.size() < kLargeTokenizer) {
    entries["tokenizer_model"] = base64(model);
  } else {
    entries["tokenizer_file"] = about.tokenizer_file;
    entries["tokenizer_sha256"] = hash_of(model);
  }
}

std::string text_at(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

data::Tokenizer tokenizer_of(const Metadata& metadata) {
  if (text_at(metadata, "tokenizer") == "bytes") return {};
  if (const std::string model = text_at(metadata, "tokenizer_model"); !model.empty())
    return {from_base64(model), "its tokenizer"};
  const std::string file = text_at(metadata, "tokenizer_file");
  data::Tokenizer tokenizer = data::Tokenizer::open(file);
  if (hash_of(tokenizer.model()) != text_at(metadata, "tokenizer_sha256"))
    fail<InvalidArgument>("{} is another tokenizer than the one that the model was trained with", file);
  return tokenizer;
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
                      {"task", kTasks[static_cast<size_t>(about.task)]},
                      {"dtype", about.dtype},
                      {"scale", Json(about.scale).dump()},
                      {"seed", std::to_string(about.seed)}};
  if (about.schema) entries["schema"] = data::to_json(*about.schema);
  if (about.split) entries["split"] = text_of(*about.split);
  if (about.tokenizer) add_tokenizer(about, entries);
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
  with(metadata, "dtype", [&](const std::string& text) { about.dtype = kTypes[place_in(kTypes, text, "dtype")]; });
  with(metadata, "scale", [&](const std::string& text) { about.scale = Json::parse(text).get<double>(); });
  with(metadata, "seed", [&](const std::string& text) { about.seed = Json::parse(text).get<uint64_t>(); });
  with(metadata, "schema", [&](const std::string& text) { about.schema = data::schema_from_json(text); });
  with(metadata, "split", [&](const std::string& text) { about.split = split_of(Json::parse(text)); });
  if (about.schema) about.task = about.schema->task;
  with(metadata, "task",
       [&](const std::string& text) { about.task = static_cast<data::Task>(place_in(kTasks, text, "task")); });
  if (data::is_text(about.task)) about.tokenizer = tokenizer_of(metadata);
  about.tokenizer_file = text_at(metadata, "tokenizer_file");
  check_shape(about);
  return about;
}

}  // namespace trireme::models
