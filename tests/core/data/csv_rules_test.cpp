// label: unit
// The rules by which CSV files are understood, one by one and without ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include <trireme/base/error.h>
#include <trireme/data/columns.h>
#include <trireme/data/preamble.h>
#include <trireme/data/records.h>

namespace trireme::tests {
namespace {

using data::CellKind;
using data::Task;
using Row = std::vector<std::string>;
using Names = std::vector<std::string>;

std::vector<Row> rows_of(const std::string& text, char delimiter = ',') {
  std::vector<Row> rows;
  std::vector<data::Cell> cells;
  const std::string path = "a.csv";
  data::RecordReader reader(text, delimiter, path, 1);
  while (reader.next(cells)) {
    rows.emplace_back();
    for (const data::Cell& cell : cells) rows.back().emplace_back(cell.text);
  }
  return rows;
}

std::string broken(const std::string& text) {
  try {
    rows_of(text);
  } catch (const Corruption& error) {
    return error.what();
  }
  return "";
}

// ---- cells ----

TEST(Records, QuotesHideDelimitersLinesAndQuotes) {
  EXPECT_EQ(rows_of("a,\"b,c\",d\n"), (std::vector<Row>{{"a", "b,c", "d"}}));
  EXPECT_EQ(rows_of("\"two\nlines\",1\n3,4\n"), (std::vector<Row>{{"two\nlines", "1"}, {"3", "4"}}));
  EXPECT_EQ(rows_of("\"she said \"\"no\"\"\",1\n"), (std::vector<Row>{{"she said \"no\"", "1"}}));
  EXPECT_EQ(rows_of("\"\",\"\"\"\"\n"), (std::vector<Row>{{"", "\""}}));
  EXPECT_EQ(rows_of("\"a;b\";c", ';'), (std::vector<Row>{{"a;b", "c"}}));
}

TEST(Records, SpacesLinesAndTheEnd) {
  EXPECT_EQ(rows_of(" a ,\tb\t, \"c\" \r\n\r\n  \n1,2,3"), (std::vector<Row>{{"a", "b", "c"}, {"1", "2", "3"}}));
  EXPECT_EQ(rows_of("a,,\n,,b\n"), (std::vector<Row>{{"a", "", ""}, {"", "", "b"}}));
  EXPECT_EQ(rows_of("a\t\tb\n", '\t'), (std::vector<Row>{{"a", "", "b"}}));
  EXPECT_EQ(rows_of("  1   2\t3 \n4 5 6", ' '), (std::vector<Row>{{"1", "2", "3"}, {"4", "5", "6"}}));
  EXPECT_EQ(rows_of(""), (std::vector<Row>{}));
}

TEST(Records, CommentsAreLeftOut) {
  EXPECT_EQ(rows_of("# one\n1,2\n#\n3,#4\n# end"), (std::vector<Row>{{"1", "2"}, {"3", "#4"}}));
  EXPECT_EQ(rows_of("\"#1\",2\n"), (std::vector<Row>{{"#1", "2"}}));
}

TEST(Records, BrokenQuotesAreNamed) {
  EXPECT_NE(broken("1,2\n3,5\" pipe\n").find("a.csv, line 2: a quote in the middle of a cell"), std::string::npos);
  EXPECT_NE(broken("1,2\n\n\"a\"b,3\n").find("a.csv, line 3: text behind a closing quote"), std::string::npos);
  EXPECT_NE(broken("1,2\n3,\"4\n5,6\n").find("a.csv, line 2: a quote that is never closed"), std::string::npos);
  EXPECT_NE(broken("1,2\n# it's 5\"\n").find("a.csv, line 2: a comment with an odd number of quotes"),
            std::string::npos);
}

TEST(Records, NumbersAsFromChars) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; i++) {
    const int digits = static_cast<int>(random() % 18) + 1, point = static_cast<int>(random() % 19);
    std::string text = random() % 2 == 0 ? "-" : random() % 2 == 0 ? "+" : "";
    for (int d = 0; d < digits; d++)
      text += (d == point ? "." : "") + std::string(1, static_cast<char>('0' + random() % 10));
    if (random() % 8 == 0) text += fmt::format("e{}", static_cast<int>(random() % 40) - 20);
    std::vector<data::Cell> cells;
    const std::string path, row = text + ",1";
    ASSERT_TRUE(data::RecordReader(row, ',', path, 1).next(cells));
    double ours = 0;
    ASSERT_EQ(data::read_cell(cells[0], ours), CellKind::number) << text;
    EXPECT_EQ(ours, std::stod(text)) << text;
  }
}

