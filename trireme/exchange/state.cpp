// State shown and taken back, and where it lies: what all exchanges have in common.
#include <algorithm>
#include <set>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/exchange/state.h>
#include <trireme/state/adapt.h>

namespace trireme::exchange {
namespace {

/// Collective: the first rank that says yes, or size().
int first_of(comm::Communicator& group, bool mine) {
  const uint8_t own = mine ? 1 : 0;
  std::vector<uint8_t> all(static_cast<size_t>(group.size()));
  group.all_gather(&own, all.data(), 1, DType::u8, "who cannot restore its state");
  return static_cast<int>(std::find(all.begin(), all.end(), uint8_t{1}) - all.begin());
}

/// Collective: throws unless every rank is ready, of those with other parts of the `model` too (null: there are none).
/// A rank with an error throws its own.
void all_ready(comm::Communicator& group, comm::Communicator* model, const std::exception_ptr& error) {
  const int other = first_of(group, error != nullptr);
  const int part = model == nullptr ? 0 : first_of(*model, other < group.size());
  if (error) std::rethrow_exception(error);
  if (other < group.size())
    fail<Mismatch>(
        "rank {} has all that it needs to restore the state, rank {} has not: see its error. Nothing changed",
        group.rank(), other);
  if (model != nullptr && part < model->size())
    fail<Mismatch>(
        "this rank has all that it needs to restore its part of the state, a rank with part {} of the model has not: "
        "see its error. Nothing changed",
        part);
}

}  // namespace

Flat::Flat(space::Layout layout, size_t bucket_bytes)
    : layout_(std::move(layout)), buckets_(space::plan_buckets(layout_, bucket_bytes)) {}

std::vector<space::Range> Flat::bucket_ranges() const {
  std::vector<space::Range> all;
  for (const space::Bucket& bucket : buckets_) all.push_back(bucket.range);
  return all;
}

State::Vectors State::own_vectors(int local_rank) {
  const auto here = static_cast<size_t>(local_rank);
  std::byte* const parameters = berth_->each("parameters", layout_.bytes(), "the model's parameters").parts[here];
  std::byte* const gradients = berth_->each("gradients", layout_.bytes(), "the ranks' gradients").parts[here];
  std::byte* const flags = berth_->each("flags", layout_.size(), "the gradients' flags").parts[here];
  return {parameters, gradients, reinterpret_cast<uint8_t*>(flags)};
}

void State::complete() {
  if (berth_) berth_->end(updater_ ? updater_->steps() : opened_);
}

state::OwnerMap State::owners() const {
  state::OwnerMap map;
  for (int rank = 0; rank < group().size(); rank++)
    for (size_t bucket = 0; bucket < buckets_.size(); bucket++) {
      const space::Bucket& b = buckets_[bucket];
      const Share share = share_of(rank, bucket);
      for (const space::Range& part : state::slot_parts(layout_, b.first, b.last, share.parameters))
        map.add(named(state::kParameters, share.own_parameters, rank), part, rank);
      if (updater_)
        state::add_updated(map, rank, layout_, b.first, b.last, share.updated, updater_->options().kind,
                           [&](const std::string& name) { return named(name, share.own_state, rank); });
    }
  add_kept(map);
  return map;
}

std::vector<int> State::keepers() const {
  std::set<int> all;
  for (int rank = 0; rank < group().size(); rank++)
    if (keeper_of(rank) != kKeepsNothing) all.insert(keeper_of(rank));
  return {all.begin(), all.end()};
}

void State::add_kept(state::OwnerMap& map) const {
  for (int rank = 0; rank < group().size(); rank++)
    for (size_t bucket = 0; bucket < buckets_.size() && keeper_of(rank) != kKeepsNothing; bucket++)
      for (const space::Range& part :
           state::slot_parts(layout_, buckets_[bucket].first, buckets_[bucket].last, kept_of(rank, bucket)))
        map.add(state::of_worker(keeper_of(rank), state::kResidual), part, rank);
}

void State::add_kept(std::vector<state::Part>& parts) {
  const int rank = group().rank();
  for (size_t bucket = 0; bucket < buckets_.size() && feedback() != nullptr; bucket++)
    for (const space::Range& part :
         state::slot_parts(layout_, buckets_[bucket].first, buckets_[bucket].last, kept_of(rank, bucket)))
      parts.push_back({state::of_worker(keeper_of(rank), state::kResidual), part, feedback()->residual(part)});
}

std::vector<state::Part> State::parts() {
  std::vector<state::Part> parts;
  const auto add = [&](const std::string& name, const space::Bucket& b, space::Range range, std::byte* begin) {
    for (const space::Range& part : state::slot_parts(layout_, b.first, b.last, range))
      parts.push_back({name, part, {begin + (part.begin - range.begin), part.size()}});
  };
  const int rank = group().rank();
  const bool own_state = share_of(rank, 0).own_state;
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++) {
    const Share share = share_of(rank, bucket);
    add(named(state::kParameters, share.own_parameters, rank), buckets_[bucket], share.parameters,
        parameters() + share.parameters.begin);
  }
  add_kept(parts);
  if (!updater_) return parts;
  for (const space::Updater::View& view : updater_->views()) {
    const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const space::Bucket& b) {
      return b.range.begin <= view.range.begin && view.range.end <= b.range.end;
    });
    add(named(view.vector, own_state, rank), *bucket, view.range, view.bytes.data());
  }
  for (size_t bucket = 0; bucket < buckets_.size(); bucket++) {
    const space::Bucket& b = buckets_[bucket];
    const std::span<int64_t> steps = updater_->slot_steps(bucket, b.last - b.first);
    if (steps.empty()) break;
    for (size_t slot : state::slots_of(layout_, b.first, b.last, share_of(rank, bucket).updated))
      parts.push_back({named(state::kSteps, own_state, rank), state::steps_range(slot),
                       std::as_writable_bytes(steps.subspan(slot - b.first, 1))});
  }
  return parts;
}

