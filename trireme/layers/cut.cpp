#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/exchange/terms.h>
#include <trireme/layers/cut.h>
#include <trireme/layers/recompute.h>

namespace trireme::layers {
namespace {

using torch::Tensor;
constexpr double kNever = std::numeric_limits<double>::infinity();

// ---- places ----

/// Divisions of the first j sections into so many parts, of which the best is kept for every j.
class Divisions {
 public:
  Divisions(const std::vector<double>& costs, const std::vector<bool>& counts) : sums_{0}, counted_{0} {
    for (size_t i = 0; i < costs.size(); i++) {
      sums_.push_back(sums_.back() + costs[i]);
      counted_.push_back(counted_.back() + (counts.empty() || counts[i] ? 1 : 0));
    }
  }

  /// The least value of a division into `parts`; kNever where there is none. `joined(before, cost)`: the value of a
  /// division that one more part of this cost is added to.
  template <class Joined>
  double least(size_t parts, const Joined& joined) {
    const size_t n = sums_.size() - 1;
    std::vector<double> best(n + 1, kNever);
    best[0] = 0;
    begins_.assign(parts, std::vector<size_t>(n + 1, 0));
    for (size_t part = 0; part < parts; part++) {
      std::vector<double> next(n + 1, kNever);
      for (size_t end = 1; end <= n; end++)
        for (size_t begin = 0; begin < end; begin++) {
          if (best[begin] == kNever || counted_[end] == counted_[begin]) continue;
          const double value = joined(best[begin], sums_[end] - sums_[begin]);
          if (value < next[end]) next[end] = value, begins_[part][end] = begin;
        }
      best = std::move(next);
    }
    return best[n];
  }

  /// Where the parts of the division found last begin.
  std::vector<size_t> begins() const {
    std::vector<size_t> found(begins_.size());
    for (size_t part = begins_.size(), end = sums_.size() - 1; part-- > 0; end = found[part])
      found[part] = begins_[part][end];
    return found;
  }

 private:
  std::vector<double> sums_;                 // of the first i costs
  std::vector<size_t> counted_;              // among the first i sections
  std::vector<std::vector<size_t>> begins_;  // by part and its end
};

// ---- what was asked ----

template <class List>
std::string listed(const List& names) {
  constexpr size_t kMostShown = 12;
  if (names.size() <= kMostShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{}, …, {}", fmt::join(names.begin(), names.begin() + kMostShown, ", "), names.back());
}

std::vector<std::string> names_of(const std::vector<Section>& sections) {
  std::vector<std::string> names;
  for (const Section& section : sections) names.push_back(section.name);
  return names;
}

/// The model as it was asked to be cut.
struct Task {
  const torch::nn::Module& whole;
  const std::vector<Section>& sections;
  const std::vector<Used>& used;
  size_t parts;

  std::vector<bool> with_parameters() const {
    std::vector<bool> with;
    for (const Used& one : used) with.push_back(!one.parameters.empty());
    return with;
  }
};

void check_sections(const Task& task) {
  const std::vector<std::string> names = names_of(task.sections);
  for (size_t i = 0; i < names.size(); i++) {
    if (names[i].empty() || !task.sections[i].run)
      fail<InvalidArgument>("section {} of {} has no {}", i, kind_of(task.whole),
                            names[i].empty() ? "name" : "function");
    if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<ptrdiff_t>(i))
      fail<InvalidArgument>("two sections of {} have the name '{}'", kind_of(task.whole), names[i]);
  }
}

void check_number(const Task& task) {
  const size_t sections = task.sections.size();
  if (task.parts > sections)
    fail<InvalidArgument>("{} cannot be cut into {} parts: it has {} section{} ({}): use at most {} stage{}",
                          kind_of(task.whole), task.parts, sections, sections == 1 ? "" : "s",
                          listed(names_of(task.sections)), sections, sections == 1 ? "" : "s");
  const std::vector<bool> with = task.with_parameters();
  const auto count = static_cast<size_t>(std::count(with.begin(), with.end(), true));
  if (task.parts > std::max<size_t>(1, count))
    fail<InvalidArgument>(
        "{} cannot be cut into {} parts: {} of its {} sections have parameters, and a part without any has nothing to "
        "learn: use at most {} stage{}",
        kind_of(task.whole), task.parts, count, sections, count, count == 1 ? "" : "s");
}

size_t place_of(const Task& task, const std::string& point) {
  std::vector<std::string> names = names_of(task.sections);
  const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return name == point || name.starts_with(point + ".");
  });
  if (found == names.end())
    fail<InvalidArgument>("{} has no section '{}'{} to cut before. There are {}", kind_of(task.whole), point,
                          did_you_mean(point, names), listed(names));
  if (found == names.begin())
    fail<InvalidArgument>("'{}' is the first section of {}: a cut before it leaves nothing for the part in front",
                          point, kind_of(task.whole));
  return static_cast<size_t>(found - names.begin());
}

