#pragma once
// What a saved model says of itself: the strings in the header of its file (docs/using-a-model.md), which `trireme
// train` writes and whoever uses the model reads. Without torch.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <trireme/data/rows.h>
#include <trireme/data/schema.h>
#include <trireme/data/tokenizer.h>

namespace trireme::models {

struct About {
  std::string model;                           // as make() takes it; "": the file does not say
  std::vector<int64_t> shape{};                // of one sample; empty: the file does not say
  int64_t outputs = 0;                         // classes, tokens, or 1 for a number; 0: the file does not say
  data::Task task = data::Task::classify;      // what the outputs are
  std::string dtype = "f32";                   // f32 or f64
  double scale = 1;                            // inputs are what stands in the data times this
  uint64_t seed = 1;                           // of the training: synthetic data depend on it
  std::optional<data::Schema> schema{};        // CSV: what the columns are
  std::optional<data::Split> split{};          // CSV, text: which rows or tokens were for testing
  std::optional<data::Tokenizer> tokenizer{};  // text
  std::string tokenizer_file{};       // text: where its model was read; needed for one of kLargeTokenizer bytes
  std::string producer{}, version{};  // who has saved it; metadata_of() fills in this library

  /// Of an output of cross-entropy: its name in the schema, otherwise its number.
  std::string class_name(int64_t number) const;
};

/// The model of a tokenizer is saved with that of the network up to this size; of a larger one, its path and hash.
constexpr size_t kLargeTokenizer = 2 << 20;

/// For Parallel::save().
std::map<std::string, std::string> metadata_of(const About& about);
/// The reader. Keys that it does not know are left alone. Throws Corruption, naming the key, for values that are none.
About about_of(const std::map<std::string, std::string>& metadata);

}  // namespace trireme::models
