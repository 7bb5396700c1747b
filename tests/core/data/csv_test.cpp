// label: unit
// CSV files, read by ranks together.
#include <fmt/format.h>
#include <zlib.h>

#include <cmath>
#include <random>

#include <trireme/data/records.h>

#include "files.h"

namespace trireme::tests {
namespace {

using data::OpenOptions;
using data::Splits;
using data::Task;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Labels = std::vector<int64_t>;
using Names = std::vector<std::string>;

/// Both parts of what was read, copied out of shared memory.
struct Read {
  Content train, test;
  data::Schema schema;
  std::vector<std::string> notes;

  bool operator==(const Read&) const = default;
  bool says(const std::string& part) const {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const auto& note) { return note.find(part) != std::string::npos; });
  }
};

std::string zipped(const std::string& text) {
  std::string bytes(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);  // 16: gzip's header
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  deflate(&stream, Z_FINISH);
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  return bytes;
}

class Csv : public testing::Test {
 protected:
  Read read_with(int ranks, const std::string& what, const OpenOptions& options) {
    std::vector<Read> all(static_cast<size_t>(ranks));
    const auto copy = [&](comm::shm::Communicator& group) {
      Splits splits = data::open(group, what, options);
      all[static_cast<size_t>(group.rank())] = {content_of(splits.train), content_of(splits.test), *splits.schema,
                                                splits.notes};
      group.barrier("read");
    };
    expect_all_well(run_ranks(ranks, copy));
    for (const Read& one : all) EXPECT_EQ(one, all[0]) << ranks << " ranks";
    return all[0];
  }

  /// The same bits, whatever the number of ranks.
  Read open(const std::string& what, const OpenOptions& options) {
    const Read one = read_with(1, what, options);
    for (int ranks : {2, 3, 4, 7}) EXPECT_EQ(read_with(ranks, what, options), one) << ranks << " ranks";
    return one;
  }

  Read understand(const std::string& text, const OpenOptions& options) {
    return open(folder.write("data.csv", text), options);
  }
  /// As it stands in the file.
  Content read(const std::string& text, const std::string& label = "") {
    return understand(text, {.label = label, .normalize = false, .test = 0}).train;
  }
  Read all_of(const std::string& text, const std::string& label = "") {
    return understand(text, {.label = label, .normalize = false, .test = 0});
  }

  template <class E = Corruption>
  void expect_bad(const std::string& text, std::vector<std::string> parts, const OpenOptions& options = {}) {
    const std::string path = folder.write("data.csv", text);
    parts.push_back(path);
    for (int ranks : {1, 2, 3, 4})
      expect_refused<E>(
          ranks, [&](auto& group) { return data::open(group, path, options).train; }, parts);
  }

  Folder folder;
};

