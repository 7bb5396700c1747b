#include <trireme/parallel/parallel.h>

#include <torch/torch.h>

#include <trireme/base/sha256.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/comm/c10d/torch_compat.h>
#include <trireme/parallel/arrivals.h>
#include <trireme/parallel/large_linear.h>
#include <trireme/parallel/placement.h>
#include <atomic>
#include <cstring>
#include <unordered_set>

namespace trireme {
namespace {

using torch_compat::dtype_of;

struct Named {
  std::string name;
  torch::Tensor tensor;
};

/// Parameters or buffers in the order of registration; one that is registered twice (tied weights) once.
template <class Items>
std::vector<Named> distinct(const Items& items) {
  std::vector<Named> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : items)
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) result.push_back({item.key(), item.value()});
  return result;
}

space::Layout layout_of(const std::vector<Named>& parameters, bool channels_last) {
  std::vector<space::Slot> slots;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.device().is_cpu()) fail<InvalidArgument>("parameter '{}' is on {}; only CPU tensors can be trained here", name, tensor.device().str());
    const DType type = dtype_of(tensor.scalar_type());
    if (tensor.requires_grad() && type != DType::f32 && type != DType::f64)
      fail<InvalidArgument>("parameter '{}' has type {}; parameters must be f32 or f64", name, trireme::name_of(type));
    slots.push_back({name, type, tensor.sizes().vec(), channels_last && tensor.dim() == 4, {}});
  }
  return space::Layout(std::move(slots));
}

torch::Tensor view_of(const space::Slot& slot, std::byte* flat, torch::ScalarType type) {
  void* data = flat + slot.range.begin;
  if (!slot.channels_last) return torch::from_blob(data, slot.shape, type);
  const auto& s = slot.shape;
  return torch::from_blob(data, {s[0], s[2], s[3], s[1]}, type).permute({0, 3, 1, 2});
}

}  // namespace

class Parallel::Impl {
 public:
  Impl(World& world, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer, ParallelOptions options)
      : world_(world),
        options_(options),
        lr_(optimizer ? optimizer->lr : 0),
        parameters_(distinct(module.named_parameters())),
        buffers_(distinct(module.named_buffers())) {
    if (options_.accumulate < 1) fail<InvalidArgument>("accumulate must be at least 1, not {}", options_.accumulate);
    exchange::Group group(world.comm(), world.local(), world.lane(), world.lanes());
    group.world = &world;
    exchange_ = exchange::make_exchange(group, layout_of(parameters_, options_.channels_last), optimizer,
                                        {.sync = options_.sync,
                                         .bucket_bytes = options_.bucket_bytes,
                                         .overlap = options_.overlap,
                                         .stale = options_.stale,
                                         .lambda = options_.lambda,
                                         .clip = options_.clip,
                                         .seed = options_.seed,
                                         .tables = options_.tables});
    adopt_parameters();
    for (auto& [name, buffer] : buffers_) {
      torch::Tensor whole = buffer.contiguous();
      world_.comm().broadcast(whole.data_ptr(), whole.nbytes(), DType::u8, 0, name);
      if (!whole.is_same(buffer)) buffer.copy_(whole);
    }
    listen();
  }

  ~Impl() {
    try {
      land();
    } catch (...) {  // whoever is not there any more was reported by the call that needed it
    }
    const torch::NoGradGuard no_grad;
    for (auto& [name, parameter] : parameters_) {
      parameter.set_data(parameter.detach().clone());
      parameter.mutable_grad().reset();
    }
  }

  Step step(double weight, const std::function<torch::Tensor()>& loss) {
    if (micro_ == 0 && !begin()) return {false, 0, updates_, true};
    const bool last = micro_ + 1 == options_.accumulate;
    if (!exchange_->lockstep()) weight *= world_.size();  // of its own samples, it has all
    if (weight > 0)
      backward(weight, loss, last);
    else if (micro_ == 0)
      open();
    store_deferred();
    micro_ = last ? 0 : micro_ + 1;
    if (!last) return {false, 0, updates_, false};
    return update();
  }