TEST(Records, NumbersMissingAndTexts) {
  double value = 0;
  for (const auto& [text, expected] :
       {std::pair{"+1.5", 1.5}, {"1e-3", 1e-3}, {"-.5", -0.5}, {"5.", 5.}, {"1e-400", 0.}, {"-0", 0.}}) {
    EXPECT_EQ(data::read_cell(text, value), CellKind::number) << text;
    EXPECT_EQ(value, expected) << text;
  }
  for (const char* text : {"", "?", "NA", "n/a", "NaN", "nan", "NULL", "null"})
    EXPECT_EQ(data::read_cell(text, value), CellKind::missing) << text;
  for (const char* text : {"inf", "-inf", "1e999", "1e39", "1.2.3", "0x10", "1 2", "--1", "+-1", "+", "-", ".", "1,5",
                           "none", "nanx", "ab"})
    EXPECT_EQ(data::read_cell(text, value), CellKind::text) << text;
  EXPECT_TRUE(data::has_decimal_comma("1,5"));
  EXPECT_TRUE(data::has_decimal_comma("-1,5e3"));
  for (const char* text : {"1.5", "a,b", "1,5,6", ",", "1,b"}) EXPECT_FALSE(data::has_decimal_comma(text)) << text;
}

TEST(Records, OtherEncodings) {
  EXPECT_EQ(data::as_utf8("Zürich €"), "Zürich €");
  EXPECT_EQ(data::as_utf8("Z\xfcrich"), "Zürich");
  for (const char* bad : {"\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\x80"}) {
    EXPECT_FALSE(data::is_utf8(bad));
    EXPECT_TRUE(data::is_utf8(data::as_utf8(bad)));
  }
}

// ---- the beginning of a file ----

data::Preamble preamble(const std::string& text) { return data::read_preamble(text, true, "a.csv"); }
std::string rest(const std::string& text) { return text.substr(preamble(text).begin); }
bool remarked(const data::Preamble& found, const std::string& part) {
  return std::any_of(found.remarks.begin(), found.remarks.end(),
                     [&](const auto& remark) { return remark.find(part) != std::string::npos; });
}

TEST(Preamble, FindsTheDelimiter) {
  for (const char delimiter : {',', ';', '\t', '|', ' '}) {
    std::string text = "size,price,kind\n1.5,2,0\n3,4,1\n5,6,0\n";
    std::replace(text.begin(), text.end(), ',', delimiter);
    const data::Preamble found = preamble(text);
    EXPECT_EQ(found.delimiter, delimiter);
    EXPECT_EQ(found.names, (Names{"size", "price", "kind"})) << delimiter;
    EXPECT_EQ(remarked(found, "separated by"), delimiter != ',');
  }
  EXPECT_EQ(preamble("a;b\n\"1,2,3\";4\n\"5,6,7\";8\n").delimiter, ';');  // commas in quotes
  EXPECT_EQ(preamble("name,b\nx;y z,1\nu;v w,2\n").delimiter, ',');       // others in texts
  EXPECT_EQ(preamble("id,genres,c\n1,a|b,2\n2,a|b|c,3\n").delimiter, ',');
  EXPECT_EQ(preamble("a;b\n1,5;2,5\n3,5;4,5\n").delimiter, ';');  // decimal commas
  EXPECT_EQ(preamble("a,b\n1,2\n1,2,3\n1,2\n").delimiter, ',');   // a broken row
}

TEST(Preamble, HeaderOrNot) {
  for (const char* text : {"a,b\n1,2\n", "x,1,0\n7,8,9\n3,4,5\n", "class,shape\np,x\ne,y\np,y\n", "a,b\n",
                           "a,\"b\nc\"\n1,2\n", "a,b\n1,NA\n", "2019,b\n1,2\n"})
    EXPECT_TRUE(preamble(text).header) << text;
  for (const char* text : {"1,2\n3,4\n", "5.1,3.5,setosa\n4.9,3.0,setosa\n", "vhigh,2,unacc\nlow,more,acc\n",
                           "p,x\ne,y\np,y\n", "?,1\n2,3\n"})
    EXPECT_FALSE(preamble(text).header) << text;
  EXPECT_EQ(rest("a,\"b\nc\"\n1,2\n"), "1,2\n");
  EXPECT_EQ(preamble("a,\"b\nc\"\n1,2\n").lines, 2u);
  EXPECT_EQ(preamble("1,2,3\n").names, (Names{"0", "1", "2"}));
}