TEST_F(Csv, WithHeader) {
  const Content set = read("a,b,class\n1,2,0\n3,4.5,2\n-5e-1,6,1\n");
  EXPECT_EQ(set.count, 3u);
  EXPECT_EQ(set.shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(set.inputs, (Doubles{1, 2, 3, 4.5, -0.5, 6}));
  EXPECT_EQ(set.labels, (Labels{0, 2, 1}));
  EXPECT_EQ(set.task, Task::classify);
  EXPECT_EQ(set.classes, 3);
}

TEST_F(Csv, WithoutHeader) {
  const Content set = read("1,2,0\n3,4,1\n");
  EXPECT_EQ(set.count, 2u);
  EXPECT_EQ(set.inputs, (Doubles{1, 2, 3, 4}));
}

TEST_F(Csv, AllTheSame) {
  const Content plain = read("a,b,class\n1,2,0\n3,4,1\n5,6,2\n");
  EXPECT_EQ(read("a,b,class\r\n1,2,0\r\n3,4,1\r\n5,6,2\r\n"), plain);
  EXPECT_EQ(read("a,b,class\n1,2,0\n3,4,1\n5,6,2"), plain);
  EXPECT_EQ(read("a,b,class\n\n1,2,0\n\n\n  \n3,4,1\r\n\r\n5,6,2\n\n\n"), plain);
  EXPECT_EQ(read("\n\r\na,b,class\n1,2,0\n3,4,1\n5,6,2\n"), plain);
  EXPECT_EQ(read("\xef\xbb\xbf"
                 "a,b,class\n1,2,0\n3,4,1\n5,6,2\n",
                 "class"),
            plain);
  EXPECT_EQ(read("a, b ,\"class\"\n 1,\t2,0\n\"3\",4 ,1\n5,6,2\n", "class"), plain);
  EXPECT_EQ(read("a;b;class\n1;2;0\n3;4;1\n5;6;2\n"), plain);
  EXPECT_EQ(read("a\tb\tclass\n1\t2\t0\n3\t4\t1\n5\t6\t2\n"), plain);
  EXPECT_EQ(read("a b class\n1 2 0\n 3   4 1\n5 6 2 \n"), plain);
  EXPECT_EQ(read("a|b|class\n1|2|0\n3|4|1\n5|6|2\n"), plain);
  EXPECT_EQ(read("a,b,class\n+1,2.0,0\n3e0,+4,1\n5,600e-2,2.0\n"), plain);
  EXPECT_EQ(read("# made by hand\n# in 1988\na,b,class\n1,2,0\n# half-way\n3,4,1\n5,6,2\n"), plain);
  EXPECT_EQ(read("3,2,,\na,b,class\n1,2,0\n3,4,1\n5,6,2\n"), plain);
  EXPECT_EQ(read("a,b,class,\n1,2,0,\n3,4,1,\n5,6,2,\n"), plain);
  EXPECT_EQ(read("a,b,class\n1,2,0,\n3,4,1,\n5,6,2,\n"), plain);
  EXPECT_EQ(read("\"a\"\"\",\"b,\nc\",class\n\"1\",2,0\n3,\"4\",1\n5,6,\"2\"\n"), plain);
}

TEST_F(Csv, AMarkOfUnicodeMakesNoHeader) {
  EXPECT_EQ(read("\xef\xbb\xbf"
                 "1,2,0\n3,4,1\n")
                .count,
            2u);
}

TEST_F(Csv, Compressed) {
  std::string text = "a,b,class\n";
  for (int i = 0; i < 5000; i++) text += fmt::format("{},{},{}\n", i * 7 % 100, i * 0.25, i % 3);
  const std::string plain = folder.write("plain.csv", text), packed = folder.write("packed.csv.gz", zipped(text));
  Read one = open(plain, {}), other = open(packed, {});
  one.notes.clear(), other.notes.clear();
  EXPECT_EQ(one, other);
  folder.write("named.csv", zipped(text));  // the bytes tell, not the name
  EXPECT_EQ(open(folder.path("named.csv"), {}).train, one.train);
}

TEST_F(Csv, DamagedCompression) {
  std::string text = "a,b,class\n";
  for (int i = 0; i < 5000; i++) text += fmt::format("{},{},{}\n", i * i, i * 0.25, i % 3);
  const std::string good = zipped(text);
  std::string flipped = good;
  flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 0x55);
  for (const std::string& bad : {good.substr(0, good.size() / 2), flipped}) {
    const std::string path = folder.write("bad.csv.gz", bad);
    for (int ranks : {1, 3})
      expect_refused<Corruption>(ranks, [&](auto& group) { return data::open(group, path).train; },
                                 {path, "Get the file again"});
  }
}

TEST_F(Csv, LabelByNameAndByNumber) {
  const std::string text = "price,rooms,size\n1.5,2,3\n4.5,5,6\n";
  EXPECT_EQ(read(text, "price").targets, (Floats{1.5, 4.5}));
  EXPECT_EQ(read(text, "price").inputs, (Doubles{2, 3, 5, 6}));
  EXPECT_EQ(read(text, "rooms").targets, (Floats{2, 5}));
  EXPECT_EQ(read(text, "rooms"), read(text, "1"));
  EXPECT_EQ(read(text), read(text, "size"));
  EXPECT_EQ(read("1,2,3\n4,5,6\n", "0").targets, (Floats{1, 4}));
  EXPECT_TRUE(all_of(text).says("the label is the last column, 'size'"));
}

