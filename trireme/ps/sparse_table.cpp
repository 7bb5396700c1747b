#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

#include <trireme/ps/sparse_table.h>

namespace trireme::ps {
namespace {

constexpr size_t kSlabBytes = 2 << 20;  // one huge page
constexpr size_t kLeastSlots = 64;
constexpr size_t kSlotsAhead = 16;  // slots fetched ahead

/// Every bit of the result depends on every bit of `x`; one to one.
inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

/// The random numbers of one row: a counter, mixed.
class RowRandom {
 public:
  RowRandom(uint64_t seed, uint64_t key) : state_(mixed(seed ^ mixed(key + 0x9e3779b97f4a7c15))) {}
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(mixed(state_ += 0x9e3779b97f4a7c15) >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

/// FNV-1a: names are short, and the value must never change, or restarted jobs would begin with other rows.
uint64_t hash_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

/// Slots for so many rows: at most five of eight are in use, or probing grows long.
size_t slots_for(size_t rows) { return std::bit_ceil(std::max(kLeastSlots, rows + rows * 3 / 5 + 1)); }

void check(const SparseTable::Options& o) {
  if (o.width == 0 || o.width > SparseTable::kMostWidth)
    fail<InvalidArgument>("table '{}': a row has 1 to {} floats, not {}", o.name, SparseTable::kMostWidth, o.width);
  if (!(o.scale >= 0) || !std::isfinite(o.scale))
    fail<InvalidArgument>("table '{}': the scale of first values must be at least 0, not {}", o.name, o.scale);
  if (o.fill > SparseTable::Fill::normal)
    fail<InvalidArgument>("table '{}': there is no way number {} to fill rows", o.name, static_cast<int>(o.fill));
  if (o.optimizer.kind > space::Optimizer::adamw)
    fail<InvalidArgument>("table '{}': there is no optimizer number {}", o.name, static_cast<int>(o.optimizer.kind));
  if (o.evict_after > SparseTable::kMostTicks)
    fail<InvalidArgument>("table '{}': evict_after is at most {} ticks, not {}; 0 keeps rows for ever", o.name,
                          SparseTable::kMostTicks, o.evict_after);
  if (o.most_rows == 0 || o.most_rows > SparseTable::kMostRows)
    fail<InvalidArgument>("table '{}': most_rows is 1 to {}, not {}", o.name, SparseTable::kMostRows, o.most_rows);
  space::Updater(o.optimizer, {});  // checks the optimizer's settings
}

const SparseTable::Options& checked(const SparseTable::Options& options) {
  check(options);
  return options;
}

/// Copies rows one after the other; a width known to the compiler makes each copy a few vector moves. 0: any width.
template <size_t kWidth>
void copy_rows_of(std::span<float* const> rows, size_t any_width, float* out) {
  const size_t width = kWidth != 0 ? kWidth : any_width;
  for (size_t k = 0; k < rows.size(); k++) {
    if (k + kRowsAhead < rows.size()) prefetch_row(rows[k + kRowsAhead], width);
    std::memcpy(out + k * width, rows[k], width * sizeof(float));
  }
}

void copy_rows(std::span<float* const> rows, size_t width, float* out) {
  switch (width) {
    case 4:
      return copy_rows_of<4>(rows, width, out);
    case 8:
      return copy_rows_of<8>(rows, width, out);
    case 16:
      return copy_rows_of<16>(rows, width, out);
    case 32:
      return copy_rows_of<32>(rows, width, out);
    case 64:
      return copy_rows_of<64>(rows, width, out);
    default:
      return copy_rows_of<0>(rows, width, out);
  }
}

}  // namespace

SparseTable::SparseTable(const Options& options)
    : options_(checked(options)),
      shape_(RowShape::of(options.optimizer, options.width, options.evict_after != 0)),
      updater_(options.optimizer, shape_),
      fill_seed_(mixed(mixed(options.seed) ^ hash_of(options.name))),
      stride_(shape_.stride()),
      slab_bits_(std::bit_width(kSlabBytes / (stride_ * sizeof(float))) - 1),
      slab_mask_((size_t{1} << slab_bits_) - 1) {
  resize_slots(kLeastSlots, {});
}

// ---- finding rows ----

inline size_t SparseTable::home_of(uint64_t key) const { return mixed(key) >> shift_; }

/// The slot of `key`, or the empty one where it belongs. There always is one.
inline SparseTable::Slot& SparseTable::slot_of(uint64_t key) const {
  size_t at = home_of(key);
  while (slots_[at].row != 0 && slots_[at].key != key) at = (at + 1) & (capacity_ - 1);
  return slots_[at];
}

/// Fills found_ with the rows of `keys`. Grouped: with the rows of the distinct keys, in the order of their first
/// places, and group_ with each key's place among them. False when a row does not exist.
template <bool grouped>
bool SparseTable::locate(std::span<const uint64_t> keys) {
  if (found_.size() < keys.size()) found_.resize(keys.size());
  if (grouped && group_.size() < keys.size()) group_.resize(keys.size());
  uint32_t distinct = 0;
  for (size_t i = 0; i < keys.size(); i++) {
    if (i + kSlotsAhead < keys.size()) __builtin_prefetch(&slots_[home_of(keys[i + kSlotsAhead])], grouped);
    Slot& slot = slot_of(keys[i]);
    if (slot.row == 0) return false;
    float* row = row_at(slot.row - 1);
    if constexpr (!grouped) {
      found_[i] = row;
      continue;
    }
    // The mark may be of any earlier push. It is of this one if the place that it names is taken, by this row.
    // Whether it is cannot be predicted, so nothing here branches on it.
    const uint32_t place = slot.mark < distinct ? slot.mark : distinct;
    const bool known = (place < distinct) & (found_[place] == row);
    const uint32_t group = known ? place : distinct;
    found_[group] = row;
    group_[i] = slot.mark = group;
    distinct += !known;
  }
  distinct_ = grouped ? distinct : keys.size();
  return true;
}

void SparseTable::check_call(std::span<const uint64_t> keys) const {
  if (keys.size() > kMostKeys)
    fail<InvalidArgument>("table '{}': {} keys in one call; at most {}", options_.name, keys.size(), kMostKeys);
}

// ---- making rows ----

/// Makes the rows that are missing, all or none.
void SparseTable::create_missing(std::span<const uint64_t> keys) {
  std::vector<uint64_t> missing;
  for (uint64_t key : keys)
    if (slot_of(key).row == 0) missing.push_back(key);
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  reserve(rows_ + missing.size());
  for (uint64_t key : missing) create(key);
}

/// Room for so many rows, after which creating them cannot fail.
void SparseTable::reserve(size_t rows) {
  if (rows > options_.most_rows)
    fail<TableFull>(
        "table '{}' would have {} rows, {} more than now; its limit is most_rows = {}. Raise it, add servers, or set "
        "evict_after to forget unused rows",
        options_.name, rows, rows - rows_, options_.most_rows);
  slabs_.reserve((rows + slab_mask_) >> slab_bits_);
  while (slabs_.size() << slab_bits_ < rows)
    slabs_.push_back(space::Arena::of_process((slab_mask_ + 1) * stride_ * sizeof(float)));
  if (const size_t capacity = slots_for(rows); capacity > capacity_) resize_slots(capacity, {});
}

/// New slots for all rows but the dropped ones (by number; empty: none). A hash's upper bits are its slot, so that the
/// old order is nearly the new one, and this walks through memory instead of jumping.
void SparseTable::resize_slots(size_t capacity, const std::vector<bool>& dropped) {
  const space::Arena old_memory = slots_memory_;
  const std::span<const Slot> old(slots_, capacity_);
  slots_memory_ = space::Arena::of_process(capacity * sizeof(Slot));  // zeroed: all empty
  slots_ = reinterpret_cast<Slot*>(slots_memory_.data());
  capacity_ = capacity;
  shift_ = 64 - std::countr_zero(capacity);
  for (const Slot& slot : old)
    if (slot.row != 0 && (dropped.empty() || !dropped[slot.row - 1])) slot_of(slot.key) = slot;
}

SparseTable::Slot& SparseTable::create(uint64_t key) {
  Slot& slot = slot_of(key);
  float* row = row_at(rows_);
  initialise(key, row);
  slot = {.key = key, .row = static_cast<uint32_t>(++rows_), .mark = 0};
  return slot;
}

void SparseTable::initialise(uint64_t key, float* row) const {
  std::fill_n(row, stride_, 0.0f);
  shape_.set_tail(row, {.steps = 0, .touched = now_});
  RowRandom random(fill_seed_, key);
  const size_t width = options_.width;
  if (options_.fill == Fill::uniform)
    for (size_t i = 0; i < width; i++) row[i] = static_cast<float>((2 * random.uniform() - 1) * options_.scale);
  if (options_.fill != Fill::normal) return;
  for (size_t i = 0; i < width; i += 2) {  // Box and Muller's pairs
    const double length = options_.scale * std::sqrt(-2 * std::log(1 - random.uniform())),
                 angle = 2 * std::numbers::pi * random.uniform();
    row[i] = static_cast<float>(length * std::cos(angle));
    if (i + 1 < width) row[i + 1] = static_cast<float>(length * std::sin(angle));
  }
}

// ---- pull and push ----

void SparseTable::touch(std::span<float* const> rows) const {
  if (options_.evict_after == 0) return;
  for (size_t k = 0; k < rows.size(); k++) {
    if (k + kRowsAhead < rows.size()) __builtin_prefetch(rows[k + kRowsAhead] + shape_.floats(), 1);
    RowTail tail = shape_.tail_of(rows[k]);
    tail.touched = now_;
    shape_.set_tail(rows[k], tail);
  }
}

void SparseTable::pull(std::span<const uint64_t> keys, float* out) {
  check_call(keys);
  constexpr size_t kPart = 1024;  // keys at a time, so that their rows' addresses stay in the first-level cache
  while (!keys.empty()) {
    const std::span<const uint64_t> part = keys.first(std::min(kPart, keys.size()));
    if (!locate<false>(part)) create_missing(keys), locate<false>(part);
    const std::span<float* const> rows(found_.data(), part.size());
    touch(rows);
    copy_rows(rows, options_.width, out);
    keys = keys.subspan(part.size());
    out += part.size() * options_.width;
  }
}

/// Fills gradients_ with the gradient of each distinct key. Groups are numbered in the order of their first keys, so
/// that a group's first gradient is known by its number. Few keys repeat: only what is summed is copied.
void SparseTable::sum_groups(size_t keys, const float* gradients) {
  const size_t width = options_.width, room = (keys - distinct_) * width;
  if (gradients_.size() < distinct_) gradients_.resize(distinct_);
  if (sums_.size() < room) sums_.resize(room);
  float* free = sums_.data();
  size_t seen = 0;
  for (size_t i = 0; i < keys; i++) {
    const float* g = gradients + i * width;
    const float*& of_group = gradients_[group_[i]];
    if (group_[i] == seen) {
      of_group = g;
      seen++;
      continue;
    }
    const std::less<const float*> before;
    const bool second =
        before(of_group, sums_.data()) || !before(of_group, free);  // of its group; a third one finds a sum
    float* sum = second ? std::exchange(free, free + width) : sums_.data() + (of_group - sums_.data());
    if (second) std::memcpy(sum, of_group, width * sizeof(float));
    of_group = sum;
    for (size_t k = 0; k < width; k++) sum[k] += g[k];
  }
}

void SparseTable::push(std::span<const uint64_t> keys, const float* gradients, double lr) {
  check_call(keys);
  if (!(lr >= 0) || !std::isfinite(lr))
    fail<InvalidArgument>("table '{}': the learning rate must be a number of at least 0, not {}", options_.name, lr);
  if (!locate<true>(keys)) create_missing(keys), locate<true>(keys);
  sum_groups(keys.size(), gradients);
  const std::span<float* const> rows(found_.data(), distinct_);
  touch(rows);
  updater_.update(rows, gradients_.data(), lr);
}

// ---- eviction ----

size_t SparseTable::tick() {
  now_++;
  const uint64_t pause = std::max<uint64_t>(1, options_.evict_after / 8);
  if (options_.evict_after == 0 || now_ - swept_ < pause) return 0;
  return evict();
}

std::vector<bool> SparseTable::stale_rows() const {
  std::vector<bool> stale(rows_);
  for (size_t row = 0; row < rows_; row++)
    stale[row] = now_ - shape_.tail_of(row_at(row)).touched >= options_.evict_after;
  return stale;
}

/// Rows with numbers from `left` on move to where dropped ones were, so that rows stay dense.
void SparseTable::close_holes(const std::vector<bool>& dropped, size_t left) {
  size_t hole = 0;
  for (Slot& slot : std::span(slots_, capacity_)) {
    if (slot.row == 0 || slot.row - 1 < left) continue;
    while (!dropped[hole]) hole++;
    std::memcpy(row_at(hole), row_at(slot.row - 1), stride_ * sizeof(float));
    slot.row = static_cast<uint32_t>(++hole);
  }
}

size_t SparseTable::evict() {
  if (options_.evict_after == 0) return 0;
  swept_ = now_;
  const std::vector<bool> stale = stale_rows();
  const size_t gone = static_cast<size_t>(std::count(stale.begin(), stale.end(), true)), left = rows_ - gone;
  if (gone == 0) return 0;
  resize_slots(slots_for(left), stale);
  close_holes(stale, left);
  rows_ = left;
  slabs_.resize((left + slab_mask_) >> slab_bits_);
  return gone;
}

// ---- checkpoints ----

size_t SparseTable::bytes() const {
  size_t sum = slots_memory_.bytes() + found_.capacity() * sizeof(float*) + group_.capacity() * sizeof(uint32_t) +
               gradients_.capacity() * sizeof(float*) + sums_.capacity() * sizeof(float);
  for (const space::Arena& slab : slabs_) sum += slab.bytes();
  return sum;
}

/// Not in the order of the slots, which is that of the hashes: a table that grows as it is restored in this order would
/// fill from one end, and probing would take for ever.
std::optional<size_t> SparseTable::for_some(size_t from, size_t most,
                                            const std::function<void(const Row&)>& visit) const {
  constexpr size_t kSpread = 0x9e3779b97f4a7c15;  // odd: every slot comes once
  for (size_t i = from; i < capacity_; i++) {
    if (most == 0) return i;
    const Slot& slot = slots_[(i * kSpread) & (capacity_ - 1)];
    if (slot.row == 0) continue;
    most--;
    const float* row = row_at(slot.row - 1);
    const RowTail tail = shape_.tail_of(row);
    visit({.key = slot.key,
           .values = {row, shape_.width},
           .state = {row + shape_.width, shape_.width * shape_.vectors},
           .steps = tail.steps,
           .age = options_.evict_after != 0 ? now_ - tail.touched : 0});
  }
  return std::nullopt;
}

void SparseTable::for_each(const std::function<void(const Row&)>& visit) const { for_some(0, rows_, visit); }

void SparseTable::clear() {
  resize_slots(kLeastSlots, std::vector<bool>(rows_, true));
  rows_ = 0;
  slabs_.clear();
}

void SparseTable::restore(const Row& row) {
  if (row.values.size() != shape_.width || row.state.size() != shape_.width * shape_.vectors)
    fail<InvalidArgument>(
        "table '{}': a saved row of {} values and {} of state; the table's have {} and {}: was it saved with another "
        "width or optimizer?",
        options_.name, row.values.size(), row.state.size(), shape_.width, shape_.width * shape_.vectors);
  if (slot_of(row.key).row == 0) reserve(rows_ + 1), create(row.key);
  float* into = row_at(slot_of(row.key).row - 1);
  std::copy(row.values.begin(), row.values.end(), into);
  std::copy(row.state.begin(), row.state.end(), into + shape_.width);
  shape_.set_tail(into, {.steps = row.steps, .touched = now_ - row.age});
}

}  // namespace trireme::ps
