// label: unit
#include <fmt/format.h>

#include "files.h"

namespace trireme::tests {
namespace {

using data::read_csv;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Labels = std::vector<int64_t>;

class Csv : public testing::Test {
 protected:
  /// The same content, whatever the number of ranks.
  Content read(const std::string& text, const std::string& label = "") {
    const std::string path = folder.write("data.csv", text);
    const Content one = read_by(1, [&](auto& group) { return read_csv(group, path, label); });
    for (int ranks : {2, 3, 4, 7}) EXPECT_EQ(read_by(ranks, [&](auto& group) { return read_csv(group, path, label); }), one) << ranks << " ranks";
    return one;
  }

  template <class E = Corruption>
  void expect_bad(const std::string& text, std::vector<std::string> parts, const std::string& label = "") {
    const std::string path = folder.write("data.csv", text);
    parts.push_back(path);
    for (int ranks : {1, 2, 3, 4})
      expect_refused<E>(
          ranks, [&](auto& group) { return read_csv(group, path, label); }, parts);
  }

  Folder folder;
};

TEST_F(Csv, WithHeader) {
  const Content set = read("a,b,class\n1,2,0\n3,4.5,2\n-5e-1,6,1\n");
  EXPECT_EQ(set.count, 3u);
  EXPECT_EQ(set.shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(set.inputs, (Doubles{1, 2, 3, 4.5, -0.5, 6}));
  EXPECT_EQ(set.labels, (Labels{0, 2, 1}));
  EXPECT_EQ(set.task, data::Task::classify);
  EXPECT_EQ(set.classes, 3);
}

TEST_F(Csv, WithoutHeader) {
  const Content set = read("1,2,0\n3,4,1\n");
  EXPECT_EQ(set.count, 2u);
  EXPECT_EQ(set.inputs, (Doubles{1, 2, 3, 4}));
}

TEST_F(Csv, AllTheSameWithWindowsLinesBlankLinesAndNoNewlineAtTheEnd) {
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
}

TEST_F(Csv, AMarkOfUnicodeMakesNoHeader) {
  EXPECT_EQ(read("\xef\xbb\xbf"
                 "1,2,0\n3,4,1\n")
                .count,
            2u);
}

TEST_F(Csv, LabelByNameAndByNumber) {
  const std::string text = "price,rooms,size\n1.5,2,3\n4.5,5,6\n";
  EXPECT_EQ(read(text, "price").targets, (Floats{1.5, 4.5}));
  EXPECT_EQ(read(text, "price").inputs, (Doubles{2, 3, 5, 6}));
  EXPECT_EQ(read(text, "rooms").labels, (Labels{2, 5}));
  EXPECT_EQ(read(text, "rooms"), read(text, "1"));
  EXPECT_EQ(read(text), read(text, "size"));
  EXPECT_EQ(read("1,2,3\n4,5,6\n", "0").labels, (Labels{1, 4}));
}

TEST_F(Csv, ANameThatIsANumberIsAName) { EXPECT_EQ(read("x,1,0\n7,8,9\n", "0").labels, (Labels{9})); }

TEST_F(Csv, UnknownLabelGivesTheNearest) {
  expect_bad<InvalidArgument>("price,rooms,size\n1,2,3\n", {"no column 'prise'", "did you mean 'price'?", "price, rooms, size"}, "prise");
  expect_bad<InvalidArgument>("1,2,3\n", {"no column '3'", "0, 1, 2"}, "3");
}

TEST_F(Csv, WholeNumbersAreClassesOthersAreNot) {
  EXPECT_EQ(read("1,0\n2,1\n3,9999\n").task, data::Task::classify);
  EXPECT_EQ(read("1,0\n2,1\n3,9999\n").classes, 10000);
  EXPECT_EQ(read("1,0\n2,0\n").classes, 2);
  for (const char* label : {"0.5", "-1", "10000"}) {
    const Content set = read(fmt::format("1,0\n2,1\n3,2\n4,{}\n", label));
    EXPECT_EQ(set.task, data::Task::regress) << label;
    EXPECT_EQ(set.targets[3], std::stof(label));
  }
}

TEST_F(Csv, ManyLinesOfManyLengths) {
  std::string text = "a,b\n";
  Doubles inputs;
  for (int i = 0; i < 300; i++) {
    text += fmt::format("{}{},{}\n{}", std::string(static_cast<size_t>(i * 7 % 23), ' '), i * i, i % 3, i % 11 == 0 ? "\n" : "");
    inputs.push_back(i * i);
  }
  EXPECT_EQ(read(text).inputs, inputs);
}

TEST_F(Csv, SharesOfBytesWithoutALineStart) {  // one line as long as all the others together
  const std::string wide(400, ' ');
  EXPECT_EQ(read("1,0\n" + wide + "2,1\n3,2\n").inputs, (Doubles{1, 2, 3}));
  EXPECT_EQ(read(wide + "1,0").inputs, (Doubles{1}));
  EXPECT_EQ(read("1,0\n2,1\n3," + wide + "2").inputs, (Doubles{1, 2, 3}));
}

TEST_F(Csv, SmallAndLargeNumbers) {
  const Content set = read("1e-60,0\n1e38,1\n-1e-42,0\n");
  EXPECT_EQ(set.inputs[0], 0);
  EXPECT_EQ(set.inputs[1], 1e38f);
  EXPECT_EQ(set.inputs[2], -1e-42f);
}

TEST_F(Csv, ABadCellIsFoundWhereverItIs) {
  constexpr int kLines = 12;
  for (int bad = 2; bad <= kLines; bad++)
    for (int column : {1, 2, 3}) {
      std::string text = "a,b,c\n";
      for (int line = 2; line <= kLines; line++)
        for (int c : {1, 2, 3}) text += (line == bad && c == column ? "x7" : "1") + std::string(c == 3 ? "\n" : ",");
      expect_bad(text, {fmt::format("line {}, column {} ('{}'): 'x7' is not a number", bad, column, std::string(1, static_cast<char>('a' + column - 1)))});
    }
}

TEST_F(Csv, LineNumbersCountBlankLinesAndHeaders) {
  expect_bad("\n\na,b\n1,0\n\n\r\n2,oops\n", {"line 7, column 2 ('b'): 'oops'"});
  expect_bad("1,0\n\n2,oops\n", {"line 3, column 2 ('1'): 'oops'"});
}

TEST_F(Csv, WhatIsNoNumber) {
  for (const char* cell : {"", "nan", "inf", "1e999", "1.2.3", "0x10", "1 2", "--1"})
    expect_bad(fmt::format("a,b\n1,0\n{},0\n", cell), {"line 3, column 1", fmt::format("'{}' is not a number", cell)});
}

TEST_F(Csv, WrongNumberOfCells) {
  expect_bad("a,b,c\n1,2,3\n1,2\n", {"line 3", "2 cells", "has 3"});
  expect_bad("a,b,c\n1,2,3\n1,2,3,4\n1,2,3\n", {"line 3", "4 cells", "has 3"});
}

TEST_F(Csv, OneColumn) { expect_bad("a\n1\n2\n", {"at least one feature and a label"}); }

TEST_F(Csv, NothingInIt) {
  expect_bad("", {"is empty"});
  expect_bad("\n\n \r\n", {"is empty"});
  expect_bad("a,b\n", {"header but no samples"});
  expect_bad("a,b", {"header but no samples"});
  expect_bad("a,b\n\n\n", {"header but no samples"});
}

TEST_F(Csv, MissingFile) {
  expect_refused<IoError>(2, [&](auto& group) { return read_csv(group, folder.path("no.csv"), ""); }, {folder.path("no.csv"), "No such file"});
}

// ---- train.csv and test.csv, through open() ----

TEST_F(Csv, FolderWithATestSet) {
  folder.write("train.csv", "a,b\n1,0\n2,1\n");
  folder.write("test.csv", "a,b\n1,4\n");
  expect_all_well(run_ranks(2, [&](comm::shm::Communicator& group) {
    const data::Splits splits = data::open(group, folder.path());
    EXPECT_EQ(splits.train.count, 2u);
    EXPECT_EQ(splits.test.count, 1u);
    EXPECT_EQ(splits.train.classes, 5);
    EXPECT_EQ(splits.test.classes, 5);
  }));
}

TEST_F(Csv, BothPartsHaveOneTask) {  // whole numbers in one of them are a coincidence
  for (const auto& [train, test] : {std::pair{"0", "0.5"}, {"0.5", "0"}}) {
    folder.write("train.csv", fmt::format("a,b\n1,{}\n2,1\n", train));
    folder.write("test.csv", fmt::format("a,b\n1,{}\n", test));
    expect_all_well(run_ranks(2, [&](comm::shm::Communicator& group) {
      const data::Splits splits = data::open(group, folder.path());
      EXPECT_EQ(splits.train.task, data::Task::regress);
      EXPECT_EQ(splits.test.task, data::Task::regress);
    }));
  }
}

TEST_F(Csv, PartsOfDifferentWidth) {
  folder.write("train.csv", "a,b\n1,0\n2,1\n");
  folder.write("test.csv", "a,b,c\n1,2,4\n");
  expect_refused<InvalidArgument>(2, [&](auto& group) { return data::open(group, folder.path()).train; }, {folder.path()});
}

}  // namespace
}  // namespace trireme::tests