TEST_F(Csv, ANameThatIsANumberIsAName) { EXPECT_EQ(read("x,1,0\n7,8,9\n1,2,3\n", "0").targets, (Floats{9, 3})); }

TEST_F(Csv, UnknownLabelGivesTheNearest) {
  expect_bad<InvalidArgument>("price,rooms,size\n1,2,3\n",
                              {"no column 'prise'", "did you mean 'price'?", "price, rooms, size"}, {.label = "prise"});
  expect_bad<InvalidArgument>("1,2,3\n", {"no column '3'", "0, 1, 2"}, {.label = "3"});
}

TEST_F(Csv, LabelsAsNumbers) {
  EXPECT_EQ(read("1,1\n2,2\n3,3\n").classes, 3);
  EXPECT_EQ(read("1,1\n2,2\n3,3\n").labels, (Labels{0, 1, 2}));
  EXPECT_EQ(all_of("1,1\n2,2\n3,3\n").schema.classes, (Names{"1", "2", "3"}));
  for (const char* label : {"0.5", "-1", "10000"}) {
    const Content set = read(fmt::format("1,0\n2,1\n3,2\n4,{}\n", label));
    EXPECT_EQ(set.task, Task::regress) << label;
    EXPECT_EQ(set.targets[3], std::stof(label));
  }
}

TEST_F(Csv, ManyWholeNumbersAreNoClasses) {
  std::string text = "a,price\n";
  for (int i = 0; i < 3000; i++) text += fmt::format("{},{}\n", i % 7, 17 * (i * 7919 % 1860));
  const Read set = understand(text, {});
  EXPECT_EQ(set.train.task, Task::regress);
  EXPECT_TRUE(set.says("'price' has more than 1000 whole numbers in 3000 rows and is taken for a number to predict"));
  EXPECT_EQ(set.notes.back(), "regression of 'price', 1 feature, normalised; 2400 training and 600 test rows");
}

TEST_F(Csv, TheTaskCanBeChosen) {
  EXPECT_EQ(understand("1,0\n2,1\n3,0\n", {.task = Task::regress}).train.task, Task::regress);
  EXPECT_EQ(understand("1,7\n2,100\n3,7\n", {.task = Task::classify}).schema.classes, (Names{"7", "100"}));
  expect_bad<InvalidArgument>("1,0.5\n2,1\n", {"cross-entropy needs classes", "not whole"}, {.task = Task::classify});
  expect_bad<InvalidArgument>("1,yes\n2,no\n", {"is text"}, {.task = Task::regress});
}

TEST_F(Csv, TextLabelsAreClassesByName) {
  const Read set = all_of("5.1,3.5,Iris-virginica\n4.9,3,Iris-setosa\n4,2,Iris-virginica\n4.5,2,\"Iris, other\"\n");
  EXPECT_EQ(set.schema.classes, (Names{"Iris, other", "Iris-setosa", "Iris-virginica"}));
  EXPECT_EQ(set.train.labels, (Labels{2, 1, 2, 0}));
  EXPECT_EQ(set.train.classes, 3);
  EXPECT_EQ(
      set.notes.back(),
      "classification, 3 classes (Iris, other, Iris-setosa, Iris-virginica), 2 features; 4 training and 0 test rows");
}

TEST_F(Csv, ACountLineNamesTheClasses) {  // as in the files of scikit-learn
  const Read set = all_of("4,2,setosa,versicolor,virginica\n5,3,0\n4,2,2\n1,1,0\n2,2,1\n");
  EXPECT_EQ(set.schema.classes, (Names{"setosa", "versicolor", "virginica"}));
  EXPECT_EQ(set.train.labels, (Labels{0, 2, 0, 1}));
  EXPECT_TRUE(set.says("line 1 ('4,2,setosa,versicolor,virginica') tells the number of rows and features: skipped"));
  EXPECT_TRUE(all_of("5,2,a,b\n5,3,0\n4,2,1\n").says("line 1 promises 5 rows, but there are 2"));
}

