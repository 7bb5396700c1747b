#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/space/updater.h>

namespace trireme::space {
namespace {

constexpr std::array kOptimizers = {"sgd", "momentum", "adagrad", "adam", "adamw"};

UpdaterOptions with_kind(UpdaterOptions options, Optimizer kind) {
  options.kind = kind;
  return options;
}

/// By optimizer. The kernels know the vectors by their place.
constexpr std::array<std::array<const char*, 2>, kOptimizers.size()> kStateNames = {
    {{},
     {"optimizer/momentum"},
     {"optimizer/sum"},
     {"optimizer/first_moment", "optimizer/second_moment"},
     {"optimizer/first_moment", "optimizer/second_moment"}}};

void check(const UpdaterOptions& o) {
  if (o.nesterov && o.kind != Optimizer::momentum)
    fail<InvalidArgument>("nesterov is a variant of momentum; {} does not have it", name_of(o.kind));
  const auto in_unit = [](double value) { return value >= 0 && value < 1; };
  if (!(o.lr >= 0) || !std::isfinite(o.lr))
    fail<InvalidArgument>("the learning rate must be a number of at least 0, not {}", o.lr);
  if (!in_unit(o.momentum)) fail<InvalidArgument>("momentum must be in [0, 1), not {}", o.momentum);
  if (!in_unit(o.beta1) || !in_unit(o.beta2))
    fail<InvalidArgument>("Adam's betas must be in [0, 1), not {} and {}", o.beta1, o.beta2);
  if (o.epsilon && !(*o.epsilon >= 0)) fail<InvalidArgument>("epsilon must be at least 0, not {}", *o.epsilon);
  if (!(o.weight_decay >= 0)) fail<InvalidArgument>("weight decay must be at least 0, not {}", o.weight_decay);
}

/// Of slots [first, last), those that have a part in `range`.
std::pair<size_t, size_t> slots_in(const Layout& layout, size_t first, size_t last, Range range) {
  const auto slots = layout.slots().subspan(first, last - first);
  const auto from =
      std::partition_point(slots.begin(), slots.end(), [&](const Slot& slot) { return slot.range.end <= range.begin; });
  const auto to =
      std::partition_point(from, slots.end(), [&](const Slot& slot) { return slot.range.begin < range.end; });
  return {first + static_cast<size_t>(from - slots.begin()), first + static_cast<size_t>(to - slots.begin())};
}

bool has(const Source& source, size_t slot) { return source.present == nullptr || source.present[slot] != 0; }

/// The gradients of a slot, and the tree that they are summed in.
struct Summands {
  static constexpr size_t kMost = 256;
  std::array<const std::byte*, kMost> gradients{};
  std::array<uint8_t, kMost> adds{};
  size_t count = 0;
  bool in_order = true;

  std::span<const std::byte* const> all() const { return {gradients.data(), count}; }
  const uint8_t* tree() const { return in_order ? nullptr : adds.data(); }