TEST(Preamble, CommentsBeforeTheHeader) {
  const std::string text = "# from somewhere\n# \"quoted\n\na,b\n1,2\n";
  EXPECT_EQ(preamble(text).names, (Names{"a", "b"}));
  EXPECT_EQ(rest(text), "1,2\n");
  EXPECT_EQ(preamble(text).lines, 4u);
  EXPECT_TRUE(remarked(preamble(text), "2 comment lines at the beginning skipped"));
  EXPECT_EQ(preamble("# size, price\n1,2\n3,4\n").names, (Names{"size", "price"}));  // as numpy.savetxt writes it
  EXPECT_EQ(rest("# size, price\n1,2\n3,4\n"), "1,2\n3,4\n");
}

TEST(Preamble, CountLines) {
  const data::Preamble named = preamble("3,2,setosa,virginica\n1,2,0\n3,4,1\n5,6,1\n");
  EXPECT_EQ(named.classes, (Names{"setosa", "virginica"}));
  EXPECT_EQ(named.rows, 3u);
  EXPECT_EQ(named.names, (Names{"0", "1", "2"}));
  EXPECT_EQ(named.lines, 1u);
  EXPECT_TRUE(remarked(named, "line 1 ('3,2,setosa,virginica')"));
  const data::Preamble bare = preamble("2,2,\n\"A\",\"B\",\"C\"\n1,2,0.5\n3,4,1\n");
  EXPECT_EQ(bare.names, (Names{"A", "B", "C"}));
  EXPECT_EQ(bare.rows, 2u);
  EXPECT_EQ(preamble("5,2,\n1,2,0\n3,4,1\n").rows,
            std::nullopt);  // a row whose label is missing: there are not 5 others
  EXPECT_EQ(preamble("150,4,x\n1,2,y\n3,4,z\n").rows, std::nullopt);
}

TEST(Preamble, HeadersOfAnotherWidth) {
  EXPECT_EQ(preamble("a,b,\n1,2\n3,4\n").names, (Names{"a", "b"}));
  EXPECT_EQ(preamble("a,b\n1,2,\n3,4,\n").names, (Names{"a", "b", ""}));      // rows end with a delimiter
  EXPECT_EQ(preamble("a,b\nr1,1,2\nr2,3,4\n").names, (Names{"", "a", "b"}));  // names of rows, as R writes them
  EXPECT_THROW(preamble("a,b,c,d\n1,2\n3,4\n"), Corruption);
}