TEST_F(Csv, TextCategoriesBecomeInputs) {
  const Read set = all_of("size,town,class\n1,Oslo,0\n2,Bern,1\n3,?,0\n4,Oslo,1\n");
  EXPECT_EQ(set.train.shape, (std::vector<int64_t>{4}));
  EXPECT_EQ(set.train.inputs, (Doubles{1, 0, 1, 0,  //
                                       2, 1, 0, 0,  //
                                       3, 0, 0, 1,  //
                                       4, 0, 1, 0}));
  EXPECT_EQ(set.schema.columns[1].categories, (Names{"Bern", "Oslo"}));
  EXPECT_TRUE(set.says("column 2 ('town') has 2 categories"));
  EXPECT_TRUE(set.says("1 value missing (1 in 'town')"));
  const Read mixed = all_of("doors,class\n2,0\n3,1\n5more,0\n2,1\n");
  EXPECT_EQ(mixed.schema.columns[0].categories, (Names{"2", "3", "5more"}));
}

TEST_F(Csv, IdsAndSentencesAreLeftOut) {
  std::string text = "name,size,class\n";
  for (int i = 0; i < 60; i++) text += fmt::format("\"Doe, {}\",{},{}\n", i, i % 7, i % 2);
  const Read set = all_of(text);
  EXPECT_EQ(set.train.shape, (std::vector<int64_t>{1}));
  EXPECT_TRUE(set.says("column 1 ('name') is left out: 60 different texts in 60 rows"));
  EXPECT_EQ(set.schema.columns[0].kind, data::Column::Kind::unused);
  expect_bad<InvalidArgument>(text, {"60 different texts in 60 rows: no classes", "--label", "name, size, class"},
                              {.label = "name"});
  std::string many = "size,city\n";
  for (int i = 0; i < 3000; i++) many += fmt::format("{},c{}\n", i % 7, i % 1200);
  expect_bad<InvalidArgument>(many, {"more than 1000 different texts in 3000 rows"});
}

TEST_F(Csv, RowNumbersAreLeftOut) {
  std::string text = ",size,class\n", other = "year,size,class\n";
  for (int i = 0; i < 12; i++)
    text += fmt::format("\"{}\",{},{}\n", i + 1, i % 5, i % 2), other += fmt::format("{},{},{}\n", i + 1, i % 5, i % 2);
  EXPECT_EQ(all_of(text).train.shape, (std::vector<int64_t>{1}));
  EXPECT_TRUE(all_of(text).says("column 1 ('') numbers the rows and is left out"));
  EXPECT_EQ(read(other).shape, (std::vector<int64_t>{2}));
  text.replace(text.find("\"7\""), 3, "\"8\"");
  EXPECT_EQ(read(text).shape, (std::vector<int64_t>{2}));
}

TEST_F(Csv, MissingValues) {
  const Read set = all_of("a,b,class\n1,10,0\nNA,20,1\n3,,0\n,nan,1\n5,60,?\n");
  EXPECT_EQ(set.train.count, 4u);
  EXPECT_EQ(set.train.inputs, (Doubles{1, 10, 2, 20, 3, 15, 2, 15}));
  EXPECT_TRUE(set.says("4 values missing (2 in 'a', 2 in 'b'): numbers take the mean of the training rows"));
  EXPECT_TRUE(set.says("1 row without a label left out"));
}

