#include <fmt/format.h>
#include <poll.h>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/ps/shm/lane.h>

namespace trireme::ps::shm {

Descriptor Lane::knock(const std::string& job, int server) {
  Descriptor socket = open_unix_socket();
  if (!connect_to(socket.get(), door_name(job, server)) || !same_user(socket.get())) return {};
  return socket;
}

Lane::Lane(Descriptor socket, std::shared_ptr<Memory> memory, const Way& way, const Deadline& deadline)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      server_(way.server),
      process_(process_of(socket_.get())),
      line_(memory_->line(way.line)) {
  const int worker = way.worker;
  limit_wait(socket_.get(), deadline.left() + Seconds(1));
  const Hello hello{.worker = worker,
                    .model = way.model,
                    .shard = way.shard,
                    .line = static_cast<uint32_t>(way.line),
                    .replicas = static_cast<uint32_t>(way.replicas),
                    .epoch = way.epoch,
                    .plot = memory_->plot()};
  Welcome answer;
  std::vector<Descriptor> descriptors;
  const bool sent = send_message(socket_.get(), &hello, sizeof hello, {memory_->segment().descriptor()});
  const ssize_t got = sent ? receive_message(socket_.get(), &answer, sizeof answer, descriptors) : 0;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    fail<Timeout>("{} has not welcomed worker {} within {:g} s: is it stopped?", name(), worker,
                  deadline.limit().count());
  if (got != sizeof answer || answer.magic != kMagic)
    fail<PeerLost>("{} went away, or is of another version, while worker {} joined", name(), worker);
  answer.text.back() = 0;
  if (answer.welcome == 0 && answer.elsewhere != 0) throw Elsewhere(answer.text.data(), answer.elsewhere);
  if (answer.welcome == 0) fail<InvalidArgument>("{} does not admit worker {}: {}", name(), worker, answer.text.data());
  if (descriptors.size() != 2) fail<PeerLost>("{} sent no memory to worker {}", name(), worker);
  bell_memory_ = std::make_shared<Segment>(std::move(descriptors[0]), kPage);
  bell_ = reinterpret_cast<Bell*>(bell_memory_->map(0, kPage, "a server's bell"));
  parameters_ = std::move(descriptors[1]);
  shared_ = answer.shared != 0;
  backup_ = answer.backup;
  epoch_ = answer.epoch;
}

void Lane::send(const Request& request, std::span<const std::byte> /*data*/, std::span<const uint8_t> /*present*/,
                uint32_t /*urgency*/) {
  if (!line_.requests.push(request)) fail<Error>("more requests to {} than it can hold", name());
  ring(*bell_);
}

bool Lane::receive(Reply& reply, std::string& text) {
  if (!line_.replies.pop(reply)) return false;
  text.clear();
  if (reply.status >= Status::invalid || answers_in_words(reply.verb)) {
    const auto& words = line_.texts[reply.text % Line::kTexts];
    text.assign(words.data(), std::min<size_t>(reply.bytes, words.size()));
  }
  return true;
}

/// Sequentially consistent, as all of these: a server that still sees the number before has written its reply before
/// the worker's last look.
void Lane::expect(size_t answers) {
  line_.awaited.store(line_.replies.read.load(std::memory_order_relaxed) + static_cast<uint32_t>(answers));
}

std::string Lane::fault() {
  pollfd look{socket_.get(), POLLIN, 0};
  return poll(&look, 1, 0) > 0 ? fmt::format("{} is gone: it was killed, has crashed, or dropped this worker", name())
                               : "";
}

std::string Lane::name() const { return fmt::format("server {} (process {})", server_, process_); }

}  // namespace trireme::ps::shm
