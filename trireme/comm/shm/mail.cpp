#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/comm/shm/collectives.h>
#include <trireme/comm/shm/mail.h>

namespace trireme::comm::shm {
namespace {

constexpr size_t kLetterRoom = 1 << 19, kLeastLetter = 1 << 10,
                 kMostLetter = 1 << 16;  // bytes: of one rank's letters of each kind, of one letter

size_t letter_bytes(int ranks) {
  return std::clamp(kLetterRoom / static_cast<size_t>(ranks) / space::kLine * space::kLine, kLeastLetter, kMostLetter);
}

}  // namespace

struct alignas(64) Mail::Box {
  struct alignas(64) Head {
    size_t count;  // elements of the whole message
    DType type;
    char name[kNameBytes];
  };
  alignas(64) std::atomic<uint32_t> posted;
  alignas(64) std::atomic<uint32_t> taken;
  Head heads[2];

  std::byte* letter(uint32_t number, size_t size) { return reinterpret_cast<std::byte*>(this + 1) + number % 2 * size; }
};

size_t Mail::bytes(int ranks) { return (sizeof(Box) + 2 * letter_bytes(ranks)) * static_cast<size_t>(ranks); }

Mail::Mail(Rounds& rounds, SharedBlock block)
    : rounds_(rounds),
      block_(std::move(block)),
      letter_bytes_(letter_bytes(rounds.ranks())),
      peers_(static_cast<size_t>(rounds.ranks())) {}

Mail::Box& Mail::box(int from, int to) const {
  return *reinterpret_cast<Box*>(block_.parts[static_cast<size_t>(from)] +
                                 static_cast<size_t>(to) * (sizeof(Box) + 2 * letter_bytes_));
}

void Mail::check(int other, std::string_view verb, std::string_view name) const {
  if (other < 0 || other >= rounds_.ranks() || other == rounds_.rank())
    fail<InvalidArgument>("rank {} cannot {} rank {} ('{}')", rounds_.name_of(rounds_.rank()), verb, other, name);
}

void Mail::compare(const Message& wanted, size_t count, DType type, std::string_view name, int from) const {
  const std::string_view ours = wanted.name;
  if (count == wanted.count && type == wanted.type && ours.substr(0, kNameBytes - 1) == name) return;
  fail<Mismatch>("rank {} expects '{}' of {} × {} from rank {}, which sent '{}' of {} × {}",
                 rounds_.name_of(rounds_.rank()), ours, wanted.count, trireme::name_of(wanted.type),
                 rounds_.name_of(from), name, count, trireme::name_of(type));
}

// ---- sending ----

/// The next letter of a message, if there is room. True when it was the last.
bool Mail::post(Box& box, Message& message, int to) {
  while (!message.done) {
    const uint32_t number = box.posted.load(std::memory_order_relaxed);
    if (number - box.taken.load() >= 2) return false;
    const size_t length = std::min(letter_bytes_, message.bytes() - message.passed);
    Box::Head& head = box.heads[number % 2];
    head.count = message.count;
    head.type = message.type;
    const size_t text = std::min(message.name.size(), kNameBytes - 1);
    std::memcpy(head.name, message.name.data(), text);
    head.name[text] = 0;
    copy_bytes(box.letter(number, letter_bytes_), message.data + message.passed, length);
    message.passed += length;
    message.done = message.passed == message.bytes();
    box.posted.store(number + 1);
    rounds_.nudge(to);
  }
  return true;
}

void Mail::serve_leaving(int to) {
  Queue& leaving = peer(to).leaving;
  while (!leaving.empty() && post(box(rounds_.rank(), to), *leaving.front(), to)) leaving.pop_front();
}

// ---- receiving ----

/// One letter is there for `message`.
void Mail::take(Box& box, Message& message, int from) {
  const uint32_t number = box.taken.load(std::memory_order_relaxed);
  const size_t length = std::min(letter_bytes_, message.bytes() - message.passed);
  copy_bytes(message.data + message.passed, box.letter(number, letter_bytes_), length);
  message.passed += length;
  message.done = message.passed == message.bytes();
  box.taken.store(number + 1);
  rounds_.nudge(from);
}

void Mail::hand_over(Message& kept, Message& wanted, int from) const {
  try {
    compare(wanted, kept.count, kept.type, kept.name, from);
    copy_bytes(wanted.data, kept.kept.data(), wanted.bytes());
    wanted.done = true;
  } catch (...) {
    wanted.error = std::current_exception();
  }
}

void Mail::serve_arriving(int from) {
  Box& box = this->box(from, rounds_.rank());
  Peer& there = peer(from);
  while (true) {
    while (!there.early.empty() && !there.expected.empty() && there.early.front()->done) {
      hand_over(*there.early.front(), *there.expected.front(), from);
      there.early.pop_front();
      there.expected.pop_front();
    }
    if (box.posted.load() == box.taken.load(std::memory_order_relaxed)) return;
    const Box::Head& head = box.heads[box.taken.load(std::memory_order_relaxed) % 2];
    const bool keep = !there.early.empty() || there.expected.empty();
    if (keep && (there.early.empty() || there.early.back()->done)) {
      auto fresh = std::make_shared<Message>(Message{.count = head.count, .type = head.type, .text = head.name});
      fresh->name = fresh->text;
      fresh->kept.resize(fresh->bytes());
      fresh->data = fresh->kept.data();
      there.early.push_back(std::move(fresh));
    }
    Message& message = keep ? *there.early.back() : *there.expected.front();
    if (!keep && message.passed == 0) {
      if (message.error) return;
      try {
        compare(message, head.count, head.type, head.name, from);
      } catch (...) {
        message.error = std::current_exception();
        return;
      }
    }
    take(box, message, from);
    if (!keep && message.done) there.expected.pop_front();
  }
}

void Mail::serve() {
  for (int r = 0; r < rounds_.ranks(); r++) {
    if (r == rounds_.rank()) continue;
    serve_arriving(r);
    if (!peer(r).leaving.empty()) serve_leaving(r);
  }
}

// ---- the calls ----

void Mail::await_sent(const Message& message, int to) {
  const auto sent = [&] {
    serve_leaving(to);
    return message.done;
  };
  rounds_.await(to, sent, [&] { return fmt::format("send '{}'", message.name); });
}

void Mail::await_received(const Message& message, int from) {
  const auto received = [&] {
    serve_arriving(from);
    return message.done || message.error;
  };
  rounds_.await(from, received, [&] { return fmt::format("receive '{}'", message.name); });
  if (message.error) std::rethrow_exception(message.error);
}

template <class Await>
class Mail::Handle final : public Work {
 public:
  Handle(Mail& mail, std::shared_ptr<Message> message, const Await& await)
      : mail_(mail), message_(std::move(message)), await_(await) {}
  bool test() override {
    mail_.serve();
    if (message_->error) std::rethrow_exception(message_->error);
    return message_->done;
  }
  void wait() override { await_(*message_); }