TEST_F(Csv, NormalisedByTheTrainingRows) {
  std::string text = "a,b,c,y\n";
  std::mt19937 random(3);
  for (int i = 0; i < 200; i++)
    text += fmt::format("{:.3f},{},5,{}\n", static_cast<double>(random() % 1000),
                        i % 17 == 0 ? "NA" : fmt::format("{}", random() % 100), (i % 40) * 2.5 + 0.25);
  const Read raw = understand(text, {.normalize = false}), set = understand(text, {});
  EXPECT_EQ(set.train.count, 160u);
  EXPECT_EQ(set.test.count, 40u);
  for (size_t c = 0; c < 3; c++) {  // by the formulas, from the values as they stand in the file
    double sum = 0, squares = 0;
    for (size_t i = 0; i < 160; i++) sum += raw.train.inputs[3 * i + c];
    EXPECT_NEAR(sum / 160, set.schema.columns[c].mean,
                c == 1 ? 1e-5 : 1e-9);  // c == 1: missing ones are floats of the mean
    for (size_t i = 0; i < 160; i++) squares += std::pow(set.train.inputs[3 * i + c], 2);
    if (c != 1) {
      EXPECT_NEAR(squares / 160, c == 0 ? 1 : 0, 1e-6);  // the third one is always the same
    }
    for (size_t i = 0; i < 40; i++) {
      const data::Column& column = set.schema.columns[c];
      EXPECT_NEAR(set.test.inputs[3 * i + c], (raw.test.inputs[3 * i + c] - column.mean) / column.deviation, 1e-5);
    }
  }
  double sum = 0;
  for (size_t i = 0; i < 160; i++) sum += raw.train.targets[i];
  EXPECT_NEAR(set.schema.mean, sum / 160, 1e-9);
  for (size_t i = 0; i < 40; i++)
    EXPECT_NEAR(set.test.targets[i] * set.schema.deviation + set.schema.mean, raw.test.targets[i], 1e-4);
  EXPECT_EQ(raw.schema.mean, 0);
  EXPECT_EQ(raw.schema.deviation, 1);
}

TEST_F(Csv, TheSchemaEncodesRowsAsTheReaderDid) {
  std::string text = "a,town,id,y\n";
  for (int i = 0; i < 100; i++)
    text += fmt::format("{},{},text{},{}\n", i % 9 == 0 ? "NA" : fmt::format("{:.2f}", i * 1.37),
                        i % 5 == 0   ? ""
                        : i % 2 == 0 ? "\"Bern, CH\""
                                     : "Z\xfcrich",
                        i, i % 3);
  const Read set = understand(text, {.test = 0});
  const data::Schema schema = data::schema_from_json(data::to_json(set.schema));
  EXPECT_EQ(schema, set.schema);
  data::RecordReader reader(text, ',', folder.path(), 1);
  std::vector<data::Cell> cells;
  reader.next(cells);  // the header
  for (size_t row = 0; reader.next(cells); row++) {
    const std::vector<std::string_view> texts = {cells[0].text, cells[1].text, cells[2].text};
    const Floats encoded = schema.encode(texts);
    for (size_t i = 0; i < encoded.size(); i++)
      EXPECT_EQ(encoded[i], set.train.inputs[row * encoded.size() + i]) << row;
  }
}

TEST_F(Csv, SomeRowsAreForTesting) {
  std::string text = "a,class\n";
  for (int i = 0; i < 150; i++) text += fmt::format("{},{}\n", i * 10, i / 50);
  const Read set = understand(text, {.normalize = false});
  EXPECT_EQ(set.notes.back(), "classification, 3 classes (0, 1, 2), 1 feature; 120 training and 30 test rows");
  for (int64_t c : {0, 1, 2}) EXPECT_EQ(std::count(set.test.labels.begin(), set.test.labels.end(), c), 10) << c;
  Doubles all = set.train.inputs;
  all.insert(all.end(), set.test.inputs.begin(), set.test.inputs.end());
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < 150; i++) EXPECT_EQ(all[i], 10.0 * static_cast<double>(i));  // every row once
  EXPECT_EQ(understand(text, {.test = 0.5}).test.count, 75u);
  EXPECT_EQ(understand(text, {.test = 0}).test.count, 0u);
  EXPECT_NE(understand(text, {.seed = 2, .normalize = false}).test.inputs, set.test.inputs);
  EXPECT_EQ(understand("1,0\n2,1\n", {.test = 0.99}).train.count, 1u);
  for (double part : {-0.1, 1.0, std::nan("")})
    expect_refused<InvalidArgument>(
        2, [&](auto& group) { return data::open(group, folder.path("data.csv"), {.test = part}).train; },
        {"from 0 (none) to less than 1"});
}

