// label: unit
// The sparse table against a map of rows, each with an Updater of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <unordered_map>

#include <trireme/ps/sparse_table.h>

namespace trireme::ps::tests {
namespace {

using Fill = SparseTable::Fill;
using Keys = std::vector<uint64_t>;
using Floats = std::vector<float>;

Floats pulled(SparseTable& table, const Keys& keys) {
  Floats out(keys.size() * table.options().width);
  table.pull(keys, out.data());
  return out;
}

/// Everything that a checkpoint would hold, by key.
struct Saved {
  Floats values, state;
  uint32_t steps, age;
  bool operator==(const Saved&) const = default;
};
std::map<uint64_t, Saved> content_of(const SparseTable& table) {
  std::map<uint64_t, Saved> content;
  table.for_each([&](const SparseTable::Row& row) {
    const bool fresh = content
                           .insert({row.key,
                                    {Floats(row.values.begin(), row.values.end()),
                                     Floats(row.state.begin(), row.state.end()), row.steps, row.age}})
                           .second;
    EXPECT_TRUE(fresh) << "key " << row.key << " came twice";
  });
  EXPECT_EQ(content.size(), table.rows());
  return content;
}

/// The plainest table: a map, and the flat space's Updater for each row.
class Reference {
 public:
  explicit Reference(const SparseTable::Options& options) : options_(options) {}

  const Floats& row(uint64_t key) { return entry(key).values; }

  void push(const Keys& keys, const Floats& gradients, double lr) {
    std::unordered_map<uint64_t, Floats> sums;
    for (size_t i = 0; i < keys.size(); i++) {
      Floats& sum = sums.try_emplace(keys[i], Floats(options_.width)).first->second;
      for (size_t k = 0; k < options_.width; k++) sum[k] += gradients[i * options_.width + k];
    }
    for (auto& [key, sum] : sums) {
      Entry& row = entry(key);
      const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(sum.data())};
      row.updater.begin_step(lr);
      row.updater.update(0, {0, options_.width * sizeof(float)}, DType::f32,
                         reinterpret_cast<std::byte*>(row.values.data()), sources);
    }
  }

  size_t rows() const { return rows_.size(); }
  int64_t steps(uint64_t key) { return entry(key).updater.steps(); }

 private:
  struct Entry {
    Floats values;
    space::Updater updater;
  };

  Entry& entry(uint64_t key) {
    const auto found = rows_.find(key);
    if (found != rows_.end()) return found->second;
    const space::Range owned[] = {{0, options_.width * sizeof(float)}};
    return rows_.emplace(key, Entry{Floats(options_.width), space::Updater(options_.optimizer, owned)}).first->second;
  }

