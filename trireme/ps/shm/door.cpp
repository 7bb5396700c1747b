#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/base/unix_socket.h>
#include <trireme/ps/shm/door.h>
#include <trireme/ps/shm/incoming.h>

namespace trireme::ps::shm {
namespace {

constexpr int kWaiting = 256;  // visitors before the door
constexpr size_t kMostVisits = 4096;
constexpr int kAtOnce = 64;     // requests of one worker before the others' turn
constexpr size_t kWords = 256;  // of a command

Welcome welcome_of(const std::string& refusal, bool shared) {
  Welcome answer{.welcome = refusal.empty(), .shared = shared};
  std::strncpy(answer.text.data(), refusal.c_str(), answer.text.size() - 1);
  return answer;
}

}  // namespace

// ---- a worker ----

Port::Port(Memory memory, size_t line, Descriptor socket, pid_t process, std::string name, Helpers& helpers)
    : memory_(std::move(memory)),
      line_(memory_.line(line)),
      socket_(std::move(socket)),
      process_(process),
      name_(std::move(name)),
      helpers_(helpers) {}

void Port::welcome(const Segment& bell, const Segment& parameters, const Welcome& answer) {
  send_message(socket_.get(), &answer, sizeof answer, {bell.descriptor(), parameters.descriptor()});
}

void Port::refuse(const std::string& why, int elsewhere) {
  Welcome answer = welcome_of(why, false);
  answer.elsewhere = elsewhere;
  send_message(socket_.get(), &answer, sizeof answer);
  shutdown(socket_.get(), SHUT_RDWR);
}

std::span<std::byte> Port::room(const Request& request, size_t bytes) {
  const uint64_t all = memory_.plot().staging_bytes;
  if (request.extra > all || bytes > all - request.extra || request.extra % alignof(float) != 0) return {};
  return {memory_.staging() + request.extra, bytes};
}

void Port::reply(const Reply& given, std::span<const std::byte> data) {
  Reply reply = given;
  const Plot& plot = memory_.plot();
  const bool text = reply.status >= Status::invalid || answers_in_words(reply.verb);
  const bool staged = answers_staged(reply.verb);
  const uint64_t room = staged ? plot.staging_bytes : plot.flat_bytes;
  if (text) {
    reply.text = texts_++ % Line::kTexts;
    reply.bytes = std::min(data.size(), line_.texts[reply.text].size());
    std::memcpy(line_.texts[reply.text].data(), data.data(), reply.bytes);
  } else if (!data.empty() && reply.begin <= room && data.size() <= room - reply.begin) {
    std::byte* place = (staged ? memory_.staging() : memory_.parameters()) + reply.begin;
    if (place != data.data())
      helpers_.run(data.size(),
                   [&](size_t begin, size_t end) { std::memcpy(place + begin, data.data() + begin, end - begin); });
  } else if (!data.empty()) {
    reply.status = Status::invalid;  // the worker gave no room for the answer
    reply.bytes = 0;
  }
  replica != nullptr ? replica->answer(shared_from_this(), reply) : send(reply);
}

void Port::send(const Reply& reply) {
  if (!line_.replies.push(reply)) shutdown(socket_.get(), SHUT_RDWR);  // it does not read
  if (static_cast<int32_t>(line_.replies.written.load() - line_.awaited.load()) >= 0) ring(memory_.bell());
}

bool Port::poll(const std::shared_ptr<Port>& self, Clock::time_point now) {
  if (service == nullptr) return false;
  Request request;
  for (int i = 0; i < kAtOnce; i++) {
    if (!line_.requests.pop(request)) return i > 0;
    if (replica != nullptr)
      replica->handle(self, request, now);
    else
      service->handle(incoming_of(self, request, memory_), now);
  }
  return true;
}

// ---- the door ----

struct Door::Visit {
  Descriptor socket;  // until it becomes a port's
  std::shared_ptr<Port> port;
  std::shared_ptr<Following> following;  // of a primary, whose socket is read elsewhere
  int worker = -1, shard = -1;
  bool greeted = false, ended = false;
  pid_t process = 0;

  int descriptor() const { return port ? port->socket() : socket.get(); }
};

Door::Door(DoorOptions options, Inbox& inbox)
    : options_(std::move(options)), inbox_(inbox), listener_(open_unix_socket()), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!listen_at(listener_.get(), door_name(options_.job, options_.server), kWaiting))
    fail<IoError>("cannot open the door of server {}: {}. Does another process serve the same job on this machine?",
                  options_.server, errno_text());
  thread_ = std::thread([this] { run(); });
}

Door::~Door() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Door::run() {
  name_thread("trireme-door");
  while (true) {
    std::vector<pollfd> polls = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& visit : visits_)
      polls.push_back({visit->descriptor(), visit->following ? short{0} : short{POLLIN}, 0});
    if (poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) return;
    if (polls[0].revents != 0) return;
    for (size_t i = 0; i < visits_.size(); i++)
      if (polls[i + 2].revents != 0) receive(*visits_[i]);
    std::erase_if(visits_, [](const auto& visit) { return visit->ended; });
    if (polls[1].revents == 0) continue;
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket || !same_user(socket.get()) || visits_.size() >= kMostVisits) continue;
    limit_wait(socket.get(), Seconds(1));
    auto visit = std::make_unique<Visit>();
    visit->process = process_of(socket.get());
    visit->socket = std::move(socket);
    visits_.push_back(std::move(visit));
  }
}

