#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <trireme/data/sentencepiece/plugin.h>

struct TriremePieces {
  sentencepiece::SentencePieceProcessor processor;
};

namespace {

constexpr const char* kSpace = "\xe2\x96\x81";  // ▁, which stands for a space in pieces

TriremePieces* open_model(const char* model, size_t bytes, char* error, size_t error_bytes) try {
  auto pieces = std::make_unique<TriremePieces>();
  const auto status = pieces->processor.LoadFromSerializedProto({model, bytes});
  if (status.ok()) return pieces.release();
  std::snprintf(error, error_bytes, "%s", status.ToString().c_str());
  return nullptr;
} catch (const std::exception& thrown) {
  std::snprintf(error, error_bytes, "%s", thrown.what());
  return nullptr;
}

void close_model(TriremePieces* pieces) { const std::unique_ptr<TriremePieces> ends(pieces); }

int32_t count(const TriremePieces* pieces) { return pieces->processor.GetPieceSize(); }

std::string text_of(const sentencepiece::SentencePieceProcessor& processor, int piece) {
  if (processor.IsControl(piece)) return "";
  if (processor.IsUnknown(piece)) return "\xef\xbf\xbd";  // U+FFFD
  std::string text = processor.IdToPiece(piece);
  if (processor.IsByte(piece)) return std::string(1, static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16)));
  for (size_t at = 0; (at = text.find(kSpace, at)) != std::string::npos;) text.replace(at, std::strlen(kSpace), " ");
  return text;
}

size_t text(const TriremePieces* pieces, int32_t piece, char* into, size_t room) try {
  const std::string found = text_of(pieces->processor, piece);
  std::copy_n(found.data(), std::min(room, found.size()), into);
  return found.size();
} catch (const std::exception&) {
  return 0;
}

int32_t line_end(const TriremePieces* pieces) {
  const int newline = pieces->processor.PieceToId("\n");
  return pieces->processor.IsUnknown(newline) ? pieces->processor.eos_id() : newline;
}

bool adds_space(const TriremePieces* pieces) {
  std::vector<std::string> found;
  return pieces->processor.Encode("a", &found).ok() && !found.empty() && found[0].rfind(kSpace, 0) == 0;
}

bool encode(const TriremePieces* pieces, const char* line, size_t bytes,
            void (*take)(void* context, const int* pieces, size_t count), void* context) try {
  std::vector<int> found;
  if (!pieces->processor.Encode({line, bytes}, &found).ok()) return false;
  take(context, found.data(), found.size());
  return true;
} catch (const std::exception&) {
  return false;
}

}  // namespace

const TriremeSentencepiece* trireme_sentencepiece() {
  static constexpr TriremeSentencepiece kAll = {open_model, close_model, count, text, line_end, adds_space, encode};
  return &kAll;
}
