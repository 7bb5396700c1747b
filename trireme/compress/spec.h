#pragma once
// Which codec, as a text: what `--compress` takes.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::compress {

enum class Kind : uint8_t;  // of codecs.h

/// A codec and its setting. Without a kind numbers travel as they are.
struct Spec {
  Kind kind{};
  double rate = 0;  // topk, randomk: the part of the elements that is sent; sketch: the sketch's size as a part of them
  int rank = 0;     // powersgd: columns of each factor
  bool operator==(const Spec&) const = default;
  explicit operator bool() const { return kind != Kind{}; }
  /// It goes by whole rows of matrices.
  bool by_matrix() const;
};

/// Rates are at least that: a millionth.
constexpr double kLeastRate = 1e-6;
constexpr int kMostRank = 64;

/// "int8", "topk:0.01", "powersgd:2". Throws InvalidArgument with the nearest valid name, or what is wrong with a
/// number.
Spec spec_named(const std::string& text);
std::string name_of(const Spec& spec);
/// Throws InvalidArgument for one that a program has made and no text says: an unknown kind, a rate or rank out of
/// range.
void check(const Spec& spec);
/// The same, of codecs to choose from: each, and that they are few, all different, and none is not among them.
void check(const std::vector<Spec>& candidates);

/// "auto": which codecs it chooses from, those that lose least first: "auto:fp16,int8". Alone it means those of
/// kAutomatic. Empty for a text that is no "auto". Throws InvalidArgument for what cannot be chosen from.
std::vector<Spec> candidates_named(const std::string& text);
std::string auto_name(const std::vector<Spec>& candidates);
inline constexpr const char* kAutomatic = "fp16,int8,sign,topk:0.01,powersgd:2";
constexpr size_t kMostCandidates = 8;
/// "none", and all of them, with their settings as in "topk:R".
std::vector<std::string> spec_names();
/// All of them, with settings as in "topk:0.01".
std::vector<std::string> spec_examples();
/// "fp16: half of the bytes; bf16: …".
std::string spec_help();

}  // namespace trireme::compress