  SparseTable::Options options_;
  std::unordered_map<uint64_t, Entry> rows_;
};

std::vector<space::UpdaterOptions> all_optimizers() {
  return {space::sgd(),
          space::sgd({.weight_decay = 0.03}),
          space::momentum(),
          space::momentum({.momentum = 0.7, .weight_decay = 0.02}),
          space::momentum({.nesterov = true, .weight_decay = 0.02}),
          space::adagrad(),
          space::adagrad({.epsilon = 0.01, .weight_decay = 0.05}),
          space::adam(),
          space::adam({.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1}),
          space::adamw(),
          space::adamw({.beta1 = 0.85, .beta2 = 0.99, .weight_decay = 0.1})};
}

/// Random pushes with equal keys among them, then every row compared.
void compare_with_reference(const SparseTable::Options& options, int pushes, uint64_t universe) {
  SparseTable table(options);
  Reference reference(options);
  std::mt19937_64 random(3);
  std::normal_distribution<float> noise;
  for (int push = 0; push < pushes; push++) {
    Keys keys(1 + random() % 200);
    for (uint64_t& key : keys) key = (random() % universe) * 0x100000001;
    Floats gradients(keys.size() * options.width);
    for (float& g : gradients) g = noise(random);
    const double lr = 0.1 / (1 + 0.1 * push);
    table.push(keys, gradients.data(), lr);
    reference.push(keys, gradients, lr);
  }
  ASSERT_EQ(table.rows(), reference.rows());
  for (const auto& [key, saved] : content_of(table)) {
    const Floats& expected = reference.row(key);
    for (size_t k = 0; k < options.width; k++)
      ASSERT_NEAR(saved.values[k], expected[k], 1e-6 * std::max(1.0f, std::abs(expected[k])))
          << name_of(options.optimizer.kind) << ", width " << options.width << ", key " << key << ", element " << k;
    if (options.optimizer.kind >= space::Optimizer::adam) {
      ASSERT_EQ(saved.steps, reference.steps(key));
    }
  }
}

TEST(SparseTable, FollowsTheUpdaterWithEveryOptimizer) {
  for (const auto& optimizer : all_optimizers())
    compare_with_reference({.name = "t", .width = 16, .optimizer = optimizer}, 60, 500);
}

TEST(SparseTable, FollowsTheUpdaterForEveryWidth) {
  for (size_t width : {1, 2, 3, 4, 5, 8, 10, 16, 17, 32, 33, 64, 100, 128, 200})
    for (const auto& optimizer : {space::sgd(), space::adagrad(), space::adam()})
      for (uint64_t evict_after : {0, 1000})  // with and without a tail behind the row
        compare_with_reference({.name = "t", .width = width, .optimizer = optimizer, .evict_after = evict_after}, 8,
                               300);
}

TEST(SparseTable, WideRowsFitToo) {
  compare_with_reference({.name = "t", .width = SparseTable::kMostWidth, .optimizer = space::adam()}, 1, 10);
}

TEST(SparseTable, GivesTheBitsOfTheUpdater) {
  for (const auto& optimizer : all_optimizers()) {
    SparseTable table({.name = "t", .width = 16, .optimizer = optimizer});
    const space::Range owned[] = {{0, 64}};
    space::Updater updater(optimizer, owned);
    Floats expected(16), gradient(16);
    for (int step = 0; step < 200; step++) {
      for (size_t k = 0; k < 16; k++) gradient[k] = static_cast<float>(std::sin(step * 0.7 + static_cast<double>(k)));
      const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(gradient.data())};
      updater.begin_step(0.01);
      updater.update(0, owned[0], DType::f32, reinterpret_cast<std::byte*>(expected.data()), sources);
      table.push(Keys{77}, gradient.data(), 0.01);
    }
    EXPECT_EQ(pulled(table, {77}), expected) << name_of(optimizer.kind);
  }
}

TEST(SparseTable, AdamCountsBeyondTheCorrectionsThatItKeeps) {
  const auto optimizer = space::adam({.beta2 = 0.99999});
  SparseTable table({.name = "t", .width = 1, .optimizer = optimizer});
  const space::Range owned[] = {{0, 4}};
  space::Updater updater(optimizer, owned);
  float expected = 0;
  for (int step = 0; step < 70000; step++) {
    const float gradient = std::sin(static_cast<float>(step));
    const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(&gradient)};
    updater.begin_step(0.01);
    updater.update(0, owned[0], DType::f32, reinterpret_cast<std::byte*>(&expected), sources);
    table.push(Keys{5}, &gradient, 0.01);
  }
  EXPECT_EQ(pulled(table, {5})[0], expected);
  EXPECT_EQ(content_of(table).at(5).steps, 70000u);
}

// ---- keys ----

TEST(SparseTable, AnyNumberIsAKey) {
  SparseTable table({.name = "t", .width = 2});
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  const Keys keys = {0, most, 1, most - 1, uint64_t{1} << 63, 0xffffffff};
  Floats gradients(keys.size() * 2);
  std::iota(gradients.begin(), gradients.end(), 1.0f);
  table.push(keys, gradients.data(), 1);
  for (float& g : gradients) g = -g;
  EXPECT_EQ(pulled(table, keys), gradients);
  EXPECT_EQ(table.rows(), keys.size());
}

TEST(SparseTable, PullsEqualKeysInTheirPlaces) {
  SparseTable table({.name = "t", .width = 1});
  table.push(Keys{10, 20}, Floats{-1, -2}.data(), 1);
  EXPECT_EQ(pulled(table, {20, 10, 20, 20, 10, 30}), (Floats{2, 1, 2, 2, 1, 0}));
  EXPECT_EQ(table.rows(), 3u);
}

