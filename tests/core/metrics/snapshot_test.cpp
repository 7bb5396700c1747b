// label: unit
// Snapshots as values: merging, and bytes that are read back or refused.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <random>

#include <trireme/base/error.h>
#include <trireme/metrics/snapshot.h>

namespace trireme::metrics::tests {
namespace {

Entry counter(const std::string& name, double value, const std::string& label = "") {
  return {.kind = Kind::counter, .name = name, .label = label, .unit = "things", .value = value};
}

Snapshot sample() {
  Entry gauge{.kind = Kind::gauge, .name = "clock", .label = "model 0, worker 1", .unit = "steps", .value = -2.5};
  Entry histogram{
      .kind = Kind::histogram, .name = "wait_seconds", .unit = "seconds", .first = 0x1p-20, .sum = 3, .most = 2};
  histogram.buckets[0] = 1, histogram.buckets[7] = 20, histogram.buckets[kBuckets - 1] = 1;
  return Snapshot({counter("updates", 12345678901.0), gauge, histogram, counter("updates", 3, "model 1")},
                  {{"forward", 1.5, 0.25}, {"backward", 1.75, 0.5}});
}

TEST(Snapshot, RoundTrips) {
  EXPECT_EQ(Snapshot::decode(sample().encode()), sample());
  EXPECT_EQ(Snapshot::decode(Snapshot().encode()), Snapshot());
}

TEST(Snapshot, FitsIntoItsRoom) {
  const Snapshot all = sample();
  const std::string whole = all.encode();
  for (size_t room = 0; room <= whole.size(); room++) {
    const std::string bytes = all.encode(room);
    ASSERT_LE(bytes.size(), room);
    if (bytes.empty()) continue;
    const Snapshot part = Snapshot::decode(bytes);
    ASSERT_TRUE(std::equal(part.entries().begin(), part.entries().end(), all.entries().begin()));
    ASSERT_TRUE(std::equal(part.spans().begin(), part.spans().end(), all.spans().begin()));
  }
  EXPECT_EQ(all.encode(whole.size()), whole);
}

TEST(Snapshot, MergingAddsUp) {
  const Snapshot one = sample(), both = one.merged(one.merged(Snapshot({counter("more", 1)})));
  EXPECT_EQ(both.total("updates").value, 2 * (12345678901.0 + 3));
  EXPECT_EQ(both.total("clock").value, -2.5);
  EXPECT_EQ(both.total("wait_seconds").count(), 44);
  EXPECT_EQ(both.total("wait_seconds").sum, 6);
  EXPECT_EQ(both.total("wait_seconds").most, 2);
  EXPECT_EQ(both.total("more").value, 1);
  EXPECT_EQ(both.total("less").value, 0);
  EXPECT_EQ(both.spans().size(), 4u);
}

TEST(Snapshot, IsJson) {
  const auto json = nlohmann::json::parse(sample().json());
  EXPECT_EQ(json["updates"], 12345678901);
  EXPECT_TRUE(json["updates"].is_number_integer());
  EXPECT_EQ(json["model 1"]["updates"], 3);
  EXPECT_EQ(json["model 0, worker 1"]["clock"], -2.5);
  EXPECT_EQ(json["wait_seconds"]["count"], 22);
  EXPECT_EQ(json["wait_seconds"]["max"], 2);
  EXPECT_EQ(json["wait_seconds"]["buckets"][1], nlohmann::json::array({0x1p-20 * 128, 20}));
  EXPECT_EQ(json["spans"][1]["name"], "backward");
  EXPECT_EQ(Snapshot({counter("a", std::nan(""))}).json(), R"({"a":null})");
  // Names that get in each other's way are no fault.
  EXPECT_NO_THROW(
      Snapshot({counter("a", 1), counter("b", 2, "a"), counter("a", 3), counter("spans", 1)}, {{"x", 0, 0}}).json());
}

TEST(Snapshot, RefusesWhatIsNone) {
  const std::string good = sample().encode();
  for (size_t length = 0; length < good.size(); length++)
    EXPECT_THROW(Snapshot::decode(good.substr(0, length)), Corruption) << length;
  EXPECT_THROW(Snapshot::decode(good + "x"), Corruption);
  EXPECT_THROW(Snapshot::decode(std::string(kMostBytes + 1, 'x')), Corruption);
  EXPECT_THROW(Snapshot::decode(Snapshot({counter("a\nb", 1)}).encode()), Corruption);
  EXPECT_THROW(Snapshot::decode(Snapshot({counter("\xff", 1)}).encode()), Corruption);
}

/// Whatever comes, it is refused, or is a snapshot that survives the same way again and can be printed.
TEST(Snapshot, SurvivesRandomBytes) {
  std::mt19937_64 random(11);
  const std::string good = sample().encode();
  int understood = 0;
  for (int i = 0; i < 100'000; i++) {
    std::string bytes = good.substr(0, random() % 8 == 0 ? random() % good.size() : good.size());
    for (uint64_t changes = random() % 4 + 1; changes > 0 && !bytes.empty(); changes--)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      const Snapshot read = Snapshot::decode(bytes);
      understood++;
      ASSERT_EQ(Snapshot::decode(read.encode()).encode(), read.encode());
      ASSERT_TRUE(nlohmann::json::accept(read.merged(read).json()));
    } catch (const Corruption&) {
    }
  }
  EXPECT_GT(understood, 1000);
}

}  // namespace
}  // namespace trireme::metrics::tests