std::vector<size_t> begins_at(const Task& task, const std::vector<std::string>& points) {
  if (points.size() + 1 != task.parts)
    fail<InvalidArgument>("{} parts have {} place{} between them, and {} {} given: {}", task.parts, task.parts - 1,
                          task.parts == 2 ? "" : "s", points.size(), points.size() == 1 ? "was" : "were",
                          fmt::join(points, ", "));
  std::vector<size_t> begins{0};
  for (const std::string& point : points) begins.push_back(place_of(task, point));
  std::sort(begins.begin(), begins.end());
  if (const auto twice = std::adjacent_find(begins.begin(), begins.end()); twice != begins.end())
    fail<InvalidArgument>("the place before '{}' was given twice", task.sections[*twice].name);
  return begins;
}

/// With its unit, for the reason.
struct Costs {
  std::vector<double> of;
  const char* by;
};

/// Seconds of each section.
using Measured = std::function<std::vector<double>()>;

Costs costs_of(const Task& task, const CutOptions& options, const Measured& measured) {
  if (!options.costs.empty()) {
    if (options.costs.size() != task.sections.size())
      fail<InvalidArgument>("{} costs were given, but {} has {} sections ({})", options.costs.size(),
                            kind_of(task.whole), task.sections.size(), listed(names_of(task.sections)));
    for (const double cost : options.costs)
      if (!(cost >= 0) || std::isinf(cost)) fail<InvalidArgument>("a cost of {}: 0 or more", cost);
    return {options.costs, "given cost"};
  }
  if (options.example.defined()) return {measured(), "measured time"};
  const auto parameters = task.whole.named_parameters();
  std::vector<double> sizes;
  for (const Used& used : task.used) {
    sizes.push_back(1);  // layers without parameters cost something too
    for (const std::string& name : used.parameters) sizes.back() += static_cast<double>(parameters[name].numel());
  }
  return {sizes, "number of parameters"};
}

// ---- parts ----

/// Sections [begin, end), one after the other.
Carried run_all(const std::vector<Section>& sections, size_t begin, size_t end, Carried carried) {
  for (size_t i = begin; i < end; i++) {
    carried.section = sections[i].name;
    carried = sections[i].run(std::move(carried));
  }
  return carried;
}

using Sections = std::shared_ptr<const std::vector<Section>>;

/// By √n groups, of which the model's last is not run twice: backward begins with it. A group in which something is
/// carried along is no function of one tensor, and runs as it is.
Carried run_twice(const Sections& row, const std::vector<Tensor>& buffers, bool last, Carried carried) {
  const size_t n = row->size(), groups = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(n))));
  for (size_t group = 0; group < groups; group++) {
    const size_t begin = group * n / groups, end = (group + 1) * n / groups;
    if (!carried.kept.empty() || (last && group + 1 == groups)) {
      carried = run_all(*row, begin, end, std::move(carried));
      continue;
    }
    const auto run = [row, begin, end](const Tensor& x) {
      const Carried after = run_all(*row, begin, end, {x});
      if (!after.kept.empty())
        fail<InvalidArgument>(
            "'{}' is kept by a section between '{}' and '{}', which are to be computed again in backward as a function "
            "of one tensor: leave out CutOptions::recompute, and call recompute() in sections where it can be",
            after.kept.begin()->first, (*row)[begin].name, (*row)[end - 1].name);
      return after.x;
    };
    carried.x = recompute(run, carried.x, buffers);
  }
  return carried;
}

