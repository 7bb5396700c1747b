// label: unit
// Text as tokens: by bytes and by a sentencepiece model, read by ranks together; what is held out; masks.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>

#include <trireme/data/dataset.h>
#include <trireme/data/masks.h>
#include <trireme/data/tokenizer.h>

#include "files.h"

namespace trireme::tests {
namespace {

using data::Splits;
using data::Tokenizer;
using Ids = std::vector<int32_t>;

constexpr const char* kText = "/usr/share/games/fortunes/literature";  // of the package fortunes-min

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

int32_t stored(const data::Dataset& set, size_t at) {
  const std::byte* place = set.inputs + at * static_cast<size_t>(set.token_bytes);
  if (set.token_bytes == 1) return *reinterpret_cast<const uint8_t*>(place);
  return set.token_bytes == 2 ? *reinterpret_cast<const uint16_t*>(place) : *reinterpret_cast<const int32_t*>(place);
}

/// What one rank saw of a text.
struct Seen {
  Ids train, test;  // all tokens of the samples, and the last target
  size_t trains = 0, tests = 0, tokens = 0, test_tokens = 0;
  int bytes = 0;
  std::vector<std::string> notes;
  bool operator==(const Seen&) const = default;
};

Ids tokens_of(const data::Dataset& set) {
  Ids tokens;
  for (size_t i = 0; set.count > 0 && i <= set.count * set.elements(); i++) tokens.push_back(stored(set, i));
  return tokens;
}

Seen read_by_ranks(int ranks, const std::string& path, const Tokenizer& tokenizer, const data::TextOptions& options) {
  std::vector<Seen> all(static_cast<size_t>(ranks));
  expect_all_well(run_ranks(ranks, [&](comm::shm::Communicator& group) {
    const Splits s = data::read_text(group, path, tokenizer, options);
    all[static_cast<size_t>(group.rank())] = {tokens_of(s.train), tokens_of(s.test), s.train.count,       s.test.count,
                                              s.tokens,           s.test_tokens,     s.train.token_bytes, s.notes};
    group.barrier("read");
  }));
  for (const Seen& one : all) EXPECT_EQ(one, all[0]) << ranks << " ranks";
  return all[0];
}

TEST(Text, SamplesAreTheBytesOfTheFileAndTheLastPartIsHeldOut) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 1003; i++) text += static_cast<char>(i * 7 % 251);
  const std::string path = folder.write("a", text);
  for (int ranks : {1, 2, 3}) {
    const Seen seen = read_by_ranks(ranks, path, {}, {.context = 10, .test = 0.1});
    EXPECT_EQ(seen.tokens, 1003u);
    EXPECT_EQ(seen.test_tokens, 100u);
    ASSERT_EQ(seen.trains, 90u);  // of 903 tokens, 90 · 10 and a target
    ASSERT_EQ(seen.tests, 9u);    // of 100 tokens, 9 · 10 and a target
    EXPECT_EQ(seen.bytes, 1);
    for (size_t i = 0; i < seen.train.size(); i++) ASSERT_EQ(seen.train[i], static_cast<unsigned char>(text[i])) << i;
    for (size_t i = 0; i < seen.test.size(); i++)
      ASSERT_EQ(seen.test[i], static_cast<unsigned char>(text[903 + i])) << i;
    EXPECT_EQ(seen.notes.back(), "text: 1,003 tokens (bytes), 90 training and 9 test samples of 10");
  }
}

TEST(Text, TrainingNeverSeesATokenThatIsHeldOut) {
  const Folder folder;
  for (size_t size : {200u, 201u, 210u, 211u, 219u, 220u}) {  // wherever the parts meet
    const size_t tests = static_cast<size_t>(std::llround(0.25 * static_cast<double>(size)));
    const std::string path = folder.write("a", std::string(size - tests, 'a') + std::string(tests, 'b'));
    const Seen seen = read_by_ranks(2, path, {}, {.context = 8, .test = 0.25});
    EXPECT_EQ(std::set<int32_t>(seen.train.begin(), seen.train.end()), std::set<int32_t>{'a'}) << size;
    EXPECT_EQ(std::set<int32_t>(seen.test.begin(), seen.test.end()), std::set<int32_t>{'b'}) << size;
  }
}

