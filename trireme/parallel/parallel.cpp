#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include <trireme/base/sha256.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/cluster/launching/slate.h>
#include <trireme/parallel/arrivals.h>
#include <trireme/parallel/batch_norm.h>
#include <trireme/parallel/large_linear.h>
#include <trireme/parallel/not_finite.h>
#include <trireme/parallel/parallel.h>
#include <trireme/parallel/placement.h>
#include <trireme/torch/compat.h>

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
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      result.push_back({item.key(), item.value()});
  return result;
}

/// The further names of what is registered twice, each with the name that distinct() has.
using Ties = std::vector<std::pair<std::string, std::string>>;

template <class Items>
void add_ties(const Items& items, Ties& ties) {
  std::unordered_map<const void*, std::string> first;
  for (const auto& item : items) {
    if (!item.value().defined()) continue;
    const auto [found, is_new] = first.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!is_new) ties.emplace_back(item.key(), found->second);
  }
}

/// As safetensors calls it.
std::string format_name(torch::ScalarType type) {
  switch (type) {
    case torch::kBool:
      return "BOOL";
    case torch::kInt8:
      return "I8";
    case torch::kInt16:
      return "I16";
    default: {
      std::string name(trireme::name_of(dtype_of(type)));
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
      return name;
    }
  }
}

void check_trainable(const Named& parameter) {
  const DType type = dtype_of(parameter.tensor.scalar_type());
  if (parameter.tensor.requires_grad() && type != DType::f32 && type != DType::f64)
    fail<InvalidArgument>("parameter '{}' has type {}; parameters must be f32 or f64", parameter.name,
                          trireme::name_of(type));
}

/// Which parameters are trained.
exchange::Terms freezing_of(const std::vector<Named>& parameters) {
  exchange::Terms terms;
  for (const auto& [name, tensor] : parameters)
    terms.add(fmt::format("requires_grad of {}", name), tensor.requires_grad() ? "true" : "false (frozen)");
  return terms;
}