state::About State::about() const {
  return {.layout = layout_.describe(),
          .optimizer = updater_ ? space::name_of(updater_->options().kind) : "",
          .workers = share_of(group().rank(), 0).own_state ? group().size() : 0};
}

State::Scalars State::scalars() {
  if (!updater_) return {};
  return {
      {.name = named(state::kStep, share_of(group().rank(), 0).own_state, group().rank()), .value = updater_->steps()}};
}

State::Scalars State::course_scalars() const {
  const WorkSource::Course& course = source_->course();
  return {{kWorkCourse, course.number, -1}, {kWorkFirst, course.first_step, -1}};
}

void State::restore_scalars(const std::vector<int64_t>& values) {
  if (updater_) updater_->restart(values[0]);
}

void State::post() {
  if (!berth_) return;
  const Scalars known = updater_ ? scalars() : Scalars();
  berth_->post(about(), known.empty() ? "" : known.front().name, options_.notes, parts());
}

void State::visit(state::Visitor& visitor, const state::Extras& extras) {
  land();
  come_to_rest();
  visitor.about(about());
  for (const state::Part& part : parts()) visitor.part(part.vector, part.range, part.bytes);
  visit_rest(visitor, extras);
  group().barrier("state was shown");
}

/// What is not in parts().
void State::visit_rest(state::Visitor& visitor, const state::Extras& extras) {
  for (const state::Part& part : extras.parts) visitor.part(part.vector, part.range, part.bytes);
  for (const Scalar& scalar : scalars()) visitor.scalar(scalar.name, scalar.value);
  for (const auto& [name, value] : extras.scalars) visitor.scalar(name, *value);
  visit_elsewhere(visitor);
}

bool State::changes_by_update(const state::Part& part) const {
  const std::byte* const begin = part.bytes.data();
  return updater_->keeps(begin) || (begin >= parameters() && begin < parameters() + layout_.bytes());
}

/// In lockstep nobody waits: a part is written to only by its owner's next update, and thus after its own snapshot.
std::shared_ptr<state::Snapshot> State::snapshot(const state::OwnerMap& division, const state::Extras& extras) {
  state::Snapshot::Builder builder(division, group().rank(), last_.get());
  last_ = builder.originals();
  if (!follows_writes()) {
    visit(builder, extras);
    return builder.finish();
  }
  land();
  come_to_rest();
  builder.about(about());
  for (const state::Part& part : parts())
    if (changes_by_update(part))
      builder.live(part.vector, part.range, part.bytes);
    else
      builder.part(part.vector, part.range, part.bytes);
  visit_rest(builder, extras);
  if (!traits_.lockstep) group().barrier("state was shown");
  auto made = builder.finish();
  updater_->follow(last_);
  return made;
}

void State::before_writing() {
  if (updater_) updater_->save_originals();
}

/// Everything that restore() needs is in `source`; throws otherwise.
void State::check_source(const state::Source& source, const Scalars& scalars, const state::Extras& extras) const {
  const int rank = group().rank();
  state::Wanted wanted{fmt::format("rank {}", rank), about(), {}, rank, {}};
  const state::OwnerMap all = owners();
  for (const std::string& vector : all.vectors())
    for (const state::Holding& holding : all.of(vector))
      if (holding.owner == rank && comes_from(source, vector, holding.range))
        wanted.parts.add(vector, holding.range, rank);
  for (const Scalar& scalar : scalars)
    if (!scalar.otherwise) wanted.scalars.push_back(scalar.name);
  for (const auto& [name, value] : extras.scalars) wanted.scalars.push_back(name);
  for (const state::Part& part : extras.parts) wanted.parts.add(part.vector, part.range, rank);
  check(source, wanted);
}

std::string State::restore(state::Source& kept, const state::Extras& wanted) {
  land();
  forget_gathered();
  before_writing();
  state::Adapted source(kept, layout_, about().workers, group().size(), keepers());
  state::Extras extras = wanted;
  if (!kept.has_extras()) extras.parts.clear();
  const Scalars names = scalars();
  std::exception_ptr error;
  try {
    check_source(source, names, extras);
  } catch (...) {
    error = std::current_exception();
  }
  all_ready(group(), model_, error);
  if (berth_) berth_->begin(-1);  // who dies in the middle of this leaves nothing that is whole
  begin_rewriting();
  if (feedback() != nullptr) feedback()->forget();
  for (const auto& list : {parts(), extras.parts})
    for (const state::Part& part : list)
      if (comes_from(source, part.vector, part.range)) source.read(part.vector, part.range, part.bytes);
  restore_elsewhere(source);
  std::vector<int64_t> values;
  for (const Scalar& scalar : names)
    values.push_back(source.scalar(scalar.name).value_or(scalar.otherwise.value_or(0)));
  restore_scalars(values);
  if (berth_) berth_->begin(updater_ ? updater_->steps() : opened_);
  complete();
  for (const auto& [name, value] : extras.scalars) *value = *source.scalar(name);
  group().barrier("state was restored");
  return source.remark();
}

}  // namespace trireme::exchange
