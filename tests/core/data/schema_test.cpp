// label: unit
#include <gtest/gtest.h>

#include <trireme/base/error.h>
#include <trireme/data/schema.h>

namespace trireme::tests {
namespace {

using data::Column;
using data::Schema;
using data::Task;

Schema houses() {
  Schema schema;
  schema.columns = {
      {.name = "size \"m²\"", .mean = 0.1, .deviation = 1.0 / 3},
      {.name = "town", .kind = Column::Kind::category, .categories = {"Oslo", "Zürich, CH"}, .missing = true},
      {.name = "remarks", .kind = Column::Kind::unused},
      {.name = "heating", .kind = Column::Kind::category, .categories = {"gas", "oil"}}};
  schema.label = "price";
  schema.label_column = 2;
  schema.task = Task::regress;
  schema.mean = 1e6 / 7;
  schema.deviation = 12345.678;
  return schema;
}

TEST(Schema, JsonAndBack) {
  Schema schema = houses();
  EXPECT_EQ(data::schema_from_json(data::to_json(schema)), schema);
  schema.task = Task::classify;
  schema.classes = {"yes", "no", "a\nb"};
  schema.mean = 0;
  schema.deviation = 1;
  schema.normalised = false;
  EXPECT_EQ(data::schema_from_json(data::to_json(schema)), schema);
}

TEST(Schema, DamagedJsonIsNamed) {
  const std::string good = data::to_json(houses());
  for (size_t cut = 0; cut < good.size(); cut += 7)
    EXPECT_THROW(data::schema_from_json(good.substr(0, cut)), Corruption);
  for (const char* text : {"{}", "[]", "3", R"({"version":2})",
                           R"({"version":1,"normalised":true,"columns":[{"name":"a","kind":"x"}],"label":{}})"})
    EXPECT_THROW(data::schema_from_json(text), Corruption) << text;
}

TEST(Schema, EncodesRows) {
  const Schema schema = houses();
  EXPECT_EQ(schema.inputs(), 1u + 3 + 2);
  const auto encode = [&](std::vector<std::string_view> cells) { return schema.encode(cells); };
  using Floats = std::vector<float>;
  EXPECT_EQ(encode({"1.1", "Zürich, CH", "nice", "gas"}),
            (Floats{static_cast<float>((1.1f - 0.1) / (1.0 / 3)), 0, 1, 0, 1, 0}));
  EXPECT_EQ(encode({"+0.1", "NA", "", "oil"}), (Floats{static_cast<float>((0.1f - 0.1) / (1.0 / 3)), 0, 0, 1, 0, 1}));
  EXPECT_EQ(encode({"?", "Paris", "", ""}), (Floats{static_cast<float>((0.1f - 0.1) / (1.0 / 3)), 0, 0, 0, 0, 0}));
  EXPECT_THROW(encode({"1", "2"}), InvalidArgument);
  EXPECT_THROW(encode({"x", "Oslo", "", "gas"}), InvalidArgument);
}

TEST(Schema, Description) {
  Schema schema = houses();
  EXPECT_EQ(data::describe(schema), "regression of 'price', 3 features (6 inputs), normalised");
  schema.task = Task::classify;
  schema.classes = {"setosa", "versicolor", "virginica"};
  schema.columns = {{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}};
  EXPECT_EQ(data::describe(schema),
            "classification, 3 classes (setosa, versicolor, virginica), 4 features, normalised");
  schema.normalised = false;
  schema.classes.clear();
  for (int i = 0; i < 12; i++) schema.classes.push_back(std::to_string(i));
  EXPECT_EQ(data::describe(schema), "classification, 12 classes (0, 1, 2, …, 11), 4 features");
}

}  // namespace
}  // namespace trireme::tests
