#include <trireme/exchange/servers.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include <trireme/base/error.h>

namespace trireme::exchange {
namespace {

ps::Rules rules_of(const Options& options, int workers) {
  ps::Rules rules{.workers = workers, .order = ps::Order::on_arrival, .stale = options.stale, .lambda = options.lambda};
  if (options.sync == Sync::server || (options.sync.kind == Sync::stale && options.sync.bound == 0)) rules.order = ps::Order::together;
  if (options.sync == Sync::round_robin) rules.order = ps::Order::rotating;
  if (options.sync.kind == Sync::stale && options.sync.bound > 0) rules.bound = options.sync.bound;
  return rules;
}

ps::Job job_of(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options) {
  return {.layout = layout,
          .workers = group.all.size(),
          .servers = group.world->servers(),
          .bucket_bytes = options.bucket_bytes,
          .chunk_bytes = options.chunk_bytes,
          .optimizer = optimizer,
          .rules = rules_of(options, group.all.size()),
          .tables = options.tables};
}

template <class T>
double squares(const std::byte* data, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += static_cast<double>(reinterpret_cast<const T*>(data)[i]) * static_cast<double>(reinterpret_cast<const T*>(data)[i]);
  return sum;
}

template <class T>
void scale(std::byte* data, size_t count, double factor) {
  for (size_t i = 0; i < count; i++) reinterpret_cast<T*>(data)[i] *= static_cast<T>(factor);
}

/// A number in [0, 1) that depends on its arguments alone.
double luck(uint64_t seed, uint64_t worker, uint64_t step) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + worker * 0xbf58476d1ce4e5b9 + step * 0x94d049bb133111eb + 1;
  for (int i = 0; i < 3; i++) x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace

Connected::Connected(const Group& group, ps::Job job, bool in_place) {
  World& world = *group.world;
  client_ = std::make_unique<ps::Client>(ps::Meeting{.job = world.job(), .store = world.store(), .token = world.place().token, .tls = world.place().tls},
                                         world.rank(), std::move(job), ps::ClientOptions{.timeout = group.local.rounds().timeout(), .in_place = in_place});
  watch_ = world.on_failure([client = client_.get()](const std::string& reason) { client->interrupt(reason); });
}

Statistics Connected::statistics() {
  Statistics all;
  double counted = 0, sum = 0;
  for (const std::string& text : client_->status()) {
    const auto status = nlohmann::json::parse(text);
    counted += status["staleness"].get<double>();
    sum += status["staleness"].get<double>() * status["staleness.mean"].get<double>();
    all.staleness_max = std::max(all.staleness_max, status["staleness.max"].get<double>());
    all.age_max = std::max(all.age_max, status["age.max"].get<double>());
    all.updates += status["updates"].get<double>();
    all.held += status["held"].get<double>() + status["begins held"].get<double>();
    all.dropped += status["dropped"].get<double>();
  }
  all.staleness_mean = counted > 0 ? sum / counted : 0;
  return all;
}

Servers::Servers(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer, const Options& options)
    : Exchange(layout, options), client_(group, job_of(group, layout, optimizer, options), rules_of(options, 1).order == ps::Order::together) {}

void Servers::publish_parameters() {
  if (client_->worker() == 0) client_->set(whole()).wait();
  client_->barrier();
  if (client_->worker() != 0) client_->pull(whole()).wait();
}

ps::Work Servers::take(int64_t epoch, int64_t first_step, int64_t pieces) {
  const ps::Work work = client_->take(epoch, first_step, pieces, client_->job().workers, stop_wanted_);
  stopped_ = work.what == ps::Work::stopped;
  taken_ = work.what == ps::Work::piece;
  if (taken_) step_ = work.step;
  return work;
}

bool Servers::begin_step() {
  if (!lockstep() && !taken_) stopped_ = !client_->begin(step_, stop_wanted_);
  return !stopped_;
}

void Servers::push(size_t bucket) { pushes_.push_back(client_->push(buckets_[bucket].range, {.step = step_, .lr = lr_, .pull = true})); }

void Servers::ready(size_t bucket) {
  // What is decided by the whole gradient waits for it.
  if (options_.overlap && options_.clip == 0 && options_.sync.kind != Sync::trylock) push(bucket);
}

void Servers::push_all() {
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++) push(bucket);
}

bool Servers::wins_lock() {
  const double draw = luck(options_.seed, static_cast<uint64_t>(client_->worker()), static_cast<uint64_t>(step_));
  return client_->lock(draw < options_.sync.probability);
}

/// Whether others may go on while this rank's gradients are on their way: not where their age is bounded, or where a lock is held.
bool Servers::lands_later() const { return options_.sync == Sync::server || options_.sync == Sync::async || options_.sync == Sync::round_robin; }

void Servers::close() {
  if (options_.clip > 0) clip_norm(layout_, flags(), gradients(), options_.clip);
  const bool locks = options_.sync.kind == Sync::trylock, pushes = !locks || wins_lock();
  if (pushes && pushes_.empty()) push_all();
  if (!lands_later()) land();
  if (locks && pushes) client_->unlock();
  if (!pushes) client_->pull(whole()).wait();  // its gradient is dropped; the others' are not
  step_++;
  taken_ = false;
}

void Servers::await(space::Range part) {
  for (size_t bucket = 0; bucket < pushes_.size(); bucket++)
    if (!intersect(part, buckets_[bucket].range).empty()) pushes_[bucket].wait();
}

void Servers::land() {
  for (const ps::Pending& pending : pushes_) pending.wait();
  pushes_.clear();
}

void Servers::settle() {
  if (lockstep()) return;
  client_->barrier();
  client_->pull(whole()).wait();
}

void clip_norm(const space::Layout& layout, const uint8_t* flags, std::byte* gradients, double limit) {
  const auto each = [&](const auto& visit) {
    for (size_t slot = 0; slot < layout.size(); slot++)
      if (flags[slot] != 0) visit(layout[slot], gradients + layout[slot].range.begin);
  };
  double sum = 0;
  each([&](const space::Slot& slot, const std::byte* data) {
    sum += slot.dtype == DType::f64 ? squares<double>(data, slot.elements()) : squares<float>(data, slot.elements());
  });
  const double factor = limit / (std::sqrt(sum) + 1e-6);  // libtorch's formula
  if (!(factor < 1)) return;
  each([&](const space::Slot& slot, std::byte* data) {
    slot.dtype == DType::f64 ? scale<double>(data, slot.elements(), factor) : scale<float>(data, slot.elements(), factor);
  });
}

}  // namespace trireme::exchange
