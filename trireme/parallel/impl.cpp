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

/// In place. Collective.
void broadcast(comm::Communicator& ranks, torch::Tensor& tensor, int root, const std::string& name) {
  const torch::NoGradGuard no_grad;
  torch::Tensor whole = tensor.contiguous();
  ranks.broadcast(whole.data_ptr(), whole.nbytes(), DType::u8, root, name);
  if (!whole.is_same(tensor)) tensor.copy_(whole);
}

}  // namespace

Ranks::Ranks(const Mesh& its_mesh) : data(data_of(its_mesh)), whole(data) {
  if (data.size() == its_mesh.whole().size()) return;
  whole = its_mesh.whole();
  model = its_mesh.has(kData) ? its_mesh.across(kData) : its_mesh.whole();
  alike = model;
  mesh = its_mesh.describe();
}

Ranks::Ranks(const Mesh& its_mesh, const Pipeline& pipeline) : Ranks(its_mesh) {
  if (!model) return;  // one stage
  stages.resize(static_cast<size_t>(model->size()));
  const int32_t mine = pipeline.stage();
  model->comm().all_gather(&mine, stages.data(), 1, DType::i32, "stages");
  alike = model->split(mine);
}

Parallel::Impl::Impl(const Ranks& ranks, World* world, torch::nn::Module& module,
                     const std::optional<space::UpdaterOptions>& optimizer, const ParallelOptions& options,
                     const Pipeline* pipeline)
    : group_(ranks.data),
      whole_(ranks.whole),
      model_(ranks.model),
      alike_(ranks.alike),
      stages_(ranks.stages),
      mesh_(ranks.mesh),
      world_(world),
      optimizer_(optimizer),
      count_(group_.registry()),
      options_(options),
      lr_(optimizer ? optimizer->lr : 0),
      all_(distinct(module.named_parameters())),
      all_buffers_(distinct(module.named_buffers())),
      work_(*this) {
  if (pipeline != nullptr) pipeline_ = *pipeline;
  if (world != nullptr && world->elastic() && optimizer && !model_ && options_.exchange.sync == exchange::Sync::shared)
    options_.exchange.elastic = true;
  check(options_);
  check_precision(options_.precision, all_);
  check_ranks(world);
  check_pipeline();
  check_virtual();
  check_balance();
  add_ties(module.named_parameters(), ties_);
  add_ties(module.named_buffers(), ties_);
  take_stage();
  if (model_) options_.overlap_next = false;  // a rank in a layer's collective lands nothing that others wait for
  const Divisions divisions = divisions_of(module, ties_);
  const space::Layout all = layout_of(all_, options_.channels_last, divisions);
  check_parts(all, optimizer);
  const space::Layout layout = with_counted(layout_of(parameters_, options_.channels_last, divisions));
  if (world_ != nullptr) agree_with_newcomers(layout);
  if (ranks.joins) enter(*world);
  if (elastic() && ranks.joins) {
    join_anew(layout);
  } else {
    make_exchange_for(layout);
    if (model_) assembly_.emplace(whole_, group_, *model_, all, here_, exchange_->state().owners());
    adopt_parameters();
    adopt_buffers();
    meet_balanced();
  }
  drop_other_stages();
  listen();
  group_.attached<Trained>().exchanges.push_back(exchange_.get());
  count_.enter_crew(group_.size(), group_.epoch());
  follow_freezing();
}

void Parallel::Impl::enter(World& world) {
  group_ = whole_ = world.enter();
  local_ = &group_.local();
  work_.follow();
}

/// One that comes later and has another model, or other settings, learns so before the crew hears of it.
void Parallel::Impl::agree_with_newcomers(const space::Layout& layout) const {
  if (!elastic()) return;
  exchange::Terms terms = exchange::terms_of(layout);
  terms.add(exchange::terms_of(optimizer_)).add(exchange::terms_of(exchange_options()));
  exchange::agree_with_newcomers(*world_, "settings", terms.text());
}

void Parallel::Impl::make_exchange_for(const space::Layout& layout) {
  exchange::Group members(group_);
  members.world = world_;
  if (model_) members.model = &model_->comm();
  exchange_ = exchange::make_exchange(members, layout, optimizer_, exchange_options());
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
    parameter.set_data(gathers() ? torch::empty({0}, parameter.options()) : parameter.detach().clone());
    parameter.mutable_grad().reset();
  }
}