 private:
  Mail& mail_;
  std::shared_ptr<Message> message_;
  Await await_;
};

Started Mail::start_send(const void* data, size_t count, DType type, int to, std::string_view name) {
  check(to, "send to", name);
  auto message = std::make_shared<Message>(
      Message{.data = static_cast<std::byte*>(const_cast<void*>(data)), .count = count, .type = type});
  message->name = message->text = name;
  peer(to).leaving.push_back(message);
  serve_leaving(to);
  const auto await = [this, to](const Message& sent) { await_sent(sent, to); };
  return std::make_unique<Handle<decltype(await)>>(*this, std::move(message), await);
}

Started Mail::start_receive(void* data, size_t count, DType type, int from, std::string_view name) {
  check(from, "receive from", name);
  auto message =
      std::make_shared<Message>(Message{.data = static_cast<std::byte*>(data), .count = count, .type = type});
  message->name = message->text = name;
  peer(from).expected.push_back(message);
  serve_arriving(from);
  const auto await = [this, from](const Message& received) { await_received(received, from); };
  return std::make_unique<Handle<decltype(await)>>(*this, std::move(message), await);
}

/// A message of the caller's, which ends with the call.
template <class Pass>
void Mail::pass_now(Queue& queue, Message& message, const Pass& pass) {
  queue.emplace_back(std::shared_ptr<void>(), &message);
  try {
    pass();
  } catch (...) {
    std::erase_if(queue, [&](const auto& queued) { return queued.get() == &message; });
    throw;
  }
}

void Mail::send(const void* data, size_t count, DType type, int to, std::string_view name) {
  check(to, "send to", name);
  Message message{.data = static_cast<std::byte*>(const_cast<void*>(data)), .count = count, .type = type, .name = name};
  pass_now(peer(to).leaving, message, [&] { await_sent(message, to); });
}

void Mail::receive(void* data, size_t count, DType type, int from, std::string_view name) {
  check(from, "receive from", name);
  Message message{.data = static_cast<std::byte*>(data), .count = count, .type = type, .name = name};
  pass_now(peer(from).expected, message, [&] { await_received(message, from); });
}

}  // namespace trireme::comm::shm