TEST_F(Csv, OptionsForCsvAloneAreRefusedElsewhere) {
  const std::vector<std::pair<OpenOptions, const char*>> options = {
      {{.label = "x"}, "--label"}, {{.normalize = true}, "--normalize"}, {{.test = 0.2}, "--test"}};
  for (const auto& [given, name] : options)
    expect_refused<InvalidArgument>(2, [&](auto& group) { return data::open(group, "synthetic:10", given).train; },
                                    {name, "for CSV files", "synthetic:10"});
}

TEST_F(Csv, ManyLinesOfManyLengths) {
  std::string text = "a,b\n";
  Doubles inputs;
  for (int i = 0; i < 300; i++) {
    text += fmt::format("{}{},{}\n{}", std::string(static_cast<size_t>(i * 7 % 23), ' '), i * i, i % 3,
                        i % 11 == 0 ? "\n" : "");
    inputs.push_back(i * i);
  }
  EXPECT_EQ(read(text).inputs, inputs);
}

TEST_F(Csv, QuotedLinesAcrossShares) {
  std::string text = "note,b,class\n";
  for (int i = 0; i < 60; i++)
    text +=
        fmt::format("\"{}\n,\"\"{}\n\",{},{}\n", std::string(static_cast<size_t>(i * 13 % 31), '\n'), i % 4, i, i % 3);
  const Read set = all_of(text);
  EXPECT_EQ(set.train.count, 60u);
  EXPECT_EQ(set.train.labels[59], 59 % 3);
}

TEST_F(Csv, SharesOfBytesWithoutALineStart) {  // one line as long as all the others together
  const std::string wide(400, ' ');
  EXPECT_EQ(read("1,0\n" + wide + "2,1\n3,2\n").inputs, (Doubles{1, 2, 3}));
  EXPECT_EQ(read(wide + "1,0\n2,1").inputs, (Doubles{1, 2}));
  EXPECT_EQ(read("1,0\n2,1\n3," + wide + "2").inputs, (Doubles{1, 2, 3}));
}

TEST_F(Csv, SmallAndLargeNumbers) {
  const Content set = read("1e-60,0\n1e38,1\n-1e-42,0\n");
  EXPECT_EQ(set.inputs[0], 0);
  EXPECT_EQ(set.inputs[1], 1e38f);
  EXPECT_EQ(set.inputs[2], -1e-42f);
}

// ---- what is refused ----

TEST_F(Csv, ABadCellIsFoundWhereverItIs) {
  constexpr int kLines = 13;
  for (int bad = 2; bad <= kLines; bad++)
    for (int column : {1, 2, 3}) {
      std::string text = "a,b,c\n";
      for (int line = 2; line <= kLines; line++)
        for (int c : {1, 2, 3})
          text += (line == bad && c == column ? "x7"
                   : c == 3                   ? std::to_string(line % 2)
                                              : "1") +
                  std::string(c == 3 ? "\n" : ",");
      expect_bad(text, {fmt::format("line {}, column {} ('{}'): 'x7' is not a number, but 11 cells of the column are",
                                    bad, column, std::string(1, static_cast<char>('a' + column - 1)))});
    }
}

TEST_F(Csv, LineNumbersCountBlankLinesHeadersAndQuotedLines) {
  std::string rows;
  for (int i = 0; i < 20; i++) rows += fmt::format("1,{}\n", i % 2);
  expect_bad("\n\na,b\n" + rows + "\n\r\n2,oops\n", {"line 26, column 2 ('b'): 'oops'"});
  expect_bad(rows + "\n2,oops\n", {"line 22, column 2 ('1'): 'oops'"});
  expect_bad("# x\n\"a\n\n\",b\n" + rows + "\"1\n\",0\n2,oops\n", {"line 27, column 2 ('b'): 'oops'"});
}

