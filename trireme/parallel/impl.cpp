// A user's module in the flat space: parameters become views, hooks wait for gradients, ranks compare what they have.
#include <malloc.h>

#include <algorithm>
#include <utility>

#include <trireme/parallel/divisions.h>
#include <trireme/parallel/impl.h>
#include <trireme/parallel/precision.h>
#include <trireme/torch/compat.h>

namespace trireme {

using torch_compat::dtype_of;

namespace {

const std::string kData = "data";  // the axis of a mesh along which samples are divided

Group data_of(const Mesh& mesh) {
  return mesh.has(kData) ? mesh.group(kData) : mesh.whole().split(mesh.whole().rank());
}

}  // namespace

Ranks::Ranks(const Mesh& its_mesh) : data(data_of(its_mesh)), whole(data) {
  if (data.size() == its_mesh.whole().size()) return;
  whole = its_mesh.whole();
  model = its_mesh.has(kData) ? its_mesh.across(kData) : its_mesh.whole();
  mesh = its_mesh.describe();
}

Parallel::Impl::Impl(const Ranks& ranks, World* world, torch::nn::Module& module,
                     const std::optional<space::UpdaterOptions>& optimizer, const ParallelOptions& options)
    : group_(ranks.data),
      whole_(ranks.whole),
      model_(ranks.model),
      mesh_(ranks.mesh),
      count_(group_.registry()),
      options_(options),
      lr_(optimizer ? optimizer->lr : 0),
      parameters_(distinct(module.named_parameters())),
      buffers_(distinct(module.named_buffers())),
      work_(*this) {
  check(options_);
  check_precision(options_.precision, parameters_);
  check_ranks(world);
  add_ties(module.named_parameters(), ties_);
  add_ties(module.named_buffers(), ties_);
  if (model_) options_.overlap_next = false;  // a rank in a layer's collective lands nothing that others wait for
  const space::Layout layout = layout_of(parameters_, options_.channels_last, divisions_of(module, ties_));
  check_parts(layout, optimizer);
  exchange::Group members(group_);
  members.world = world;
  if (model_) members.model = &model_->comm();
  exchange_ = exchange::make_exchange(members, layout, optimizer, exchange_options());
  if (model_) assembly_.emplace(whole_, group_, *model_, layout, exchange_->owners());
  adopt_parameters();
  adopt_buffers();
  listen();
  group_.attached<Trained>().exchanges.push_back(exchange_.get());
  follow_freezing();
}

Parallel::Impl::~Impl() {
  std::erase(group_.attached<Trained>().exchanges, exchange_.get());
  try {
    arrivals_->dismiss();
    // After an error nobody waits for what the others have not sent: that would take the timeout once more.
    if (std::uncaught_exceptions() <= exceptions_) exchange_->land();
  } catch (...) {  // whoever is not there any more was reported by the call that needed it
  }
  const torch::NoGradGuard no_grad;
  for (auto& [name, parameter] : parameters_) {
    // What is not here cannot be left behind: better nothing than zeros.
    parameter.set_data(exchange_->traits().gathers ? torch::empty({0}, parameter.options())
                                                   : parameter.detach().clone());
    parameter.mutable_grad().reset();
  }
}

void Parallel::Impl::check_ranks(World* world) const {
  const exchange::Sync& sync = options_.exchange.sync;
  if (world == nullptr && sync.needs_servers())
    fail<InvalidArgument>(
        "sync '{}' needs parameter servers, which serve all ranks of a job together: give parallel() the World, and "
        "not {}",
        exchange::name_of(sync), group_.describe());
  if (model_ && !sync.lockstep())
    fail<InvalidArgument>(
        "on a mesh of {} ranks hold parts of one model and take every step together, and with sync '{}' each goes at "
        "its own pace: use shared, allreduce or central",
        mesh_, exchange::name_of(sync));
}

/// Ranks with different parts must have parts of the same: compared over all ranks before anything depends on it.
void Parallel::Impl::check_parts(const space::Layout& layout,
                                 const std::optional<space::UpdaterOptions>& optimizer) const {
  exchange::Terms cuts;
  for (const space::Slot& slot : layout.slots()) {
    if (!slot.cut) continue;
    if (!model_)
      fail<InvalidArgument>(
          "parameter {}: its other parts are on other ranks. Give parallel() the mesh that the layers have their group "
          "from, and not {}",
          slot.describe(), group_.describe());
    cuts.add(fmt::format("parts of {}", slot.name), fmt::format("{} along dim {}", slot.cut->count, slot.cut->dim));
  }
  if (!model_) return;
  exchange::Terms terms = exchange::terms_of(space::whole_of(layout));
  terms.add(exchange::terms_of(optimizer)).add(exchange::terms_of(exchange_options())).add(cuts);
  exchange::agree(whole_.comm(), "settings", terms.text());
}

/// The part of the options that is the exchange's, with what it has to know of the others. Layers whose parts are on
/// several ranks make them wait for one another in the middle of a backward pass.
exchange::Options Parallel::Impl::exchange_options() const {
  exchange::Options options = options_.exchange;
  options.backward_waits = options.backward_waits || options_.sync_batch_norm || model_;
  options.terms.add(own_terms());
  options.notes = {own_scalar("updates"), own_scalar("clock")};
  return options;
}

/// What ranks must agree on besides model, optimizer and exchange.
exchange::Terms Parallel::Impl::own_terms() const {
  exchange::Terms terms;
  terms.add("accumulate", options_.accumulate)
      .add("sync_batch_norm", options_.sync_batch_norm)
      .add("precision", precision_names()[static_cast<size_t>(options_.precision)])
      .add(exchange::terms_of(options_.schedule))
      .add(freezing_of(parameters_));
  return terms;
}

/// Moves the parameters into the flat space; rank 0's values become everybody's, but for other parts of tensors.
void Parallel::Impl::adopt_parameters() {
  const torch::NoGradGuard no_grad;
  const space::Layout& layout = exchange_->layout();
  for (size_t bucket = 0; bucket < exchange_->buckets().size(); bucket++) {
    for (size_t i = exchange_->buckets()[bucket].first; i < exchange_->buckets()[bucket].last; i++) {
      torch::Tensor& parameter = parameters_[i].tensor;
      torch::Tensor home = view_of(layout[i], exchange_->parameters(), parameter.scalar_type());
      if (group_.first()) home.copy_(parameter);
      if (group_.first() && model_ && !layout[i].cut)
        model_->comm().broadcast(home.data_ptr(), home.nbytes(), DType::u8, 0, parameters_[i].name);
      parameter.set_data(home);
    }
    exchange_->publish_bucket(bucket);
  }
  for (size_t i = 0; i < parameters_.size(); i++)
    gradients_.push_back(view_of(layout[i], exchange_->gradients(), parameters_[i].tensor.scalar_type()));
  exchange_->publish();
  if (options_.exchange.zero > 0) malloc_trim(0);  // what the module's own tensors were in is the machine's again
  placement_.emplace(gradients_);
  arrivals_.emplace(
      exchange_->parameters(), layout.bytes(), [this](std::span<const space::Range> parts) { exchange_->use(parts); },
      exchange_->traits().gathers ? [this] { exchange_->release(); } : std::function<void()>());
}

/// Rank 0's values become everybody's.
void Parallel::Impl::adopt_buffers() {
  for (auto& [name, buffer] : buffers_) {
    torch::Tensor whole = buffer.contiguous();
    whole_.comm().broadcast(whole.data_ptr(), whole.nbytes(), DType::u8, 0, name);
    if (!whole.is_same(buffer)) buffer.copy_(whole);
  }
  if (!options_.sync_batch_norm || group_.size() == 1) return;
  BatchStatistics::Buffers buffers;
  for (const auto& [name, buffer] : buffers_) buffers.emplace_back(name, buffer);
  statistics_.emplace(group_, std::move(buffers));
}

void Parallel::Impl::listen() {
  nodes_.resize(parameters_.size());
  trained_.resize(parameters_.size());
  bucket_of_.resize(parameters_.size());
  for (size_t b = 0; b < exchange_->buckets().size(); b++)
    for (size_t slot = exchange_->buckets()[b].first; slot < exchange_->buckets()[b].last; slot++) bucket_of_[slot] = b;
}

/// A parameter has wanted gradients for the first time.
void Parallel::Impl::listen_to(size_t slot) {
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
void Parallel::Impl::follow_freezing() {
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

ps::Lease Parallel::Impl::Work::take() {
  if (impl_.stop.load()) impl_.exchange_->want_stop();
  if (impl_.stopped_) return {ps::Lease::stopped};
  const StepLimit limit = impl_.limit_waits();
  const ps::Lease lease = impl_.exchange_->source().take();
  impl_.stopped_ = lease.what == ps::Lease::stopped;
  if (lease.what != ps::Lease::piece) return lease;
  impl_.clock_ = lease.step;
  if (impl_.exchange_->traits().gives_work) impl_.leased_ = lease.step;
  return lease;
}

void Parallel::Impl::use_loader(const std::shared_ptr<const std::string>& terms) {
  if (!terms || terms == loader_terms_) return;
  loader_terms_ = terms;
  loader_sign_ = exchange::sign_of(*terms);
}

void Parallel::Impl::limited(const std::function<void()>& meet) {
  const StepLimit limit = limit_waits();
  meet();
}

void Parallel::Impl::exclusive(const std::function<void()>& change) {
  land();
  exchange_->before_writing();
  group_.comm().barrier("exclusive: begin");
  const torch::NoGradGuard no_grad;
  const bool one_decides = exchange_->traits().shared || exchange_->traits().kept_elsewhere;
  exchange_->settle();
  if (group_.first() || !one_decides) change();
  if (one_decides) exchange_->publish();
  group_.comm().barrier("exclusive: end");
}

void Parallel::Impl::settled(const std::function<void()>& look, Looks looks) {
  land();
  if (!exchange_->traits().lockstep) compare_here();
  sync_buffers();
  if (looks == Looks::alike && exchange_->traits().gathers) {
    const Gathering gathering(*this, exchange::Pass::look);
    look();
    return arrivals_->check();
  }
  exchange_->settle();
  try {
    look();
  } catch (...) {  // who goes on after that must not train with parameters that nobody gathers any more
    if (exchange_->traits().gathers) exchange_->resume();
    throw;
  }
  exchange_->resume();
}

void Parallel::Impl::sync_buffers() {
  const torch::NoGradGuard no_grad;
  for (auto& [name, buffer] : buffers_) average(name, buffer);
}

/// Over all ranks, in place. Collective.
void Parallel::Impl::average(const std::string& name, torch::Tensor& buffer) {
  const bool narrow =
      buffer.scalar_type() == torch::kInt8 || buffer.scalar_type() == torch::kInt16;  // no kernels for these
  torch::Tensor whole = narrow ? buffer.to(torch::kInt32).contiguous() : buffer.contiguous();
  const Op op = buffer.is_floating_point() ? Op::mean : Op::max;  // counters are equal, or the furthest counts
  group_.comm().allreduce(whole.data_ptr(), static_cast<size_t>(whole.numel()), dtype_of(whole.scalar_type()), op,
                          name);
  if (!whole.is_same(buffer)) buffer.copy_(whole);
}

void Parallel::Impl::each_tensor(const std::function<void(const Named&)>& look) {
  const auto copy = [](const torch::Tensor& tensor) { return tensor.detach().clone(torch::MemoryFormat::Contiguous); };
  settled([&] {
    for (size_t slot = 0; slot < parameters_.size(); slot++) {
      const auto& [name, tensor] = parameters_[slot];
      look({name, assembly_ ? assembly_->tensor(slot, tensor) : copy(tensor)});
    }
    for (const auto& [name, tensor] : buffers_) look({name, copy(tensor)});
  });
}

state::OwnerMap Parallel::Impl::owners() const {
  return with_buffers(assembly_ ? assembly_->owners() : exchange_->owners());
}

/// Ranks with different parts of a replica have the same buffers.
state::OwnerMap Parallel::Impl::with_buffers(state::OwnerMap map) const {
  for (const state::Part& part : BufferState(buffers()).parts())
    for (int rank = 0; rank < whole_.size(); rank++) {
      const int worker = assembly_ ? assembly_->data_rank(rank) : rank;
      map.add(part.vector, part.range, rank);
      if (own_buffers()) map.add(state::of_worker(worker, part.vector), part.range, rank);
    }
  return map;
}

void Parallel::Impl::visit(state::Visitor& visitor) {
  land_between_updates();
  const BufferState common = averaged(), own(buffers());
  if (!assembly_) return exchange_->visit(visitor, extras(&common, own));
  state::WholeVisitor whole(*assembly_->map(), visitor);
  exchange_->visit(whole, extras(&common, own));
}

std::shared_ptr<state::Snapshot> Parallel::Impl::snapshot(const state::OwnerMap& division) {
  land_between_updates();
  const BufferState common = averaged(), own(buffers());
  if (!assembly_) return exchange_->snapshot(division, extras(&common, own));
  const auto made =
      exchange_->snapshot(assembly_->map()->here_of(division, whole_.rank(), group_.rank()), extras(&common, own));
  made->show_as(assembly_->map());
  return made;
}

/// Shared memory has parts as they are here (exchange::KeptState); everybody else has the whole.
std::string Parallel::Impl::restore(state::Source& kept) {
  land_between_updates();
  const BufferState own(buffers());
  std::optional<state::PartSource> part;
  if (assembly_ && kept.about().layout != exchange_->layout().describe()) part.emplace(*assembly_->map(), kept);
  state::Source& source = part ? *part : kept;
  std::string remark = exchange_->restore(source, own_buffers() ? extras(nullptr, own) : extras(&own, own));
  own.store();
  leased_.reset();
  note_position();
  return remark;
}

checkpoint::Contents Parallel::Impl::contents() const {
  checkpoint::Contents contents{.layout = assembly_ ? assembly_->map()->layout() : exchange_->layout(),
                                .vectors = with_buffers(exchange_->owners()).vectors()};
  for (const auto& [name, buffer] : buffers_)
    contents.buffers.push_back({name, format_name(buffer.scalar_type()), buffer.sizes().vec()});
  contents.ties.insert(ties_.begin(), ties_.end());
  return contents;
}

checkpoint::CrewNote Parallel::Impl::crew() const {
  ps::Client* const client = exchange_->client();
  return {.workers = whole_.size(),
          .machines = whole_.machines(),
          .servers = client == nullptr ? 0 : client->job().servers,
          .sync = exchange::name_of(options_.exchange.sync)};
}

BufferState::Named Parallel::Impl::buffers() const {
  BufferState::Named buffers;
  for (const auto& [name, buffer] : buffers_) buffers.emplace_back(name, buffer);
  return buffers;
}

/// Copies, the same on all ranks: training goes on with each rank's own. Collective.
BufferState Parallel::Impl::averaged() {
  const torch::NoGradGuard no_grad;
  BufferState::Named copies = buffers();
  for (auto& [name, buffer] : copies) buffer = buffer.clone();
  if (own_buffers())
    for (auto& [name, buffer] : copies) average(name, buffer);
  return BufferState(std::move(copies));
}

/// Where ranks go at their own pace, each is somewhere else.
std::string Parallel::Impl::own_scalar(const std::string& name) const {
  return options_.exchange.sync.lockstep() ? name : state::of_worker(group_.rank(), name);
}

/// What this class knows.
state::Extras Parallel::Impl::extras(const BufferState* common, const BufferState& own) {
  state::Extras extras{{}, {{own_scalar("updates"), &updates_}, {own_scalar("clock"), &clock_}}};
  if (common != nullptr) extras.parts = common->parts();
  if (own_buffers())
    for (state::Part part : own.parts()) {
      part.vector = state::of_worker(group_.rank(), part.vector);
      extras.parts.push_back(part);
    }
  return extras;
}

/// For whoever comes later: the same, beside the model in shared memory.
void Parallel::Impl::note_position() {
  exchange_->note(0, updates_);
  exchange_->note(1, clock_);
}

void Parallel::Impl::land_between_updates() {
  if (micro_ != 0)
    fail<InvalidArgument>("state is shown and restored between updates: {} of {} micro-batches have gone", micro_,
                          options_.accumulate);
  land();
}

exchange::Told Parallel::Impl::tell() const {
  exchange::Told told{loss_, stop.load() ? 1.0 : 0.0};
  std::copy(freezing_sign_.begin(), freezing_sign_.end(), told.begin() + kFreezing);
  std::copy(loader_sign_.begin(), loader_sign_.end(), told.begin() + kLoader);
  return told;
}

/// From the sums over all ranks of what they tell. All of them find the same.
void Parallel::Impl::compare_signs(const exchange::Told& sums) {
  const auto same = [&](size_t at) { return exchange::all_same(std::span<const double, 3>(sums.data() + at, 3)); };
  if (same(kFreezing) && same(kLoader)) return;
  land();
  exchange::agree(whole_.comm(), "frozen parameters", freezing_of(parameters_).text());
  exchange::agree(whole_.comm(), "loaders", loader_terms_ ? *loader_terms_ : "");
}

/// Where every rank goes at its own pace, this is where they meet.
void Parallel::Impl::compare_here() {
  exchange::Told told = tell();
  group_.comm().allreduce(told.data(), told.size(), DType::f64, Op::sum, "signs of what ranks agree on");
  compare_signs(told);
}

}  // namespace trireme
