#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/ps/shm/door.h>
#include <trireme/ps/shm/lane.h>
#include <trireme/ps/shm/replicas.h>

namespace trireme::ps::shm {
namespace {

constexpr Seconds kForSibling{5};  // for the door of a server that runs

/// Tells the server at a door that this one has come. Whether that one keeps this server's shard, and the line to it;
/// none where nobody is.
std::pair<bool, Descriptor> greet(const std::string& job, int door, int server) {
  Descriptor socket = open_unix_socket();
  if (!connect_to(socket.get(), door_name(job, door)) || !same_user(socket.get())) return {};
  limit_wait(socket.get(), kForSibling);
  const Hello hello{.kind = Visitor::newcomer, .worker = server, .shard = server};
  Welcome answer;
  std::vector<Descriptor> none;
  const bool answered = send_message(socket.get(), &hello, sizeof hello) &&
                        receive_message(socket.get(), &answer, sizeof answer, none) == sizeof answer &&
                        answer.magic == kMagic;
  return {!answered || answer.welcome != 0, std::move(socket)};  // one that does not answer may have it
}

}  // namespace

Replicas::Kept::Kept(const Charge& charge, const Surroundings& around, Helpers& helpers, metrics::Registry* given)
    : models(charge.shard, memory, helpers, given != nullptr ? *given : registry), replica(models, charge, around) {}

Replicas::Replicas(const Options& options, Inbox& inbox)
    : options_(options), inbox_(inbox), held_(static_cast<size_t>(options.servers)) {
  around_ = {.server = options.server,
             .servers = options.servers,
             .job = options.job,
             .silence = options.silence,
             .bell = options.bell};
  around_.post = [this](std::function<void()> errand) {
    inbox_.post([errand = std::move(errand)](Models&) { errand(); });
  };
}

Replicas::~Replicas() = default;

Replicas::Kept& Replicas::keep(const Charge& charge, metrics::Registry* registry) {
  auto& place = kept_[charge.shard];
  if (place) retired_.push_back(std::move(place));
  place = std::make_unique<Kept>(charge, around_, *options_.helpers, registry);
  held_[static_cast<size_t>(charge.shard)].store(true);
  return *place;
}

Replica* Replicas::of(int shard) {
  const auto found = kept_.find(shard);
  return found == kept_.end() ? nullptr : &found->second->replica;
}

void Replicas::take_charge(const Deadline& deadline) {
  bool newcomer = false;
  for (int door = 0; door < options_.servers; door++) {
    if (door == options_.server) continue;
    auto [keeps, line] = greet(options_.job, door, options_.server);
    newcomer |= keeps;
    if (line) others_.push_back(std::move(line));
  }
  if (newcomer) return watch_others();
  others_.clear();
  const Charge charge = place(options_.servers, 1)[static_cast<size_t>(options_.server)];
  keep(charge, options_.registry).replica.find_backup(&deadline);
}

/// One that waits to be of use goes when nobody is left who could use it.
void Replicas::watch_others() {
  std::vector<int> lines;
  for (const Descriptor& line : others_) lines.push_back(line.get());
  waits_for_ = lines.size();
  watch_ = std::make_unique<Watch>("trireme-others", std::move(lines),
                                   [this](size_t) { around_.post([this] { waits_for_--; }); });
}

// ---- as of Models ----

void Replicas::tick(Clock::time_point now) {
  for (const auto& [shard, kept] : kept_)
    if (const auto due = kept->replica.due(); due && *due <= now) kept->replica.tick(now);
}

std::optional<Clock::time_point> Replicas::due() const {
  std::optional<Clock::time_point> first;
  for (const auto& [shard, kept] : kept_)
    if (const auto due = kept->replica.due(); due && (!first || *due < *first)) first = due;
  return first;
}

bool Replicas::empty() const {
  return !watch_ &&
         std::all_of(kept_.begin(), kept_.end(), [](const auto& kept) { return kept.second->models.empty(); });
}

bool Replicas::finished() const {
  const bool alone = watch_ && waits_for_ == 0;
  return (!kept_.empty() || alone) &&
         std::all_of(kept_.begin(), kept_.end(), [](const auto& kept) { return kept.second->replica.finished(); });
}

std::string Replicas::failure() const {
  for (const auto& [shard, kept] : kept_)
    if (kept->replica.leads() && !kept->models.failure().empty()) return kept->models.failure();
  return "";
}

std::string Replicas::control(const std::string& words) {
  std::vector<std::string> lines;
  for (const auto& [shard, kept] : kept_) {
    const Replica& replica = kept->replica;
    if (words == "servers") lines.push_back(fmt::format("server {}: {}", options_.server, replica.describe()));
    if (words == "digest")
      lines.push_back(fmt::format("server {}: {}, {}", options_.server, replica.describe(), replica.digest()));
    if (words != "servers" && words != "digest" && replica.leads()) lines.push_back(kept->replica.control(words));
  }
  if (lines.empty()) lines.push_back(fmt::format("server {}: keeps nothing", options_.server));
  return fmt::format("{}", fmt::join(lines, "\n"));
}

bool Replicas::waiting() const {
  return std::any_of(kept_.begin(), kept_.end(), [](const auto& kept) { return kept.second->replica.waiting(); });
}

bool Replicas::look_after() {
  bool busy = false;
  for (const auto& [shard, kept] : kept_) busy |= kept->replica.look_after();
  return busy;
}

// ---- workers ----

void Replicas::admit(const std::shared_ptr<Port>& port, const Hello& hello, const Admitted& admitted) {
  if (hello.replicas == 0)
    return port->refuse("the servers have replicas, and the worker was told that they have none (TRIREME_REPLICAS)");
  Replica* const replica = of(hello.shard);
  while (replica != nullptr && !replica->leads() && replica->look_after()) continue;  // it may say who leads
  const Charge charge = replica != nullptr ? replica->charge() : Charge{.shard = hello.shard, .epoch = 0};
  Hearing hearing = hear(charge, options_.server, hello.epoch);
  if (hello.epoch > 0 && empty()) hearing.verdict = Hearing::Verdict::fenced;  // the worker was served, and not here
  if (replica != nullptr && !replica->fault().empty()) hearing.verdict = Hearing::Verdict::elsewhere;
  if (hearing.verdict != Hearing::Verdict::accept)
    return port->refuse(hearing.reason(options_.server, hello.shard),
                        hearing.verdict == Hearing::Verdict::wait ? Elsewhere::soon : Elsewhere::never);
  const Plot& plot = port->memory().plot();
  port->worker = hello.worker;
  port->replica = replica;
  auto [service, refusal] = replica->open(port, hello.model, hello.worker);
  if (refusal.empty() &&
      (plot.flat_bytes < service->job()->layout.bytes() || plot.slots < service->job()->layout.size()))
    refusal = "the worker's memory is smaller than its model";
  if (!refusal.empty()) return port->refuse(refusal);
  port->service = service;
  port->welcome(*options_.bell, *options_.bell, {.welcome = 1, .backup = charge.backup, .epoch = charge.epoch});
  admitted(port);
}

/// It died, unless it had left. It is lost to all shards that this server answers for.
void Replicas::lost(const std::shared_ptr<Port>& port) {
  if (!port->service->here(port->worker)) return;
  const std::string& how = died_.emplace(port->worker, fmt::format("{} died", port->name())).first->second;
  for (const auto& [shard, kept] : kept_)
    if (kept->replica.leads()) kept->replica.lost(port->worker, how);
}

// ---- other servers ----

std::shared_ptr<Following> Replicas::meet_primary(int socket, const Hello& hello, std::vector<Descriptor> descriptors) {
  const auto is_server = [&](int number) { return number >= 0 && number < options_.servers; };
  if (!is_server(hello.shard) || !is_server(hello.worker) || hello.worker == options_.server || descriptors.size() != 2)
    return nullptr;
  auto following = std::make_shared<Following>();
  const size_t bytes = round_up(sizeof(Log), kPage);
  following->socket = Descriptor(dup(socket));
  following->memory = std::make_shared<Segment>(std::move(descriptors[0]), bytes);
  following->log = reinterpret_cast<Log*>(following->memory->map(0, bytes, "the log of a shard"));
  following->bell_memory = std::make_shared<Segment>(std::move(descriptors[1]), kPage);
  following->bell = reinterpret_cast<Bell*>(following->bell_memory->map(0, kPage, "a primary's bell"));
  held_[static_cast<size_t>(hello.shard)].store(true);
  around_.post([this, following, hello] {
    Charge charge{.shard = hello.shard, .epoch = hello.epoch, .primary = hello.worker};
    (hello.line == 0 ? charge.backup : charge.filling) = options_.server;
    const Replica* before = of(hello.shard);
    if (before != nullptr && before->fault().empty() && (before->leads() || before->charge().epoch > hello.epoch))
      return void(shutdown(following->socket.get(), SHUT_RDWR));  // of a primary whose time is over
    keep(charge).replica.follow(following, charge);
  });
  return following;
}

void Replicas::primary_gone(int shard, const std::shared_ptr<Following>& following) {
  around_.post([this, shard, following] {
    Replica* const replica = of(shard);
    if (replica == nullptr) return;
    const int primary = replica->charge().primary;
    replica->primary_gone(following.get());
    if (replica->left_behind()) greet(options_.job, primary, options_.server);  // it may be filled again
    if (!replica->leads()) return;
    for (const auto& [worker, how] : died_) replica->lost(worker, how);
  });
}

bool Replicas::meet_newcomer(int server) {
  if (server < 0 || server >= options_.servers) return false;
  around_.post([this, server] { newcomer(server); });
  return held_[static_cast<size_t>(server)].load();
}

void Replicas::newcomer(int server) {
  for (const auto& [shard, kept] : kept_) kept->replica.newcomer(server);
}

}  // namespace trireme::ps::shm
