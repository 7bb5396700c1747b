// label: unit
// Random environments out of names that launchers use and values that they should not: the outcome is a valid place or
// InvalidArgument, soon.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include <trireme/base/error.h>
#include <trireme/cluster/environment/environment.h>

namespace trireme::cluster::tests {
namespace {

constexpr int kEnvironments = 100'000;

const std::vector<std::vector<const char*>> kFamilies = {
    {"TRIREME_RANK", "TRIREME_SIZE", "TRIREME_JOB", "TRIREME_COORDINATOR", "JOB_COMPLETION_INDEX"},
    {"TRIREME_ROLE", "TRIREME_SERVER", "TRIREME_SERVERS", "TRIREME_SIZE", "TRIREME_JOB", "TRIREME_COORDINATOR"},
    {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE",
     "OMPI_MCA_ess_base_jobid"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID",
     "SLURM_STEPID", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NODELIST", "SLURM_NODEID", "SLURM_LOCALID"},
    {"DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_WORKER_ID",
     "DMLC_SERVER_ID"},
    {"TRIREME_TOKEN", "TRIREME_TLS", "TRIREME_ENGINE"},
};

class Source {
 public:
  explicit Source(uint64_t seed) : random_(seed) {}

  size_t below(size_t n) { return random_() % n; }
  bool one_in(size_t n) { return below(n) == 0; }

  /// Often plausible for the name, else anything.
  std::string value(const std::string& name) {
    if (!one_in(6)) {
      if (name.ends_with("ADDR") || name.ends_with("URI"))
        return pick({"node1", "localhost", "127.0.0.1", "10.0.0.1", "::1", "fd00::1", "[fd00::1]", "a.b.c"});
      if (name.ends_with("COORDINATOR")) return pick({"node1:7070", "[fd00::1]:1", "a:65535"});
      if (name.ends_with("NODELIST"))
        return one_in(2) ? random_text("abn[]-,0123456789", 24)
                         : pick({"a", "a,b", "n[1-3]", "n[0-999999999]", "r[1-9]x[01-99],y"});
      if (name.ends_with("ROLE")) return pick({"worker", "server", "scheduler"});
      if (name.ends_with("PORT")) return pick({"29500", "65534", "1"});
      if (name.ends_with("ENGINE")) return pick({"auto", "gloo", "mpi", "nccl"});
      return std::to_string(below(5));
    }
    switch (below(4)) {
      case 0:
        return pick({"",
                     " ",
                     "-1",
                     "+1",
                     "00",
                     "0x10",
                     "1e9",
                     "2147483647",
                     "2147483648",
                     "4294967290",
                     "4294967291",
                     "4294967295",
                     "9223372036854775807",
                     "18446744073709551616",
                     "nan",
                     "batch",
                     "interactive",
                     "65535",
                     "65536",
                     "localhost:",
                     ":",
                     "[",
                     "]",
                     "[]",
                     "[]:1",
                     "::",
                     "a:b:c",
                     "{}",
                     "{0}",
                     "%s%n",
                     "$(reboot)",
                     "null",
                     "\xff\xfe",
                     "\n"});
      case 1:
        return random_text("0123456789-+. xX[]:,{}%\t\n\x01\x7f\xc3\xa4", 12);
      case 2:
        return std::string(below(one_in(50) ? 100'000 : 300), static_cast<char>(1 + below(255)));
      default:
        return std::to_string(random_());
    }
  }

 private:
  std::string pick(std::initializer_list<const char*> values) { return *(values.begin() + below(values.size())); }

  std::string random_text(std::string_view letters, size_t most) {
    std::string text;
    for (size_t left = below(most + 1); left > 0; left--) text += letters[below(letters.size())];
    return text;
  }

  std::mt19937_64 random_;
};

void expect_valid(const Place& place) {
  EXPECT_GE(place.size, 1);
  EXPECT_GE(place.rank, -1);
  EXPECT_LT(place.rank, place.size);
  EXPECT_GE(place.servers, 0);
  EXPECT_FALSE(place.launcher.empty());
  EXPECT_TRUE(place.role == "worker" || place.role == "server" || place.role == "scheduler");
  EXPECT_TRUE(place.rank >= 0 || place.launcher == "ps-lite variables" || place.role == "server");
  EXPECT_GE(place.server, -1);
  EXPECT_TRUE(place.server < place.servers || place.server == -1);
  EXPECT_TRUE(place.role == "server" ? place.rank == -1 && place.servers > 0 : place.server == -1);
  EXPECT_TRUE(place.role != "server" || place.server >= 0 || !place.coordinator.empty());
  EXPECT_TRUE(place.launcher != "alone" || place.servers == 0);
  EXPECT_TRUE(place.launcher != "alone" || place.size == 1);
  EXPECT_FALSE(place.mpi && !place.coordinator.empty());
  EXPECT_TRUE(!place.token_derived || place.token.size() == 64);
  if (place.coordinator.empty()) {
    EXPECT_FALSE(place.hosts_coordinator || place.token_derived);
    return;
  }
  EXPECT_FALSE(place.token.empty() || (place.hosts_coordinator && place.job.empty()));
  const size_t colon = place.coordinator.rfind(':');
  ASSERT_NE(colon, std::string::npos);
  EXPECT_GT(colon, 0u);
  const int port = std::stoi(place.coordinator.substr(colon + 1));
  EXPECT_TRUE(port >= 1 && port <= 65535) << place.coordinator;
  EXPECT_EQ(place.coordinator.find_first_of(" \t\n,/"), std::string::npos) << place.coordinator;
}

TEST(LaunchVariables, AnythingIsAPlaceOrRefused) {
  Source source(20240601);
  std::map<std::string, int> seen;
  for (int i = 0; i < kEnvironments && !testing::Test::HasFailure(); i++) {
    std::map<std::string, std::string> variables;
    const size_t main_family = source.below(kFamilies.size());
    for (size_t family = 0; family < kFamilies.size(); family++)
      for (const char* name : kFamilies[family])
        if (family == main_family ? !source.one_in(8) : source.one_in(40)) variables[name] = source.value(name);
    try {
      const Place place = place_from([&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      });
      expect_valid(place);
      seen[place.launcher]++;
      seen[place.role]++;
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      const bool named = std::any_of(kFamilies.begin(), kFamilies.end(), [&](const auto& family) {
        return std::any_of(family.begin(), family.end(),
                           [&](const char* name) { return text.find(name) != std::string::npos; });
      });
      EXPECT_TRUE(named) << text;
      EXPECT_LT(text.size(), 1000u);
      seen["refused"]++;
    }
    if (testing::Test::HasFailure())
      for (const auto& [name, value] : variables) ADD_FAILURE() << "environment " << i << ": " << name << "=" << value;
  }
  // The generator reaches every launcher, or it proves little.
  for (const char* launcher : {"alone", "trireme launch", "Kubernetes indexed Job", "torchrun-style variables",
                               "ps-lite variables", "Open MPI", "Slurm", "refused", "server", "scheduler"})
    EXPECT_GT(seen[launcher], kEnvironments / 1000) << launcher;
}

}  // namespace
}  // namespace trireme::cluster::tests