void Door::receive(Visit& visit) {
  if (visit.following) return leave(visit);
  alignas(Hello) std::array<char, std::max(sizeof(Hello), kWords)> message{};
  std::vector<Descriptor> descriptors;
  const ssize_t got = receive_message(visit.descriptor(), message.data(), message.size(), descriptors);
  if (got <= 0 || visit.port) return leave(visit);  // a worker says nothing here after its greeting
  if (visit.greeted) {                              // a command of `trireme ctl`
    const auto socket = std::make_shared<Descriptor>(dup(visit.descriptor()));
    inbox_.post([this, socket, words = std::string(message.data(), static_cast<size_t>(got))](Models& models) {
      std::string text;
      try {
        text = fmt::format("+{}",
                           options_.replicas != nullptr ? options_.replicas->control(words) : models.control(words));
      } catch (const Error& error) {
        text = fmt::format("-{}", error.what());
      }
      send_message(socket->get(), text.data(), text.size());
    });
    return;
  }
  Hello hello;
  if (got != sizeof hello) return leave(visit);
  std::memcpy(&hello, message.data(), sizeof hello);
  if (hello.magic != kMagic) return leave(visit);
  visit.greeted = true;
  const Welcome answer = welcome_of("", options_.memory->shared());
  if (hello.kind == Visitor::primary || hello.kind == Visitor::newcomer)
    meet_server(visit, hello, std::move(descriptors));
  if (hello.kind == Visitor::sibling) meet_sibling(visit, hello);
  if (hello.kind == Visitor::control) send_message(visit.descriptor(), &answer, sizeof answer);
  if (hello.kind == Visitor::worker) meet_worker(visit, hello, std::move(descriptors));
}

/// In this thread, as a sibling waits for it.
void Door::meet_sibling(Visit& visit, const Hello& hello) try {
  const Welcome answer = welcome_of("", options_.memory->shared());
  if (hello.plot.flat_bytes == 0) return void(send_message(visit.descriptor(), &answer, sizeof answer));
  if (hello.plot.flat_bytes > Segment::kAddresses) return leave(visit);
  send_message(visit.descriptor(), &answer, sizeof answer,
               {options_.memory->segment(hello.model, hello.plot.flat_bytes)->descriptor()});
} catch (const Error& error) {
  const Welcome answer = welcome_of(error.what(), false);
  send_message(visit.descriptor(), &answer, sizeof answer);
}

/// In this thread too: services wait for each other's doors.
void Door::meet_server(Visit& visit, const Hello& hello, std::vector<Descriptor> descriptors) try {
  if (options_.replicas == nullptr) return leave(visit);
  if (hello.kind == Visitor::newcomer) {
    Welcome answer;
    answer.welcome = options_.replicas->meet_newcomer(hello.worker);
    return void(send_message(visit.descriptor(), &answer, sizeof answer));
  }
  visit.following = options_.replicas->meet_primary(visit.descriptor(), hello, std::move(descriptors));
  if (!visit.following) return leave(visit);
  visit.shard = hello.shard;
  const Welcome answer = welcome_of("", false);
  send_message(visit.descriptor(), &answer, sizeof answer, {options_.bell->descriptor()});
} catch (const Error&) {
  leave(visit);
}

void Door::meet_worker(Visit& visit, const Hello& hello, std::vector<Descriptor> descriptors) {
  struct stat file {};
  const auto refuse = [&](const std::string& why) {
    const Welcome answer = welcome_of(why, false);
    send_message(visit.descriptor(), &answer, sizeof answer);
    leave(visit);
  };
  if (descriptors.size() != 1 || fstat(descriptors[0].get(), &file) != 0 ||
      !hello.plot.fits(static_cast<uint64_t>(file.st_size)) || hello.plot.lines <= hello.line)
    return refuse("the worker's memory is not as it says");
  try {
    const Memory memory(std::make_shared<Segment>(std::move(descriptors[0]), hello.plot.total), hello.plot);
    visit.worker = hello.worker;
    visit.port =
        std::make_shared<Port>(memory, hello.line, std::move(visit.socket), visit.process,
                               fmt::format("worker {} (process {})", hello.worker, visit.process), *options_.helpers);
    inbox_.post([this, port = visit.port, hello](Models& models) { admit(models, port, hello); });
  } catch (const Error& error) {
    refuse(error.what());
  }
}

/// In the service's thread.
void Door::admit(Models& models, const std::shared_ptr<Port>& port, const Hello& hello) {
  if (options_.replicas != nullptr) return options_.replicas->admit(port, hello, options_.admitted);
  if (hello.replicas > 0)
    return port->refuse("the worker was told of replicas, and the servers have none (TRIREME_REPLICAS)");
  const Plot& plot = port->memory().plot();
  auto [service, refusal] = models.open(hello.model, hello.worker, std::string(port->memory().job(), plot.job_bytes));
  if (refusal.empty() &&
      (plot.flat_bytes < service->job()->layout.bytes() || plot.slots < service->job()->layout.size()))
    refusal = "the worker's memory is smaller than its model";
  if (!refusal.empty()) return port->refuse(refusal);
  port->worker = hello.worker;
  port->service = service;
  port->welcome(*options_.bell, options_.memory->of(hello.model), welcome_of("", options_.memory->shared()));
  options_.admitted(port);
}

void Door::leave(Visit& visit) {
  visit.ended = true;
  if (visit.following) return options_.replicas->primary_gone(visit.shard, visit.following);
  if (!visit.port) return;
  inbox_.post([this, port = visit.port](Models& models) {
    if (port->service == nullptr) return;
    while (port->poll(port, Clock::now())) continue;  // its last words, a goodbye among them
    if (options_.replicas != nullptr)
      options_.replicas->lost(port);
    else
      models.lost(*port->service, port->worker, fmt::format("{} died", port->name()));
    options_.left(port);
  });
}

}  // namespace trireme::ps::shm
