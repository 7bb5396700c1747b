// label: unit
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include <trireme/data/auc.h>
#include <trireme/data/criteo.h>
#include <trireme/ps/sparse_table.h>

#include "files.h"

namespace trireme::tests {
namespace {

using data::category_key;
using data::Clicks;
using data::LineReader;
using Floats = std::vector<float>;
using Texts = std::vector<std::string>;

template <class E, class Call>
void expect_throw(const Call& call, const Texts& parts) {
  std::exception_ptr error;
  try {
    call();
  } catch (...) {
    error = std::current_exception();
  }
  expect_error<E>(error, parts);
}

// ---- lines and shares ----

class Lines : public testing::Test {
 protected:
  Texts share(const std::string& path, int rank, int ranks) {
    LineReader reader(path, rank, ranks);
    Texts lines, again;
    for (std::string_view line; reader.next(line);) lines.emplace_back(line);
    reader.rewind();
    for (std::string_view line; reader.next(line);) again.emplace_back(line);
    EXPECT_EQ(lines, again);
    return lines;
  }

  /// Every line comes once, in order, for 1 to 5 ranks and for more ranks than lines.
  void expect_lines(const std::string& text, const Texts& expected) {
    const std::string path = folder.write("lines.txt", text);
    for (int ranks : {1, 2, 3, 4, 5, 64}) {
      Texts all;
      for (int rank = 0; rank < ranks; rank++)
        for (std::string& line : share(path, rank, ranks)) all.push_back(std::move(line));
      EXPECT_EQ(all, expected) << ranks << " ranks";
    }
  }

  Folder folder;
};

TEST_F(Lines, EveryLineIsInOneShare) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; round++) {
    Texts lines(random() % 12);
    std::string text;
    for (std::string& line : lines) {
      line = std::string(1 + random() % 9, static_cast<char>('a' + random() % 26));
      text += line + "\n";
    }
    expect_lines(text, lines);
    if (!text.empty()) text.pop_back(), expect_lines(text, lines);  // without the last end
  }
}

TEST_F(Lines, WindowsEndsAndEmptyLines) {
  expect_lines("a\r\nb\r\nc\r\n", {"a", "b", "c"});
  expect_lines("a\r\nb\r\nc\r", {"a", "b", "c"});
  expect_lines("\n\na\n\n\r\nb\n\n\n", {"a", "b"});
  expect_lines("", {});
  expect_lines("\n", {});
  expect_lines("\r\n\n", {});
  expect_lines("x", {"x"});
}

TEST_F(Lines, LinesAroundTheBlocksOfTheReader) {
  const size_t block = 1 << 20;
  for (size_t length : {block - 2, block - 1, block}) {
    const std::string wide(length, 'w'), other(block / 2, 'o');
    expect_lines(wide + "\n" + other + "\n" + wide + "\na\n", {wide, other, wide, "a"});
  }
}

TEST_F(Lines, OneLineAsLongAsAllTheOthers) {
  const std::string wide(400, 'w');
  expect_lines("a\n" + wide + "\nb\n", {"a", wide, "b"});
  expect_lines(wide, {wide});
}

TEST_F(Lines, ALineWithoutEnd) {
  const std::string path = folder.write("lines.txt", "a\n" + std::string((1 << 20) + 1, 'w') + "\nb\n");
  expect_throw<Corruption>([&] { share(path, 0, 1); }, {path + ", line 2", "longer than 1048576 bytes"});
}

TEST_F(Lines, WhereCountsOverTheWholeFile) {
  std::string text;
  for (int i = 1; i <= 200; i++) text += fmt::format("{}{}", i, i % 7 == 0 ? "\r\n" : "\n");
  const std::string path = folder.write("lines.txt", text);
  for (int ranks : {1, 2, 3, 5})
    for (int rank = 0; rank < ranks; rank++) {
      LineReader reader(path, rank, ranks);
      for (std::string_view line; reader.next(line);) ASSERT_EQ(reader.where(), fmt::format("{}, line {}", path, line));
    }
}

