#pragma once
// Language models by name, without torch: gpt, gpt:small, gpt:layers=4,width=256,heads=4,context=128,dropout=0.1, and
// the same for bert. gpt learns which token follows; bert which tokens were masked (data/masks.h).
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::models {

struct LanguageSpec {
  bool masked = false;  // bert
  int64_t layers = 4;
  int64_t width = 256;    // of a token's vector
  int64_t heads = 4;      // of attention; they divide the width
  int64_t context = 128;  // tokens that it sees at a time
  double dropout = 0;
};

/// A size that has a name.
struct LanguageSize {
  const char* name;
  LanguageSpec spec;
};
/// From the smallest to the largest; "small" is what a name without a size means.
const std::vector<LanguageSize>& language_sizes();

/// Nothing for other models. Throws InvalidArgument for a size or a setting that there is not, and for numbers that
/// cannot be, with the nearest that can.
std::optional<LanguageSpec> language_spec(const std::string& model);

/// Rows of the embedding for a text of so many tokens, the mask token of bert added: a multiple of 64, so that ranks
/// can divide them. Those that no text has are parameters like the others.
int64_t embedded(const LanguageSpec& spec, int64_t tokens);

/// Throws InvalidArgument unless language models get text, and others something else.
void check_fits(const std::string& model, const std::string& data);

/// The rate at which a language model learns with adamw where nobody says: 0.256 / width, at most 0.003.
double usual_rate(const LanguageSpec& spec);

}  // namespace trireme::models