void check_nothing_left(const Carried& carried) {
  if (carried.kept.empty()) return;
  fail<InvalidArgument>(
      "'{}' is kept at the end of the model, where nobody takes it any more: take() it in the section that needs it, "
      "or "
      "do not keep it",
      carried.kept.begin()->first);
}

Part part_of(const Task& task, size_t begin, size_t end, bool recomputes) {
  const auto from = task.sections.begin();
  std::vector<Section> sections(from + static_cast<ptrdiff_t>(begin), from + static_cast<ptrdiff_t>(end));
  Part part{sections.front().name, names_of(sections), {}, {}, {}};
  const auto add = [](std::vector<std::string>& all, const std::vector<std::string>& some) {
    for (const std::string& name : some)
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  };
  for (size_t i = begin; i < end; i++) {
    add(part.parameters, task.used[i].parameters);
    add(part.buffers, task.used[i].buffers);
  }
  std::vector<Tensor> buffers;
  const auto tensors = task.whole.named_buffers();
  for (const std::string& name : part.buffers) buffers.push_back(tensors[name]);
  const bool last = end == task.sections.size();
  const Sections row = std::make_shared<const std::vector<Section>>(std::move(sections));
  part.run = [row, buffers, last, recomputes](Carried carried) {
    Carried after = recomputes ? run_twice(row, buffers, last, std::move(carried))
                               : run_all(*row, 0, row->size(), std::move(carried));
    if (last) check_nothing_left(after);
    return after;
  };
  return part;
}

void check_parameters(const Cut& cut) {
  if (cut.parts.size() == 1) return;
  for (size_t i = 0; i < cut.parts.size(); i++)
    if (const Part& part = cut.parts[i]; part.parameters.empty())
      fail<InvalidArgument>("part {} of {} has no parameters, and nothing to learn: its section{} {}. Cut elsewhere", i,
                            cut.parts.size(), part.sections.size() == 1 ? " is" : "s are", listed(part.sections));
}

std::map<std::string, std::vector<size_t>> shared_by(const std::vector<Part>& parts) {
  std::map<std::string, std::vector<size_t>> all;
  for (size_t i = 0; i < parts.size(); i++)
    for (const std::string& name : parts[i].parameters) all[name].push_back(i);
  std::erase_if(all, [](const auto& item) { return item.second.size() < 2; });
  return all;
}

std::string reason_for(const Cut& cut, const char* by, bool asked) {
  if (cut.parts.size() == 1) return fmt::format("{} is one part", kind_of(*cut.whole));
  std::vector<std::string> before, shares;
  const double total = std::accumulate(cut.cost.begin(), cut.cost.end(), 0.0);
  for (size_t i = 0; i < cut.parts.size(); i++) {
    if (i > 0) before.push_back(cut.parts[i].name);
    shares.push_back(fmt::format("{:.0f}%", total > 0 ? 100 * cut.cost[i] / total : 0));
  }
  return fmt::format("{} is cut into {} parts before {}, {}: by {} they are {}", kind_of(*cut.whole), cut.parts.size(),
                     listed(before), asked ? "as asked" : "where the costliest part is cheapest", by, listed(shares));
}

Cut cut_by(const std::shared_ptr<torch::nn::Module>& whole, const std::vector<Section>& sections, int parts,
           const CutOptions& options, const Measured& measured) {
  if (parts < 1) fail<InvalidArgument>("{} parts of {}: at least 1", parts, kind_of(*whole));
  const std::vector<Used> used = used_by(*whole, sections);
  const Task task{*whole, sections, used, static_cast<size_t>(parts)};
  check_sections(task);
  check_number(task);
  std::vector<size_t> begins{0};
  if (parts > 1 && !options.points.empty()) begins = begins_at(task, options.points);
  const Costs costs = costs_of(task, options, measured);
  if (parts > 1 && options.points.empty()) begins = balance(costs.of, task.parts, task.with_parameters());
  Cut cut{whole, {}, {}, {}, {}};
  for (size_t i = 0; i < begins.size(); i++) {
    const size_t end = i + 1 < begins.size() ? begins[i + 1] : sections.size();
    cut.parts.push_back(part_of(task, begins[i], end, options.recompute));
    cut.cost.push_back(std::accumulate(costs.of.begin() + static_cast<ptrdiff_t>(begins[i]),
                                       costs.of.begin() + static_cast<ptrdiff_t>(end), 0.0));
  }
  check_parameters(cut);
  cut.shared = shared_by(cut.parts);
  cut.reason = reason_for(cut, costs.by, !options.points.empty());
  return cut;
}

