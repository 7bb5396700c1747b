// label: unit
// Rows for a trained model against what training made of the same rows, which csv_test checks by hand; and what a model
// says of itself, there and back.
#include <fmt/format.h>

#include <random>

#include <trireme/checkpoint/manifest.h>
#include <trireme/data/rows.h>
#include <trireme/models/about.h>

#include "files.h"

namespace trireme::tests {
namespace {

using Names = std::vector<std::string>;

/// Numbers, categories, missing cells and rows without a label.
std::string table(bool classes) {
  std::mt19937 random(7);
  std::string text = "size,soil,label,age\n";
  for (int i = 0; i < 90; i++) {
    const int kind = i % 3;
    const std::string label = i % 17 == 5 ? ""
                              : classes   ? std::string(1, static_cast<char>('a' + kind))
                                          : fmt::format("{}", i * 1.37);
    text += fmt::format("{},{},{},{}\n", i % 11 == 3 ? "NA" : fmt::format("{}", random() % 1000 / 7.0),
                        i % 13 == 2  ? ""
                        : i % 2 == 0 ? "clay"
                                     : "sand",
                        label, kind + i % 5);
  }
  return text;
}

struct Trained {
  Content train, test;
  data::Schema schema;
  data::Split split;
};

class RowsTest : public testing::Test {
 protected:
  Trained train_on(const std::string& path, const data::OpenOptions& options) {
    Trained trained;
    expect_all_well(run_ranks(1, [&](comm::shm::Communicator& group) {
      const data::Splits splits = data::open(group, path, options);
      trained = {content_of(splits.train), content_of(splits.test), *splits.schema, {}};
    }));
    trained.split = {std::filesystem::path(path).filename().string(), trained.train.count + trained.test.count,
                     trained.test.count, options.seed};
    return trained;
  }

  /// The samples of some rows, in their order.
  static Content chosen(const data::Rows& rows, const std::vector<uint32_t>& order, const data::Schema& schema) {
    const Content all = content_of(rows.view(schema));
    Content part{order.size(), all.shape, all.task, all.classes, {}, {}, {}};
    for (const uint32_t i : order) {
      const size_t width = schema.inputs();
      part.inputs.insert(part.inputs.end(), all.inputs.begin() + i * width, all.inputs.begin() + (i + 1) * width);
      if (!all.labels.empty()) part.labels.push_back(all.labels[i]);
      if (!all.targets.empty()) part.targets.push_back(all.targets[i]);
    }
    return part;
  }

  /// Bit by bit. Training has both labels and targets, of which one counts.
  static void expect_same(const Content& mine, Content theirs) {
    theirs.task == data::Task::classify ? theirs.targets.clear() : theirs.labels.clear();
    EXPECT_EQ(mine, theirs);
  }

  template <class E>
  void expect_bad(const std::string& text, const std::vector<std::string>& parts) {
    const std::string path = folder.write("bad.csv", text);
    try {
      data::read_rows(path, schema);
      FAIL() << text;
    } catch (...) {
      expect_error<E>(std::current_exception(), parts);
    }
  }