/// Without a pipeline that is all.
void Parallel::Impl::take_stage() {
  const auto mine = [&](const std::string& name) { return !pipeline_ || pipeline_->uses(pipeline_->stage(), name); };
  for (size_t slot = 0; slot < all_.size(); slot++) {
    here_.push_back(mine(all_[slot].name));
    if (!here_[slot]) continue;
    model_slot_.push_back(slot);
    parameters_.push_back(all_[slot]);
  }
  for (const Named& buffer : all_buffers_)
    if (mine(buffer.name)) buffers_.push_back(buffer);
  if (pipeline_) slots_of_chunk_.resize(static_cast<size_t>(pipeline_->schedule().chunks));
  for (size_t slot = 0; pipeline_ && slot < parameters_.size(); slot++)
    for (const int chunk : pipeline_->chunks_of(parameters_[slot].name))
      slots_of_chunk_[static_cast<size_t>(chunk)].push_back(slot);
}

/// The memory of what other ranks train.
void Parallel::Impl::drop_other_stages() {
  const torch::NoGradGuard no_grad;
  for (size_t slot = 0; slot < all_.size(); slot++)
    if (!here_[slot]) all_[slot].tensor.set_data(torch::empty({0}, all_[slot].tensor.options()));
}

/// Whether a rank of the replica has a parameter, or a part of it, or a buffer.
bool Parallel::Impl::has(int model_rank, const std::string& name) const {
  return stages_.empty() || pipeline_->uses(stages_[static_cast<size_t>(model_rank)], name);
}

int Parallel::Impl::first_holder(const std::string& name) const {
  int rank = 0;
  while (!has(rank, name)) rank++;
  return rank;
}

/// Of what several ranks have alike, the first counts in a norm; of a tensor in parts, the first stage that has it.
space::Layout Parallel::Impl::with_counted(const space::Layout& layout) const {
  if (!model_) return layout;
  std::vector<space::Slot> slots(layout.slots().begin(), layout.slots().end());
  for (space::Slot& slot : slots) {
    const int first = first_holder(slot.name), mine = model_->rank();
    const bool first_stage = stages_.empty() || stages_[static_cast<size_t>(first)] == pipeline_->stage();
    slot.counted = first_stage && (slot.cut || first == mine);
  }
  return space::Layout(std::move(slots));
}

/// What a pipeline cannot do, before anything else.
void Parallel::Impl::check_pipeline() const {
  if (!pipeline_) return;
  if (options_.accumulate > 1)
    fail<InvalidArgument>(
        "a pipeline adds up the gradients of its micro-batches: give it {} of them (micro) instead of accumulate {}",
        pipeline_->micro() * options_.accumulate, options_.accumulate);
  if (options_.sync_batch_norm)
    fail<InvalidArgument>(
        "in a pipeline a batch norm sees one micro-batch at a time, as with accumulation: leave sync_batch_norm out");
  if (options_.exchange.zero == 3)
    fail<InvalidArgument>(
        "zero 3 gathers parameters in the order in which one backward pass uses them, and a pipeline has several under "
        "way: use zero 0, 1 or 2");
}

void Parallel::Impl::check_ranks(World* world) const {
  const exchange::Sync& sync = options_.exchange.sync;
  if (elastic() && (world == nullptr || model_))
    fail<InvalidArgument>(
        "a crew that changes is all of the world, and each rank has all of the model: give parallel() "
        "the World, or leave elastic out");
  if (elastic() && options_.sync_batch_norm)
    fail<InvalidArgument>("sync_batch_norm counts on ranks that stay: leave it out, or elastic");
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
  const bool stages = pipeline_ && pipeline_->stages() > 1;
  if (options_.sync_batch_norm || stages)
    options.backward_waits = exchange::BackwardWaits::anywhere;
  else if (model_)
    options.backward_waits = exchange::BackwardWaits::in_replica;
  if (!stages) options.ahead = exchange::Ahead::never;
  options.terms.add(own_terms());
  options.notes = {own_scalar("updates"), own_scalar("clock")};
  return options;
}

