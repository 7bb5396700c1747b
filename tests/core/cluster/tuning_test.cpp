// label: unit
// Which allreduce is taken at which size, and the file that remembers it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include <trireme/cluster/environment/tuning.h>

namespace trireme::cluster::tests {
namespace {

namespace fs = std::filesystem;
constexpr size_t kAll = std::numeric_limits<size_t>::max();

TEST(Crossover, RingIsTakenFromWhereItStaysFaster) {
  const Timings direct = {{1, 10}, {2, 20}, {4, 40}, {8, 80}};
  EXPECT_EQ(best_direct_bytes(direct, {{1, 30}, {2, 30}, {4, 30}, {8, 30}}), 2);
  EXPECT_EQ(best_direct_bytes(direct, {{1, 9}, {2, 30}, {4, 50}, {8, 30}}),
            4);  // a win that does not last says nothing
  EXPECT_EQ(best_direct_bytes(direct, {{1, 1}, {2, 2}, {4, 4}, {8, 8}}), 0);
  EXPECT_EQ(best_direct_bytes(direct, {{1, 1}, {2, 2}, {4, 4}, {8, 90}}), kAll);
}

TEST(Crossover, NoiseDoesNotDecide) {
  const Timings direct = {{1, 10}, {2, 20}};
  EXPECT_EQ(best_direct_bytes(direct, {{1, 10}, {2, 20}}), kAll);
  EXPECT_EQ(best_direct_bytes(direct, {{1, 9.8}, {2, 19.5}}), kAll);
}

TEST(Crossover, OnlyWhatBothHaveCounts) {
  EXPECT_EQ(best_direct_bytes({}, {}), kAll);
  EXPECT_EQ(best_direct_bytes({{1, 10}}, {{2, 1}}), kAll);
  EXPECT_EQ(best_direct_bytes({{1, 10}, {4, 40}, {8, 1}}, {{1, 30}, {2, 1}, {4, 4}}), 1);
}

class Kept : public testing::Test {
 protected:
  const fs::path folder_ = fs::temp_directory_path() / ("trireme-tuning-test-" + std::to_string(getpid()));
  const std::string file_ = (folder_ / "below" / "network.json").string();
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& text) {
    fs::create_directories(fs::path(file_).parent_path());
    std::ofstream(file_) << text;
  }
};

TEST_F(Kept, ByEngineAndMachines) {
  keep_tuning(file_, {"gloo", 2, kAll, {{4, 1e-3}}, {{4, 2e-3}}});
  keep_tuning(file_, {"gloo", 3, 65536, {}, {}});
  keep_tuning(file_, {"mpi", 3, 0, {}, {}});
  keep_tuning(file_, {"gloo", 3, 4096, {}, {}});
  EXPECT_EQ(kept_direct_bytes(file_, "gloo", 2), kAll);
  EXPECT_EQ(kept_direct_bytes(file_, "gloo", 3), 4096);
  EXPECT_EQ(kept_direct_bytes(file_, "mpi", 3), 0);
  EXPECT_EQ(kept_direct_bytes(file_, "mpi", 2), std::nullopt);
}

TEST_F(Kept, AbsentAndDamagedFilesSayNothing) {
  EXPECT_EQ(kept_direct_bytes("", "gloo", 2), std::nullopt);
  EXPECT_EQ(kept_direct_bytes(file_, "gloo", 2), std::nullopt);
  EXPECT_EQ(kept_direct_bytes(fs::temp_directory_path().string(), "gloo", 2), std::nullopt);
  for (const char* text :
       {"", "{", "[1]", "3", "null", "\xff\xfe", R"({"gloo, 2 machines": 3})", R"({"gloo, 2 machines": {}})",
        R"({"gloo, 2 machines": {"direct_bytes": -1}})", R"({"gloo, 2 machines": {"direct_bytes": 1e99}})",
        R"({"gloo, 2 machines": {"direct_bytes": "some"}})"}) {
    write(text);
    EXPECT_EQ(kept_direct_bytes(file_, "gloo", 2), std::nullopt) << text;
  }
}

TEST_F(Kept, ADamagedFileIsReplaced) {
  write("{{{");
  keep_tuning(file_, {"gloo", 2, 8, {}, {}});
  EXPECT_EQ(kept_direct_bytes(file_, "gloo", 2), 8);
}

}  // namespace
}  // namespace trireme::cluster::tests