// ---- of all ranks of a mesh alike ----

/// Ranks that ask for something else would cut elsewhere, or measure while the others go on.
void agree(const Mesh& mesh, const std::vector<Section>& sections, int parts, const CutOptions& options) {
  exchange::Terms terms;
  terms.add("parts of a model", parts)
      .add("sections of a model", fmt::format("{}", fmt::join(names_of(sections), " ")))
      .add("places to cut a model at", fmt::format("{}", fmt::join(options.points, " ")))
      .add("costs of sections", fmt::format("{}", fmt::join(options.costs, " ")))
      .add("sections are measured", options.costs.empty() && options.example.defined());
  exchange::agree(mesh.whole().comm(), "cuts of a model", terms.text());
}

/// The first rank, and those that divide its layers.
bool measures(const Mesh& mesh) {
  return std::all_of(mesh.axes().begin(), mesh.axes().end(),
                     [&](const Axis& axis) { return axis.name == "tensor" || mesh.coordinate(axis.name) == 0; });
}

/// Why it could not be measured is an error of all ranks.
std::vector<double> measure_once(const Mesh& mesh, size_t sections, const Measured& measured) {
  comm::Communicator& ranks = mesh.whole().comm();
  std::vector<double> costs(sections);
  std::exception_ptr error;
  std::string why;
  if (measures(mesh)) try {
      costs = measured();
    } catch (const c10::Error& e) {  // without what libtorch says about its own calls
      error = std::current_exception();
      why = e.what_without_backtrace();
    } catch (const std::exception& e) {
      error = std::current_exception();
      why = e.what();
    }
  auto length = static_cast<int64_t>(why.size());
  ranks.broadcast(&length, 1, DType::i64, 0, "whether sections were measured");
  if (length > 0) {
    why.resize(static_cast<size_t>(length));
    ranks.broadcast(why.data(), why.size(), DType::u8, 0, "why sections were not measured");
    if (error) std::rethrow_exception(error);
    fail<InvalidArgument>("rank {} could not measure the sections of the model: {}", mesh.whole().ranks().front(), why);
  }
  if (error) std::rethrow_exception(error);
  ranks.broadcast(costs.data(), costs.size(), DType::f64, 0, "costs of a model's sections");
  return costs;
}

}  // namespace

std::vector<size_t> balance(const std::vector<double>& costs, size_t parts, const std::vector<bool>& counts) {
  Divisions divisions(costs, counts);
  const double most = divisions.least(parts, [](double before, double cost) { return std::max(before, cost); });
  if (most == kNever) return {};
  divisions.least(parts, [most](double before, double cost) { return cost > most ? kNever : before + cost * cost; });
  return divisions.begins();
}

Cut cut(const std::shared_ptr<torch::nn::Module>& whole, int parts, const CutOptions& options) {
  return cut(whole, sections_of(*whole), parts, options);
}

Cut cut(const std::shared_ptr<torch::nn::Module>& whole, const std::vector<Section>& sections, int parts,
        const CutOptions& options) {
  return cut_by(whole, sections, parts, options,
                [&] { return measure(*whole, sections, options.example, options.last); });
}

Cut cut(const Mesh& mesh, const std::shared_ptr<torch::nn::Module>& whole, int parts, const CutOptions& options) {
  return cut(mesh, whole, sections_of(*whole), parts, options);
}

Cut cut(const Mesh& mesh, const std::shared_ptr<torch::nn::Module>& whole, const std::vector<Section>& sections,
        int parts, const CutOptions& options) {
  agree(mesh, sections, parts, options);
  return cut_by(whole, sections, parts, options, [&] {
    return measure_once(mesh, sections.size(),
                        [&] { return measure(*whole, sections, options.example, options.last); });
  });
}

}  // namespace trireme::layers