TEST_F(Lines, WhatCannotBeRead) {
  expect_throw<IoError>([&] { LineReader{folder.path("none")}; }, {folder.path("none"), "No such file"});
  expect_throw<IoError>([&] { LineReader{folder.path()}; }, {folder.path(), "is a folder"});
  const std::string path = folder.write("lines.txt", "a\n");
  for (const auto& [rank, ranks] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, -1}})
    expect_throw<InvalidArgument>([&, r = rank, n = ranks] { LineReader(path, r, n); }, {path, "no share"});
}

// ---- Criteo ----

/// A line: the label, then `numbers` and `categories`, which stand for themselves where given and for something valid
/// elsewhere.
struct Line {
  std::string label = "1";
  std::map<size_t, std::string> numbers{}, categories{};

  std::string text() const {
    std::string line = label;
    for (size_t i = 0; i < 13; i++) line += "\t" + (numbers.contains(i) ? numbers.at(i) : std::to_string(i));
    for (size_t i = 0; i < 26; i++)
      line += "\t" + (categories.contains(i) ? categories.at(i) : fmt::format("{:08x}", i * 0x1234567));
    return line;
  }
};

class Criteo : public testing::Test {
 protected:
  Clicks read(const std::string& text) { return data::read_criteo(folder.write("day.tsv", text)); }

  /// Whichever rank has the line says where it is.
  void expect_bad(const std::string& bad, const Texts& parts) {
    const std::string good = Line{}.text() + "\n",
                      path = folder.write("day.tsv", good + good + "\n" + bad + "\n" + good + good);
    for (int ranks = 1; ranks <= 5; ranks++) {
      int refused = 0;
      for (int rank = 0; rank < ranks; rank++) try {
          data::read_criteo(path, rank, ranks);
        } catch (const Corruption&) {
          refused++;
          Texts all = parts;
          all.push_back(path + ", line 4");
          expect_error<Corruption>(std::current_exception(), all);
        }
      EXPECT_EQ(refused, 1) << ranks << " ranks: " << bad;
    }
  }

  Folder folder;
};

TEST_F(Criteo, ALine) {
  const Clicks clicks = read(
      Line{.numbers = {{0, "0"}, {1, "-3"}, {2, "100"}}, .categories = {{0, "05db9164"}, {25, "05db9164"}}}.text() +
      "\n");
  ASSERT_EQ(clicks.size(), 1u);
  EXPECT_EQ(clicks.labels, Floats{1});
  ASSERT_EQ(clicks.numbers.size(), 13u);
  EXPECT_EQ(clicks.numbers[0], 0);
  EXPECT_EQ(clicks.numbers[1], 0) << "negative numbers have no logarithm";
  EXPECT_FLOAT_EQ(clicks.numbers[2], std::log(101.0f));
  ASSERT_EQ(clicks.keys.size(), 26u);
  EXPECT_EQ(clicks.keys[0], category_key(0, "05db9164"));
  EXPECT_EQ(clicks.keys[25], category_key(25, "05db9164"));
  EXPECT_EQ(std::set<uint64_t>(clicks.keys.begin(), clicks.keys.end()).size(), 26u);
}

TEST_F(Criteo, ALineOfTheRealSet) {  // the form of the Kaggle set's lines: empty cells in the middle and at the end
  const std::string line =
      "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t25c83c98\t7e0ccccf\tde799"
      "5b8\t1f89b562\ta73ee510\ta8cd5504\t"
      "b2cb9c98\t37c9c164\t2824a5f6\t1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t"
      "3a171ecb\tc5c50484\t\t";
  const Clicks clicks = read(line + "\n" + line);
  ASSERT_EQ(clicks.size(), 2u);
  EXPECT_EQ(clicks.labels[0], 0);
  EXPECT_FLOAT_EQ(clicks.numbers[4], std::log(1383.0f));
  EXPECT_EQ(clicks.numbers[11], 0);
  EXPECT_EQ(clicks.keys[21], category_key(21, ""));
  EXPECT_EQ(clicks.keys[23], category_key(23, "c5c50484"));
  EXPECT_EQ(clicks.keys[24], category_key(24, ""));
  EXPECT_EQ(clicks.keys[25], category_key(25, ""));
}

