// The state of a module in the flat space, as Parallel shows, keeps and takes it: of the whole model, whoever has what.
#include <torch/utils.h>

#include <trireme/parallel/impl.h>

namespace trireme {

state::OwnerMap Parallel::Impl::owners() const {
  return with_buffers(assembly_ ? assembly_->owners() : exchange_->state().owners());
}

/// Ranks with different parts of a replica have the same buffers, but for those of other stages.
state::OwnerMap Parallel::Impl::with_buffers(state::OwnerMap map) const {
  for (const auto& [name, tensor] : all_buffers_) {
    const state::Part part = BufferState({{name, tensor}}).parts().front();
    for (int rank = 0; rank < whole_.size(); rank++) {
      if (assembly_ && !has(assembly_->model_rank(rank), name)) continue;
      const int worker = assembly_ ? assembly_->data_rank(rank) : rank;
      map.add(part.vector, part.range, rank);
      if (own_buffers()) map.add(state::of_worker(worker, part.vector), part.range, rank);
    }
  }
  return map;
}

void Parallel::Impl::visit(state::Visitor& visitor) {
  land_between_updates();
  const BufferState common = averaged(), own(buffers());
  if (!assembly_) return exchange_->state().visit(visitor, extras(&common, own));
  state::WholeVisitor whole(*assembly_->map(), visitor);
  exchange_->state().visit(whole, extras(&common, own));
}

std::shared_ptr<state::Snapshot> Parallel::Impl::snapshot(const state::OwnerMap& division) {
  land_between_updates();
  const BufferState common = averaged(), own(buffers());
  if (!assembly_) return exchange_->state().snapshot(division, extras(&common, own));
  const auto made = exchange_->state().snapshot(assembly_->map()->here_of(division, whole_.rank(), group_.rank()),
                                                extras(&common, own));
  made->show_as(assembly_->map());
  return made;
}

/// Shared memory has parts as they are here (exchange::KeptState); everybody else has the whole.
std::string Parallel::Impl::restore(state::Source& kept) {
  land_between_updates();
  const BufferState own(buffers());
  std::optional<state::PartSource> part;
  if (assembly_ && kept.about().layout != exchange_->flat().layout().describe()) part.emplace(*assembly_->map(), kept);
  state::Source& source = part ? *part : kept;
  std::string remark = exchange_->state().restore(source, own_buffers() ? extras(nullptr, own) : extras(&own, own));
  own.store();
  leased_.reset();
  note_position();
  take_up({.lost = ledger_.lost, .joined = ledger_.joined});
  return remark;
}

checkpoint::Contents Parallel::Impl::contents() const {
  checkpoint::Contents contents{.layout = assembly_ ? assembly_->map()->layout() : exchange_->flat().layout(),
                                .vectors = with_buffers(exchange_->state().owners()).vectors()};
  for (const auto& [name, buffer] : all_buffers_)
    contents.buffers.push_back({name, format_name(buffer.scalar_type()), buffer.sizes().vec()});
  contents.ties.insert(ties_.begin(), ties_.end());
  return contents;
}

checkpoint::CrewNote Parallel::Impl::crew() const {
  return {.workers = whole_.size(),
          .machines = whole_.machines(),
          .servers = pushes() ? exchange_->client()->job().servers : 0,
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
  exchange_->state().note(0, updates_);
  exchange_->state().note(1, clock_);
}

void Parallel::Impl::land_between_updates() {
  if (micro_ != 0)
    fail<InvalidArgument>("state is shown and restored between updates: {} of {} micro-batches have gone", micro_,
                          calls());
  land();
}

}  // namespace trireme
