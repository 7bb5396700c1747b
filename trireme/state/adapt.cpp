#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include <trireme/base/error.h>
#include <trireme/state/adapt.h>

namespace trireme::state {
namespace {

using space::Range;

constexpr std::string_view kWorker = "worker/";

std::string base_of(const std::string& name) {
  const auto own = worker_of(name);
  return own ? own->second : name;
}

bool is_buffer(const std::string& base) { return base.starts_with("buffers/"); }
/// Sums, then divides: in double, so that the mean of equal numbers is that number.
template <class T>
void add_up(const std::vector<std::vector<std::byte>>& copies, double divisor, std::span<std::byte> into) {
  const size_t count = into.size() / sizeof(T);
  for (size_t i = 0; i < count; i++) {
    double sum = 0;
    for (const auto& copy : copies) {
      T value;
      std::memcpy(&value, copy.data() + i * sizeof(T), sizeof(T));
      sum += static_cast<double>(value);
    }
    const T result = static_cast<T>(sum / divisor);
    std::memcpy(into.data() + i * sizeof(T), &result, sizeof(T));
  }
}

}  // namespace

std::optional<std::pair<int, std::string>> worker_of(const std::string& name) {
  if (!name.starts_with(kWorker)) return std::nullopt;
  int worker = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kWorker.size(), end, worker);
  if (error != std::errc{} || worker < 0 || stop == end || *stop != '/') return std::nullopt;
  return std::pair(worker, std::string(stop + 1, end));
}

Adapted::Adapted(Source& kept, const space::Layout& layout, int workers, int ranks, std::vector<int> keepers)
    : kept_(kept),
      layout_(layout),
      workers_(workers),
      ranks_(ranks),
      keepers_(std::move(keepers)),
      about_(kept.about()) {
  about_.workers = workers;
  std::set<std::string> bases;
  for (const std::string& vector : kept_.contents().vectors()) {
    bases.insert(base_of(vector));
    if (const auto own = worker_of(vector); own && own->second == kResidual) kept_keepers_.push_back(own->first);
  }
  std::sort(kept_keepers_.begin(), kept_keepers_.end());
  const auto add = [&](const std::string& vector) {
    const std::vector<std::string> origins = origins_of(vector);
    if (origins.empty()) return;
    for (const Holding& holding : kept_.contents().of(origins[0])) contents_.add(vector, holding.range, 0);
  };
  for (const std::string& base : bases) {
    add(base);
    for (int rank = 0; rank < (is_buffer(base) ? ranks : workers) && base != kResidual; rank++)
      add(of_worker(rank, base));
  }
  for (const int keeper : keepers_) add(of_worker(keeper, kResidual));
  remark_ = compared();
}

std::string Adapted::compared() const {
  const auto stays = [&](int keeper) { return keeper_of(keeper) == keeper; };
  if (!kept_keepers_.empty() && keepers_.empty())
    return "what codecs have kept of gradients for later is left out: nothing is compressed now";
  if (!std::all_of(kept_keepers_.begin(), kept_keepers_.end(), stays))
    return fmt::format("what codecs have kept of gradients for later was that of {}, and goes on with {}: added up",
                       kept_keepers_.size(), keepers_.size());
  if (kept_.about().workers == workers_) return "";
  const auto owners = [](int count) {
    return count == 0 ? std::string("one state for all workers") : fmt::format("a state for each of {} workers", count);
  };
  return fmt::format("the state was kept as {}, and goes on as {}: {}", owners(kept_.about().workers), owners(workers_),
                     kept_.about().workers == 0 ? "each has a copy" : "what workers had of their own is averaged");
}

/// Who goes on with what this one has kept.
int Adapted::keeper_of(int kept) const {
  if (std::find(keepers_.begin(), keepers_.end(), kept) != keepers_.end()) return kept;
  return keepers_[static_cast<size_t>(kept) % keepers_.size()];
}

std::vector<std::string> Adapted::origins_of(const std::string& vector) const {
  const auto has = [&](const std::string& name) { return !kept_.contents().of(name).empty(); };
  const auto own = worker_of(vector);
  const std::string base = own ? own->second : vector;
  std::vector<std::string> each;
  if (base == kResidual) {
    for (const int keeper : kept_keepers_)
      if (!keepers_.empty() && own && keeper_of(keeper) == own->first) each.push_back(of_worker(keeper, base));
    return each;
  }
  if (is_buffer(base)) {
    const bool fewer_now = has(of_worker(ranks_, base));
    return {own && has(vector) && !fewer_now ? vector : base};
  }
  const int kept_workers = kept_.about().workers;
  if (has(vector) && (!own || kept_workers == workers_)) return {vector};
  for (int worker = 0; worker < kept_workers; worker++)
    if (has(of_worker(worker, base))) each.push_back(of_worker(worker, base));
  if (each.empty() && has(base)) return {base};
  return each;
}

void Adapted::read(const std::string& vector, Range range, std::span<std::byte> into) {
  const std::vector<std::string> origins = origins_of(vector);
  if (origins.size() == 1) return kept_.read(origins[0], range, into);
  if (base_of(vector) == kSteps) return read_largest(origins, range, into);
  const double divisor = base_of(vector) == kResidual ? 1 : static_cast<double>(origins.size());
  for (const space::Slot& slot : layout_.slots()) {
    const Range part = intersect(slot.range, range);
    if (!part.empty()) add_all(origins, part, slot.dtype, divisor, into.subspan(part.begin - range.begin, part.size()));
  }
}

void Adapted::add_all(const std::vector<std::string>& origins, Range range, DType dtype, double divisor,
                      std::span<std::byte> into) {
  std::vector<std::vector<std::byte>> copies;
  for (const std::string& origin : origins) {
    copies.emplace_back(range.size());
    kept_.read(origin, range, copies.back());
  }
  if (dtype == DType::f32) return add_up<float>(copies, divisor, into);
  if (dtype == DType::f64) return add_up<double>(copies, divisor, into);
  fail<InvalidArgument>("workers' own vectors of type {} have no mean", name_of(dtype));
}

void Adapted::read_largest(const std::vector<std::string>& origins, Range range, std::span<std::byte> into) {
  std::vector<int64_t> largest(range.size() / sizeof(int64_t), 0), one(largest.size());
  for (const std::string& origin : origins) {
    kept_.read(origin, range, std::as_writable_bytes(std::span(one)));
    for (size_t i = 0; i < one.size(); i++) largest[i] = std::max(largest[i], one[i]);
  }
  std::memcpy(into.data(), largest.data(), into.size());
}

std::optional<int64_t> Adapted::scalar(const std::string& name) const {
  if (!worker_of(name) || kept_.about().workers == workers_)
    if (const auto value = kept_.scalar(name)) return value;
  const std::string base = base_of(name);
  if (const auto value = kept_.scalar(base)) return value;
  std::optional<int64_t> largest;
  for (int worker = 0;; worker++) {
    const auto value = kept_.scalar(of_worker(worker, base));
    if (!value) return largest;
    largest = std::max(largest.value_or(*value), *value);
  }
}

}  // namespace trireme::state
