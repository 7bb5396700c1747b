// label: unit
// What a safetensors file may be, to the letter; and 100,000 damaged headers and manifests.
#include <gtest/gtest.h>

#include <random>

#include <trireme/base/error.h>
#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/safetensors.h>

#include "../data/files.h"
#include "sample.h"

namespace trireme::tests {
namespace {

using checkpoint::Header;
using checkpoint::StoredTensor;

Header parse(const std::string& text, uint64_t data) { return Header::parse(text, 8 + text.size() + data, "x"); }

template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const Corruption& error) {
    return error.what();
  }
  return "";
}

TEST(Header, IsAsTheSpecificationHasIt) {
  const Header header = parse(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"__metadata__":{"k":"v"},)"
                              R"("a":{"shape":[2,1],"data_offsets":[0,8],"dtype":"F32"},)"
                              R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[8,8]}}   )",
                              11);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].describe(), "a F32[2,1]");
  EXPECT_EQ(header.tensors[1].name, "none");
  EXPECT_EQ(header.tensors[2].begin, header.bytes + 8);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"k", "v"}}));
  EXPECT_EQ(parse("{}", 0).tensors.size(), 0u);
}

TEST(Header, OthersAreRefused) {
  const auto tensor = [](const std::string& fields) { return R"({"a":{)" + fields + "}}"; };
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "begin with"},
      {" {}", "begin with"},
      {"[]", "begin with"},
      {"{", "header"},
      {"{}{}", "header"},
      {R"({"a":5})", "number"},
      {R"({"a":null})", "null"},
      {R"({"a":[]})", "array"},
      {R"({"__metadata__":{"a":1}})", "number"},
      {R"({"__metadata__":{"a":"x","a":"y"}})", "before"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", "object"},
      {tensor(R"("dtype":"U8","shape":[4])"), "without"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "two numbers"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), "third"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1)"), "does not have"},
      {tensor(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"), "before"},
      {tensor(R"("dtype":"U9","shape":[4],"data_offsets":[0,4])"), "unknown type 'U9'"},
      {tensor(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), "negative"},
      {tensor(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), "whole"},
      {tensor(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])"), "text"},
      {tensor(R"("dtype":"U8","shape":[5],"data_offsets":[0,4])"), "size"},
      {tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,4])"), "size"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), "size"},
      {tensor(R"("dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,4])"), "size"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,0])"), "beyond"},
      {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), "holes"},
      {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"), "no tensor"},
      {tensor(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])"), "cut short"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "before"},
      {"{\"\xff\":{}}", "header"},
  };
  for (const auto& [text, why] : bad) {
    const std::string message = refusal([&, &text = text] { parse(text, 4); });
    EXPECT_NE(message.find(why), std::string::npos) << "for " << text << ": " << message;
  }
}

TEST(Header, IsAsItWasMade) {
  std::vector<StoredTensor> tensors = {{"w/ü \"x\"\n", "F32", {2, 3}}, {"none", "I64", {0}}, {"one", "BF16", {}}};
  const std::string text = make_header(tensors, {{"a", "b"}});
  EXPECT_EQ(text.size() % 8, 0u);
  EXPECT_EQ(text[8], '{');
  const Header header = Header::parse(text.substr(8), text.size() + 26, "x");
  EXPECT_EQ(header.tensors, tensors);
  EXPECT_EQ(header.metadata.at("a"), "b");
  std::vector<StoredTensor> twice = {tensors[0], tensors[0]}, unknown = {{"x", "F33", {1}}},
                            text8 = {{"\xff", "U8", {1}}};
  EXPECT_THROW(make_header(twice, {}), InvalidArgument);
  EXPECT_THROW(make_header(unknown, {}), InvalidArgument);
  EXPECT_THROW(make_header(text8, {}), InvalidArgument);
}

TEST(SafetensorsFile, LengthsThatCannotBeAreRefusedAtOnce) {
  const Folder folder;
  for (const uint64_t length : {uint64_t{3}, uint64_t{100'000'001}, uint64_t{1} << 40, ~uint64_t{0}}) {
    const std::string bytes(reinterpret_cast<const char*>(&length), 8);
    EXPECT_THROW(checkpoint::SafetensorsFile(checkpoint::system_files(), folder.write("f", bytes + "{}")), Corruption);
  }
}

