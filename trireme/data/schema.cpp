#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

#include <trireme/base/error.h>
#include <trireme/data/records.h>
#include <trireme/data/schema.h>

namespace trireme::data {
namespace {

constexpr int kSchemaVersion = 1;
constexpr std::array kKindNames = {"number", "category", "unused"};

nlohmann::ordered_json json_of(const Column& column) {
  nlohmann::ordered_json json = {{"name", column.name}, {"kind", kKindNames[static_cast<size_t>(column.kind)]}};
  if (column.kind == Column::Kind::number) {
    json["mean"] = column.mean;
    json["deviation"] = column.deviation;
  } else if (column.kind == Column::Kind::category) {
    json["categories"] = column.categories;
    json["missing"] = column.missing;
  }
  return json;
}

Column column_of(const nlohmann::json& json) {
  Column column{.name = json.at("name")};
  const std::string kind = json.at("kind");
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), kind);
  if (found == kKindNames.end()) fail<Corruption>("a column's kind is '{}'", kind);
  column.kind = static_cast<Column::Kind>(found - kKindNames.begin());
  if (column.kind == Column::Kind::number) {
    column.mean = json.at("mean");
    column.deviation = json.at("deviation");
  } else if (column.kind == Column::Kind::category) {
    column.categories = json.at("categories");
    column.missing = json.at("missing");
  }
  return column;
}

void encode_cell(const Column& column, bool normalised, std::string_view cell, float* out) {
  double value = 0;
  const CellKind kind = read_cell(cell, value);
  if (column.kind == Column::Kind::category) {
    std::fill_n(out, column.inputs(), 0.0f);
    const auto& known = column.categories;
    const auto found = std::find(known.begin(), known.end(), as_utf8(cell));
    if (kind == CellKind::missing && column.missing)
      out[known.size()] = 1;
    else if (kind != CellKind::missing && found != known.end())
      out[found - known.begin()] = 1;
  } else if (column.kind == Column::Kind::number) {
    if (kind == CellKind::text)
      fail<InvalidArgument>("column '{}': '{}' is not a number", column.name, shown_cell(cell));
    *out = scaled(column, normalised, static_cast<float>(kind == CellKind::missing ? column.mean : value));
  }
}

std::string class_list(const std::vector<std::string>& classes) {
  constexpr size_t kMostShown = 10;
  std::vector<std::string> names;
  for (const std::string& name : classes) names.push_back(shown_cell(name));
  if (names.size() <= kMostShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{}, …, {}", fmt::join(names.begin(), names.begin() + 3, ", "), names.back());
}

}  // namespace

size_t Column::inputs() const {
  if (kind == Kind::category) return categories.size() + (missing ? 1 : 0);
  return kind == Kind::number ? 1 : 0;
}

size_t Schema::inputs() const {
  size_t sum = 0;
  for (const Column& column : columns) sum += column.inputs();
  return sum;
}

void Schema::encode(std::span<const std::string_view> cells, float* into) const {
  if (cells.size() != columns.size())
    fail<InvalidArgument>("a row of {} cells, but the model was trained on {} columns", cells.size(), columns.size());
  for (size_t i = 0; i < cells.size(); into += columns[i++].inputs())
    encode_cell(columns[i], normalised, cells[i], into);
}

std::vector<float> Schema::encode(std::span<const std::string_view> cells) const {
  std::vector<float> row(inputs());
  encode(cells, row.data());
  return row;
}

std::string to_json(const Schema& schema) {
  nlohmann::ordered_json json = {{"version", kSchemaVersion}, {"normalised", schema.normalised}};
  json["columns"] = nlohmann::ordered_json::array();
  for (const Column& column : schema.columns) json["columns"].push_back(json_of(column));
  nlohmann::ordered_json& label = json["label"] = {{"name", schema.label}, {"column", schema.label_column}};
  if (schema.task == Task::classify) {
    label["classes"] = schema.classes;
  } else {
    label["mean"] = schema.mean;
    label["deviation"] = schema.deviation;
  }
  return json.dump();
}

Schema schema_from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("version") != kSchemaVersion)
      fail<Corruption>("its version is {}, this program reads {}", json.at("version").dump(), kSchemaVersion);
    Schema schema;
    schema.normalised = json.at("normalised");
    for (const auto& column : json.at("columns")) schema.columns.push_back(column_of(column));
    const auto& label = json.at("label");
    schema.label = label.at("name");
    schema.label_column = label.at("column");
    schema.task = label.contains("classes") ? Task::classify : Task::regress;
    if (schema.task == Task::classify) return schema.classes = label.at("classes"), schema;
    schema.mean = label.at("mean");
    schema.deviation = label.at("deviation");
    return schema;
  } catch (const nlohmann::json::exception& error) {
    fail<Corruption>("the schema of the columns cannot be read: {}", error.what());
  } catch (const Corruption& error) {
    fail<Corruption>("the schema of the columns cannot be read: {}", error.what());
  }
}

std::string describe(const Schema& schema) {
  size_t features = 0;
  for (const Column& column : schema.columns) features += column.kind == Column::Kind::unused ? 0 : 1;
  const std::string task =
      schema.task == Task::classify
          ? fmt::format("classification, {} classes ({})", schema.classes.size(), class_list(schema.classes))
          : fmt::format("regression of '{}'", schema.label);
  const std::string inputs = schema.inputs() == features ? "" : fmt::format(" ({} inputs)", schema.inputs());
  return fmt::format("{}, {} feature{}{}{}", task, features, features == 1 ? "" : "s", inputs,
                     schema.normalised ? ", normalised" : "");
}

}  // namespace trireme::data