/// What ranks must agree on besides model, optimizer and exchange.
exchange::Terms Parallel::Impl::own_terms() const {
  exchange::Terms terms;
  terms.add("accumulate", options_.accumulate)
      .add("sync_batch_norm", options_.sync_batch_norm)
      .add("balance", balancing_names()[static_cast<size_t>(options_.balance)])
      .add("precision", precision_names()[static_cast<size_t>(options_.precision)])
      .add(exchange::terms_of(options_.schedule))
      .add(freezing_of(all_));
  return terms;
}

/// Moves the parameters into the flat space; rank 0's values become everybody's, but for other parts of tensors.
void Parallel::Impl::adopt_parameters() {
  const torch::NoGradGuard no_grad;
  const exchange::Flat& flat = exchange_->flat();
  const space::Layout& layout = flat.layout();
  if (group_.first() && model_) share_initial(layout);
  for (size_t bucket = 0; bucket < flat.buckets().size(); bucket++) {
    for (size_t i = flat.buckets()[bucket].first; i < flat.buckets()[bucket].last; i++) {
      torch::Tensor& parameter = parameters_[i].tensor;
      torch::Tensor home = view_of(layout[i], flat.parameters(), parameter.scalar_type());
      if (group_.first()) home.copy_(parameter);
      parameter.set_data(home);
    }
    if (gathers()) exchange_->paging()->publish_bucket(bucket);
  }
  for (size_t i = 0; i < parameters_.size(); i++)
    gradients_.push_back(view_of(layout[i], flat.gradients(), parameters_[i].tensor.scalar_type()));
  exchange_->state().publish();
  // What the module's own tensors were in is the machine's again.
  if (options_.exchange.zero > 0 || model_) malloc_trim(0);
  placement_.emplace(gradients_);
  for (int seat = 1; seat < flat.seats(); seat++)
    for (size_t i = 0; i < parameters_.size(); i++)
      gradients_.push_back(view_of(layout[i], flat.gradients(seat), parameters_[i].tensor.scalar_type()));
  arrivals_.emplace(
      flat.parameters(), layout.bytes(), [this](std::span<const space::Range> parts) { use(parts); },
      gathers() ? [this] { exchange_->paging()->release(); } : std::function<void()>());
}

/// What several ranks of a replica have alike begins as the first one's of them; a tensor in parts that several stages
/// have, as the first stage's.
void Parallel::Impl::share_initial(const space::Layout& layout) {
  for (size_t slot = 0; slot < layout.size(); slot++)
    if (!layout[slot].cut && alike_->size() > 1)
      broadcast(alike_->comm(), parameters_[slot].tensor, 0, layout[slot].name);
  for (size_t slot : shared_slots()) pipeline_->take_first(parameters_[slot].name, parameters_[slot].tensor);
}

/// Parameters that other stages have too.
std::vector<size_t> Parallel::Impl::shared_slots() const {
  std::vector<size_t> slots;
  for (size_t slot = 0; pipeline_ && slot < parameters_.size(); slot++)
    if (pipeline_->users(parameters_[slot].name).size() > 1) slots.push_back(slot);
  return slots;
}

