#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/state/adapt.h>
#include <trireme/state/whole.h>

namespace trireme::state {
namespace {

using space::Range;

std::string name_for_all(const std::string& vector) {
  const auto own = worker_of(vector);
  return own ? own->second : vector;
}

Range moved(Range range, size_t from, size_t to) { return {range.begin - from + to, range.end - from + to}; }

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

}  // namespace

Whole::Whole(space::Layout here) : Whole(here, space::whole_of(here)) {}

Whole::Whole(space::Layout here, space::Layout whole) : here_(std::move(here)), whole_(std::move(whole)) {
  size_t at = 0;
  for (size_t slot = 0; slot < here_.size(); slot++, at++) {
    while (at < whole_.size() && whole_[at].name != here_[slot].name) at++;
    if (at == whole_.size())
      fail<InvalidArgument>("'{}' is no tensor of the whole model, or not in its order", here_[slot].name);
    slots_.push_back(at);
    lies_.push_back(lie_of(here_[slot], whole_[at].range));
    const Range count = steps_range(slot);
    steps_.push_back({.whole = steps_range(at), .here = count, .run = count.size(), .stride = count.size()});
  }
}

/// Those by which ranges of a vector are translated; empty: they are the same in both spaces.
const std::vector<Whole::Lie>& Whole::lies_of(const std::string& vector) const {
  static const std::vector<Lie> none;
  const std::string name = name_for_all(vector);
  if (name == kSteps) return steps_;
  return name == kParameters || name.starts_with("optimizer/") ? lies_ : none;
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
  const std::vector<Lie>& lies = lies_of(vector);
  if (lies.empty()) return visit({here, here});
  auto lie = std::partition_point(lies.begin(), lies.end(), [&](const Lie& one) { return one.here.end <= here.begin; });
  for (; lie != lies.end() && lie->here.begin < here.end; ++lie)
    if (const Range some = intersect(lie->here, here); !some.empty()) each_of(*lie, some, visit);
}

void Whole::each_here(const std::string& vector, Range whole, const Visit& visit) const {
  const std::vector<Lie>& lies = lies_of(vector);
  if (lies.empty()) return visit({whole, whole});
  auto lie =
      std::partition_point(lies.begin(), lies.end(), [&](const Lie& one) { return one.whole.end <= whole.begin; });
  for (; lie != lies.end() && lie->whole.begin < whole.end; ++lie)
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
  const std::vector<std::string> own = lines_of(here_.describe()), lines = lines_of(here.layout);
  std::vector<std::string> whole = lines_of(whole_.describe());
  for (size_t slot = 0; slot < lines.size(); slot++)
    if (slot >= own.size())
      whole.push_back(lines[slot]);
    else if (lines[slot] != own[slot])
      whole[slots_[slot]] = lines[slot];
  here.layout = joined(whole);
  return here;
}

About Whole::here_of(About whole) const {
  const std::vector<std::string> all = lines_of(whole_.describe()), lines = lines_of(whole.layout);
  std::vector<std::string> here = lines_of(here_.describe());
  for (size_t slot = 0; slot < here.size(); slot++) {
    const size_t at = slots_[slot];
    if (at >= lines.size())
      here[slot] = "no such parameter";
    else if (lines[at] != all[at])
      here[slot] = lines[at];
  }
  for (size_t at = all.size(); at < lines.size(); at++) here.push_back(lines[at]);
  whole.layout = joined(here);
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