TEST_F(Criteo, EmptyCells) {
  Line line{.label = "0"};
  for (size_t i = 0; i < 13; i++) line.numbers[i] = "";
  for (size_t i = 0; i < 26; i++) line.categories[i] = "";
  const Clicks clicks = read(line.text() + "\n");
  EXPECT_EQ(clicks.numbers, Floats(13));
  for (size_t i = 0; i < 26; i++) EXPECT_EQ(clicks.keys[i], category_key(i, ""));
  EXPECT_EQ(std::set<uint64_t>(clicks.keys.begin(), clicks.keys.end()).size(), 26u)
      << "a missing category is one of its field";
}

TEST_F(Criteo, WindowsEnds) {
  Line line{.categories = {{25, ""}}};
  const Clicks plain = read(line.text() + "\n" + Line{}.text() + "\n"),
               windows = read(line.text() + "\r\n" + Line{}.text() + "\r\n");
  EXPECT_EQ(plain.keys, windows.keys);
  EXPECT_EQ(plain.numbers, windows.numbers);
}

TEST_F(Criteo, KeysAreStable) {  // saved tables depend on them
  EXPECT_EQ(category_key(0, ""), category_key(0, ""));
  std::set<uint64_t> keys;
  for (size_t field = 0; field < 26; field++)
    for (const char* text :
         {"", "0", "00", "68fd1e64", "68fd1e65", "000000000", "68fd1e6400000000", "0123456789abcdef"})
      keys.insert(category_key(field, text));
  EXPECT_EQ(keys.size(), 26u * 8);
  EXPECT_EQ(category_key(3, "68fd1e64"), 1972327674574509634u);
}

TEST_F(Criteo, DamagedLines) {
  for (const char* label : {"", "2", "-1", "01", "x", "1.0"})
    expect_bad(Line{.label = label}.text(), {"column 1:", fmt::format("not '{}'", label)});
  for (size_t i : {0, 7, 12})
    for (const char* number : {"x", "1.5", "12a", " 1", "+1", "99999999999999999999", "-"})
      expect_bad(Line{.numbers = {{i, number}}}.text(),
                 {fmt::format("column {}: '{}' is not a whole number", i + 2, number)});
  for (size_t i : {0, 13, 25})
    for (const char* text : {"68fd1e6g", "0x12", " ", "-1", "00112233445566778"})
      expect_bad(Line{.categories = {{i, text}}}.text(),
                 {fmt::format("column {}: '{}' is not a category", i + 15, text)});
  expect_bad(Line{}.text() + "\t", {"41 columns"});
  expect_bad(Line{}.text().substr(2), {"39 columns", "without labels?"});
  expect_bad("hello", {"1 columns", "has 40"});
  expect_bad(Line{.numbers = {{3, std::string(500, '7')}}}.text(), {"column 5", "77…'"});
}

TEST_F(Criteo, SharesHoldEveryRowOnce) {
  const std::string path = folder.path("day.tsv");
  data::make_criteo_like(path, 203, 7);
  const Clicks all = data::read_criteo(path);
  ASSERT_EQ(all.size(), 203u);
  for (int ranks = 1; ranks <= 5; ranks++) {
    Clicks joined;
    for (int rank = 0; rank < ranks; rank++) {
      const Clicks part = data::read_criteo(path, rank, ranks);
      EXPECT_NEAR(static_cast<double>(part.size()), 203.0 / ranks, 3);
      joined.labels.insert(joined.labels.end(), part.labels.begin(), part.labels.end());
      joined.numbers.insert(joined.numbers.end(), part.numbers.begin(), part.numbers.end());
      joined.keys.insert(joined.keys.end(), part.keys.begin(), part.keys.end());
    }
    EXPECT_EQ(joined.labels, all.labels);
    EXPECT_EQ(joined.numbers, all.numbers);
    EXPECT_EQ(joined.keys, all.keys);
  }
}

