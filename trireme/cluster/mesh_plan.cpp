#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include <trireme/base/error.h>
#include <trireme/cluster/mesh_plan.h>

namespace trireme::cluster {
namespace {

/// Ranks that belong together, in their order.
using Unit = std::vector<int>;

/// "2, 3 or 6"
std::string or_list(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); i++)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == numbers.size() ? " or " : ", ", numbers[i]);
  return text;
}

/// Divisors of `number` above 1: the two below `wanted` and the one above.
std::vector<int> divisors_near(int number, int wanted) {
  std::vector<int> below, near;
  for (int d = 2; d <= number && near.empty(); d++)
    if (number % d == 0) (d < wanted ? below : near).push_back(d);
  const size_t last = std::min<size_t>(2, below.size());
  near.insert(near.begin(), below.end() - static_cast<ptrdiff_t>(last), below.end());
  return near;
}

std::vector<int> multiples_near(int number, int of) {
  std::vector<int> near;
  if (number > of) near.push_back(number / of * of);
  near.push_back((number / of + 1) * of);
  return near;
}

void rank_0_first(std::vector<Unit>& units) {
  std::stable_partition(units.begin(), units.end(),
                        [](const Unit& unit) { return std::find(unit.begin(), unit.end(), 0) != unit.end(); });
}

/// Units of `count` smaller ones, of which as many as possible are on one machine. What is left on several machines is
/// put together in their order.
std::vector<Unit> join(const std::vector<Unit>& units, int count, const std::vector<int>& machine_of) {
  std::map<int, std::vector<Unit>> by_machine;  // of the unit's first rank; those that cross are nowhere at home
  std::vector<Unit> rest, joined;
  const auto take = [&](std::vector<Unit>& from) {
    Unit one;
    for (int i = 0; i < count; i++)
      one.insert(one.end(), from[static_cast<size_t>(i)].begin(), from[static_cast<size_t>(i)].end());
    from.erase(from.begin(), from.begin() + count);
    joined.push_back(std::move(one));
  };
  for (const Unit& unit : units) {
    const auto elsewhere = [&](int rank) {
      return machine_of[static_cast<size_t>(rank)] != machine_of[static_cast<size_t>(unit[0])];
    };
    if (std::any_of(unit.begin(), unit.end(), elsewhere))
      rest.push_back(unit);
    else
      by_machine[machine_of[static_cast<size_t>(unit[0])]].push_back(unit);
  }
  for (auto& [machine, here] : by_machine) {
    while (here.size() >= static_cast<size_t>(count)) take(here);
    rest.insert(rest.end(), here.begin(), here.end());
  }
  rank_0_first(rest);
  while (!rest.empty()) take(rest);
  rank_0_first(joined);
  return joined;
}

std::set<int> machines_of(const Unit& unit, const std::vector<int>& machine_of) {
  std::set<int> machines;
  for (int rank : unit) machines.insert(machine_of[static_cast<size_t>(rank)]);
  return machines;
}

const Unit* crossing(const std::vector<Unit>& units, const std::vector<int>& machine_of) {
  const auto found = std::find_if(units.begin(), units.end(),
                                  [&](const Unit& unit) { return machines_of(unit, machine_of).size() > 1; });
  return found == units.end() ? nullptr : &*found;
}

std::string explain(const MeshPlan& plan, const std::vector<Unit>& tensor, const std::vector<Unit>& pipelines,
                    const std::vector<int>& machine_of) {
  const Degrees& d = plan.degrees;
  const size_t machines = machines_of(plan.order, machine_of).size();
  if (machines == 1) return fmt::format("{}, all on one machine", d.describe());
  if (const Unit* unit = crossing(tensor, machine_of); unit != nullptr)
    return fmt::format(
        "{}: the tensor group of ranks {} crosses machines {}, because not every machine has a multiple of {} ranks; "
        "its ranks add up in every layer, which will be slow over a network. Give every machine a multiple of {} "
        "workers, or use a smaller --tensor",
        d.describe(), fmt::join(*unit, ", "), fmt::join(machines_of(*unit, machine_of), " and "), d.tensor, d.tensor);
  const std::string tensor_text = d.tensor > 1 ? "tensor groups are inside machines" : "";
  const std::string join = tensor_text.empty() ? "" : "; ";
  if (const Unit* unit = crossing(pipelines, machine_of); unit != nullptr)
    return fmt::format("{}: {}{}the pipeline of ranks {} crosses machines {}, between stages alone", d.describe(),
                       tensor_text, join, fmt::join(*unit, ", "), fmt::join(machines_of(*unit, machine_of), " and "));
  const bool divided = d.tensor * d.pipeline > 1;
  return fmt::format("{}: {}over {} machines once per step", d.describe(),
                     divided ? "each copy of the model is inside one machine; gradients go " : "gradients go ",
                     machines);
}

}  // namespace

