#pragma once
// Rows of sparse tables as tensors: TABLE/keys, /values, /state, /steps and /age, each with one row of the table by
// row. Not installed: private to this folder.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <trireme/checkpoint/safetensors.h>
#include <trireme/state/visitor.h>

namespace trireme::checkpoint {

/// Rows that wait to be written. A value.
class RowBlock {
 public:
  /// Throws InvalidArgument for rows of one table that are not alike.
  void add(const std::string& table, const state::Row& row);
  size_t bytes() const { return bytes_; }
  void write(Files& files, const std::string& path) const;

 private:
  struct Columns {
    size_t width = 0, state_width = 0;
    std::vector<uint64_t> keys;
    std::vector<float> values, state;
    std::vector<uint32_t> steps, age;
  };
  std::map<std::string, Columns> tables_;
  size_t bytes_ = 0;
};

/// The rows of a table in a file, if it has any. Throws Corruption when its tensors do not fit together.
void read_rows(const SafetensorsFile& file, const std::string& table,
               const std::function<void(const state::Row&)>& take);

}  // namespace trireme::checkpoint