  void exclusive(const std::function<void()>& change) {
    land();
    world_.comm().barrier("exclusive: begin");
    const torch::NoGradGuard no_grad;
    const bool one_decides = exchange_->parameters_are_shared() || exchange_->kept_elsewhere();
    exchange_->settle();
    if (world_.first() || !one_decides) change();
    if (one_decides) exchange_->publish_parameters();
    world_.comm().barrier("exclusive: end");
  }

  void settled(const std::function<void()>& look) {
    land();
    sync_buffers();
    exchange_->settle();
    look();
    exchange_->resume();
  }

  void sync_buffers() {
    const torch::NoGradGuard no_grad;
    for (auto& [name, buffer] : buffers_) {
      torch::Tensor whole = buffer.contiguous();
      const Op op = buffer.is_floating_point() ? Op::mean : Op::max;  // counters are equal, or the furthest counts
      world_.comm().allreduce(whole.data_ptr(), static_cast<size_t>(whole.numel()), dtype_of(whole.scalar_type()), op, name);
      if (!whole.is_same(buffer)) buffer.copy_(whole);
    }
  }

  /// Row-major copies of everything that a saved model consists of.
  std::vector<Named> state() {
    std::vector<Named> all;
    settled([&] {
      for (const auto* list : {&parameters_, &buffers_})
        for (const auto& [name, tensor] : *list) all.push_back({name, tensor.detach().clone(torch::MemoryFormat::Contiguous)});
    });
    return all;
  }

  ps::Work take(int64_t epoch, int64_t first_step, int64_t pieces) {
    if (stop.load()) exchange_->want_stop();
    const ps::Work work = exchange_->take(epoch, first_step, pieces);
    taken_ = work.step;
    return work;
  }

  World& world() { return world_; }
  double learning_rate() const { return space::rate_at(options_.schedule, lr_, exchange_->gives_work() ? taken_ : updates_); }
  exchange::Exchange& exchange() const { return *exchange_; }
  double equal_weight() const { return 1.0 / (static_cast<double>(world_.size()) * options_.accumulate); }
  std::atomic<bool> stop{false};

 private:
  /// Moves the parameters into the flat space; rank 0's values become everybody's.
  void adopt_parameters() {
    const torch::NoGradGuard no_grad;
    const space::Layout& layout = exchange_->layout();
    for (size_t i = 0; i < parameters_.size(); i++) {
      torch::Tensor& parameter = parameters_[i].tensor;
      torch::Tensor home = view_of(layout[i], exchange_->parameters(), parameter.scalar_type());
      if (world_.first()) home.copy_(parameter);
      parameter.set_data(home);
      gradients_.push_back(view_of(layout[i], exchange_->gradients(), parameter.scalar_type()));
    }
    exchange_->publish_parameters();
    placement_.emplace(gradients_);
    arrivals_.emplace(exchange_->parameters(), layout.bytes(), [this](space::Range part) { exchange_->await(part); });
  }

  void listen() {
    bucket_of_.resize(parameters_.size());
    for (size_t b = 0; b < exchange_->buckets().size(); b++)
      for (size_t slot = exchange_->buckets()[b].first; slot < exchange_->buckets()[b].last; slot++) bucket_of_[slot] = b;
    for (size_t slot = 0; slot < parameters_.size(); slot++) {
      const torch::Tensor& parameter = parameters_[slot].tensor;
      if (!parameter.requires_grad()) continue;
      nodes_.push_back(torch_compat::on_gradient(parameter, [this, alive = std::weak_ptr<int>(alive_), slot] {
        if (!alive.expired()) arrived(slot);
      }));
      // Autograd takes over a gradient without a copy only in the parameter's own format, and warns about any other.
      if (exchange_->layout()[slot].channels_last)
        parameter.register_hook([](const torch::Tensor& gradient) { return gradient.contiguous(torch::MemoryFormat::ChannelsLast); });
    }
  }

