#include <algorithm>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/exchange/servers.h>

namespace trireme::exchange {
namespace {

ps::Rules rules_of(const Options& options, int workers) {
  ps::Rules rules{.workers = workers, .order = ps::Order::on_arrival, .stale = options.stale, .lambda = options.lambda};
  if (options.sync == Sync::server || (options.sync.kind == Sync::stale && options.sync.bound == 0))
    rules.order = ps::Order::together;
  if (options.sync == Sync::round_robin) rules.order = ps::Order::rotating;
  if (options.sync.kind == Sync::stale && options.sync.bound > 0) rules.bound = options.sync.bound;
  if (in_shares(options.sync, options.rate, workers)) rules.step_updates = workers;
  return rules;
}

ps::Job job_of(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
               const Options& options) {
  return {.layout = layout,
          .workers = group.all.size(),
          .servers = group.world->servers(),
          .bucket_bytes = options.bucket_bytes,
          .chunk_bytes = options.chunk_bytes,
          .optimizer = optimizer,
          .rules = rules_of(options, group.all.size()),
          .tables = options.tables,
          .codec = options.codec,
          .codec_excludes = options.codec_excludes,
          .replicas = group.world->place().replicas};
}

/// A number in [0, 1) that depends on its arguments alone.
double luck(uint64_t seed, uint64_t worker, uint64_t step) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + worker * 0xbf58476d1ce4e5b9 + step * 0x94d049bb133111eb + 1;
  for (int i = 0; i < 3; i++) x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace

namespace {

std::unique_ptr<ps::Client> client_of(World& world, ps::Job job, ps::ClientOptions options) {
  options.timeout = world.local().rounds().timeout();
  options.timeout_setting = world.timeout_setting();
  return std::make_unique<ps::Client>(
      ps::Meeting{.job = world.job(), .store = world.store(), .token = world.place().token, .tls = world.place().tls},
      world.rank(), std::move(job), options);
}

FailureWatch watch(World& world, ps::Client& client) {
  return world.on_failure([&client](const std::string& reason) { client.interrupt(reason); });
}

/// This rank's place on the servers' roll, from its first model until it leaves the job.
struct OnRoll final : World::Attachment {
  explicit OnRoll(World& world, const ps::Job& job)
      : client(client_of(world, {.workers = job.workers, .servers = job.servers, .replicas = job.replicas},
                         {.model = ps::kRoll})),
        watch(exchange::watch(world, *client)) {}

  std::unique_ptr<ps::Client> client;
  FailureWatch watch;  // after the client, which it uses
  int models = 0;      // so far
};

OnRoll& roll_of(World& world, const ps::Job& job) { return world.attached<OnRoll>(world, job); }

}  // namespace

void keep_on_roll(World& world) {
  roll_of(world, {.workers = world.size(), .servers = world.servers(), .replicas = world.place().replicas});
}

Connected::Connected(const Group& group, ps::Job job, bool in_place) : roll_(*roll_of(*group.world, job).client) {
  const int model = roll_of(*group.world, job).models++;
  client_ = client_of(*group.world, std::move(job), {.model = model, .in_place = in_place});
  watch_ = watch(*group.world, *client_);
}

Connected::~Connected() {
  // Who ends after an error leaves the roll later, and says then what it says now.
  if (client_->victim()) roll_.become_victim();
}

Servers::Servers(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
                 const Options& options)
    : Exchange(layout, options, {.kept_elsewhere = true}),
      client_(group, job_of(group, layout, optimizer, options), rules_of(options, 1).order == ps::Order::together),
      group_(group.all),
      world_(*group.world) {
  traits_.lockstep = client_->job().rules.order == ps::Order::together;
  traits_.gives_work = client_->job().rules.order == ps::Order::on_arrival;
  traits_.shared = client_->in_place();
  to_servers_ = &*client_;
  vectors_ = {client_->parameters(), client_->gradients(), client_->present()};
  if (traits_.gives_work)
    source_ = std::make_unique<ServersWork>(*client_);
  else
    source_ = std::make_unique<OwnShare>(group.all.rank(), group.all.size());
  if (options_.codes()) find_keepers();
}

/// Collective.
void Servers::find_keepers() {
  const std::vector<ps::Chunk>& chunks = client_->chunks();
  const uint8_t keeps = std::any_of(chunks.begin(), chunks.end(), [&](const auto& c) { return !client_->is_local(c); });
  keepers_.resize(static_cast<size_t>(group_.size()));
  group_.all_gather(&keeps, keepers_.data(), 1, DType::u8, "which ranks have servers on other machines");
  if (std::count(keepers_.begin(), keepers_.end(), 0) == group_.size())
    fail<InvalidArgument>(
        "compress {} makes fewer bytes of what travels between machines, and all servers are on the machine of all "
        "ranks: leave it out",
        compress::name_of(options_.codec));
  if (keeps != 0) coding_.emplace(*client_, options_, &world_.registry());
}

void Servers::publish() {
  if (client_->worker() == 0) client_->set(whole()).wait();
  client_->barrier();
  if (client_->worker() != 0) client_->pull(whole()).wait();
}

/// A lease has begun its step.
bool Servers::begin_step(std::optional<int64_t> leased) {
  if (leased)
    step_ = *leased;
  else if (!traits_.lockstep)
    outcome_.stopped = !client_->begin(step_, source_->stop_wanted());
  return !outcome_.stopped;
}

void Servers::push(size_t bucket) {
  const bool hold = whole_first() && traits_.lockstep;
  outcome_.landed = false;
  ps::PushOptions options{.step = step_, .lr = lr_, .pull = !hold, .watch = watches() && !hold, .hold = hold};
  if (coding_) {
    // A worker that takes its work may push more than once in a step.
    options.encode = [this, number = traits_.gives_work ? encoded_ : step_](const ps::Chunk& chunk) {
      return coding_->encode(chunk, number);
    };
    for (const ps::Chunk& chunk : client_->chunks())
      if (chunk.bucket == bucket && client_->is_local(chunk)) coding_->add_rest(chunk);
  }
  pushes_.push_back(client_->push(buckets_[bucket].range, options));
}

void Servers::ready(size_t bucket) {
  // What is decided by the whole gradient waits for it.
  const bool whole = options_.sync.kind == Sync::trylock || (whole_first() && !traits_.lockstep);
  if (options_.overlap && !whole) push(bucket);
}

void Servers::push_all() {
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++) push(bucket);
}

bool Servers::wins_lock() {
  const double draw = luck(options_.seed, static_cast<uint64_t>(client_->worker()), static_cast<uint64_t>(step_));
  return client_->lock(draw < options_.sync.probability);
}

/// Whether others may go on while this rank's gradients are on their way: not where their age is bounded, or where a
/// lock is held.
bool Servers::lands_later() const {
  return options_.sync == Sync::server || options_.sync == Sync::async || options_.sync == Sync::round_robin;
}

/// The servers have the gradients of all workers: how much they count, and the parameters that come of it.
void Servers::push_clipped() {
  for (const ps::Pending& pending : pushes_) pending.wait();
  if (client_->worker() == 0) {
    const double squares = client_->squares();
    applied_ = client_->apply(watches() && !std::isfinite(squares) ? 0 : space::clip_factor(squares, options_.clip));
  }
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++)
    pushes_[bucket] = client_->pull(buckets_[bucket].range, {.at_least = pushes_[bucket].version() + 1});
}