TEST(SparseTable, EqualKeysOfOnePushAreOneUpdateOfTheirSum) {
  SparseTable sum({.name = "t", .width = 1, .optimizer = space::adagrad({.epsilon = 0.0})});
  sum.push(Keys{7, 8, 7, 7}, Floats{1, 5, 2, 3}.data(), 0.5);
  EXPECT_EQ(pulled(sum, {7, 8}), (Floats{-0.5f, -0.5f}));  // 0.5 · 6 / √36
  EXPECT_EQ(content_of(sum).at(7).state, (Floats{36}));    // one after the other it would be 1 + 4 + 9
  SparseTable adam({.name = "t", .width = 1, .optimizer = space::adam()});
  adam.push(Keys{7, 7, 8}, Floats{1, 2, 3}.data(), 0.5);
  EXPECT_EQ(content_of(adam).at(7).steps, 1u);
  EXPECT_EQ(content_of(adam).at(7), content_of(adam).at(8));
}

TEST(SparseTable, MarksOfEarlierPushesMeanNothing) {
  // A mark is a place among an earlier push's keys. All orders and sizes of pushes over the same few rows meet every
  // stale mark.
  SparseTable table({.name = "t", .width = 1});
  std::map<uint64_t, float> expected;
  std::mt19937 random(1);
  for (int push = 0; push < 3000; push++) {
    Keys keys(random() % 9);
    for (uint64_t& key : keys) expected[key = random() % 7] -= 1;
    table.push(keys, Floats(keys.size(), 1).data(), 1);
  }
  for (const auto& [key, value] : expected) EXPECT_EQ(pulled(table, {key})[0], value) << key;
}