Manifest whole_manifest() {
  Manifest manifest = sample_manifest(sample_contents(), 12);
  manifest.library = "0.1.0";
  manifest.step = 12;
  manifest.scalars = {{"step", 12}, {"worker/1/step", -3}, {"large", INT64_MIN}};
  manifest.metrics = {{"nan", NAN}, {"inf", INFINITY}, {"low", -INFINITY}, {"accuracy", 0.1}};
  manifest.vectors = sample_vectors();
  manifest.files = {{"model.safetensors", 12, std::string(64, 'a')}, {"rows-1", 0, std::string(64, '0')}};
  return manifest;
}

TEST(ManifestText, IsReadAsItWasWritten) {
  const Manifest manifest = whole_manifest(), read = Manifest::parse(manifest.encode(), "m");
  EXPECT_EQ(read.encode(), manifest.encode());
  EXPECT_EQ(read.about, manifest.about);
  EXPECT_EQ(read.scalars, manifest.scalars);
  EXPECT_EQ(read.crew, manifest.crew);
  EXPECT_EQ(read.files, manifest.files);
  EXPECT_EQ(read.vectors, manifest.vectors);
  EXPECT_TRUE(std::isnan(read.metrics.at("nan")));
  EXPECT_EQ(read.metrics.at("low"), -INFINITY);
  EXPECT_EQ(read.metrics.at("accuracy"), 0.1);
  EXPECT_EQ(read.bytes(), 12u);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ManifestText, EndsWithTheHashOfAllBeforeIt) {
  const std::string text = whole_manifest().encode();
  EXPECT_EQ(hashed_anew(text), text);
  for (size_t byte = 0; byte < text.size(); byte++)
    for (int bit = 0; bit < 8; bit++) {
      std::string flipped = text;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      EXPECT_THROW(Manifest::parse(flipped, "m"), Corruption) << "byte " << byte << ", bit " << bit;
    }
  for (size_t size = 0; size < text.size(); size++)
    EXPECT_THROW(Manifest::parse(text.substr(0, size), "m"), Corruption);
}

/// Of an older Trireme: without a hash.
TEST(ManifestText, VersionOneIsRead) {
  Manifest old = whole_manifest();
  old.version = 1;
  const std::string text = old.encode();
  EXPECT_EQ(text.find(",\n \"sha256\""), std::string::npos);
  const Manifest read = Manifest::parse(text, "m");
  EXPECT_EQ(read.version, 1);
  EXPECT_EQ(read.scalars, old.scalars);
  EXPECT_EQ(read.encode(), text);
  EXPECT_THROW(Manifest::parse(replaced(text, "\"version\": 1", "\"version\": 2"), "m"), Corruption);
  const std::string now = whole_manifest().encode();
  EXPECT_THROW(Manifest::parse(hashed_anew(replaced(now, "\"version\": 2", "\"version\": 1")), "m"), Corruption);
}

TEST(ManifestText, OthersAreRefused) {
  const std::string good = whole_manifest().encode();
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"trireme-checkpoint", "other"},
           {"\"step\": 12", "\"step\": -1"},
           {"\"step\": 12", "\"step\": 12.5"},
           {"\"step\": 12", "\"step\": \"12\""},
           {"\"step\": 12", "\"step\": 99999999999999999999"},
           {"\"step\": 12", "\"step\": 12, \"step\": 13"},
           {"\"step\": 12", "\"step\": 12, \"stop\": 13"},
           {"\"epoch\": 0,", ""},
           {"model.safetensors", "../../etc/passwd"},
           {"model.safetensors", "/etc/passwd"},
           {"model.safetensors", "rows-1"},
           {"model.safetensors", "manifest.json"},
           {"aaaa", "AAAA"},
           {"aaaa", "aaa"},
           {"\"--lr\": \"0.1\"", "\"--lr\": 0.1"},
           {"\"--lr\": \"0.1\"", "\"--lr\": [[[[[[[[]]]]]]]]"},
           {"\"nan\": \"nan\"", "\"nan\": \"none\""},
           {"}", ""},
       })
    EXPECT_NE(refusal([&, &from = from, &to = to] { Manifest::parse(hashed_anew(replaced(good, from, to)), "m"); }), "")
        << from << " -> " << to;
  EXPECT_EQ(refusal([&] { Manifest::parse(good, "m"); }), "");
}