template <class E>
void refuse(const std::string& what, const data::OpenOptions& options, const std::vector<std::string>& parts) {
  expect_refused<E>(
      2, [&](auto& group) { return data::open(group, what, options).train; }, parts);
}

TEST(Text, OpensByNameAndRefusesWhatCannotBe) {
  const Folder folder;
  const std::string path = folder.write("a.txt", std::string(100, 'x')), empty = folder.write("empty", "");
  expect_all_well(run_ranks(2, [&](comm::shm::Communicator& group) {
    const Splits splits = data::open(group, "text:" + path, {.context = 4});
    EXPECT_EQ(splits.train.count, 22u);  // 90 tokens
    EXPECT_EQ(splits.train.task, data::Task::next_token);
    EXPECT_EQ(splits.train.classes, 256);
    const Splits masked = data::open(group, "text:" + path, {.test = 0, .context = 4, .masked = true});
    EXPECT_EQ(masked.train.task, data::Task::masked_token);
    EXPECT_EQ(masked.test.count, 0u);
  }));
  refuse<InvalidArgument>("text:" + path, {.context = 90}, {"a context of 90", "longer than the text", "has 90"});
  refuse<InvalidArgument>("text:" + path, {.context = 10}, {"context of 10", "to test with", "has 10", "--test"});
  refuse<InvalidArgument>("text:" + empty, {.context = 4}, {"is empty"});
  refuse<IoError>("text:" + folder.path("none"), {.context = 4}, {"there is no text", "none"});
  refuse<InvalidArgument>("text:" + folder.path(), {.context = 4}, {"is a folder"});
  refuse<InvalidArgument>("text:", {.context = 4}, {"without a file"});
  refuse<InvalidArgument>(path, {.tokenizer = "a.model"}, {"--tokenizer is for text"});
  refuse<InvalidArgument>("text:" + path, {.label = "a", .context = 4}, {"--label is for CSV files"});
  refuse<IoError>("text:" + path, {.tokenizer = folder.path("none"), .context = 4}, {"no tokenizer"});
}

TEST(Masks, AreAFixedNumberByTheSeedAloneAndKeepTheirShares) {
  constexpr size_t kContext = 100, kSamples = 2000;
  constexpr int64_t kVocabulary = 50;
  std::vector<int64_t> tokens(kContext);
  for (size_t i = 0; i < kContext; i++) tokens[i] = static_cast<int64_t>(i * 3 % 50);
  size_t masked = 0, changed = 0, kept = 0;
  std::vector<size_t> chosen(kContext, 0);
  for (size_t s = 0; s < kSamples; s++) {
    std::vector<int64_t> x = tokens, y(kContext), again = tokens, again_y(kContext);
    data::mask_tokens(x, y, kVocabulary, s);
    data::mask_tokens(again, again_y, kVocabulary, s);
    ASSERT_EQ(x, again);
    ASSERT_EQ(y, again_y);
    size_t targets = 0;
    for (size_t i = 0; i < kContext; i++) {
      if (y[i] == data::kNoTarget) {
        ASSERT_EQ(x[i], tokens[i]);
        continue;
      }
      ASSERT_EQ(y[i], tokens[i]);
      targets++, chosen[i]++;
      (x[i] == kVocabulary ? masked : x[i] == tokens[i] ? kept : changed)++;
    }
    ASSERT_EQ(targets, 15u);
  }
  const auto all = static_cast<double>(15 * kSamples);
  EXPECT_NEAR(static_cast<double>(masked) / all, 0.8, 0.01);
  EXPECT_NEAR(static_cast<double>(changed) / all, 0.1 * 49 / 50, 0.006);  // of 50 random ones, one is the same
  EXPECT_NEAR(static_cast<double>(kept) / all, 0.1 + 0.1 / 50, 0.006);
  for (size_t i = 0; i < kContext; i++) EXPECT_NEAR(static_cast<double>(chosen[i]), 0.15 * kSamples, 80) << i;
  EXPECT_EQ(data::masked_of(1), 1u);
  EXPECT_EQ(data::masked_of(64), 10u);
  EXPECT_EQ(data::masked_of(128), 19u);
}