TEST_F(Csv, WhatIsNoNumber) {
  std::string rows;
  for (int i = 0; i < 20; i++) rows += fmt::format("{},{}\n", i % 7, i % 2);
  for (const char* cell : {"inf", "1e999", "1.2.3", "0x10", "1 2", "--1"})
    expect_bad("a,b\n" + rows + cell + ",0\n",
               {"line 22, column 1", fmt::format("'{}' is not a number", cell), "A missing value is empty"});
}

TEST_F(Csv, DecimalCommas) {
  expect_bad<InvalidArgument>("a;b;class\n1,5;2;0\n2,25;3;1\n",
                              {"column 1 ('a'): '", "has a comma where a point belongs", "1.5"});
  expect_bad<InvalidArgument>("a,b,class\n\"1,500\",2,0\n\"2,250\",3,1\n", {"column 1 ('a'): '", "thousands"});
}

TEST_F(Csv, WrongNumberOfCells) {
  expect_bad("a,b,c\n1,2,3\n1,2\n", {"line 3", "2 cells", "the header has 3"});
  expect_bad("a,b,c\n1,2,3\n1,2,3,4\n1,2,3\n", {"line 3", "4 cells", "the header has 3"});
  expect_bad("1,2,3\n1,2,3\n1\n1,2,3\n", {"line 3", "1 cell,", "the first row has 3"});
}

TEST_F(Csv, OneColumn) { expect_bad("a\n1\n2\n", {"at least one feature and a label"}); }

TEST_F(Csv, OneClass) {
  expect_bad<InvalidArgument>("a,b\n1,7\n2,7\n",
                              {"column 2 ('b') is the label, but it has the same value in all rows"});
  expect_bad<InvalidArgument>("label,a\n1,x\n2,x\n", {"the same value", "perhaps --label label"});
  expect_bad<InvalidArgument>("a,b,c\n1,,3\n2,,3\n", {"column 2 ('b') is the label, but it is empty"}, {.label = "b"});
}

TEST_F(Csv, NothingInIt) {
  expect_bad("", {"is empty"});
  expect_bad("\n\n \r\n", {"is empty"});
  expect_bad("a,b\n", {"header but no rows"});
  expect_bad("a,b", {"header but no rows"});
  expect_bad("a,b\n\n\n", {"header but no rows"});
}

TEST_F(Csv, MissingFile) {
  expect_refused<IoError>(2, [&](auto& group) { return data::open(group, folder.path("no.csv")).train; },
                          {folder.path("no.csv"), "no file or folder"});
}

/// Files of bytes by chance: the same result or an error of ours, whatever the number of ranks; never a crash or a
/// hang.
TEST_F(Csv, AnyBytes) {
  std::mt19937 random(7);
  const std::vector<std::string> words = {",",  ",",    ",",  ";",   "\n",   "\n",           "\n", "\r\n",
                                          "\"", "\"\"", "1",  "2.5", "-3e2", "+4",           "a",  "Z\xfc",
                                          "NA", "#",    "\t", " ",   "|",    "\xef\xbb\xbf", "0"};
  int understood = 0;
  for (int i = 0; i < 400; i++) {
    std::string text;
    if (i % 2 == 0) {  // a sound table with a few faults
      for (int row = 0; row < 12; row++)
        text += fmt::format("{},{},{}\n", random() % 9, random() % 3 == 0 ? "x" : "\"y\nz\"", random() % 3);
      for (unsigned faults = random() % 3; faults > 0; faults--)
        text.insert(random() % text.size(), words[random() % words.size()]);
    } else {
      for (unsigned length = random() % 60; length > 0; length--) text += words[random() % words.size()];
    }
    const std::string path = folder.write("any.csv", text);
    std::optional<Content> first;
    for (int ranks : {1, 3}) {
      std::vector<Content> contents(static_cast<size_t>(ranks));
      bool failed = false;
      const auto copy = [&](comm::shm::Communicator& group) {
        contents[static_cast<size_t>(group.rank())] = content_of(data::open(group, path).train);
        group.barrier("read");
      };
      for (const std::exception_ptr& error : run_ranks(ranks, copy)) {
        failed = failed || error;
        try {
          if (error) std::rethrow_exception(error);
        } catch (const Error&) {
        } catch (const std::exception& other) {
          ADD_FAILURE() << "no error of ours: " << other.what() << "\nin: " << text;
        }
      }
      if (ranks == 1 && !failed) first = contents[0], understood++;
      if (ranks == 1) continue;
      EXPECT_EQ(failed, !first.has_value()) << text;
      EXPECT_TRUE(failed || !first || contents[0] == *first) << text;
    }
  }
  EXPECT_GT(understood, 50);
}

