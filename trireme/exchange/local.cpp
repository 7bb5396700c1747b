#include <cstring>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/exchange/local.h>

namespace trireme::exchange {
namespace {

constexpr const char *kAgreed = "optimizer/diloco/agreed", *kMomentum = "optimizer/diloco/momentum",
                     *kSince = "diloco/since";

/// Calls op(a, b, c) for the elements of three flat vectors, slot by slot.
template <class Op>
void each_element(const space::Layout& layout, std::byte* a, std::byte* b, std::byte* c, const Op& op) {
  const auto as = [&]<class T>(T, const space::Slot& slot) {
    T *x = reinterpret_cast<T*>(a + slot.range.begin), *y = reinterpret_cast<T*>(b + slot.range.begin),
      *z = reinterpret_cast<T*>(c + slot.range.begin);
    for (size_t i = 0; i < slot.elements(); i++) op(x[i], y[i], z[i]);
  };
  for (const space::Slot& slot : layout.slots()) {
    if (slot.dtype == DType::f32) as(float{}, slot);
    if (slot.dtype == DType::f64) as(double{}, slot);
  }
}

/// Servers that only add: what is pushed is a difference. The mean needs the differences of all, the elastic centre
/// takes them as they come.
ps::Job adding_job(const Group& group, const space::Layout& layout, const Options& options) {
  return {.layout = layout,
          .workers = group.all.size(),
          .servers = group.world->servers(),
          .bucket_bytes = options.bucket_bytes,
          .chunk_bytes = options.chunk_bytes,
          .optimizer = space::sgd({.lr = 1}),
          .rules = {.workers = group.all.size(),
                    .order = options.sync.kind == Sync::local ? ps::Order::together : ps::Order::on_arrival},
          .replicas = group.world->place().replicas};
}

}  // namespace

Local::Local(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
             const Options& options)
    : Exchange(layout, options, {.lockstep = false, .kept_elsewhere = true}), group_(group.all) {
  berth_.emplace(group.all, group.local, layout_.fingerprint());
  vectors_ = own_vectors(group.local.rank());
  source_ = std::make_unique<OwnShare>(group_.rank(), group_.size());
  updater_.emplace(optimizer, bucket_ranges(), false,
                   berth_->state(optimizer.kind, layout_, buckets_, bucket_ranges(), false));
  if (group.world != nullptr && group.world->servers() > 0 && options.sync.takes_servers()) {
    servers_.emplace(group, adding_job(group, layout_, options), false);
    to_servers_ = &**servers_;
  }
  if (options.sync.kind == Sync::elastic) own_ = space::Arena::of_process(layout_.bytes());
  if (options.sync.kind != Sync::diloco) return;
  agreed_ = space::Arena::of_process(layout_.bytes());
  momentum_ = space::Arena::of_process(layout_.bytes());
}

Local::~Local() { before_writing(); }

void Local::publish() {
  before_writing();
  group_.broadcast(parameters(), layout_.bytes(), DType::u8, 0, "parameters");
  if (options_.sync.kind == Sync::diloco) std::memcpy(agreed_.data(), parameters(), layout_.bytes());
  complete();
  if (!servers_) return;
  std::memcpy((*servers_)->parameters(), parameters(), layout_.bytes());
  if (group_.rank() == 0) (*servers_)->set(whole()).wait();
  (*servers_)->barrier();
}

bool Local::begin_step(std::optional<int64_t> /*leased*/) {
  if (options_.sync.kind == Sync::elastic) outcome_.stopped = !(*servers_)->begin(steps_, source_->stop_wanted());
  return !outcome_.stopped;
}

void Local::close() {
  if (!whole_first() || clip_here()) update_all();
  since_++;
  if (++steps_ % options_.sync.period == 0) meet();
  complete();
}

void Local::meet() {
  if (options_.sync.kind == Sync::elastic) return draw_nearer();
  average();
  uint8_t stop = source_->stop_wanted() ? 1 : 0;  // here all ranks are at the same step
  group_.allreduce(&stop, 1, DType::u8, Op::max, "stop");
  outcome_.stopped = stop != 0;
}

void Local::average() {
  before_writing();
  if (options_.sync.kind == Sync::diloco) return outer_step();
  if (!servers_) return take_mean(parameters());
  ps::Client& client = **servers_;
  const double ranks = group_.size();
  // The servers subtract Σ (last mean − own) / N from the last mean: that is the new one.
  each_element(layout_, client.gradients(), client.parameters(), parameters(),
               [&](auto& difference, auto mean, auto own) {
                 difference = (mean - own) / static_cast<std::decay_t<decltype(difference)>>(ranks);
               });
  client.push(whole(), {.step = steps_, .lr = 1, .pull = true}).wait();
  std::memcpy(parameters(), client.parameters(), layout_.bytes());
}

/// Over all ranks.
void Local::take_mean(std::byte* flat) {
  for (const space::Slot& slot : layout_.slots())
    if (slot.dtype == DType::f32 || slot.dtype == DType::f64)
      group_.allreduce(flat + slot.range.begin, slot.elements(), slot.dtype, Op::mean, slot.name);
}

/// All ranks have the same sums, and so the same bits.
void Local::outer_step() {
  group_.allreduce(&since_, 1, DType::i64, Op::max, "steps since the last meeting");
  if (std::exchange(since_, 0) == 0) return;  // momentum alone would move them
  const double rate = options_.sync.outer_rate, momentum = options_.sync.outer_momentum;
  each_element(layout_, parameters(), agreed_.data(), momentum_.data(),
               [](auto& own, auto agreed, auto /*momentum*/) { own = agreed - own; });
  take_mean(parameters());
  each_element(layout_, parameters(), agreed_.data(), momentum_.data(), [&](auto& own, auto& agreed, auto& velocity) {
    using T = std::decay_t<decltype(own)>;
    velocity = static_cast<T>(momentum) * velocity + own;
    agreed -= static_cast<T>(rate) * (own + static_cast<T>(momentum) * velocity);
    own = agreed;
  });
}

void Local::draw_nearer() {
  before_writing();
  ps::Client& client = **servers_;
  client.pull(whole()).wait();
  const double rho = options_.sync.rho;
  each_element(layout_, client.gradients(), client.parameters(), parameters(),
               [&](auto& pushed, auto centre, auto& own) {
                 const auto pull = static_cast<std::decay_t<decltype(own)>>(rho) * (own - centre);
                 own -= pull;
                 pushed = -pull;  // servers subtract
               });
  client.push(whole(), {.step = steps_, .lr = 1}).wait();
}

void Local::settle() {
  if (options_.sync.kind != Sync::elastic) return average();
  before_writing();
  ps::Client& client = **servers_;
  client.barrier();
  client.pull(whole()).wait();
  std::memcpy(own_.data(), parameters(), layout_.bytes());
  std::memcpy(parameters(), client.parameters(), layout_.bytes());
}

void Local::resume() {
  if (options_.sync.kind == Sync::elastic) std::memcpy(parameters(), own_.data(), layout_.bytes());
}

// ---- state: each rank's own, and the centre where servers keep one ----

Exchange::Share Local::share_of(int /*rank*/, size_t bucket) const {
  const space::Range all = buckets_[bucket].range;
  return {.parameters = all, .updated = all, .own_parameters = true, .own_state = true};
}

state::OwnerMap Local::owners() const {
  state::OwnerMap map = Exchange::owners();
  const state::OwnerMap centre = servers_ ? (*servers_)->state_owners() : state::OwnerMap();
  for (const state::Holding& holding : centre.of(state::kParameters))
    map.add(state::kParameters, holding.range, holding.owner);
  if (options_.sync.kind != Sync::diloco) return map;
  for (const char* const vector : {kAgreed, kMomentum})
    for (const space::Slot& slot : layout_.slots())
      for (int rank = 0; rank < group_.size(); rank++) map.add(vector, slot.range, rank);
  return map;
}

void Local::come_to_rest() {
  if (!servers_) return;
  (*servers_)->barrier();
  (*servers_)->pull(whole()).wait();
}

std::vector<state::Part> Local::parts() {
  std::vector<state::Part> parts = Exchange::parts();
  if (servers_)
    for (const state::Part& part : (*servers_)->state_parts()) parts.push_back(part);
  if (options_.sync.kind != Sync::diloco) return parts;
  for (const space::Slot& slot : layout_.slots()) {
    const space::Range all = slot.range;
    if (all.empty()) continue;
    parts.push_back({kAgreed, all, {agreed_.data() + all.begin, all.size()}});
    parts.push_back({kMomentum, all, {momentum_.data() + all.begin, all.size()}});
  }
  return parts;
}

Exchange::Scalars Local::scalars() {
  Scalars scalars = Exchange::scalars();
  if (options_.sync.kind == Sync::diloco) scalars.push_back({named(kSince, true, group_.rank()), since_, 1});
  if (servers_) scalars.push_back({kServersVersion, (*servers_)->position().version, -1});
  return scalars;
}

void Local::restore_scalars(const std::vector<int64_t>& values) {
  Exchange::restore_scalars(values);
  steps_ = values[0];
  group_.allreduce(&steps_, 1, DType::i64, Op::max, "steps so far");  // ranks that took their work had different ones
  if (options_.sync.kind == Sync::diloco)
    since_ = values[1];
  else if (servers_)
    (*servers_)->restore_position({.version = values[1]}, steps_);
}

bool Local::may_lack(const std::string& vector) const { return vector == kAgreed || vector == kMomentum; }

/// Of another mode: what ranks agree on is the mean of what they were given.
void Local::restore_elsewhere(state::Source& source) {
  if (options_.sync.kind == Sync::diloco && source.contents().of(kAgreed).empty()) {
    std::memcpy(agreed_.data(), parameters(), layout_.bytes());
    std::memset(momentum_.data(), 0, layout_.bytes());
    take_mean(agreed_.data());
  }
  if (servers_) (*servers_)->restore_state(source);
}

}  // namespace trireme::exchange