  bool begin() {
    if (stop.load()) exchange_->want_stop();
    if (!exchange_->begin(learning_rate())) return false;
    const auto& buckets = exchange_->buckets();
    missing_.assign(buckets.size(), 0);
    for (size_t slot = 0; slot < parameters_.size(); slot++) missing_[bucket_of_[slot]] += parameters_[slot].tensor.requires_grad();
    filled_.assign(parameters_.size(), false);
    next_bucket_ = 0;
    loss_ = 0;
    return true;
  }

  /// All parameters of the last update are in place.
  void land() {
    arrivals_->dismiss();
    exchange_->land();
  }

  void open() {
    arrivals_->dismiss();
    exchange_->open();
  }

  void backward(double weight, const std::function<torch::Tensor()>& loss, bool last) {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
    const torch::Tensor value = [&] {
      const WeightsFirst first(exchange_->patient());
      return loss();
    }();
    if (value.numel() != 1) fail<InvalidArgument>("the loss must be a single number, not a tensor of {} elements", value.numel());
    loss_ += weight * value.item<double>();
    if (micro_ == 0) open();
    last_ = last;
    const Collecting collecting(*this);
    std::optional<Placement::Watch> watch;
    if (micro_ == 0) watch.emplace(*placement_);  // later micro-batches add to what is there
    value.backward(torch::full_like(value, weight));
  }

  struct Collecting {
    explicit Collecting(Impl& impl) : impl(impl) { impl.collecting_ = true; }
    ~Collecting() { impl.collecting_ = false; }
    Impl& impl;
  };

  /// The backward pass has the gradient of a slot: into the flat space with it, and on with every bucket that is complete, in order.
  void arrived(size_t slot) {
    if (!collecting_) return;
    torch::Tensor& gradient = parameters_[slot].tensor.mutable_grad();
    if (!gradient.defined()) return;
    if (micro_ > 0 || !placement_->settle(slot, gradient)) {
      if (placement_->occupied(slot)) return defer(slot, std::move(gradient));
      store(gradients_[slot], gradient, filled_[slot]);
    }
    gradient.reset();
    filled_[slot] = true;
    exchange_->present(slot);
    if (!last_) return;
    missing_[bucket_of_[slot]]--;
    const size_t now = missing_.size() - (exchange_->patient() ? 1 : 0);
    while (next_bucket_ < now && missing_[next_bucket_] == 0) ready_next();
  }

  void ready_next() {
    if (next_bucket_ + 1 == missing_.size()) exchange_->tell(told_ = {loss_, stop.load() ? 1.0 : 0.0});
    exchange_->ready(next_bucket_++);
  }

  /// The model's graph has changed, and some other tensor lives where this gradient belongs. It will be gone after the backward pass.
  void defer(size_t slot, torch::Tensor gradient) {
    placement_->give_up();
    deferred_.push_back({slot, std::move(gradient)});
  }

  void store_deferred() {
    for (auto& [slot, gradient] : deferred_) {
      if (placement_->occupied(slot))
        fail<Error>("a tensor that was made in the backward pass is kept beyond it, in memory that belongs to the gradient of '{}'; clone() what you keep",
                    parameters_[slot].name);
      store(gradients_[slot], gradient, filled_[slot]);
      filled_[slot] = true;
      exchange_->present(slot);
    }
    deferred_.clear();
  }

  static void store(torch::Tensor& home, const torch::Tensor& gradient, bool add) {
    if (gradient.is_sparse()) return store(home, gradient.to_dense(), add);
    if (add)
      home.add_(gradient);
    else if (gradient.strides() == home.strides() && gradient.scalar_type() == home.scalar_type())
      std::memcpy(home.data_ptr(), gradient.data_ptr(), home.nbytes());
    else
      home.copy_(gradient);
  }

  Step update() {
    while (next_bucket_ < missing_.size()) ready_next();
    exchange_->close();
    if (!options_.overlap_next) exchange_->land();
    if (!exchange_->landed()) arrivals_->expect();
    updates_++;
    if (exchange_->updater() == nullptr)
      for (size_t slot = 0; slot < parameters_.size(); slot++)
        if (exchange_->was_present(slot)) parameters_[slot].tensor.mutable_grad() = gradients_[slot];
    if (!exchange_->lockstep()) return {true, loss_, updates_, exchange_->stopped()};
    if (const exchange::Told* sums = exchange_->told())
      told_ = *sums;
    else
      world_.comm().allreduce(told_.data(), told_.size(), DType::f64, Op::sum, "loss");
    return {true, told_[0], updates_, told_[1] > 0};
  }