TEST(SparseTable, KeysThatLookAlikeAreFoundAgain) {  // multiples of large powers of two, neighbours, equal halves
  for (const uint64_t factor :
       {uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 40, uint64_t{1} << 47, uint64_t{0x100000001}}) {
    SparseTable table({.name = "t", .width = 1});
    Keys keys;
    Floats gradients;
    for (uint64_t i = 0; i < 100'000; i++) keys.push_back(i * factor), gradients.push_back(-static_cast<float>(i));
    table.push(keys, gradients.data(), 1);
    const Floats values = pulled(table, keys);
    for (size_t i = 0; i < keys.size(); i++) ASSERT_EQ(values[i], static_cast<float>(i)) << "factor " << factor;
    EXPECT_EQ(table.rows(), keys.size());
  }
}

TEST(SparseTable, NoKeysAreNoWork) {
  SparseTable table({.name = "t"});
  table.pull({}, nullptr);
  table.push({}, nullptr, 0.1);
  EXPECT_EQ(table.rows(), 0u);
}

TEST(SparseTable, GrowsAndKeepsWhatItHas) {
  SparseTable table({.name = "t", .width = 3, .optimizer = space::momentum({.momentum = 0.5})});
  const size_t empty = table.bytes();
  for (uint64_t key = 0; key < 50'000; key++) {  // one at a time: every size at which it grows is met
    const float g[] = {-static_cast<float>(key), 1, 2};
    table.push(std::span(&key, 1), g, 1);
  }
  EXPECT_EQ(table.rows(), 50'000u);
  EXPECT_GT(table.bytes(), empty + 50'000 * 6 * sizeof(float));
  for (const auto& [key, saved] : content_of(table)) {
    ASSERT_EQ(saved.values, (Floats{static_cast<float>(key), -1, -2}));
    ASSERT_EQ(saved.state, (Floats{-static_cast<float>(key), 1, 2}));
  }
}

// ---- first values ----

TEST(SparseTable, FirstValuesDoNotDependOnOrderOrSize) {
  for (const Fill fill : {Fill::uniform, Fill::normal}) {
    const SparseTable::Options options{.name = "users", .width = 7, .fill = fill, .scale = 0.5, .seed = 42};
    Keys keys(2000);
    std::iota(keys.begin(), keys.end(), 100u);
    SparseTable at_once(options), one_by_one(options);
    const Floats expected = pulled(at_once, keys);
    for (size_t i = keys.size(); i-- > 0;)
      ASSERT_EQ(pulled(one_by_one, {keys[i]}),
                Floats(expected.begin() + static_cast<int>(i) * 7, expected.begin() + static_cast<int>(i + 1) * 7));
    SparseTable pushed(options);
    pushed.push(keys, Floats(keys.size() * 7).data(), 0.1);  // gradients of zero
    EXPECT_EQ(pulled(pushed, keys), expected);
  }
}

TEST(SparseTable, FirstValuesDependOnSeedTableAndKey) {
  const auto first = [](const std::string& name, uint64_t seed, uint64_t key) {
    SparseTable table({.name = name, .width = 4, .fill = Fill::uniform, .seed = seed});
    return pulled(table, {key});
  };
  std::set<Floats> seen;
  for (const char* name : {"users", "items"})
    for (uint64_t seed : {0, 1, 2})
      for (uint64_t key : {0, 1, 2}) seen.insert(first(name, seed, key));
  EXPECT_EQ(seen.size(), 18u);
  EXPECT_EQ(first("users", 1, 2), first("users", 1, 2));
}

TEST(SparseTable, FirstValuesHaveTheirDistribution) {
  Keys keys(20'000);
  std::iota(keys.begin(), keys.end(), 0u);
  const auto moments = [&](Fill fill) {
    SparseTable table({.name = "t", .width = 15, .fill = fill, .scale = 0.2});
    const Floats all = pulled(table, keys);
    double sum = 0, squares = 0, fourth = 0, most = 0;
    for (double x : all) sum += x, squares += x * x, fourth += x * x * x * x, most = std::max(most, std::abs(x));
    const double n = static_cast<double>(all.size());
    return std::array{sum / n, std::sqrt(squares / n), fourth / n / std::pow(squares / n, 2), most};
  };
  const auto zeros = moments(Fill::zeros), uniform = moments(Fill::uniform), normal = moments(Fill::normal);
  EXPECT_EQ(zeros[3], 0);
  EXPECT_NEAR(uniform[0], 0, 0.001);
  EXPECT_NEAR(uniform[1], 0.2 / std::sqrt(3), 0.001);
  EXPECT_NEAR(uniform[2], 1.8, 0.02);
  EXPECT_LE(uniform[3], 0.2f);
  EXPECT_NEAR(normal[0], 0, 0.002);
  EXPECT_NEAR(normal[1], 0.2, 0.002);
  EXPECT_NEAR(normal[2], 3, 0.06);
}

// ---- eviction ----

TEST(SparseTable, ForgetsRowsThatNobodyUses) {
  SparseTable table({.name = "t", .width = 1, .fill = Fill::uniform, .evict_after = 3});
  const float first = pulled(table, {1})[0];
  table.push(Keys{1, 2, 3}, Floats{1, 1, 1}.data(), 1);
  EXPECT_EQ(table.tick(), 0u);
  pulled(table, {2});  // a pull is a use
  EXPECT_EQ(table.tick(), 0u);
  table.push(Keys{3}, Floats{1}.data(), 1);  // so is a push
  EXPECT_EQ(table.tick(), 1u);               // 1: three ticks unused
  EXPECT_EQ(table.rows(), 2u);
  EXPECT_EQ(content_of(table).count(1), 0u);
  EXPECT_EQ(content_of(table).at(2).age, 2u);
  EXPECT_EQ(content_of(table).at(3).age, 1u);
  EXPECT_EQ(pulled(table, {1})[0], first) << "a row that comes again begins anew";
  EXPECT_EQ(table.tick(), 1u);
  EXPECT_EQ(table.tick(), 1u);
  EXPECT_EQ(table.tick(), 1u);
  EXPECT_EQ(table.rows(), 0u);
}

TEST(SparseTable, KeepsTheOthersWholeWhenItEvicts) {
  const SparseTable::Options options{.name = "t", .width = 5, .optimizer = space::adam(), .evict_after = 2};
  SparseTable table(options);
  Reference reference(options);
  std::mt19937_64 random(9);
  Keys keys(60'000);
  std::iota(keys.begin(), keys.end(), 0u);
  Floats gradients(keys.size() * 5);
  for (float& g : gradients) g = static_cast<float>(random() % 1000) * 0.001f;
  table.push(keys, gradients.data(), 0.01);
  reference.push(keys, gradients, 0.01);
  const size_t full = table.bytes();
  Keys kept;
  for (uint64_t key : keys)
    if (random() % 8 == 0) kept.push_back(key);
  for (int tick = 0; tick < 2; tick++) {
    table.push(kept, gradients.data(), 0.01);
    reference.push(kept, gradients, 0.01);
    table.tick();
  }
  ASSERT_EQ(table.rows(), kept.size());
  EXPECT_LT(table.bytes(), full / 2) << "memory comes back";
  for (const auto& [key, saved] : content_of(table)) {
    ASSERT_EQ(saved.values, reference.row(key));
    ASSERT_EQ(saved.steps, 3u);
  }
  pulled(table, keys);  // the forgotten ones come again, into memory used before
  EXPECT_EQ(table.rows(), keys.size());
  for (const auto& [key, saved] : content_of(table))
    if (!std::binary_search(kept.begin(), kept.end(), key)) {
      ASSERT_EQ(saved, (Saved{Floats(5), Floats(10), 0, 0}));
    }
}

TEST(SparseTable, EvictsAnyPartOfManySizes) {
  for (size_t rows : {1, 2, 7, 63, 64, 65, 1000})
    for (size_t every : {1, 2, 3, 10}) {
      SparseTable table({.name = "t", .width = 1, .evict_after = 1});
      Keys all(rows), kept;
      std::iota(all.begin(), all.end(), 0u);
      for (uint64_t key : all)
        if (key % every == 0) kept.push_back(key);
      Floats gradients;
      for (uint64_t key : all) gradients.push_back(-static_cast<float>(key));
      table.push(all, gradients.data(), 1);
      EXPECT_EQ(table.evict(), 0u) << "nothing is a tick old";
      SparseTable later({.name = "t", .width = 1, .evict_after = 2});
      table.for_each([&](const SparseTable::Row& row) { later.restore(row); });
      later.tick();
      pulled(later, kept);
      EXPECT_EQ(later.tick(), rows - kept.size());
      Keys left;
      for (const auto& [key, saved] : content_of(later)) {
        left.push_back(key);
        ASSERT_EQ(saved.values[0], static_cast<float>(key));
      }
      EXPECT_EQ(left, kept);
    }
}

TEST(SparseTable, KeepsAllWithoutEviction) {
  SparseTable table({.name = "t", .width = 1});
  pulled(table, {1, 2, 3});
  for (int i = 0; i < 1000; i++) EXPECT_EQ(table.tick(), 0u);
  EXPECT_EQ(table.evict(), 0u);
  EXPECT_EQ(table.rows(), 3u);
}

TEST(SparseTable, SweepsEveryEighthPartOfTheAge) {
  SparseTable table({.name = "t", .width = 1, .evict_after = 80});
  pulled(table, {1});
  std::vector<int> gone;
  for (int tick = 1; tick <= 100; tick++)
    if (table.tick() == 1) gone.push_back(tick);
  EXPECT_EQ(gone, std::vector<int>{80});
}

// ---- limits ----

TEST(SparseTable, FullTablesSaySoAndChangeNothing) {
  SparseTable table({.name = "items", .width = 2, .fill = Fill::uniform, .most_rows = 5});
  table.push(Keys{1, 2, 3}, Floats(6, 1).data(), 1);
  const auto before = content_of(table);
  const Keys many = {1, 4, 5, 2, 6};  // one too many
  Floats out(10, 99);
  const auto expect_full = [&](const auto& call) {
    try {
      call();
      FAIL() << "a full table took a row";
    } catch (const TableFull& error) {
      for (const char* part : {"'items'", "6 rows", "most_rows = 5"})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_EQ(content_of(table), before);
  };
  expect_full([&] { table.pull(many, out.data()); });
  EXPECT_EQ(out, Floats(10, 99));
  expect_full([&] { table.push(many, Floats(10, 1).data(), 1); });
  const Keys again = {1, 4, 4, 5, 2, 5, 1};  // as many keys, but two new ones
  table.push(again, Floats(14, 1).data(), 1);
  EXPECT_EQ(table.rows(), 5u);
  const Floats values(2);
  EXPECT_THROW(table.restore({.key = 6, .values = values}), TableFull);
  EXPECT_NO_THROW(table.restore({.key = 5, .values = values}));
}

TEST(SparseTable, RefusesImpossibleOptions) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  const auto refused = [](const SparseTable::Options& options) { EXPECT_THROW(SparseTable{options}, InvalidArgument); };
  refused({.width = 0});
  refused({.width = SparseTable::kMostWidth + 1});
  refused({.most_rows = 0});
  refused({.most_rows = SparseTable::kMostRows + 1});
  refused({.evict_after = SparseTable::kMostTicks + 1});
  for (double scale : {-0.1, nan, infinite}) refused({.scale = scale});
  refused({.optimizer = space::adam({.beta1 = 1})});
  refused({.optimizer = space::sgd({.nesterov = true})});
  refused({.optimizer = {.kind = static_cast<space::Optimizer>(9)}});
  refused({.fill = static_cast<Fill>(3)});
}

TEST(SparseTable, RefusesRatesThatAreNone) {
  SparseTable table({.name = "t", .width = 1});
  for (double lr : {-0.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    EXPECT_THROW(table.push(Keys{1}, Floats{1}.data(), lr), InvalidArgument);
  EXPECT_EQ(table.rows(), 0u);
}

// ---- checkpoints ----

TEST(SparseTable, ComesBackFromItsRows) {
  const SparseTable::Options options{.name = "t",
                                     .width = 6,
                                     .optimizer = space::adamw({.weight_decay = 0.01}),
                                     .fill = Fill::normal,
                                     .evict_after = 50};
  SparseTable table(options), copy(options);
  std::mt19937_64 random(4);
  const auto train = [&random](std::span<SparseTable* const> tables) {
    for (int step = 0; step < 20; step++) {
      Keys keys(5000);
      for (uint64_t& key : keys) key = random() % 20'000;
      Floats gradients(keys.size() * 6);
      for (float& g : gradients) g = static_cast<float>(random() % 1000) * 0.001f - 0.5f;
      for (SparseTable* each : tables) each->push(keys, gradients.data(), 0.01), each->tick();
    }
  };
  SparseTable* const one[] = {&table};
  train(one);
  copy.push(Keys{1, 2, 3}, Floats(18, 5).data(), 1);  // is written over
  table.for_each([&](const SparseTable::Row& row) { copy.restore(row); });
  EXPECT_EQ(content_of(copy), content_of(table));
  SparseTable* const both[] = {&table, &copy};
  train(both);
  EXPECT_EQ(content_of(copy), content_of(table));
}

TEST(SparseTable, RestoresManyRowsIntoATableThatGrows) {  // in the order of the hashes this would be quadratic
  SparseTable table({.name = "t", .width = 1}), copy({.name = "t", .width = 1});
  Keys keys(1'000'000);
  std::iota(keys.begin(), keys.end(), 0u);
  table.push(keys, Floats(keys.size(), 1).data(), 1);
  table.for_each([&](const SparseTable::Row& row) { copy.restore(row); });
  EXPECT_EQ(pulled(copy, keys), Floats(keys.size(), -1));
}

TEST(SparseTable, RefusesRowsOfAnotherShape) {
  SparseTable table({.name = "t", .width = 4, .optimizer = space::momentum()});
  const Floats four(4), eight(8);
  EXPECT_THROW(table.restore({.key = 1, .values = eight, .state = four}), InvalidArgument);
  EXPECT_THROW(table.restore({.key = 1, .values = four, .state = {}}), InvalidArgument);
  EXPECT_THROW(table.restore({.key = 1, .values = four, .state = eight}), InvalidArgument);
  EXPECT_EQ(table.rows(), 0u);
  EXPECT_NO_THROW(table.restore({.key = 1, .values = four, .state = four}));
}

}  // namespace
}  // namespace trireme::ps::tests