// ---- train.csv and test.csv, through open() ----

TEST_F(Csv, FolderWithATestSet) {
  folder.write("train.csv", "a,b\n1,0\n2,1\n");
  folder.write("test.csv", "a,b\n1,2\n");
  const Read set = open(folder.path(), {});
  EXPECT_EQ(set.train.count, 2u);
  EXPECT_EQ(set.test.count, 1u);
  EXPECT_EQ(set.train.classes, 3);
  EXPECT_EQ(set.test.classes, 3);
  EXPECT_EQ(set.test.labels, (Labels{2}));
  EXPECT_EQ(set.train.inputs, (Doubles{-1, 1}));  // by the mean and deviation of train.csv alone
  EXPECT_EQ(set.test.inputs, (Doubles{-1}));
  expect_refused<InvalidArgument>(2, [&](auto& group) { return data::open(group, folder.path(), {.test = 0.5}).train; },
                                  {"test.csv", "--test"});
}

TEST_F(Csv, FolderWithoutATestSet) {
  folder.write("train.csv.gz", zipped("a,b\n1,0\n2,1\n3,0\n4,1\n5,0\n"));
  EXPECT_EQ(open(folder.path(), {}).test.count, 1u);
}

TEST_F(Csv, BothPartsHaveOneTask) {  // whole numbers in one of them are a coincidence
  for (const auto& [train, test] : {std::pair{"0", "0.5"}, {"0.5", "0"}}) {
    folder.write("train.csv", fmt::format("a,b\n1,{}\n2,1\n", train));
    folder.write("test.csv", fmt::format("a,b\n1,{}\n", test));
    const Read set = open(folder.path(), {});
    EXPECT_EQ(set.train.task, Task::regress);
    EXPECT_EQ(set.test.task, Task::regress);
  }
}

TEST_F(Csv, BothPartsHaveTheSameCategories) {
  folder.write("train.csv", "town,b\nBern,yes\nOslo,no\n");
  folder.write("test.csv", "town,b\nOslo,no\nRome,yes\n");
  const Read set = open(folder.path(), {});
  EXPECT_EQ(set.train.inputs, (Doubles{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(set.test.inputs, (Doubles{0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(set.test.labels, (Labels{0, 1}));
}

TEST_F(Csv, PartsThatDoNotFit) {
  const auto expect_refusal = [&](const std::string& test, std::vector<std::string> parts) {
    folder.write("train.csv", "a,b\n1,0\n2,1\n");
    folder.write("test.csv", test);
    parts.push_back(folder.path("test.csv"));
    expect_refused<InvalidArgument>(
        2, [&](auto& group) { return data::open(group, folder.path()).train; }, parts);
  };
  expect_refusal("a,x,b\n1,2,4\n", {"3 columns"});
  expect_refusal("a,c\n1,2\n", {"no column 'b'", "a test needs labels too"});
  expect_refusal("c,b\n1,2\n", {"column 1", "'c'", "'a'", "the same columns"});
}

}  // namespace
}  // namespace trireme::tests
