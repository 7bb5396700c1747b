#include <charconv>
#include <cstdint>

#include <trireme/base/error.h>
#include <trireme/cluster/environment/nodelist.h>

namespace trireme::cluster {
namespace {

constexpr size_t kLongestName = 253;  // of DNS
constexpr size_t kMostDigits = 15;    // of a number in a range: far beyond any cluster, far below an overflow
constexpr size_t kMostBrackets = 8;   // in one name; also bounds the recursion
constexpr size_t kShown = 120;        // of a wrong list in its message

struct Span {
  uint64_t first = 0, last = 0;
  size_t width = 0;  // digits, with zeros in front
};

/// Text and what follows it: "node[01-03]x" is {"node", {01-03}}, {"x", {}}.
struct Piece {
  std::string text;
  std::vector<Span> spans;  // empty: none
};

using Name = std::vector<Piece>;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::vector<Name> names() {
    std::vector<Name> result;
    do result.push_back(name());
    while (take(','));
    if (at_ != text_.size()) wrong("unexpected character");
    return result;
  }

 private:
  Name name() {
    Name result;
    size_t length = 0;
    for (;;) {
      Piece piece{letters(), {}};
      if (take('[')) piece.spans = spans();
      length += piece.text.size() + (piece.spans.empty() ? 0 : kMostDigits);
      if (piece.text.empty() && piece.spans.empty()) break;
      result.push_back(std::move(piece));
      if (length > kLongestName) wrong("a name that is too long");
      if (result.size() > kMostBrackets) wrong("too many brackets in one name");
    }
    if (result.empty()) wrong("a name is missing");
    return result;
  }

  std::vector<Span> spans() {
    std::vector<Span> result;
    do {
      Span span = number();
      if (take('-')) {
        span.last = number().last;
        if (span.last < span.first) wrong("a range that runs backwards");
      }
      result.push_back(span);
    } while (take(','));
    if (!take(']')) wrong("a bracket is not closed");
    return result;
  }

  Span number() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') at_++;
    const size_t width = at_ - begin;
    if (width == 0) wrong("a number is missing");
    if (width > kMostDigits) wrong("a number is too long");
    uint64_t value = 0;
    std::from_chars(text_.data() + begin, text_.data() + at_, value);
    return {value, value, width};
  }

  std::string letters() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_of_a_name(text_[at_])) at_++;
    return std::string(text_.substr(begin, at_ - begin));
  }

  static bool is_of_a_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
  }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    at_++;
    return true;
  }

  [[noreturn]] void wrong(const char* what) const {
    fail<InvalidArgument>("'{}{}' is not a list of hosts such as node[01-03,7],x2: {} at character {}",
                          text_.substr(0, kShown), text_.size() > kShown ? "..." : "", what, at_ + 1);
  }

  std::string_view text_;
  size_t at_ = 0;
};

/// Appends the names that begin with `prefix` and go on with name[piece...], until there are `most`.
void expand(const Name& name, size_t piece, const std::string& prefix, size_t most, std::vector<std::string>& result) {
  if (result.size() >= most) return;
  if (piece == name.size()) return void(result.push_back(prefix));
  const std::string start = prefix + name[piece].text;
  if (name[piece].spans.empty()) return expand(name, piece + 1, start, most, result);
  for (const Span& span : name[piece].spans)
    for (uint64_t number = span.first; number <= span.last && result.size() < most; number++)
      expand(name, piece + 1, fmt::format("{}{:0{}}", start, number, span.width), most, result);
}

}  // namespace

std::vector<std::string> expand_nodelist(std::string_view text, size_t most) {
  std::vector<std::string> result;
  for (const Name& name : Parser(text).names()) expand(name, 0, "", most, result);
  return result;
}

}  // namespace trireme::cluster