  void take(std::span<const Source> sources, size_t slot) {
    std::array<bool, kMost> standing{};  // whether there is something in a sum that stands
    size_t sums = 0;
    count = 0;
    in_order = true;
    for (const Source& source : sources) {
      if (standing[sums++] = has(source, slot); standing[sums - 1]) {
        gradients[count] = source.gradients;
        adds[count++] = 0;
      }
      in_order = in_order && source.adds == 1;
      for (int left = source.adds; left > 0 && sums > 1; left--) {
        sums--;
        if (standing[sums] && standing[sums - 1]) adds[count - 1]++;
        standing[sums - 1] = standing[sums - 1] || standing[sums];
      }
    }
  }
};

/// Calls visit(part, summands, slot) for the parts of `range` with the gradients that are there: the whole of it if
/// all are. Slots, counted from `first`, that have other gradients or differ in `kind_of` are in different parts;
/// `slot` is a part's first one.
template <class KindOf, class Visit>
void each_present(const Layout& layout, size_t first, size_t last, Range range, std::span<const Source> sources,
                  const KindOf& kind_of, const Visit& visit) {
  Summands summands;
  if (sources.size() > Summands::kMost) fail<InvalidArgument>("at most {} sources of gradients", Summands::kMost);
  const auto alike = [&](size_t a, size_t b) {
    const auto same = [&](const Source& source) { return has(source, a) == has(source, b); };
    return kind_of(a) == kind_of(b) && std::all_of(sources.begin(), sources.end(), same);
  };
  const auto [from, to] = slots_in(layout, first, last, range);
  for (size_t begin = from, end = from; begin < to; begin = end) {
    for (end = begin + 1; end < to && alike(begin - first, end - first);) end++;
    summands.take(sources, begin - first);
    const Range part{std::max(range.begin, layout[begin].range.begin), end == to ? range.end : layout[end].range.begin};
    if (summands.count > 0) visit(part, summands, begin - first);
  }
}

}  // namespace

UpdaterOptions sgd(UpdaterOptions options) { return with_kind(options, Optimizer::sgd); }
UpdaterOptions momentum(UpdaterOptions options) { return with_kind(options, Optimizer::momentum); }
UpdaterOptions adagrad(UpdaterOptions options) { return with_kind(options, Optimizer::adagrad); }
UpdaterOptions adam(UpdaterOptions options) { return with_kind(options, Optimizer::adam); }
UpdaterOptions adamw(UpdaterOptions options) { return with_kind(options, Optimizer::adamw); }

double epsilon_of(const UpdaterOptions& options) {
  return options.epsilon.value_or(options.kind == Optimizer::adagrad ? 1e-10 : 1e-8);
}

size_t state_vectors(Optimizer kind) {
  const auto& names = kStateNames[static_cast<size_t>(kind)];
  return static_cast<size_t>(
      std::count_if(names.begin(), names.end(), [](const char* name) { return name != nullptr; }));
}

Update settings_of(const UpdaterOptions& options, double lr) {
  return {.optimizer = options.kind,
          .lr = lr,
          .momentum = options.momentum,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .epsilon = epsilon_of(options),
          .weight_decay = options.weight_decay,
          .nesterov = options.nesterov};
}

std::vector<std::string> optimizer_names() { return {kOptimizers.begin(), kOptimizers.end()}; }
std::string name_of(Optimizer kind) { return kOptimizers[static_cast<size_t>(kind)]; }

std::vector<std::string> state_names(Optimizer kind) {
  const auto& names = kStateNames[static_cast<size_t>(kind)];
  return {names.begin(), names.begin() + state_vectors(kind)};
}

bool counts_steps(Optimizer kind) { return kind == Optimizer::adam || kind == Optimizer::adamw; }

Optimizer optimizer_named(const std::string& name) {
  for (size_t i = 0; i < kOptimizers.size(); i++)
    if (name == kOptimizers[i]) return static_cast<Optimizer>(i);
  fail<InvalidArgument>("unknown optimizer '{}'{}", name, did_you_mean(name, optimizer_names()));
}

Updater::Updater(const UpdaterOptions& options, std::span<const Range> owned, bool shared, const StateMemory& memory)
    : options_(options),
      shared_(shared),
      owned_(owned.begin(), owned.end()),
      vectors_(memory.vectors),
      steps_at_(memory.steps) {
  check(options_);
  for (const Range& range : owned_) {
    state_offset_.push_back(range.begin);
    state_size_ += round_up(range.size(), kLine);
  }
  counts_.resize(owned_.size());
}

Updater::Updater(const UpdaterOptions& options, std::span<const Range> owned, bool shared)
    : Updater(options, owned, shared, StateMemory{}) {
  size_t next = 0;
  for (size_t index = 0; index < owned_.size(); index++) {  // one behind another
    state_offset_[index] = next;
    next += round_up(owned_[index].size(), kLine);
  }
  state_ = Arena::of_process(state_bytes());
  for (size_t vector = 0; vector < state_vectors(options_.kind); vector++)
    vectors_.push_back(state_.data() + vector * state_size_);
}

void Updater::begin_step(double lr) {
  lr_ = lr;
  scale_ = 1;
  steps_++;
  if (!followers_.empty()) std::erase_if(followers_, [](const auto& originals) { return originals->released(); });
}

bool Updater::update(size_t index, Range range, DType dtype, std::byte* parameters,
                     std::span<const std::byte* const> gradients) {
  return apply(index, range, dtype, parameters, gradients, nullptr, steps_);
}

void Updater::count(size_t index, const Layout& layout, size_t first, size_t last, Range range,
                    std::span<const Source> sources) {
  if (!counts()) return;
  Counts& counts = counts_[index];
  if (counts.steps.empty()) slot_steps(index, last - first);
  const auto [begin, end] = slots_in(layout, first, last, range);
  for (size_t slot = begin - first; slot < end - first; slot++) {
    const auto counts_here = [&](const Source& source) { return has(source, slot); };
    if (counts.last[slot] == steps_ || std::none_of(sources.begin(), sources.end(), counts_here)) continue;
    counts.steps[slot]++;
    counts.last[slot] = steps_;
  }
}

bool Updater::apply(size_t index, Range range, DType dtype, std::byte* parameters,
                    std::span<const std::byte* const> gradients, const uint8_t* adds, int64_t steps) {
  if (range.empty() || gradients.empty()) return true;
  if (dtype != DType::f32 && dtype != DType::f64)
    fail<InvalidArgument>("parameters of type {} cannot be updated; keep them in f32 or f64", name_of(dtype));
  std::array<const void*, 256> sources{};
  if (gradients.size() > sources.size()) fail<InvalidArgument>("at most {} ranks per machine", sources.size());
  for (size_t k = 0; k < gradients.size(); k++) sources[k] = gradients[k] + range.begin;

  const size_t offset = state_offset_[index] + (range.begin - owned_[index].begin);
  Update update = settings_of(options_, lr_);
  update.dtype = dtype;
  update.gradients = sources.data();
  update.sources = static_cast<int>(gradients.size());
  update.adds = adds;
  update.count = range.size() / size_of(dtype);
  update.parameters = parameters + range.begin;
  for (size_t vector = 0; vector < vectors_.size(); vector++) update.state[vector] = vectors_[vector] + offset;
  update.stream = shared_;
  update.correction1 = 1 - std::pow(options_.beta1, static_cast<double>(steps));
  update.correction2 = 1 - std::pow(options_.beta2, static_cast<double>(steps));
  update.scale = scale_;
  update.watch = watch_;
  const bool at_once = followers_.empty() && journal_ == nullptr && !guessing_;
  return at_once ? kernels().update(update) : update_in_pieces(update, index, range);
}

/// What is saved or written down is in a cache when it is updated. In whole blocks, so that those which watch() leaves
/// out stay the same.
bool Updater::update_in_pieces(const Update& all, size_t index, Range range) {
  constexpr size_t kChunk = Originals::kChunk / sizeof(float);
  static_assert(kChunk % kBlock == 0 && Journal::kPiece % kBlock == 0);
  const size_t length = journal_ != nullptr ? Journal::kPiece : kChunk;
  std::array<const void*, 256> gradients{};
  const size_t width = size_of(all.dtype);
  bool fine = true;
  for (size_t at = 0; at < all.count; at += length) {
    Update piece = all;
    piece.count = std::min(length, all.count - at);
    const size_t bytes = piece.count * width;
    const auto moved = [&](const auto* begin) { return static_cast<const std::byte*>(begin) + at * width; };
    for (int k = 0; k < all.sources; k++) gradients[static_cast<size_t>(k)] = moved(all.gradients[k]);
    piece.gradients = gradients.data();
    std::array<const std::byte*, 3> homes{};
    size_t count = 0;
    for (void** home : {&piece.parameters, &piece.state[0], &piece.state[1]}) {
      if (*home == nullptr) continue;
      *home = static_cast<std::byte*>(*home) + at * width;
      homes[count++] = static_cast<const std::byte*>(*home);
      for (const auto& originals : followers_) originals->save(homes[count - 1], bytes);
      if (guessing_) undo_.save(*home, bytes);
    }
    if (journal_ != nullptr) {
      const size_t begin = range.begin + at * width;
      journal_->enter(index, {begin, begin + bytes}, {homes.data(), count}, bytes);
    }
    fine = kernels().update(piece) && fine;
  }
  return fine;
}

bool Updater::keeps(const std::byte* state) const {
  for (const std::byte* vector : vectors_)
    for (size_t index = 0; index < owned_.size(); index++) {
      const std::byte* const begin = vector + state_offset_[index];
      if (state >= begin && state < begin + owned_[index].size()) return true;
    }
  return false;
}

void Updater::save_originals() {
  for (const auto& originals : followers_) originals->save_all();
  followers_.clear();
}

void Updater::begin_guess(size_t most_bytes) {
  size_t all = 0;
  for (const Range& range : owned_) all += range.size() * (1 + vectors_.size());
  most_kept_ = std::min(most_bytes, all);
  undo_.reserve(most_kept_);
  guessing_ = true;
}

bool Updater::can_guess(size_t index) const {
  return guessing_ && owned_[index].size() * (1 + vectors_.size()) <= most_kept_ - undo_.saved_bytes();
}

void Updater::confirm() {
  guessing_ = false;
  undo_.forget();
}

void Updater::take_back() {
  guessing_ = false;
  undo_.put_back();
  for (Counts& counts : counts_)
    for (size_t slot = 0; slot < counts.last.size(); slot++)
      if (counts.last[slot] == steps_) {
        counts.steps[slot]--;
        counts.last[slot] = 0;  // no step that is to come
      }
}

bool update_present(Updater& updater, size_t index, const Layout& layout, size_t first, size_t last, Range range,
                    DType dtype, std::byte* parameters, std::span<const Source> sources) {
  updater.count(index, layout, first, last, range, sources);
  const auto steps_of = [&](size_t slot) { return updater.steps_of(index, slot); };
  bool fine = true;
  each_present(layout, first, last, range, sources, steps_of, [&](Range part, const Summands& from, size_t slot) {
    fine = updater.apply(index, part, dtype, parameters, from.all(), from.tree(), steps_of(slot)) && fine;
  });
  return fine;
}

double squares_present(const Layout& layout, size_t first, size_t last, Range range, DType dtype, std::byte* sums,
                       std::span<const Source> sources) {
  double squares = 0;
  const auto counts = [&](size_t slot) { return layout[first + slot].counted; };
  each_present(layout, first, last, range, sources, counts, [&](Range part, const Summands& all, size_t slot) {
    if (part.empty()) return;
    std::array<const void*, Summands::kMost> from{};
    for (size_t k = 0; k < all.count; k++) from[k] = all.gradients[k] + part.begin;
    const double here = kernels().sum_squares(dtype, sums == nullptr ? nullptr : sums + part.begin, from.data(),
                                              all.tree(), static_cast<int>(all.count), part.size() / size_of(dtype));
    if (counts(slot) || !std::isfinite(here)) squares += here;
  });
  return squares;
}

void sum_present(const Layout& layout, size_t first, size_t last, Range range, DType dtype, std::byte* sums,
                 std::span<const Source> sources) {
  for (size_t slot = first; slot < last; slot++) {
    const auto here = [&](const Source& source) { return has(source, slot - first); };
    const Range part = intersect(range, layout[slot].range);
    if (!part.empty() && std::none_of(sources.begin(), sources.end(), here))
      std::memset(sums + part.begin, 0, part.size());
  }
  const auto any = [](size_t) { return 0; };
  each_present(layout, first, last, range, sources, any, [&](Range part, const Summands& all, size_t) {
    if (part.empty()) return;
    std::array<const void*, Summands::kMost> from{};
    for (size_t k = 0; k < all.count; k++) from[k] = all.gradients[k] + part.begin;
    if (all.count == 1 && from[0] == sums + part.begin) return;  // it is there
    kernels().sum_tree(dtype, sums + part.begin, from.data(), all.tree(), static_cast<int>(all.count),
                       part.size() / size_of(dtype));
  });
}

std::vector<Updater::View> Updater::views() {
  std::vector<View> views;
  const std::vector<std::string> names = state_names(options_.kind);
  for (size_t vector = 0; vector < names.size(); vector++)
    for (size_t index = 0; index < owned_.size(); index++) {
      std::byte* const begin = vectors_[vector] + state_offset_[index];
      if (!owned_[index].empty()) views.push_back({names[vector], owned_[index], {begin, owned_[index].size()}});
    }
  return views;
}

std::span<int64_t> Updater::slot_steps(size_t index, size_t slots) {
  if (!counts()) return {};
  Counts& counts = counts_[index];
  counts.last.resize(slots);
  if (steps_at_.empty()) counts.own.resize(slots);
  return counts.steps = {steps_at_.empty() ? counts.own.data() : steps_at_[index], slots};
}

void Updater::restart(int64_t steps) {
  steps_ = steps;
  for (Counts& counts : counts_) std::fill(counts.last.begin(), counts.last.end(), 0);  // no step that is to come
}

double clip_factor(double squares, double limit) {
  if (limit <= 0 || !std::isfinite(squares)) return 1;
  return std::min(1.0, limit / (std::sqrt(squares) + 1e-6));
}

}  // namespace trireme::space