std::string Degrees::describe() const {
  std::string text = fmt::format("data {}", data);
  if (pipeline > 1) text += fmt::format(" × pipeline {}", pipeline);
  if (tensor > 1) text += fmt::format(" × tensor {}", tensor);
  return text;
}

std::optional<Degrees> degrees_within(int workers, const Degrees& before, bool fixed_stages) {
  Degrees found{.data = 0};
  for (int pipeline = before.pipeline; pipeline >= (fixed_stages ? before.pipeline : 1); pipeline--)
    for (int tensor = before.tensor; tensor >= 1; tensor--) {
      if (before.pipeline % pipeline != 0 || before.tensor % tensor != 0) continue;
      const int copies = std::min(workers / (pipeline * tensor), before.data);
      const bool whole = pipeline == before.pipeline && tensor == before.tensor;
      if (whole && copies > 0) return Degrees{copies, pipeline, tensor};
      if (copies > 0 && pipeline * tensor > found.ranks()) found = {1, pipeline, tensor};
    }
  return found.data > 0 ? std::optional(found) : std::nullopt;
}

Degrees degrees_of(int workers, Degrees degrees) {
  if (degrees.tensor < 1 || degrees.pipeline < 1)
    fail<InvalidArgument>("a degree is the number of ranks that share the work, at least 1, not {}",
                          std::min(degrees.tensor, degrees.pipeline));
  const int parts = degrees.tensor * degrees.pipeline;
  if (workers % parts != 0) {
    const std::string what = degrees.pipeline > 1
                                 ? fmt::format("pipeline {} × tensor {}", degrees.pipeline, degrees.tensor)
                                 : fmt::format("tensor {}", degrees.tensor);
    const std::vector<int> near = degrees.pipeline > 1 ? std::vector<int>{} : divisors_near(workers, degrees.tensor);
    fail<InvalidArgument>("{} worker{} not divide by {}: use {}{}{} workers", workers, workers == 1 ? " does" : "s do",
                          what, near.empty() ? "" : fmt::format("tensor {}", or_list(near)),
                          near.empty() ? "" : ", or ", or_list(multiples_near(workers, parts)));
  }
  degrees.data = workers / parts;
  return degrees;
}

MeshPlan plan_mesh(const std::vector<int>& machine_of, const Degrees& degrees) {
  const auto ranks = static_cast<int>(machine_of.size());
  if (ranks != degrees.ranks())
    fail<InvalidArgument>("{} has {} ranks, and there are {}: choose degrees that multiply to them", degrees.describe(),
                          degrees.ranks(), ranks);
  std::vector<Unit> single;
  for (int rank = 0; rank < ranks; rank++) single.push_back({rank});
  const std::vector<Unit> tensor = join(single, degrees.tensor, machine_of);
  const std::vector<Unit> pipelines = join(tensor, degrees.pipeline, machine_of);
  MeshPlan plan{.degrees = degrees};
  for (const Unit& unit : pipelines) plan.order.insert(plan.order.end(), unit.begin(), unit.end());
  plan.crosses = crossing(pipelines, machine_of) != nullptr;
  plan.reason = explain(plan, tensor, pipelines, machine_of);
  return plan;
}

MeshPlan plan_mesh(const Group& whole, const Degrees& degrees) {
  std::vector<int> machine_of;
  for (int rank = 0; rank < whole.size(); rank++) machine_of.push_back(whole.machine_of(rank));
  return plan_mesh(machine_of, degrees);
}

Mesh mesh_for(const Group& whole, const MeshPlan& plan) {
  std::vector<Axis> axes = {{"data", plan.degrees.data}};
  if (plan.degrees.pipeline > 1) axes.push_back({"pipeline", plan.degrees.pipeline});
  if (plan.degrees.tensor > 1) axes.push_back({"tensor", plan.degrees.tensor});
  if (std::is_sorted(plan.order.begin(), plan.order.end())) return {whole, std::move(axes)};
  const auto place = std::find(plan.order.begin(), plan.order.end(), whole.rank()) - plan.order.begin();
  return {whole.split(0, static_cast<int>(place)), std::move(axes)};
}

Mesh mesh_for(const Group& whole, const Degrees& degrees) { return mesh_for(whole, plan_mesh(whole, degrees)); }

}  // namespace trireme::cluster