void Servers::close() {
  const bool clips = whole_first() && !traits_.lockstep, usable = !clips || clip_here();
  applies_ = usable;
  const bool skips = !usable && options_.on_nan == OnNan::skip;  // others may wait for this rank's turn: it has nothing
  if (skips) leave_all_out();
  const bool locks = options_.sync.kind == Sync::trylock, pushes = (usable || skips) && (!locks || wins_lock());
  if (pushes && pushes_.empty()) push_all();
  if (whole_first() && traits_.lockstep) push_clipped();
  if (!lands_later()) land();
  if (locks && pushes) client_->unlock();
  if (usable && !pushes) client_->pull(whole()).wait();  // its gradient is dropped; the others' are not
  step_++;
}

void Servers::await(space::Range part) {
  for (size_t bucket = 0; bucket < pushes_.size(); bucket++)
    if (!intersect(part, buckets_[bucket].range).empty()) pushes_[bucket].wait();
}

void Servers::land() {
  if (pushes_.empty()) return;
  applied_.wait();
  for (const ps::Pending& pending : pushes_) {
    pending.wait();
    if (!pending.sound()) outcome_.sound = false;
  }
  pushes_.clear();
  outcome_.landed = true;
  if (!coding_) return;
  coding_->settle(traits_.lockstep ? outcome_.sound : applies_);
  encoded_++;
}

state::OwnerMap Servers::owners() const {
  state::OwnerMap map = client_->state_owners();
  add_kept(map);
  return map;
}

std::vector<state::Part> Servers::parts() {
  std::vector<state::Part> parts = client_->state_parts();
  add_kept(parts);
  return parts;
}

void Servers::settle() {
  if (traits_.lockstep) return;
  client_->barrier();
  client_->pull(whole()).wait();
}

Exchange::Scalars Servers::scalars() {
  const ps::Position position = client_->position();
  Scalars all = {{named(state::kStep, !traits_.lockstep, client_->worker()), step_, {}},
                 {kServersVersion, position.version, -1},
                 {kServersTurn, position.turn, -1},
                 {kWorkEpoch, position.epoch, -1},
                 {kWorkPiece, position.piece, 0}};
  const Scalars course = course_scalars();
  all.insert(all.end(), course.begin(), course.end());
  return all;
}

void Servers::restore_scalars(const std::vector<int64_t>& values) {
  step_ = values[0];
  client_->restore_position({.version = values[1], .turn = values[2], .epoch = values[3], .piece = values[4]}, step_);
  source_->restore({.number = values[5], .first_step = values[6]});
}

}  // namespace trireme::exchange