  Folder folder;
  data::Schema schema{
      .columns = {{.name = "size", .mean = 10, .deviation = 2}, {.name = "id", .kind = data::Column::Kind::unused}},
      .label = "kind",
      .label_column = 2,
      .classes = {"no", "yes"}};
};

TEST_F(RowsTest, AreWhatTrainingSaw) {
  for (const bool classes : {true, false})
    for (const bool normalize : {true, false}) {
      const std::string path = folder.write("t.csv", table(classes));
      const Trained trained = train_on(path, {.seed = 3, .label = "label", .normalize = normalize});
      const data::Rows rows = data::read_rows(path, trained.schema);
      EXPECT_EQ(rows.count, 90u);
      EXPECT_EQ(rows.with_label().size(), trained.split.rows);
      EXPECT_LT(trained.split.rows, 90u);
      EXPECT_GT(trained.test.count, 10u);
      EXPECT_TRUE(rows.is_of(trained.split));
      expect_same(chosen(rows, rows.part(trained.split, true), trained.schema), trained.test);
      expect_same(chosen(rows, rows.part(trained.split, false), trained.schema), trained.train);
    }
}

TEST_F(RowsTest, AreFoundByNameOrPlace) {
  const data::Rows rows = data::read_rows(folder.write("a.csv", "more,kind,size\nx,yes,12\ny,,8\nz,no,\n"), schema);
  EXPECT_EQ(rows.inputs, (std::vector<float>{1, -1, 0}));
  EXPECT_EQ(rows.labels, (std::vector<int64_t>{1, -1, 0}));
  EXPECT_EQ(rows.with_label(), (std::vector<uint32_t>{0, 2}));
  ASSERT_EQ(rows.notes.size(), 1u);
  EXPECT_NE(rows.notes[0].find("'more'"), std::string::npos);
  const data::Rows bare = data::read_rows(folder.write("b.csv", "12,7\n8,7\n"), schema);
  EXPECT_EQ(bare.inputs, (std::vector<float>{1, -1}));
  EXPECT_FALSE(bare.labelled);
  EXPECT_EQ(bare.view(schema).labels, nullptr);
  const data::Rows labelled = data::read_rows(folder.write("c.csv", "12,7,no\n8,7,yes\n"), schema);
  EXPECT_EQ(labelled.labels, (std::vector<int64_t>{0, 1}));
}

TEST_F(RowsTest, NamesOfNumbersAndOfACountLine) {
  schema.classes = {"1", "2"};
  EXPECT_EQ(data::read_rows(folder.write("a.csv", "size,kind\n1,2.0\n1,1\n"), schema).labels,
            (std::vector<int64_t>{1, 0}));
  schema.columns = {{.name = "0"}, {.name = "1"}};
  schema.classes = {"rose", "lily"};
  EXPECT_EQ(data::read_rows(folder.write("b.csv", "2,2,rose,lily\n1,5,1\n1,6,0\n"), schema).labels,
            (std::vector<int64_t>{1, 0}));
}

TEST_F(RowsTest, WrongOnesAreRefused) {
  expect_bad<InvalidArgument>("sise,id\n1,2\n", {"bad.csv", "no column 'size'", "did you mean 'sise'"});
  expect_bad<InvalidArgument>("1,2,3,4\n5,6,7,8\n", {"4 columns", "2 or 3"});
  expect_bad<InvalidArgument>("size,kind\n1,yes\nbig,no\n2,no\n", {"line 3", "'big'", "'size'"});
  expect_bad<InvalidArgument>("size,kind\n1,yes\n1,maybe\n", {"line 3", "'maybe'", "'no', 'yes'"});
  expect_bad<Corruption>("size,kind\n1,yes\n1\n2,no\n", {"line 3", "1 cells"});
  expect_bad<Corruption>("size,kind\n", {"no rows"});
  const data::Rows rows = data::read_rows(folder.write("a.csv", "size,kind\n1,yes\n2,no\n"), schema);
  EXPECT_FALSE(rows.is_of({"a.csv", 3, 1, 1}));
  EXPECT_FALSE(rows.is_of({"b.csv", 2, 1, 1}));
  EXPECT_THROW(rows.part({"a.csv", 3, 1, 1}, true), InvalidArgument);
}

TEST_F(RowsTest, WhatAModelSaysOfItself) {
  const models::About about{.model = "mlp:8",
                            .shape = {1},
                            .outputs = 2,
                            .dtype = "f64",
                            .scale = 1.0 / 255,
                            .seed = 5,
                            .schema = schema,
                            .split = data::Split{"a.csv", 30, 6, 5}};
  auto metadata = models::metadata_of(about);
  const models::About back = models::about_of(metadata);
  EXPECT_EQ(back.model, about.model);
  EXPECT_EQ(back.shape, about.shape);
  EXPECT_EQ(back.outputs, 2);
  EXPECT_EQ(back.dtype, "f64");
  EXPECT_EQ(back.scale, about.scale);
  EXPECT_EQ(back.seed, 5u);
  EXPECT_EQ(back.schema, about.schema);
  EXPECT_EQ(back.split, about.split);
  EXPECT_EQ(back.version, checkpoint::library_version());
  EXPECT_EQ(back.class_name(1), "yes");
  EXPECT_EQ(models::About{}.class_name(7), "7");
  for (const auto& [key, bad] : std::map<std::string, std::string>{{"input_shape", "[0]"},
                                                                   {"input_shape", "4"},
                                                                   {"outputs", "ten"},
                                                                   {"dtype", "f16"},
                                                                   {"task", "guess"},
                                                                   {"split", "{}"},
                                                                   {"schema", "{"}}) {
    auto wrong = metadata;
    wrong[key] = bad;
    EXPECT_THROW(models::about_of(wrong), Corruption) << key;
  }
}

}  // namespace
}  // namespace trireme::tests