  World& world_;
  ParallelOptions options_;
  double lr_;
  std::vector<Named> parameters_, buffers_;
  std::unique_ptr<exchange::Exchange> exchange_;
  std::vector<torch::Tensor> gradients_;  // views of the flat space, by slot
  std::optional<Placement> placement_;
  std::optional<Arrivals> arrivals_;
  std::vector<size_t> bucket_of_;  // by slot
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;
  std::shared_ptr<int> alive_ = std::make_shared<int>();  // hooks may outlive us inside a graph

  // Of the step that is under way.
  int micro_ = 0;
  bool collecting_ = false, last_ = false;
  std::vector<size_t> missing_;  // gradients that a bucket still waits for
  std::vector<bool> filled_;     // slots with a gradient from an earlier micro-batch
  size_t next_bucket_ = 0;
  std::vector<std::pair<size_t, torch::Tensor>> deferred_;  // gradients whose place is taken until the backward pass ends
  double loss_ = 0;
  exchange::Told told_{};  // loss and the wish to stop: this rank's, then everybody's
  int64_t updates_ = 0;
  int64_t taken_ = 0;  // the step of the piece of work that was taken last
};

Parallel::Parallel(World& world, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer, ParallelOptions options)
    : impl_(std::make_unique<Impl>(world, module, optimizer, options)) {}
Parallel::~Parallel() = default;

Step Parallel::step(double weight, const std::function<torch::Tensor()>& loss) { return impl_->step(weight, loss); }
Step Parallel::step(const std::function<torch::Tensor()>& loss) { return impl_->step(impl_->equal_weight(), loss); }
void Parallel::request_stop() noexcept { impl_->stop.store(true); }
void Parallel::exclusive(const std::function<void()>& change) { impl_->exclusive(change); }
void Parallel::settled(const std::function<void()>& look) { impl_->settled(look); }
bool Parallel::lockstep() const { return impl_->exchange().lockstep(); }
bool Parallel::gives_work() const { return impl_->exchange().gives_work(); }
ps::Work Parallel::take(int64_t epoch, int64_t first_step, int64_t pieces) { return impl_->take(epoch, first_step, pieces); }
ps::Client& Parallel::servers() {
  if (ps::Client* client = impl_->exchange().client()) return *client;
  fail<InvalidArgument>("this mode has no parameter servers: use Sync::async or another one that has");
}
std::optional<exchange::Statistics> Parallel::statistics() { return impl_->exchange().statistics(); }
double Parallel::learning_rate() const { return impl_->learning_rate(); }
const exchange::Exchange& Parallel::exchange() const { return impl_->exchange(); }

std::string Parallel::sha256() {
  Sha256 hash;
  for (const auto& [name, tensor] : impl_->state()) {
    hash.add(name.data(), name.size());
    hash.add(tensor.data_ptr(), tensor.nbytes());
  }
  return hash.finish();
}

void Parallel::save(const std::string& path) {
  const std::vector<Named> state = impl_->state();
  if (impl_->world().first()) {
    std::vector<checkpoint::NamedTensor> tensors;
    for (const auto& [name, tensor] : state)
      tensors.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), tensor.data_ptr(), tensor.nbytes()});
    checkpoint::write_safetensors(path, tensors, {{"producer", "trireme"}});
  }
  impl_->world().comm().barrier("saved");
}

Parallel parallel(World& world, torch::nn::Module& module, space::UpdaterOptions optimizer, ParallelOptions options) {
  return Parallel(world, module, optimizer, options);
}
Parallel parallel(World& world, torch::nn::Module& module, ParallelOptions options) { return Parallel(world, module, std::nullopt, options); }

}  // namespace trireme
