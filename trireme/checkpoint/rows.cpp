#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/checkpoint/format.h>
#include <trireme/checkpoint/rows.h>

namespace trireme::checkpoint {
namespace {

template <class T>
NamedTensor column(const std::string& name, const char* type, const std::vector<T>& data, std::vector<int64_t> shape) {
  return {name, type, std::move(shape), data.data(), data.size() * sizeof(T)};
}

void append(std::vector<float>& floats, std::span<const float> more) {
  floats.insert(floats.end(), more.begin(), more.end());
}

/// A column of a table in a file, and a part of it in memory.
template <class T>
class ColumnReader {
 public:
  ColumnReader(const SafetensorsFile& file, const std::string& name, const char* type, size_t dims) : file_(file) {
    tensor_ = file.find(name);
    if (tensor_ == nullptr || tensor_->type != type || tensor_->shape.size() != dims)
      fail<Corruption>("{} has no tensor '{}' of type {} with {} dims, as the rows of a table need", file.path(), name,
                       type, dims);
  }
  size_t rows() const { return static_cast<size_t>(tensor_->shape[0]); }
  size_t width() const { return tensor_->shape.size() > 1 ? static_cast<size_t>(tensor_->shape[1]) : 1; }
  void read(size_t first, size_t count) {
    data_.resize(count * width());
    file_.read(*tensor_, first * width() * sizeof(T), std::as_writable_bytes(std::span(data_)));
  }
  std::span<const T> row(size_t index) const { return std::span(data_).subspan(index * width(), width()); }

 private:
  const SafetensorsFile& file_;
  const StoredTensor* tensor_ = nullptr;
  std::vector<T> data_;
};

}  // namespace

void RowBlock::add(const std::string& table, const state::Row& row) {
  Columns& columns = tables_[table];
  if (columns.keys.empty()) columns.width = row.values.size(), columns.state_width = row.state.size();
  if (columns.width != row.values.size() || columns.state_width != row.state.size())
    fail<InvalidArgument>("row {} of table '{}' has {} values and {} of state, other rows {} and {}", row.key, table,
                          row.values.size(), row.state.size(), columns.width, columns.state_width);
  columns.keys.push_back(row.key);
  append(columns.values, row.values);
  append(columns.state, row.state);
  columns.steps.push_back(row.steps);
  columns.age.push_back(row.age);
  bytes_ += sizeof row.key + sizeof row.steps + sizeof row.age + row.values.size_bytes() + row.state.size_bytes();
}

void RowBlock::write(Files& files, const std::string& path) const {
  std::vector<NamedTensor> tensors;
  for (const auto& [table, c] : tables_) {
    const auto rows = static_cast<int64_t>(c.keys.size());
    const auto wide = [&](size_t width) { return std::vector<int64_t>{rows, static_cast<int64_t>(width)}; };
    tensors.push_back(column(table + "/keys", "U64", c.keys, {rows}));
    tensors.push_back(column(table + "/values", "F32", c.values, wide(c.width)));
    tensors.push_back(column(table + "/state", "F32", c.state, wide(c.state_width)));
    tensors.push_back(column(table + "/steps", "U32", c.steps, {rows}));
    tensors.push_back(column(table + "/age", "U32", c.age, {rows}));
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return element_bytes(a.type) > element_bytes(b.type);
  });
  write_safetensors(files, path, tensors, {});
}

void read_rows(const SafetensorsFile& file, const std::string& table,
               const std::function<void(const state::Row&)>& take) {
  if (file.find(table + "/keys") == nullptr) return;
  ColumnReader<uint64_t> keys(file, table + "/keys", "U64", 1);
  ColumnReader<float> values(file, table + "/values", "F32", 2), state(file, table + "/state", "F32", 2);
  ColumnReader<uint32_t> steps(file, table + "/steps", "U32", 1), age(file, table + "/age", "U32", 1);
  const size_t rows = keys.rows();
  if (values.rows() != rows || state.rows() != rows || steps.rows() != rows || age.rows() != rows)
    fail<Corruption>("{}: the tensors of table '{}' have different numbers of rows", file.path(), table);
  constexpr size_t kBlock = size_t{4} << 20;  // bytes that are read at a time
  const size_t count = std::max<size_t>(1, kBlock / ((values.width() + state.width() + 4) * sizeof(float)));
  for (size_t first = 0; first < rows; first += count) {
    const size_t some = std::min(count, rows - first);
    keys.read(first, some), values.read(first, some), state.read(first, some), steps.read(first, some),
        age.read(first, some);
    for (size_t i = 0; i < some; i++)
      take({keys.row(i)[0], values.row(i), state.row(i), steps.row(i)[0], age.row(i)[0]});
  }
}

}  // namespace trireme::checkpoint
