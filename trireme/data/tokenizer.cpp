#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/data/records.h>
#include <trireme/data/sentencepiece/plugin.h>
#include <trireme/data/text.h>
#include <trireme/data/tokenizer.h>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kByteTokens = 256;
constexpr const char* kPlugin = "libtrireme_sentencepiece.so";

/// Where it was built or installed, or beside this program; null: nowhere. It stays loaded, as libraries do.
const TriremeSentencepiece* plugin() {
  std::error_code unknown;
  std::vector<std::string> folders = {fs::read_symlink("/proc/self/exe", unknown).parent_path().string()};
  for (std::string_view left = TRIREME_PLUGINS; !left.empty();) {
    const size_t end = std::min(left.find(':'), left.size());
    folders.emplace_back(left.substr(0, end));
    left.remove_prefix(std::min(left.size(), end + 1));
  }
  for (const std::string& folder : folders)
    if (void* const library = dlopen((fs::path(folder) / kPlugin).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND))
      if (auto* const get = reinterpret_cast<decltype(&trireme_sentencepiece)>(dlsym(library, "trireme_sentencepiece")))
        return get();
  return nullptr;
}

/// Bytes of the UTF-8 character that begins with this one; 0: none does.
size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return 2;
  if (first >= 0xe0 && first < 0xf0) return 3;
  return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

}  // namespace

struct Tokenizer::Pieces {
  Pieces(std::string bytes, const std::string& name) : calls(plugin()), model(std::move(bytes)) {
    if (calls == nullptr)
      fail<InvalidArgument>(
          "{}: Trireme was built without sentencepiece (package libsentencepiece-dev). Install it and build again, or "
          "leave the tokenizer out: then tokens are bytes",
          name);
    std::array<char, 256> error{};
    handle = calls->open(model.data(), model.size(), error.data(), error.size());
    if (handle == nullptr)
      fail<Corruption>("{} is no sentencepiece model, or damaged ({}). `spm_train` writes models: NAME.model", name,
                       std::string(error.data()));
    line_end = calls->line_end(handle);
    adds_space = calls->adds_space(handle);
    for (int32_t piece = 0; piece < calls->count(handle); piece++) {
      std::string text(calls->text(handle, piece, nullptr, 0), '\0');
      calls->text(handle, piece, text.data(), text.size());
      texts.push_back(piece == line_end ? "\n" : text);
    }
  }
  ~Pieces() {
    if (handle != nullptr) calls->close(handle);
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  void encode_line(std::string_view line, std::vector<int32_t>& into) const {
    const auto take = [](void* context, const int* pieces, size_t count) {
      auto& all = *static_cast<std::vector<int32_t>*>(context);
      all.insert(all.end(), pieces, pieces + count);
    };
    if (!line.empty() && !calls->encode(handle, line.data(), line.size(), take, &into))
      fail<Error>("sentencepiece could not encode a line of {} bytes", line.size());
  }

  const TriremeSentencepiece* calls;
  std::string model;
  TriremePieces* handle = nullptr;
  std::vector<std::string> texts;  // of all pieces
  int32_t line_end = -1;
  bool adds_space = false;
};

Tokenizer::Tokenizer(std::string model, const std::string& name)
    : pieces_(std::make_shared<const Pieces>(std::move(model), name)) {}

Tokenizer Tokenizer::open(const std::string& path) {
  if (!fs::exists(path)) fail<IoError>("there is no tokenizer '{}': a file that `spm_train` has written", path);
  TextFile file(path);
  return Tokenizer(file.read(0, file.size()), path);
}

int64_t Tokenizer::vocabulary() const { return by_bytes() ? kByteTokens : static_cast<int64_t>(pieces_->texts.size()); }

const std::string& Tokenizer::model() const {
  static const std::string none;
  return by_bytes() ? none : pieces_->model;
}

std::string Tokenizer::describe() const {
  return by_bytes() ? "bytes" : fmt::format("sentencepiece, {} pieces", vocabulary());
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  if (by_bytes()) {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  while (!text.empty()) {
    const size_t end = text.find('\n');
    pieces_->encode_line(text.substr(0, end), tokens);
    if (end == std::string_view::npos) break;
    if (pieces_->line_end >= 0) tokens.push_back(pieces_->line_end);
    text.remove_prefix(end + 1);
  }
  return tokens;
}

std::string Tokenizer::text_of(int32_t token, bool line_begins) const {
  if (token < 0 || token >= vocabulary()) fail<InvalidArgument>("there is no token {} of {}", token, vocabulary());
  if (by_bytes()) return std::string(1, static_cast<char>(token));
  const std::string& text = pieces_->texts[static_cast<size_t>(token)];
  return line_begins && pieces_->adds_space && text.starts_with(' ') ? text.substr(1) : text;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) text += text_of(token, text.empty() || text.back() == '\n');
  return text;
}

bool has_sentencepiece() { return plugin() != nullptr; }

std::string Utf8Stream::add(std::string_view bytes) {
  constexpr const char* kReplacement = "\xef\xbf\xbd";
  held_ += bytes;
  std::string text;
  size_t at = 0;
  while (at < held_.size()) {
    const size_t length = length_of(static_cast<unsigned char>(held_[at]));
    const size_t there = std::min(length, held_.size() - at);
    const auto follows = [&](size_t i) { return (static_cast<unsigned char>(held_[at + i]) & 0xc0) == 0x80; };
    size_t good = std::min<size_t>(1, there);
    while (good < there && follows(good)) good++;
    if (good < there || length == 0) {  // broken off by another character
      text += kReplacement;
      at += std::max<size_t>(1, good);
    } else if (there < length) {
      break;
    } else {
      const std::string character = held_.substr(at, length);
      text += is_utf8(character) ? character : kReplacement;
      at += length;
    }
  }
  held_.erase(0, at);
  return text;
}

std::string Utf8Stream::finish() { return std::exchange(held_, "").empty() ? "" : "\xef\xbf\xbd"; }

}  // namespace trireme::data