TEST(Utf8Stream, HoldsBackHalvesAndReplacesWhatIsNone) {
  const std::string text = "aä€😀z";
  for (size_t cut = 0; cut <= text.size(); cut++) {
    data::Utf8Stream stream;
    std::string got = stream.add(text.substr(0, cut));
    got += stream.add(text.substr(cut));
    EXPECT_EQ(got + stream.finish(), text) << cut;
  }
  data::Utf8Stream stream;
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(stream.add("a\xff"
                       "b\xc3"),
            "a" + bad + "b");
  EXPECT_EQ(stream.add("x"), bad + "x");  // the half was none
  EXPECT_EQ(stream.add("\xed\xa0\x80"
                       "y"),
            bad + "y");  // a surrogate
  EXPECT_EQ(stream.add("\xe2\x82"), "");
  EXPECT_EQ(stream.finish(), bad);
  EXPECT_EQ(stream.finish(), "");
}

class Sentencepiece : public testing::Test {
 protected:
  void SetUp() override {
    if (!data::has_sentencepiece()) GTEST_SKIP() << "Trireme was built without sentencepiece";
    const std::string train = "spm_train --input=" + std::string(kText) + " --model_prefix=" + folder.path("m") +
                              " --vocab_size=400 --character_coverage=1.0 --minloglevel=2 > /dev/null 2>&1";
    ASSERT_EQ(std::system(train.c_str()), 0) << "spm_train is of the package sentencepiece, the text of fortunes-min";
  }
  /// What Debian's own program makes of a file, line by line.
  std::vector<Ids> encoded(const std::string& path) {
    const std::string out = folder.path("ids");
    const std::string command =
        "spm_encode --model=" + folder.path("m.model") + " --output_format=id < " + path + " > " + out + " 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    std::vector<Ids> lines;
    std::ifstream file(out);
    for (std::string line; std::getline(file, line);) {
      std::istringstream numbers(line);
      lines.emplace_back(std::istream_iterator<int32_t>(numbers), std::istream_iterator<int32_t>());
    }
    return lines;
  }
  Folder folder;
};

TEST_F(Sentencepiece, EncodesAsItsOwnProgramDoesAndDecodesToTheText) {
  const Tokenizer tokenizer = Tokenizer::open(folder.path("m.model"));
  EXPECT_EQ(tokenizer.vocabulary(), 400);
  EXPECT_EQ(tokenizer.describe(), "sentencepiece, 400 pieces");
  constexpr int32_t kEnd = 2;  // of a sentence, unless spm_train is told otherwise
  Ids expected;
  for (const Ids& line : encoded(kText)) {
    expected.insert(expected.end(), line.begin(), line.end());
    expected.push_back(kEnd);
  }
  const std::string text = content(kText);
  ASSERT_EQ(text.back(), '\n');
  EXPECT_EQ(tokenizer.encode(text), expected);
  const std::string line = "It was the best of times, it was the worst of times.\n\nA line\nand half of another";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(line)), line);
  EXPECT_EQ(Tokenizer(tokenizer.model(), "a copy").encode(line), tokenizer.encode(line));
}

TEST_F(Sentencepiece, RanksReadTheSameTokensWhereverTheyCut) {
  const Tokenizer tokenizer = Tokenizer::open(folder.path("m.model"));
  const std::string short_lines = folder.write("short", "a\nbb\n\n\nc\nthe end"),
                    one = folder.write("one", "no line end");
  for (const std::string& path : {std::string(kText), short_lines, one}) {
    const Ids all = tokenizer.encode(content(path));
    for (int ranks : {1, 2, 3, 5}) {
      const Seen seen = read_by_ranks(ranks, path, tokenizer, {.context = 1, .test = 0});
      EXPECT_EQ(seen.train, all) << ranks << " ranks, " << path;
      EXPECT_EQ(seen.bytes, 2);
    }
  }
}

TEST_F(Sentencepiece, DamagedModelsAreRefused) {
  std::string model = content(folder.path("m.model"));
  const auto refused = [&](const std::string& bytes) {
    const std::string path = folder.write("bad.model", bytes);
    try {
      Tokenizer::open(path);
      ADD_FAILURE() << "accepted";
    } catch (const Corruption& error) {
      EXPECT_NE(std::string(error.what()).find("bad.model is no sentencepiece model"), std::string::npos)
          << error.what();
    }
  };
  refused("hello");
  refused(model.substr(0, model.size() / 2));
}

}  // namespace
}  // namespace trireme::tests