TEST(ManifestText, ANewerVersionIsNamed) {
  const std::string newer =
      hashed_anew(replaced(replaced(whole_manifest().encode(), "\"version\": 2", "\"version\": 3"),
                           "\"library\": \"0.1.0\"", "\"library\": \"9.0\", \"more\": [1]"));
  try {
    Manifest::parse(newer, "DIR/manifest.json");
    FAIL();
  } catch (const checkpoint::NewerFormat& error) {
    for (const char* part : {"DIR/manifest.json", "version 3", "9.0", "use a newer"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

/// One to four changes: bytes, cuts, repeats, other numbers, pieces of JSON.
std::string damaged(std::string text, std::mt19937& dice) {
  static const std::vector<std::string> pieces = {"{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  "\"",
                                                  ",",
                                                  ":",
                                                  "null",
                                                  "-1",
                                                  "1e999",
                                                  "18446744073709551615",
                                                  "9223372036854775807",
                                                  "\\u0000",
                                                  "\xff",
                                                  "[[[[[[[[[[[[",
                                                  "{\"a\":",
                                                  "0",
                                                  " ",
                                                  "true",
                                                  "\"shape\":[4294967296,4294967296,4294967296]"};
  for (uint32_t changes = 1 + dice() % 4; changes > 0; changes--) {
    const size_t at = text.empty() ? 0 : dice() % text.size(), some = dice() % 20;
    switch (dice() % 6) {
      case 0:
        text.insert(at, pieces[dice() % pieces.size()]);
        break;
      case 1:
        text.erase(at, some);
        break;
      case 2:
        text.insert(at, text.substr(text.empty() ? 0 : dice() % text.size(), some));
        break;
      case 3:
        text.resize(at);
        break;
      case 4:
        if (!text.empty()) text[at] = static_cast<char>(dice());
        break;
      default:
        if (!text.empty() && std::isdigit(static_cast<unsigned char>(text[at])))
          text[at] = static_cast<char>('0' + dice() % 10);
    }
  }
  return text;
}

TEST(Fuzz, DamagedHeadersAreErrorsOrValid) {
  const Plan plan(sample_contents());
  std::mt19937 dice(20260101);
  size_t valid = 0;
  for (int i = 0; i < 100'000; i++) {
    const checkpoint::PlannedFile& file = plan.files()[dice() % plan.files().size()];
    const std::string text = damaged(file.header.substr(8), dice);
    const uint64_t bytes = 8 + text.size() + (file.bytes - file.header.size());
    try {
      const Header header = Header::parse(text, bytes, "fuzzed");
      valid++;
      uint64_t end = header.bytes;
      for (const StoredTensor& tensor : header.tensors) {
        ASSERT_EQ(tensor.begin, end);
        end = tensor.end;
        ASSERT_EQ(tensor.bytes() % std::max<uint64_t>(1, tensor.elements()), 0u);
      }
      ASSERT_EQ(end, bytes);
    } catch (const Corruption& error) {
      ASSERT_TRUE(std::string(error.what()).starts_with("fuzzed")) << error.what();
    }
  }
  EXPECT_GT(valid, 100u) << "some changes do no harm";
  EXPECT_LT(valid, 50'000u);
}

TEST(Fuzz, DamagedManifestsAreErrorsOrValid) {
  Manifest first = whole_manifest();
  first.version = 1;
  const std::string good = whole_manifest().encode(), older = first.encode();
  std::mt19937 dice(20260102);
  size_t valid = 0;
  for (int i = 0; i < 100'000; i++) {
    const std::string text = hashed_anew(damaged(i % 2 == 0 ? good : older, dice));  // or the hash alone would refuse
    try {
      const Manifest manifest = Manifest::parse(text, "fuzzed");
      valid++;
      ASSERT_GE(manifest.step, 0);
      ASSERT_EQ(Manifest::parse(manifest.encode(), "again").encode(), manifest.encode());
    } catch (const Corruption& error) {
      ASSERT_TRUE(std::string(error.what()).starts_with("fuzzed")) << error.what();
    } catch (const checkpoint::NewerFormat&) {
    }
  }
  EXPECT_GT(valid, 100u);
  EXPECT_LT(valid, 50'000u);
}

}  // namespace
}  // namespace trireme::tests