/// Rank 0's values become everybody's.
void Parallel::Impl::adopt_buffers() {
  for (auto& [name, buffer] : buffers_) {
    if (alike_ && group_.first()) broadcast(alike_->comm(), buffer, 0, name);
    broadcast(group_.comm(), buffer, 0, name);
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
  const std::vector<space::Bucket>& buckets = exchange_->flat().buckets();
  for (size_t b = 0; b < buckets.size(); b++)
    for (size_t slot = buckets[b].first; slot < buckets[b].last; slot++) bucket_of_[slot] = b;
}

/// A parameter has wanted gradients for the first time.
void Parallel::Impl::listen_to(size_t slot) {
  const torch::Tensor& parameter = parameters_[slot].tensor;
  nodes_[slot] = torch_compat::on_gradient(parameter, [this, alive = std::weak_ptr<int>(alive_), slot] {
    if (!alive.expired()) arrived(slot);
  });
  // Autograd takes over a gradient without a copy only in the parameter's own format, and warns about any other.
  if (exchange_->flat().layout()[slot].channels_last)
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
  freezing_sign_ = exchange::sign_of(freezing_of(all_).text());
}

ps::Lease Parallel::Impl::Work::take() {
  if (impl_.stop.load()) impl_.exchange_->source().want_stop();
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

void Parallel::Impl::count_samples(int64_t epoch, double samples, double signs) {
  if (micro_ == 0) own_ = {.epoch = epoch};
  own_.samples += samples;
  own_.signs += signs;
}

void Parallel::Impl::leave_out(int64_t epoch, double samples, double signs) {
  ledger_ = ledger_.in(epoch);
  ledger_.add(samples, signs, false);
}

void Parallel::Impl::take_up(const exchange::Ledger& ledger) {
  ledger_ = ledger;
  if (elastic()) exchange_->succession()->rewritten({.updates = updates_, .position = clock_, .ledger = ledger_});
}

void Parallel::Impl::limited(const std::function<void()>& meet) {
  const StepLimit limit = limit_waits();
  meet();
}

void Parallel::Impl::exclusive(const std::function<void()>& change) {
  land();
  exchange_->state().before_writing();
  group_.comm().barrier("exclusive: begin");
  const torch::NoGradGuard no_grad;
  const bool one_decides = exchange_->traits().shared || exchange_->traits().kept_elsewhere;
  exchange_->state().settle();
  if (group_.first() || !one_decides) change();
  if (one_decides) exchange_->state().publish();
  group_.comm().barrier("exclusive: end");
}

void Parallel::Impl::settled(const std::function<void()>& look, Looks looks) {
  land();
  if (!exchange_->traits().lockstep) compare_here();
  sync_buffers();
  if (looks == Looks::alike && gathers()) {
    const Gathering gathering(*this, exchange::Pass::look);
    look();
    return arrivals_->check();
  }
  exchange_->state().settle();
  try {
    look();
  } catch (...) {  // who goes on after that must not train with parameters that nobody gathers any more
    if (gathers()) exchange_->state().resume();
    throw;
  }
  exchange_->state().resume();
}

void Parallel::Impl::sync_buffers() {
  if (virtual_workers() > 0) return;  // nobody has changed them, and a mean of equal numbers may be another
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
    for (size_t slot = 0; slot < all_.size(); slot++) {
      const auto& [name, tensor] = all_[slot];
      look({name, assembly_ ? assembly_->tensor(slot, tensor) : copy(tensor)});
    }
    for (const auto& [name, tensor] : all_buffers_) {
      torch::Tensor value = copy(tensor);
      if (!stages_.empty()) broadcast(model_->comm(), value, first_holder(name), name);
      look({name, value});
    }
  });
}

exchange::Told Parallel::Impl::tell() const {
  exchange::Told told{loss_, stop.load() ? 1.0 : 0.0};
  told[kChange] = elastic() && world_->change_wanted() ? 1.0 : 0.0;
  told[exchange::kToldSamples] = own_.samples;
  told[exchange::kToldSamples + 1] = own_.signs;
  std::copy(freezing_sign_.begin(), freezing_sign_.end(), told.begin() + kFreezing);
  std::copy(loader_sign_.begin(), loader_sign_.end(), told.begin() + kLoader);
  if (balancer_) balancer_->tell(exchange::told_of_stint(told));
  return told;
}

/// From the sums over all ranks of what they tell. All of them find the same.
void Parallel::Impl::compare_signs(const exchange::Told& sums) {
  const auto same = [&](size_t at) { return exchange::all_same(std::span<const double, 3>(sums.data() + at, 3)); };
  if (same(kFreezing) && same(kLoader)) return;
  land();
  exchange::agree(whole_.comm(), "frozen parameters", freezing_of(all_).text());
  exchange::agree(whole_.comm(), "loaders", loader_terms_ ? *loader_terms_ : "");
}

/// Where every rank goes at its own pace, this is where they meet.
void Parallel::Impl::compare_here() {
  exchange::Told told = tell();
  group_.comm().allreduce(told.data(), told.size(), DType::f64, Op::sum, "signs of what ranks agree on");
  compare_signs(told);
}

}  // namespace trireme
