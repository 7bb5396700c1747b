// Steps of virtual workers (exchange/tree.h): this rank goes through a run of pieces, one call of step() each, and sums
// their gradients as the tree says, slot by slot as they arrive.
#include <ATen/Context.h>

#include <trireme/parallel/impl.h>

namespace trireme {
namespace {

constexpr std::string_view kStatistics[] = {"running_mean", "running_var"};

/// Well mixed, so that neighbours have nothing in common.
uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (a >> 31)) * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

/// What depends on who computes with whom, before anything else.
void Parallel::Impl::check_virtual() const {
  if (virtual_workers() == 0) return;
  if (model_ || pipeline_)
    fail<InvalidArgument>(
        "virtual {} divides samples among ranks that have all of the model, and on a mesh of {} they have parts of it: "
        "leave out one of them",
        virtual_workers(), mesh_.empty() ? "stages" : mesh_);
  for (const Named& buffer : all_buffers_)
    for (const std::string_view what : kStatistics)
      if (buffer.name.ends_with(what))
        fail<InvalidArgument>(
            "'{}' is gathered from the samples that a rank happens to see, and with virtual {} nothing may depend on "
            "that: use a model without batch norm (group or layer norm instead), or leave out virtual",
            buffer.name, virtual_workers());
}

/// A step begins: the division may be another than before.
void Parallel::Impl::take_turns() {
  folded_.assign(parameters_.size(), false);
  const exchange::Pieces run = exchange_->virtual_workers()->runs()[static_cast<size_t>(group_.rank())];
  if (run == run_ && !turns_.empty()) return;
  run_ = run;
  turns_.clear();
  for (int piece = run.begin; piece < run.end; piece++)
    turns_.push_back(exchange::turn_of(virtual_workers(), run, piece));
}

/// Random numbers of the forward pass are the piece's own, whoever computes it.
void Parallel::Impl::begin_piece() {
  const uint64_t step = mixed(options_.exchange.seed, static_cast<uint64_t>(clock_));
  at::manual_seed(mixed(step, static_cast<uint64_t>(piece())));
  buffer_versions_.clear();
  for (const Named& buffer : buffers_) buffer_versions_.push_back(buffer.tensor._version());
}

/// What a forward pass leaves behind would go into the pieces that the same rank computes next.
void Parallel::Impl::check_buffers() const {
  for (size_t i = 0; i < buffers_.size(); i++)
    if (buffers_[i].tensor._version() != buffer_versions_[i])
      fail<InvalidArgument>(
          "the forward pass changes the buffer '{}', and with virtual {} no piece of a step may depend on those that "
          "the same rank has computed before: keep such state out of the model, or leave out virtual",
          buffers_[i].name, virtual_workers());
}

/// All slots that got nothing in it are folded too.
void Parallel::Impl::end_piece() {
  for (size_t slot = 0; slot < parameters_.size(); slot++) fold(slot);
  folded_.assign(parameters_.size(), false);
}

size_t Parallel::Impl::seat_of(size_t slot) const {
  return turns_.empty() ? slot : static_cast<size_t>(turn().seat) * parameters_.size() + slot;
}

/// Sums that are complete now go to the seat before. Once in each piece.
void Parallel::Impl::fold(size_t slot) {
  if (turn().folds == 0 || folded_[slot]) return;
  folded_[slot] = true;
  const torch::NoGradGuard no_grad;
  for (int seat = turn().seat; seat > turn().seat - turn().folds; seat--) {
    const size_t from = static_cast<size_t>(seat) * parameters_.size() + slot, to = from - parameters_.size();
    if (!filled_[from]) continue;
    filled_[to] ? gradients_[to].add_(gradients_[from]) : gradients_[to].copy_(gradients_[from]);
    filled_[to] = true;
    filled_[from] = false;
    exchange_->flat().present(slot, seat - 1);
    exchange_->flat().absent(slot, seat);
  }
}

}  // namespace trireme
