#include <cstring>

#include <trireme/exchange/card.h>

namespace trireme::exchange {
namespace {

class Writer {
 public:
  void number(uint64_t value) { text_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(const std::string& value) {
    number(value.size());
    text_ += value;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// Whatever the bytes are, it stays inside of them, and says at the end whether all was there.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  uint64_t number() {
    uint64_t value = 0;
    if (!has(sizeof value)) return 0;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const size_t length = number();
    if (!has(length)) return {};
    std::string value(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return value;
  }
  bool fine() const { return fine_; }

 private:
  bool has(size_t bytes) { return fine_ = fine_ && bytes <= rest_.size(); }
  std::string_view rest_;
  bool fine_ = true;
};

}  // namespace

std::string packed(const Card& card) {
  Writer writer;
  writer.text(card.about.layout);
  writer.text(card.about.optimizer);
  writer.number(static_cast<uint64_t>(card.about.workers));
  writer.text(card.step);
  writer.number(card.notes.size());
  for (const std::string& name : card.notes) writer.text(name);
  writer.number(card.locations.size());
  for (const Location& location : card.locations) {
    writer.text(location.vector);
    for (size_t value : {location.range.begin, location.range.end, location.offset}) writer.number(value);
  }
  return writer.take();
}

std::optional<Card> unpacked(std::string_view bytes, size_t limit) {
  Reader reader(bytes);
  Card card;
  card.about.layout = reader.text();
  card.about.optimizer = reader.text();
  card.about.workers = static_cast<int>(reader.number());
  card.step = reader.text();
  for (size_t left = reader.number(); left > 0 && reader.fine(); left--) card.notes.push_back(reader.text());
  if (card.notes.size() > Progress::kMostNotes) return std::nullopt;
  for (size_t left = reader.number(); left > 0 && reader.fine(); left--) {
    Location location{reader.text(), {}, 0};
    location.range.begin = reader.number();
    location.range.end = reader.number();
    location.offset = reader.number();
    if (location.range.empty() || location.offset > limit || location.range.size() > limit - location.offset)
      return std::nullopt;
    card.locations.push_back(std::move(location));
  }
  return reader.fine() ? std::optional(std::move(card)) : std::nullopt;
}

}  // namespace trireme::exchange
