#include <cstring>

#include <trireme/base/error.h>
#include <trireme/comm/stream/frames.h>

namespace trireme::comm::stream {
namespace {

constexpr std::string_view kMagic = "trireme stream 1";

template <class Number>
void put_number(std::string& text, Number value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Takes a text apart.
class Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}
  std::string_view take(size_t bytes) {
    if (bytes > left_.size()) fail<Corruption>("a greeting ends too early");
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  uint32_t number() {
    uint32_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number())); }
  Proof proof() {
    Proof value{};
    std::memcpy(value.data(), take(value.size()).data(), value.size());
    return value;
  }
  std::string rest() { return std::string(take(left_.size())); }
  void end() const {
    if (!left_.empty()) fail<Corruption>("a greeting goes on after its end");
  }

 private:
  std::string_view left_;
};

std::string_view text_of(const Proof& proof) { return {reinterpret_cast<const char*>(proof.data()), proof.size()}; }

}  // namespace

std::array<std::byte, kHeadBytes> encode(const Head& head) {
  std::array<std::byte, kHeadBytes> bytes{};
  std::memcpy(bytes.data(), &head.part, 4);
  std::memcpy(bytes.data() + 4, &head.tag, 4);
  std::memcpy(bytes.data() + 8, &head.bytes, 8);
  return bytes;
}

Head decode(std::span<const std::byte, kHeadBytes> bytes) {
  uint32_t part = 0;
  Head head;
  std::memcpy(&part, bytes.data(), 4);
  std::memcpy(&head.tag, bytes.data() + 4, 4);
  std::memcpy(&head.bytes, bytes.data() + 8, 8);
  if (part < static_cast<uint32_t>(Part::hello) || part > static_cast<uint32_t>(Part::grant))
    fail<Corruption>("a frame of an unknown kind, {}", part);
  head.part = static_cast<Part>(part);
  if (head.tag >= kTags) fail<Corruption>("a frame with the tag {}, of which there are {}", head.tag, kTags);
  if (head.part == Part::grant && head.bytes != 0) fail<Corruption>("a grant with {} bytes", head.bytes);
  if (head.part < Part::data && head.bytes > kMostGreeting)
    fail<Corruption>("a greeting that claims {} bytes", head.bytes);
  return head;
}

std::string Hello::claim() const {
  std::string text(kMagic);
  for (const uint32_t number : {from, to, size, static_cast<uint32_t>(job.size())}) put_number(text, number);
  text += job;
  put_number(text, static_cast<uint32_t>(meeting.size()));
  return text + meeting;
}

std::string encode(const Hello& hello) { return hello.claim().append(text_of(hello.proof)); }

Hello decode_hello(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.take(kMagic.size()) != kMagic) fail<Corruption>("a greeting of another protocol or version");
  Hello hello;
  hello.from = reader.number();
  hello.to = reader.number();
  hello.size = reader.number();
  hello.job = reader.text();
  hello.meeting = reader.text();
  hello.proof = reader.proof();
  reader.end();
  return hello;
}

std::string encode(const Verdict& verdict) { return std::string(text_of(verdict.proof)) + verdict.refusal; }

Verdict decode_verdict(std::string_view bytes) {
  Reader reader(bytes);
  Verdict verdict;
  verdict.proof = reader.proof();
  verdict.refusal = reader.rest();
  return verdict;
}

std::string refusal(const Hello& hello, const Hello& own) {
  if (hello.job != own.job) return "belongs to another job";
  if (hello.meeting != own.meeting)
    return fmt::format("wants to meet in '{}', not in '{}'", hello.meeting, own.meeting);
  if (hello.size != own.size) return fmt::format("thinks that there are {} ranks, not {}", hello.size, own.size);
  if (hello.to != own.from) return fmt::format("looks for rank {}, and this is rank {}", hello.to, own.from);
  if (hello.from >= own.size || hello.from == own.from)
    return fmt::format("says that it is rank {} of {}, as whom nobody is expected", hello.from, own.size);
  return "";
}

std::span<std::byte> Parcel::room() {
  if (got_ < kHeadBytes) return std::span(head_).subspan(got_);
  return std::as_writable_bytes(std::span(body_)).subspan(got_ - kHeadBytes);
}

void Parcel::filled(size_t bytes, Part expected) {
  const bool in_head = got_ < kHeadBytes;
  got_ += bytes;
  if (!in_head || got_ < kHeadBytes) return;
  const Head head = decode(head_);
  if (head.part != expected)
    fail<Corruption>("a frame of the kind {} where a greeting belongs", static_cast<int>(head.part));
  body_.resize(head.bytes);
}

}  // namespace trireme::comm::stream