space::Layout layout_of(const std::vector<Named>& parameters, bool channels_last) {
  std::vector<space::Slot> slots;
  for (const Named& parameter : parameters) {
    const auto& [name, tensor] = parameter;
    if (!tensor.device().is_cpu())
      fail<InvalidArgument>("parameter '{}' is on {}; only CPU tensors can be trained here", name,
                            tensor.device().str());
    check_trainable(parameter);
    slots.push_back(
        {name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), channels_last && tensor.dim() == 4, {}});
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

namespace {

/// The models that this rank trains.
struct Trained final : World::Attachment {
  std::vector<exchange::Exchange*> exchanges;
};

}  // namespace

class Parallel::Impl {
 public:
  Impl(World& world, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer, ParallelOptions options)
      : world_(world),
        options_(options),
        lr_(optimizer ? optimizer->lr : 0),
        parameters_(distinct(module.named_parameters())),
        buffers_(distinct(module.named_buffers())) {
    add_ties(module.named_parameters(), ties_);
    add_ties(module.named_buffers(), ties_);
    if (options_.accumulate < 1) fail<InvalidArgument>("accumulate must be at least 1, not {}", options_.accumulate);
    if (!(options_.clip >= 0) || !std::isfinite(options_.clip))
      fail<InvalidArgument>("clip must be a norm of at least 0 (0: none), not {}", options_.clip);
    if (options_.sync_batch_norm && !options_.sync.lockstep())
      fail<InvalidArgument>(
          "sync_batch_norm needs ranks that take every step together, and with sync '{}' each goes at its own pace",
          exchange::name_of(options_.sync));
    exchange::Group group(world.comm(), world.local(), world.lane(), world.lanes());
    group.world = &world;
    exchange_ = exchange::make_exchange(group, layout_of(parameters_, options_.channels_last), optimizer,
                                        {.sync = options_.sync,
                                         .bucket_bytes = options_.bucket_bytes,
                                         .overlap = options_.overlap,
                                         .clip = options_.clip,
                                         .on_nan = options_.on_nan,
                                         .backward_waits = options_.sync_batch_norm,
                                         .rate = options_.rate,
                                         .terms = own_terms(),
                                         .stale = options_.stale,
                                         .lambda = options_.lambda,
                                         .seed = options_.seed,
                                         .tables = options_.tables});
    adopt_parameters();
    for (auto& [name, buffer] : buffers_) {
      torch::Tensor whole = buffer.contiguous();
      world_.comm().broadcast(whole.data_ptr(), whole.nbytes(), DType::u8, 0, name);
      if (!whole.is_same(buffer)) buffer.copy_(whole);
    }
    if (options_.sync_batch_norm && world_.size() > 1) {
      BatchStatistics::Buffers buffers;
      for (const auto& [name, buffer] : buffers_) buffers.emplace_back(name, buffer);
      statistics_.emplace(world_, std::move(buffers));
    }
    listen();
    world_.attached<Trained>().exchanges.push_back(exchange_.get());
    follow_freezing();
  }

  ~Impl() {
    std::erase(world_.attached<Trained>().exchanges, exchange_.get());
    try {
      arrivals_->dismiss();
      // After an error nobody waits for what the others have not sent: that would take the timeout once more.
      if (std::uncaught_exceptions() <= exceptions_) exchange_->land();
    } catch (...) {  // whoever is not there any more was reported by the call that needed it
    }
    const torch::NoGradGuard no_grad;
    for (auto& [name, parameter] : parameters_) {
      parameter.set_data(parameter.detach().clone());
      parameter.mutable_grad().reset();
    }
  }

  Step step(double weight, const std::function<torch::Tensor()>& loss) {
    follow_freezing();
    if (micro_ == 0 && !begin(weight)) return {false, 0, updates_, true};
    const bool last = micro_ + 1 == options_.accumulate;
    if (!exchange_->lockstep()) weight *= world_.size();  // of its own samples, it has all
    if (statistics_) statistics_->begin(weight > 0);
    if (weight > 0)
      backward(weight, loss, last);
    else
      without_samples();
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
    if (!exchange_->lockstep()) compare_here();
    sync_buffers();
    exchange_->settle();
    look();
    exchange_->resume();
  }

  void sync_buffers() {
    const torch::NoGradGuard no_grad;
    for (auto& [name, buffer] : buffers_) {
      const bool narrow =
          buffer.scalar_type() == torch::kInt8 || buffer.scalar_type() == torch::kInt16;  // no kernels for these
      torch::Tensor whole = narrow ? buffer.to(torch::kInt32).contiguous() : buffer.contiguous();
      const Op op = buffer.is_floating_point() ? Op::mean : Op::max;  // counters are equal, or the furthest counts
      world_.comm().allreduce(whole.data_ptr(), static_cast<size_t>(whole.numel()), dtype_of(whole.scalar_type()), op,
                              name);
      if (!whole.is_same(buffer)) buffer.copy_(whole);
    }
  }

  /// Row-major copies of everything that a saved model consists of.
  std::vector<Named> state() {
    std::vector<Named> all;
    settled([&] {
      for (const auto* list : {&parameters_, &buffers_})
        for (const auto& [name, tensor] : *list)
          all.push_back({name, tensor.detach().clone(torch::MemoryFormat::Contiguous)});
    });
    return all;
  }

  ps::Work take(int64_t epoch, int64_t first_step, int64_t pieces) {
    if (stop.load()) exchange_->want_stop();
    const ps::Work work = exchange_->take(epoch, first_step, pieces);
    if (work.what == ps::Work::piece) clock_ = work.step;
    return work;
  }

  World& world() { return world_; }
  const Ties& ties() const { return ties_; }
  double learning_rate() const { return space::rate_at(options_.schedule, lr_, clock_); }
  exchange::Exchange& exchange() const { return *exchange_; }
  void use_loader(const std::shared_ptr<const std::string>& terms) {
    if (!terms || terms == loader_terms_) return;
    loader_terms_ = terms;
    loader_sign_ = exchange::sign_of(*terms);
  }
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

  /// What ranks must agree on besides model, optimizer and exchange.
  exchange::Terms own_terms() const {
    exchange::Terms terms;
    terms.add("accumulate", options_.accumulate)
        .add("sync_batch_norm", options_.sync_batch_norm)
        .add(exchange::terms_of(options_.schedule))
        .add(freezing_of(parameters_));
    return terms;
  }

  void listen() {
    nodes_.resize(parameters_.size());
    trained_.resize(parameters_.size());
    bucket_of_.resize(parameters_.size());
    for (size_t b = 0; b < exchange_->buckets().size(); b++)
      for (size_t slot = exchange_->buckets()[b].first; slot < exchange_->buckets()[b].last; slot++)
        bucket_of_[slot] = b;
  }

  /// A parameter has wanted gradients for the first time.
  void listen_to(size_t slot) {
    const torch::Tensor& parameter = parameters_[slot].tensor;
    nodes_[slot] = torch_compat::on_gradient(parameter, [this, alive = std::weak_ptr<int>(alive_), slot] {
      if (!alive.expired()) arrived(slot);
    });
    // Autograd takes over a gradient without a copy only in the parameter's own format, and warns about any other.
    if (exchange_->layout()[slot].channels_last)
      parameter.register_hook(
          [](const torch::Tensor& gradient) { return gradient.contiguous(torch::MemoryFormat::ChannelsLast); });
  }

  /// Users freeze and unfreeze parameters as they like: in front of a step, or inside of the loss.
  void follow_freezing() {
    bool changed = freezing_sign_[0] == 0;  // the first time
    for (size_t slot = 0; slot < parameters_.size(); slot++) {
      const bool trained = parameters_[slot].tensor.requires_grad();
      if (trained == trained_[slot]) continue;
      check_trainable(parameters_[slot]);
      if (!nodes_[slot]) listen_to(slot);
      trained_[slot] = trained;
      changed = true;
    }
    if (!changed) return;
    placement_->forget();
    freezing_sign_ = exchange::sign_of(freezing_of(parameters_).text());
  }

  exchange::Told tell() const {
    exchange::Told told{loss_, stop.load() ? 1.0 : 0.0};
    std::copy(freezing_sign_.begin(), freezing_sign_.end(), told.begin() + kFreezing);
    std::copy(loader_sign_.begin(), loader_sign_.end(), told.begin() + kLoader);
    return told;
  }

  /// From the sums over all ranks of what they tell. All of them find the same.
  void compare_signs(const exchange::Told& sums) {
    const auto same = [&](size_t at) { return exchange::all_same(std::span<const double, 3>(sums.data() + at, 3)); };
    if (same(kFreezing) && same(kLoader)) return;
    land();
    exchange::agree(world_.comm(), "frozen parameters", freezing_of(parameters_).text());
    exchange::agree(world_.comm(), "loaders", loader_terms_ ? *loader_terms_ : "");
  }

  /// Where every rank goes at its own pace, this is where they meet.
  void compare_here() {
    exchange::Told told = tell();
    world_.comm().allreduce(told.data(), told.size(), DType::f64, Op::sum, "signs of what ranks agree on");
    compare_signs(told);
  }

  /// The last micro-batch's backward pass begins: these are the gradients that may come.
  void expect_gradients() {
    for (size_t slot = 0; slot < parameters_.size(); slot++) missing_[bucket_of_[slot]] += trained_[slot];
  }

  /// The part of the rate that this rank's update counts: its part of the step's samples, where gradients are applied
  /// one by one. Of micro-batches only the first is known yet: the rate is what it lets expect, and the gradient makes
  /// up for the difference (`seed_`), so that their product is right.
  double begin_share(double first_weight) {
    seed_ = 1;
    if (!exchange::in_shares(options_.sync, options_.rate, world_.size())) return 1;
    const double share = first_weight > 0 ? std::min(1.0, first_weight * options_.accumulate) : 1.0 / world_.size();
    seed_ = 1 / (share * world_.size());
    return share;
  }

  bool begin(double first_weight) {
    if (stop.load()) exchange_->want_stop();
    if (!exchange_->begin(learning_rate() * begin_share(first_weight))) return false;
    missing_.assign(exchange_->buckets().size(), 0);
    filled_.assign(parameters_.size(), false);
    next_bucket_ = 0;
    loss_ = 0;
    lost_ = false;
    return true;
  }

  /// All parameters of the last update are in place.
  void land() {
    arrivals_->dismiss();
    if (exchange_->landed()) return;
    exchange_->land();
    if (!exchange_->sound()) complain(loss_at_update_);
  }

  void open() {
    land();
    exchange_->open();
  }

  /// The forward passes of other ranks may wait for what this rank has to land of other models, as its own would have
  /// done.
  void without_samples() {
    for (exchange::Exchange* one : world_.attached<Trained>().exchanges) one->land();
    if (micro_ == 0) open();
    if (statistics_) statistics_->follow();  // after open(): peers' forward passes wait for what lands there
  }

  torch::Tensor forward(const std::function<torch::Tensor()>& loss) {
    const WeightsFirst first(exchange_->patient());
    try {
      return loss();
    } catch (const c10::Error& error) {  // libtorch looks at this rank's samples alone, before anybody else can
      if (!statistics_ || error.msg().find("more than 1 value per channel") == std::string::npos) throw;
      fail<InvalidArgument>(
          "rank {} has a single sample here, and libtorch's batch norm wants two values per channel of every rank, "
          "with sync_batch_norm too. Choose a batch whose last one has two samples for each rank, or leave that out",
          world_.rank());
    }
  }

  void backward(double weight, const std::function<torch::Tensor()>& loss, bool last) {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
    const BatchStatistics::Use use(statistics_ ? &*statistics_ : nullptr);
    const torch::Tensor value = forward(loss);
    if (value.numel() != 1)
      fail<InvalidArgument>("the loss must be a single number, not a tensor of {} elements", value.numel());
    const auto number = value.item<double>();
    loss_ += weight * number;
    if (watches() && !std::isfinite(number)) lose(number);
    if (statistics_) statistics_->share();
    if (micro_ == 0) open();
    last_ = last;
    follow_freezing();
    if (last) expect_gradients();
    const Collecting collecting(*this);
    std::optional<Placement::Watch> watch;
    if (micro_ == 0) watch.emplace(*placement_);  // later micro-batches add to what is there
    value.backward(torch::full_like(value, weight * seed_));
  }

  struct Collecting {
    explicit Collecting(Impl& impl) : impl(impl) { impl.collecting_ = true; }
    ~Collecting() { impl.collecting_ = false; }
    Impl& impl;
  };

  /// The backward pass has the gradient of a slot: into the flat space with it, and on with every bucket that is
  /// complete, in order.
  void arrived(size_t slot) {
    if (!collecting_) return;
    torch::Tensor& gradient = parameters_[slot].tensor.mutable_grad();
    if (!gradient.defined()) return;
    if (lost_) return discard(slot);
    if (micro_ > 0 || !placement_->settle(slot, gradient)) {
      if (placement_->occupied(slot)) return defer(slot, std::move(gradient));
      store(gradients_[slot], gradient, filled_[slot]);
    }
    gradient.reset();
    filled_[slot] = true;
    exchange_->present(slot);
    passed(slot);
  }

  /// Nothing of it goes into the update.
  void discard(size_t slot) {
    parameters_[slot].tensor.mutable_grad().reset();
    passed(slot);
  }

  /// On with every bucket that is complete, in order.
  void passed(size_t slot) {
    if (!last_) return;
    missing_[bucket_of_[slot]]--;
    const size_t now = missing_.size() - (exchange_->patient() ? 1 : 0);
    while (next_bucket_ < now && missing_[next_bucket_] == 0) ready_next();
  }

  void ready_next() {
    if (next_bucket_ + 1 == missing_.size()) exchange_->tell(told_ = tell());
    exchange_->ready(next_bucket_++);
  }

  /// The model's graph has changed, and some other tensor lives where this gradient belongs. It will be gone after the
  /// backward pass.
  void defer(size_t slot, torch::Tensor gradient) {
    placement_->give_up();
    deferred_.push_back({slot, std::move(gradient)});
  }

  void store_deferred() {
    for (auto& [slot, gradient] : deferred_) {
      if (placement_->occupied(slot))
        fail<Error>(
            "a tensor that was made in the backward pass is kept beyond it, in memory that belongs to the gradient of "
            "'{}'; clone() what you keep",
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
    updates_++, clock_++;
    cluster::note_update();
    Step done{true, loss_, updates_, false};
    if (exchange_->lockstep())
      hear(done);
    else
      done.stop = exchange_->stopped();
    check(done.loss);
    if (!exchange_->landed()) arrivals_->expect();
    if (exchange_->updater() == nullptr)
      for (size_t slot = 0; slot < parameters_.size(); slot++)
        parameters_[slot].tensor.mutable_grad() = exchange_->was_present(slot) ? gradients_[slot] : torch::Tensor();
    return done;
  }

  /// All ranks' loss, and whether one of them wants to stop.
  void hear(Step& done) {
    if (const exchange::Told* sums = exchange_->told())
      told_ = *sums;
    else
      world_.comm().allreduce(told_.data(), told_.size(), DType::f64, Op::sum, "loss");
    compare_signs(told_);
    done.loss = told_[0];
    done.stop = told_[1] > 0;
  }

  bool watches() const { return options_.on_nan != exchange::OnNan::ignore; }

  /// This rank's loss is no number. In lockstep it goes on to the end of the update, with nothing to give, so that all
  /// ranks hear of it there.
  void lose(double number) {
    lost_ = true;
    if (exchange_->lockstep()) return;
    micro_ = 0;
    updates_++, clock_++;
    complain(number);
  }

  /// After an update: what all ranks know by now. What lands later is checked when it has.
  void check(double loss) {
    loss_at_update_ = loss_;
    if (!watches()) return;
    const bool lost = !std::isfinite(loss);
    if (lost) exchange_->land();
    if (lost || (exchange_->landed() && !exchange_->sound())) complain(loss_);
  }

  /// Throws, and in lockstep the same on all ranks. Collective then.
  [[noreturn]] void complain(double loss) {
    const bool together = exchange_->lockstep();
    const Finding mine = finding_of(loss, exchange_->flaw());
    std::vector<Finding> all(together ? static_cast<size_t>(world_.size()) : 1, mine);
    if (together) world_.comm().all_gather(&mine, all.data(), sizeof mine / sizeof(double), DType::f64, "who has NaN");
    fail<NotFinite>(
        "{}. Look for such numbers in the data, clip gradients (clip), or try a smaller learning rate{}",
        explain(all, together ? 0 : world_.rank(), updates_, [&](size_t slot) { return parameters_[slot].name; }),
        lr_ > 0 ? fmt::format(" than {:g}", lr_) : "");
  }

  World& world_;
  const int exceptions_ = std::uncaught_exceptions();  // on their way when this was made
  ParallelOptions options_;
  double lr_;
  std::vector<Named> parameters_, buffers_;
  Ties ties_;
  std::unique_ptr<exchange::Exchange> exchange_;
  std::vector<torch::Tensor> gradients_;  // views of the flat space, by slot
  std::optional<Placement> placement_;
  std::optional<Arrivals> arrivals_;
  std::optional<BatchStatistics> statistics_;                  // of batch norms over all ranks, if they are wanted
  std::vector<size_t> bucket_of_;                              // by slot
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;  // by slot; null until it has wanted gradients
  std::vector<bool> trained_;                                  // by slot: it wants gradients now
  std::shared_ptr<int> alive_ = std::make_shared<int>();       // hooks may outlive us inside a graph

  // Of the step that is under way.
  int micro_ = 0;
  bool collecting_ = false, last_ = false;
  std::vector<size_t> missing_;  // gradients that a bucket still waits for
  std::vector<bool> filled_;     // slots with a gradient from an earlier micro-batch
  size_t next_bucket_ = 0;
  std::vector<std::pair<size_t, torch::Tensor>>
      deferred_;  // gradients whose place is taken until the backward pass ends
  double loss_ = 0;
  double loss_at_update_ = 0;                             // this rank's, of the update before
  bool lost_ = false;                                     // one of its losses was no number
  double seed_ = 1;                                       // of the gradient, per weight: see begin_share()
  exchange::Told told_{};                                 // this rank's, then everybody's
  static constexpr ptrdiff_t kFreezing = 2, kLoader = 5;  // in what ranks tell, after the loss and the wish to stop
  exchange::Sign freezing_sign_{}, loader_sign_{};
  std::shared_ptr<const std::string> loader_terms_;  // of the last batch that came from a loader
  int64_t updates_ = 0;
  int64_t clock_ = 0;  // the step that the next update belongs to: of the piece that was taken for it, or this rank's next
};

Parallel::Parallel(World& world, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer,
                   ParallelOptions options)
    : impl_(std::make_unique<Impl>(world, module, optimizer, options)) {}
Parallel::~Parallel() = default;

Step Parallel::step(double weight, const std::function<torch::Tensor()>& loss) { return impl_->step(weight, loss); }
Step Parallel::step(const std::function<torch::Tensor()>& loss) { return impl_->step(impl_->equal_weight(), loss); }
void Parallel::use_loader(const std::shared_ptr<const std::string>& terms) { impl_->use_loader(terms); }
void Parallel::request_stop() noexcept { impl_->stop.store(true); }
void Parallel::exclusive(const std::function<void()>& change) { impl_->exclusive(change); }
void Parallel::settled(const std::function<void()>& look) { impl_->settled(look); }
bool Parallel::lockstep() const { return impl_->exchange().lockstep(); }
bool Parallel::gives_work() const { return impl_->exchange().gives_work(); }
ps::Work Parallel::take(int64_t epoch, int64_t first_step, int64_t pieces) {
  return impl_->take(epoch, first_step, pieces);
}
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

void Parallel::save(const std::string& path, const std::map<std::string, std::string>& metadata) {
  const std::vector<Named> state = impl_->state();
  if (impl_->world().first()) {
    std::vector<checkpoint::NamedTensor> tensors;
    const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
      tensors.push_back(
          {name, format_name(tensor.scalar_type()), tensor.sizes().vec(), tensor.data_ptr(), tensor.nbytes()});
    };
    for (const auto& [name, tensor] : state) add(name, tensor);
    for (const auto& [name, first] : impl_->ties())
      add(name,
          std::find_if(state.begin(), state.end(), [&](const Named& item) { return item.name == first; })->tensor);
    std::map<std::string, std::string> entries = metadata;
    entries.emplace("producer", "trireme");
    checkpoint::write_safetensors(path, tensors, entries);
    cluster::note_saved(std::filesystem::absolute(path).string());
  }
  impl_->world().comm().barrier("saved");
}

Parallel parallel(World& world, torch::nn::Module& module, space::UpdaterOptions optimizer, ParallelOptions options) {
  return Parallel(world, module, optimizer, options);
}
Parallel parallel(World& world, torch::nn::Module& module, ParallelOptions options) {
  return Parallel(world, module, std::nullopt, options);
}

}  // namespace trireme
