#include <algorithm>
#include <sstream>

#include <trireme/state/adapt.h>
#include <trireme/state/whole.h>

namespace trireme::state {
namespace {

using space::Range;

/// Whether ranges of it are those of the flat space.
bool has_slots(const std::string& vector) {
  const auto own = worker_of(vector);
  const std::string& name = own ? own->second : vector;
  return name == kParameters || (name.starts_with("optimizer/") && name != kSteps);
}

Range moved(Range range, size_t from, size_t to) { return {range.begin - from + to, range.end - from + to}; }

/// Lines of `text` that are those of `from` become those of `to`.
std::string translated(const std::string& text, const std::string& from, const std::string& to) {
  std::istringstream lines(text), known(from), others(to);
  std::string result;
  for (std::string line, same, other; std::getline(lines, line);) {
    same.clear(), other.clear();
    std::getline(known, same), std::getline(others, other);
    result += (line == same ? other : line) + '\n';
  }
  return result;
}

}  // namespace

Whole::Whole(space::Layout here) : here_(std::move(here)), whole_(space::whole_of(here_)) {
  for (size_t slot = 0; slot < here_.size(); slot++) lies_.push_back(lie_of(here_[slot], whole_[slot].range));
}

Whole::Lie Whole::lie_of(const space::Slot& slot, Range whole) {
  Lie lie{.whole = whole, .here = slot.range, .run = slot.range.size(), .stride = slot.range.size()};
  if (!slot.cut || slot.range.empty()) return lie;
  const auto dim = static_cast<size_t>(slot.cut->dim);
  lie.run = size_of(slot.dtype);
  for (size_t i = dim; i < slot.shape.size(); i++) lie.run *= static_cast<size_t>(slot.shape[i]);
  lie.stride = lie.run * static_cast<size_t>(slot.cut->count);
  lie.first = lie.run * static_cast<size_t>(slot.cut->index);
  return lie;
}

/// `here` is a part of the slot.
void Whole::each_of(const Lie& lie, Range here, const Visit& visit) {
  for (size_t at = here.begin; at < here.end;) {
    const size_t within = at - lie.here.begin, run = within / lie.run;
    const size_t end = std::min(here.end, lie.here.begin + (run + 1) * lie.run);
    const size_t begin = lie.whole.begin + run * lie.stride + lie.first + within % lie.run;
    visit({{begin, begin + (end - at)}, {at, end}});
    at = end;
  }
}

/// `whole` is a part of the tensor.
void Whole::each_here_of(const Lie& lie, Range whole, const Visit& visit) {
  if (lie.run == 0) return;
  for (size_t run = (whole.begin - lie.whole.begin) / lie.stride;; run++) {
    const size_t begin = lie.whole.begin + run * lie.stride + lie.first;
    if (begin >= whole.end) return;
    const Range some = intersect({begin, begin + lie.run}, whole);
    if (!some.empty()) visit({some, moved(some, begin, lie.here.begin + run * lie.run)});
  }
}

void Whole::each(const std::string& vector, Range here, const Visit& visit) const {
  if (!has_slots(vector)) return visit({here, here});
  auto lie =
      std::partition_point(lies_.begin(), lies_.end(), [&](const Lie& one) { return one.here.end <= here.begin; });
  for (; lie != lies_.end() && lie->here.begin < here.end; ++lie)
    if (const Range some = intersect(lie->here, here); !some.empty()) each_of(*lie, some, visit);
}

void Whole::each_here(const std::string& vector, Range whole, const Visit& visit) const {
  if (!has_slots(vector)) return visit({whole, whole});
  auto lie =
      std::partition_point(lies_.begin(), lies_.end(), [&](const Lie& one) { return one.whole.end <= whole.begin; });
  for (; lie != lies_.end() && lie->whole.begin < whole.end; ++lie)
    if (const Range some = intersect(lie->whole, whole); !some.empty()) each_here_of(*lie, some, visit);
}

OwnerMap Whole::whole_of(const OwnerMap& here) const {
  OwnerMap map;
  for (const std::string& vector : here.vectors())
    for (const Holding& holding : here.of(vector))
      each(vector, holding.range, [&](const Piece& piece) { map.add(vector, piece.whole, holding.owner); });
  return map;
}

OwnerMap Whole::here_of(const OwnerMap& whole, int owner, int new_owner) const {
  OwnerMap map;
  for (const std::string& vector : whole.vectors())
    for (const Holding& holding : whole.of(vector))
      if (holding.owner == owner)
        each_here(vector, holding.range, [&](const Piece& piece) { map.add(vector, piece.here, new_owner); });
  return map;
}

About Whole::whole_of(About here) const {
  here.layout = translated(here.layout, here_.describe(), whole_.describe());
  return here;
}

About Whole::here_of(About whole) const {
  whole.layout = translated(whole.layout, whole_.describe(), here_.describe());
  return whole;
}

void WholeVisitor::part(const std::string& vector, Range range, std::span<const std::byte> bytes) {
  whole_.each(vector, range, [&](const Whole::Piece& piece) {
    to_.part(vector, piece.whole, bytes.subspan(piece.here.begin - range.begin, piece.here.size()));
  });
}

PartSource::PartSource(const Whole& whole, Source& from)
    : whole_(whole),
      from_(from),
      about_(whole.here_of(from.about())),
      contents_(whole.here_of(from.contents(), 0, 0)) {}

void PartSource::read(const std::string& vector, Range range, std::span<std::byte> into) {
  whole_.each(vector, range, [&](const Whole::Piece& piece) {
    from_.read(vector, piece.whole, into.subspan(piece.here.begin - range.begin, piece.here.size()));
  });
}

}  // namespace trireme::state