TEST(Preamble, WhatIsNoCsv) {
  const auto said = [](const std::string& text) {
    try {
      preamble(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(said("").find("a.csv is empty"), std::string::npos);
  EXPECT_NE(said("\xef\xbb\xbf\n\n \r\n").find("is empty"), std::string::npos);
  EXPECT_NE(said("# a\n# b\n").find("all lines begin with #"), std::string::npos);
  EXPECT_NE(said("a\n1\n2\n").find("at least one feature and a label"), std::string::npos);
  EXPECT_NE(said(std::string("\xff\xfe"
                             "a\0,\0b\0",
                             8))
                .find("UTF-16"),
            std::string::npos);
  EXPECT_NE(said("PK\x03\x04zip").find("zip file"), std::string::npos);
  EXPECT_NE(said(std::string("a,b\n1,\0\n", 8)).find("bytes of 0"), std::string::npos);
  EXPECT_NE(said("a,b\r1,2\r3,4").find("end with \\r alone"), std::string::npos);
}

TEST(Preamble, OfALongText) {  // what is seen of a row that goes on does not count
  const data::Preamble found = data::read_preamble("a,b\n1,2\n3,4\n5", false, "a.csv");
  EXPECT_EQ(found.names, (Names{"a", "b"}));
}

// ---- columns ----

TEST(Columns, Kinds) {
  using data::ColumnKind;
  EXPECT_EQ(data::kind_of({.missing = 7}), ColumnKind::empty);
  EXPECT_EQ(data::kind_of({.numbers = 5, .missing = 9}), ColumnKind::numbers);
  EXPECT_EQ(data::kind_of({.numbers = 11, .texts = 1}), ColumnKind::numbers_with_errors);
  EXPECT_EQ(data::kind_of({.numbers = 75, .texts = 25}), ColumnKind::texts);  // 2, 3, 4, 5more
  EXPECT_EQ(data::kind_of({.texts = 3}), ColumnKind::texts);
  EXPECT_EQ(data::kind_of({.numbers = 1, .texts = 4, .commas = 4}), ColumnKind::decimal_commas);
}

TEST(Columns, TooMany) {
  EXPECT_FALSE(data::too_many(20, 100, 20));
  EXPECT_TRUE(data::too_many(21, 100, 40));
  EXPECT_FALSE(data::too_many(100, 100, 1000));
  EXPECT_TRUE(data::too_many(101, 100, 100000));
}

TEST(Columns, ClassesOrNumbers) {
  const auto task = [](size_t rows, std::vector<double> values) {
    return data::choose_task({.rows = rows, .whole = true, .values = std::move(values)}, "y", std::nullopt).task;
  };
  const auto numbered = [](int from, int count) {
    std::vector<double> values;
    for (int i = 0; i < count; i++) values.push_back(from + i);
    return values;
  };
  EXPECT_EQ(task(3, {0, 1, 2}), Task::classify);
  EXPECT_EQ(task(1797, numbered(0, 10)), Task::classify);
  EXPECT_EQ(task(150, numbered(1, 3)), Task::classify);
  EXPECT_EQ(task(600, numbered(0, 62)), Task::regress);
  EXPECT_EQ(task(6200, numbered(0, 62)), Task::classify);
  EXPECT_EQ(task(1000000, numbered(0, 101)), Task::regress);
  EXPECT_EQ(task(4898, {3, 4, 5, 6, 7, 8, 9}), Task::classify);  // quality of wine
  EXPECT_EQ(task(20, {46, 50, 52, 54, 56, 58, 60, 62, 64, 68, 74}), Task::regress);
  EXPECT_EQ(task(100, {-1, 1}), Task::classify);
  EXPECT_EQ(task(48842, numbered(17, 74)), Task::regress);  // ages
  EXPECT_EQ(data::choose_task({.rows = 9, .whole = false, .values = {0.5, 1}}, "y", std::nullopt).task, Task::regress);
  EXPECT_EQ(data::choose_task({.rows = 3, .whole = true, .values = {0, 1}}, "y", Task::regress).task, Task::regress);
  EXPECT_NE(
      data::choose_task({.rows = 30, .whole = true, .values = {0, 9}}, "y", std::nullopt).reason.find("--loss mse"),
      std::string::npos);
  EXPECT_NE(data::choose_task({.rows = 3, .whole = true, .values = {0, 9}}, "y", std::nullopt)
                .reason.find("--loss cross-entropy"),
            std::string::npos);
}

TEST(Columns, TestsAreSpreadOverClasses) {
  std::vector<int32_t> classes;
  for (int c = 0; c < 3; c++) classes.insert(classes.end(), static_cast<size_t>(50 + 20 * c), c);
  const auto tests = data::choose_tests(classes, 42, 1);
  std::vector<int> of_class(3);
  for (size_t i = 0; i < tests.size(); i++) of_class[static_cast<size_t>(classes[i])] += tests[i] ? 1 : 0;
  EXPECT_EQ(of_class[0] + of_class[1] + of_class[2], 42);
  for (int c = 0; c < 3; c++) EXPECT_NEAR(of_class[static_cast<size_t>(c)], (50 + 20 * c) * 0.2, 1) << c;
  EXPECT_EQ(tests, data::choose_tests(classes, 42, 1));
  EXPECT_NE(tests, data::choose_tests(classes, 42, 2));
  for (size_t rows = 1; rows < 40; rows++)
    for (size_t wanted = 0; wanted < rows; wanted++) {
      const auto some = data::choose_tests(std::vector<int32_t>(rows, 0), wanted, 3);
      EXPECT_EQ(static_cast<size_t>(std::count(some.begin(), some.end(), true)), wanted) << rows;
    }
}

}  // namespace
}  // namespace trireme::tests
