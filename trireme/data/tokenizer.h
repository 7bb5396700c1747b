#pragma once
// How text becomes tokens, which are numbers from 0, and tokens text again: byte by byte, or by a sentencepiece model.
//
// With sentencepiece every line is encoded by itself, as its models expect, and the end of a line is a token of its
// own: the piece "\n" where the model has one, otherwise the end of a sentence. So any file can be cut between lines,
// and what is decoded has its lines again; what the model's own rules change, such as runs of spaces, stays changed.
//
// The library of sentencepiece brings a copy of protobuf that is not the one of libtorch and gRPC. It is therefore
// loaded when a tokenizer needs it, by dlopen, with its symbols apart (sentencepiece/plugin.h).
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// A value; copies share the model. Thread-safe.
class Tokenizer {
 public:
  /// By bytes: 256 tokens.
  Tokenizer() = default;
  /// By a sentencepiece model, of which `model` has all bytes; `name` is for messages. Throws Corruption when it is
  /// none, and InvalidArgument where Trireme was built without sentencepiece.
  Tokenizer(std::string model, const std::string& name);
  /// The model in a file. Throws IoError, and as above.
  static Tokenizer open(const std::string& path);

  bool by_bytes() const { return pieces_ == nullptr; }
  int64_t vocabulary() const;
  /// The bytes of the sentencepiece model; "": by bytes.
  const std::string& model() const;
  /// "bytes", "sentencepiece, 1000 pieces"
  std::string describe() const;

  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const int32_t> tokens) const;
  /// The text of one token behind the text so far, of which `line_begins` says whether it ends with an end of line.
  std::string text_of(int32_t token, bool line_begins) const;

 private:
  struct Pieces;
  std::shared_ptr<const Pieces> pieces_;
};

/// Whether this build has sentencepiece, as a file of its own beside the library.
bool has_sentencepiece();

/// Bytes that arrive one by one, as text: holds back the beginning of a character until the rest is there; what is no
/// UTF-8 becomes U+FFFD.
class Utf8Stream {
 public:
  std::string add(std::string_view bytes);
  /// What is left of a character whose end never came.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace trireme::data
