#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/state/visitor.h>

namespace trireme::state {
namespace {

using space::Range;

std::string quoted(const std::vector<std::string>& lines, size_t index) {
  return index < lines.size() ? fmt::format("'{}'", lines[index]) : "none";
}

void check_layout(const std::string& kept, const std::string& here, const std::string& who) {
  const std::vector<std::string> theirs = lines_of(kept), ours = lines_of(here);
  for (size_t slot = 0; slot < std::max(theirs.size(), ours.size()); slot++)
    if (quoted(theirs, slot) != quoted(ours, slot))
      fail<InvalidArgument>("the state is of another model: its parameter {} is {}, that of {} is {}", slot,
                            quoted(theirs, slot), who, quoted(ours, slot));
}

std::string name_of(const std::string& optimizer) {
  return optimizer.empty() ? "an optimizer of the user's own" : fmt::format("'{}'", optimizer);
}

std::string describe(const std::vector<Table>& tables, size_t index) {
  if (index >= tables.size()) return "none";
  const Table& table = tables[index];
  return fmt::format("'{}' with rows of {} and optimizer '{}'", table.name, table.width, table.optimizer);
}

/// "optimizer/momentum, optimizer/steps", and what every state has.
std::string lost_with_optimizer(const OwnerMap& kept) {
  std::string text;
  for (const std::string& vector : kept.vectors())
    if (vector.starts_with("optimizer/")) text += vector + ", ";
  return text.empty() ? "the place in the data" : text.substr(0, text.size() - 2) + " and the place in the data";
}

void check_about(const Source& source, const About& here, const std::string& who) {
  const About& kept = source.about();
  check_layout(kept.layout, here.layout, who);
  if (kept.optimizer != here.optimizer)
    fail<InvalidArgument>(
        "the state is of {}, {} trains with {}: use the optimizer that it was kept with, or begin anew with the "
        "weights alone (--resume-weights-only): {} would be lost",
        name_of(kept.optimizer), who, name_of(here.optimizer), lost_with_optimizer(source.contents()));
  for (size_t i = 0; i < std::max(kept.tables.size(), here.tables.size()); i++)
    if (describe(kept.tables, i) != describe(here.tables, i))
      fail<InvalidArgument>("the state's table {} is {}, that of {} is {}", i, describe(kept.tables, i), who,
                            describe(here.tables, i));
}

std::string listed(std::span<const Holding> holdings) {
  std::string text;
  for (const Holding& holding : holdings)
    text += fmt::format("{}{} to {}", text.empty() ? "" : ", ", holding.range.begin, holding.range.end);
  return text.empty() ? "nothing" : text;
}

void check_part(const OwnerMap& kept, Range wanted, const std::string& vector, const std::string& who) {
  const std::vector<Range> lacking = kept.lacking(vector, wanted, 0);
  if (lacking.empty()) return;
  constexpr size_t kMost = 8;
  const std::span<const Holding> here = kept.of(vector);
  fail<InvalidArgument>("the state lacks bytes {} to {} of '{}': {} needs {} to {}, the state has {}{}",
                        lacking[0].begin, lacking[0].end, vector, who, wanted.begin, wanted.end,
                        listed(here.first(std::min(here.size(), kMost))), here.size() > kMost ? ", …" : "");
}

}  // namespace

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string of_worker(int worker, const std::string& name) { return fmt::format("worker/{}/{}", worker, name); }

std::vector<Range> slot_parts(const space::Layout& layout, size_t first, size_t last, Range range) {
  std::vector<Range> parts;
  for (size_t slot : slots_of(layout, first, last, range)) parts.push_back(intersect(layout[slot].range, range));
  return parts;
}

std::vector<size_t> slots_of(const space::Layout& layout, size_t first, size_t last, Range range) {
  std::vector<size_t> slots;
  for (size_t slot = first; slot < last; slot++)
    if (!intersect(layout[slot].range, range).empty()) slots.push_back(slot);
  return slots;
}

void add_updated(OwnerMap& map, int owner, const space::Layout& layout, size_t first, size_t last, Range range,
                 space::Optimizer optimizer, const std::function<std::string(const std::string&)>& name) {
  for (const std::string& vector : space::state_names(optimizer))
    for (const Range& part : slot_parts(layout, first, last, range)) map.add(name(vector), part, owner);
  if (space::counts_steps(optimizer))
    for (size_t slot : slots_of(layout, first, last, range))
      for (const Range& fresh : map.lacking(name(kSteps), steps_range(slot), owner))  // it may own more of the slot
        map.add(name(kSteps), fresh, owner);
}

void check(const Source& source, const Wanted& wanted) {
  check_about(source, wanted.about, wanted.who);
  for (const std::string& vector : wanted.parts.vectors())
    for (const Holding& holding : wanted.parts.of(vector))
      if (holding.owner == wanted.owner) check_part(source.contents(), holding.range, vector, wanted.who);
  for (const std::string& name : wanted.scalars)
    if (!source.scalar(name)) fail<InvalidArgument>("the state has no '{}', which {} needs", name, wanted.who);
}

}  // namespace trireme::state
