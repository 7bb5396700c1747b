// A crew that changes while it trains: those who are left, and those who come, go on with the state of the last step
// that was made.
#include <torch/utils.h>

#include <algorithm>

#include <trireme/base/marks.h>
#include <trireme/parallel/impl.h>

namespace trireme {

/// A crew's exchange counts from when its state is whole: one that lost a rank before that is thrown away. An exchange
/// goes before its group does.
struct Parallel::Impl::Attempt {
  Attempt() = default;
  Attempt(const Group& its, comm::shm::Communicator* its_local, std::unique_ptr<exchange::Exchange> its_exchange)
      : group(its), local(its_local), exchange(std::move(its_exchange)) {}
  std::optional<Group> group;
  comm::shm::Communicator* local = nullptr;  // the group does not give it any more when its epoch has ended
  std::unique_ptr<exchange::Exchange> exchange;

  Attempt& operator=(Attempt&& other) noexcept {
    exchange = std::move(other.exchange);
    group = std::move(other.group);
    local = other.local;
    return *this;
  }
};

Step Parallel::Impl::through_changes(const std::function<Step()>& step) {
  if (!elastic()) return step();
  if (world_->closing()) throw PeerLost(world_->changes().back().reason);
  try {
    Step done = step();
    if (done.updated) count_.note_step();
    if (!std::exchange(change_, false)) return done;
    Step after = change_crew();
    done.regrouped = true;
    done.change_seconds = after.change_seconds;
    done.stop = done.stop || after.stop;
    done.reason = std::move(after.reason);
    return done;
  } catch (const PeerLost& lost) {
    Step done = change_crew();
    if (done.reason.empty()) done.reason = lost.what();
    return done;
  }
}

/// Parameters and gradients are views of the exchange's memory.
void Parallel::Impl::move_in() {
  const torch::NoGradGuard no_grad;
  local_ = &group_.local();
  const exchange::Flat& flat = exchange_->flat();
  const space::Layout& layout = flat.layout();
  gradients_.clear();
  for (size_t slot = 0; slot < parameters_.size(); slot++) {
    torch::Tensor& parameter = parameters_[slot].tensor;
    parameter.mutable_grad().reset();
    parameter.set_data(view_of(layout[slot], flat.parameters(), parameter.scalar_type()));
  }
  for (int seat = 0; seat < flat.seats(); seat++) {
    for (size_t slot = 0; slot < parameters_.size(); slot++)
      gradients_.push_back(view_of(layout[slot], flat.gradients(seat), parameters_[slot].tensor.scalar_type()));
    if (seat == 0) placement_.emplace(gradients_);
  }
  arrivals_.emplace(
      flat.parameters(), layout.bytes(), [this](std::span<const space::Range> parts) { use(parts); },
      std::function<void()>());
}

/// Collective.
void Parallel::Impl::join_crew(exchange::Exchange* before, const exchange::Reached& reached) {
  const exchange::Reached now = exchange_->succession()->take_over(before, reached);
  updates_ = now.updates;
  clock_ = now.position;
  ledger_ = now.ledger;
  share_buffers(before == nullptr);
  share_memo();
  meet_balanced();
  work_.follow();
  note_position();
}

/// Who comes anew has the first other rank's.
void Parallel::Impl::share_buffers(bool fresh) {
  const uint8_t mine = fresh ? 1 : 0;
  std::vector<uint8_t> all(static_cast<size_t>(group_.size()));
  group_.comm().all_gather(&mine, all.data(), 1, DType::u8, "who comes anew");
  const auto root = static_cast<int>(std::find(all.begin(), all.end(), uint8_t{0}) - all.begin());
  if (std::count(all.begin(), all.end(), uint8_t{1}) == 0) return;
  const torch::NoGradGuard no_grad;
  for (auto& [name, buffer] : buffers_) {
    torch::Tensor value = buffer.clone(torch::MemoryFormat::Contiguous);
    group_.comm().broadcast(value.data_ptr(), value.nbytes(), DType::u8, root, name);
    if (fresh) buffer.copy_(value);
  }
}

/// The furthest of all, everywhere.
void Parallel::Impl::share_memo() {
  const int64_t mine[2] = {memo_.first, static_cast<int64_t>(memo_.second.size())};
  std::vector<std::array<int64_t, 2>> all(static_cast<size_t>(group_.size()));
  group_.comm().all_gather(mine, all.data(), 2, DType::i64, "what the crew has settled");
  const auto furthest = std::max_element(all.begin(), all.end()) - all.begin();
  const auto [number, bytes] = all[static_cast<size_t>(furthest)];
  if (number < 0) return;
  std::string text = memo_.first == number ? memo_.second : std::string();
  text.resize(static_cast<size_t>(bytes));
  group_.comm().broadcast(text.data(), text.size(), DType::u8, static_cast<int>(furthest), "what the crew has settled");
  memo_ = {number, std::move(text)};
}

/// The one that group_ is, or the next that does not lose a rank meanwhile. `before`: of the crew whose state it goes
/// on with, or nothing where this rank comes anew.
void Parallel::Impl::enter_crew(Attempt& before, const space::Layout& layout) {
  for (Attempt tried; true;) {
    comm::shm::Communicator* const local = &group_.local();
    try {
      make_exchange_for(layout);
      move_in();
      return join_crew(before.exchange.get(),
                       before.exchange ? before.exchange->succession()->give_up() : exchange::Reached{});
    } catch (const PeerLost&) {  // another one
      tried = Attempt(group_, local, std::move(exchange_));
    }
    mark("crew: given up");
    group_ = whole_ = world_->regroup(World::Closing::saves);
    if (tried.exchange && tried.local->kept_areas()) {  // others had come through: that was a crew
      tried.exchange->succession()->give_up();
      before = std::move(tried);
    }
  }
}

void Parallel::Impl::join_anew(const space::Layout& layout) {
  Attempt nothing;
  enter_crew(nothing, layout);
}

Step Parallel::Impl::change_crew() {
  if (!elastic()) fail<InvalidArgument>("this crew cannot change: Options::elastic is off");
  const int64_t clock = clock_;
  const auto start = Clock::now();
  change_ = false;
  deferred_.clear();
  micro_ = call_ = 0;
  turns_.clear();
  collecting_ = false;
  arrivals_->dismiss();
  std::erase(group_.attached<Trained>().exchanges, exchange_.get());
  Attempt before(group_, local_, std::move(exchange_));
  try {
    const space::Layout layout = before.exchange->flat().layout();
    before.exchange->succession()->give_up();
    mark("crew: given up");
    group_ = whole_ = world_->regroup(World::Closing::saves);
    enter_crew(before, layout);
  } catch (...) {  // this is the end of the job here: the module's parameters are where they were
    if (!exchange_) exchange_ = std::move(before.exchange), group_ = whole_ = *before.group;
    throw;
  }
  group_.attached<Trained>().exchanges.push_back(exchange_.get());
  count_.enter_crew(group_.size(), group_.epoch());
  placement_->forget();
  unchecked_ = false;
  leased_.reset();
  Step done{.updated = clock_ > clock, .number = updates_, .regrouped = true, .change_seconds = seconds_since(start)};
  const exchange::Reached last = exchange_->succession()->reached();
  if (done.updated) {
    done.loss = last.loss;
    done.stop = last.stops != 0;
    stopped_ = stopped_ || done.stop;
  } else if (!kept_buffers_.empty()) {
    return_buffers();
  }
  if (world_->closing()) {
    done.stop = stopped_ = true;
    done.reason = world_->changes().back().reason;
  }
  return done;
}

}  // namespace trireme