TEST_F(Criteo, ReadsPartByPart) {
  const std::string path = folder.path("day.tsv");
  data::make_criteo_like(path, 100, 7);
  const Clicks all = data::read_criteo(path);
  data::CriteoReader reader(path);
  for (int round = 0; round < 2; round++, reader.rewind()) {
    Clicks part;
    std::vector<size_t> sizes;
    std::vector<uint64_t> keys;
    do {
      reader.read(30, part);
      sizes.push_back(part.size());
      keys.insert(keys.end(), part.keys.begin(), part.keys.end());
    } while (part.size() > 0);
    EXPECT_EQ(sizes, (std::vector<size_t>{30, 30, 30, 10, 0}));
    EXPECT_EQ(keys, all.keys);
  }
}

// ---- the planted model ----

TEST_F(Criteo, GeneratedFilesDependOnTheSeedAlone) {
  const auto make = [&](uint64_t seed) {
    data::make_criteo_like(folder.path("x"), 50, seed);
    std::ifstream file(folder.path("x"), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(make(1), make(1));
  EXPECT_NE(make(1), make(2));
  expect_throw<IoError>([&] { data::make_criteo_like(folder.path("none/x"), 1, 1); }, {"cannot write"});
  EXPECT_EQ(data::make_criteo_like(folder.path("x"), 0, 1).auc, 0.5);
}

/// Logistic regression whose weights are rows of one float in a sparse table.
class Regression {
 public:
  void train(const Clicks& clicks) {
    for (size_t begin = 0; begin + kBatch <= clicks.size(); begin += kBatch) {
      const std::span<const uint64_t> keys(clicks.keys.data() + begin * 26, kBatch * 26);
      const Floats scores = score(keys);
      Floats gradients(keys.size());
      for (size_t i = 0; i < keys.size(); i++)
        gradients[i] = (1 / (1 + std::exp(-scores[i / 26])) - clicks.labels[begin + i / 26]) / kBatch;
      table_.push(keys, gradients.data(), 0.08);
    }
  }
  Floats score(std::span<const uint64_t> keys) {
    Floats weights(keys.size()), scores(keys.size() / 26);
    table_.pull(keys, weights.data());
    for (size_t i = 0; i < keys.size(); i++) scores[i / 26] += weights[i];
    return scores;
  }

 private:
  static constexpr size_t kBatch = 100;
  ps::SparseTable table_{{.name = "weights", .width = 1, .optimizer = space::adagrad()}};
};

TEST_F(Criteo, AModelOfTheKeysLearnsWhatWasPlanted) {
  data::make_criteo_like(folder.path("train"), 30'000, 1);
  const data::Planted planted = data::make_criteo_like(folder.path("test"), 5'000, 2);
  EXPECT_GT(planted.auc, 0.78);
  EXPECT_LT(planted.auc, 0.90);
  EXPECT_GT(planted.clicks, 0.15);
  EXPECT_LT(planted.clicks, 0.40);
  const Clicks train = data::read_criteo(folder.path("train")), test = data::read_criteo(folder.path("test"));
  Regression model;
  EXPECT_EQ(data::auc(model.score(test.keys), test.labels), 0.5) << "all scores are equal";
  for (int epoch = 0; epoch < 2; epoch++) model.train(train);
  const double reached = data::auc(model.score(test.keys), test.labels);
  EXPECT_GT(reached, planted.auc - 0.06);
  EXPECT_LT(reached, planted.auc + 0.01);
  RecordProperty("planted", std::to_string(planted.auc));
  RecordProperty("reached", std::to_string(reached));
}

// ---- LIBSVM ----

TEST_F(Criteo, LibsvmRows) {
  const std::string path = folder.write(
      "a.svm",
      "+1 3:0.5 7:-2e1\n-1\n# a comment\n0.25 \t 18446744073709551615:1  # rest 1:x\r\n   \n1 2:+4 0:1e-60 \n");
  for (int ranks = 1; ranks <= 5; ranks++) {
    Floats labels, values;
    std::vector<uint64_t> keys;
    std::vector<size_t> lengths;
    for (int rank = 0; rank < ranks; rank++) {
      const data::SparseRows rows = data::read_libsvm(path, rank, ranks);
      ASSERT_EQ(rows.begins.size(), rows.size() + 1);
      for (size_t i = 0; i < rows.size(); i++) lengths.push_back(rows.begins[i + 1] - rows.begins[i]);
      labels.insert(labels.end(), rows.labels.begin(), rows.labels.end());
      keys.insert(keys.end(), rows.keys.begin(), rows.keys.end());
      values.insert(values.end(), rows.values.begin(), rows.values.end());
    }
    EXPECT_EQ(labels, (Floats{1, -1, 0.25, 1}));
    EXPECT_EQ(lengths, (std::vector<size_t>{2, 0, 1, 2}));
    EXPECT_EQ(keys, (std::vector<uint64_t>{3, 7, 18446744073709551615u, 2, 0}));
    EXPECT_EQ(values, (Floats{0.5, -20, 1, 4, 0}));
  }
}

TEST_F(Criteo, DamagedLibsvmLines) {
  const auto expect_refused_line = [&](const std::string& line, const std::string& part) {
    const std::string path = folder.write("a.svm", "1 1:1\n\n" + line + "\n1 1:1\n");
    expect_throw<Corruption>([&] { data::read_libsvm(path); }, {path + ", line 3, " + part});
  };
  for (const char* label : {"x", "1:2", "nan", "inf", "+", "++1", "+-1", "1e99"})
    expect_refused_line(std::string(label) + " 1:1", "column 1");
  for (const char* entry :
       {"5", "5:", ":5", "-1:2", "a:1", "1:b", "1:2:3", "qid:3", "1.5:2", "1:nan", "1:inf", "18446744073709551616:1"})
    expect_refused_line(fmt::format("1 1:1 2:1 {} 9:9", entry), fmt::format("column 4: '{}'", entry));
}

// ---- AUC ----

double brute_force(const Floats& scores, const Floats& labels) {
  double sum = 0, pairs = 0;
  for (size_t i = 0; i < scores.size(); i++)
    for (size_t j = 0; j < scores.size(); j++)
      if (labels[i] == 1 && labels[j] == 0)
        pairs++, sum += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
  return sum / pairs;
}

TEST(Auc, IsTheShareOfWonPairs) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; round++) {
    const size_t count = 2 + random() % 60;
    const unsigned levels = round % 3 == 0 ? 3 : round % 3 == 1 ? 20 : 1'000'000;  // many ties, some, hardly any
    Floats scores, labels;
    for (size_t i = 0; i < count; i++) {
      scores.push_back(static_cast<float>(random() % levels) - 1);
      labels.push_back(static_cast<float>(random() % 2));
    }
    labels[0] = 0, labels[1] = 1;
    ASSERT_NEAR(data::auc(scores, labels), brute_force(scores, labels), 1e-12);
  }
}

TEST(Auc, KnownCases) {
  EXPECT_EQ(data::auc(Floats{1, 2, 3, 4}, Floats{0, 0, 1, 1}), 1);
  EXPECT_EQ(data::auc(Floats{4, 3, 2, 1}, Floats{0, 0, 1, 1}), 0);
  EXPECT_EQ(data::auc(Floats{5, 5, 5}, Floats{0, 1, 0}), 0.5);
  const float infinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(data::auc(Floats{-infinite, 0, infinite}, Floats{0, 0, 1}), 1);
}

TEST(Auc, WhatHasNone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_throw<InvalidArgument>([] { data::auc({}, {}); }, {"both kinds"});
  expect_throw<InvalidArgument>([] { data::auc(Floats{1, 2}, Floats{1, 1}); }, {"2 positive and 0 negative"});
  expect_throw<InvalidArgument>([] { data::auc(Floats{1, 2}, Floats{1}); }, {"2 scores and 1 labels"});
  expect_throw<InvalidArgument>([&] { data::auc(Floats{1, nan}, Floats{0, 1}); }, {"sample 1", "diverged"});
  expect_throw<InvalidArgument>([&] { data::auc(Floats{1, 2}, Floats{nan, 1}); }, {"sample 0"});
}

}  // namespace
}  // namespace trireme::tests
