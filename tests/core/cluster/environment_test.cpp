// label: unit
#include <gtest/gtest.h>

#include <map>

#include <trireme/base/error.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/cluster/world.h>

namespace trireme::cluster::tests {
namespace {

using Variables = std::map<std::string, std::string>;

Place place(const Variables& variables) {
  return place_from([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_refused(const Variables& variables, const std::vector<std::string>& parts) {
  try {
    place(variables);
    FAIL() << "taken";
  } catch (const InvalidArgument& error) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "no \"" << part << "\" in: " << error.what();
  }
}

TEST(Place, AloneWithoutALauncher) {
  const Place here = place({{"HOME", "/root"}});
  EXPECT_EQ(here.rank, 0);
  EXPECT_EQ(here.size, 1);
  EXPECT_EQ(here.launcher, "alone");
}

TEST(Place, OfTriremeLaunch) {
  const Place here = place({{"TRIREME_RANK", "3"}, {"TRIREME_SIZE", "8"}, {"TRIREME_JOB", "abc"}});
  EXPECT_EQ(here.rank, 3);
  EXPECT_EQ(here.size, 8);
  EXPECT_EQ(here.job, "abc");
  EXPECT_EQ(here.launcher, "trireme launch");
}

TEST(Place, OfTorchrun) {
  const Place here = place({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(here.rank, 1);
  EXPECT_EQ(here.size, 2);
  EXPECT_EQ(here.job, "10.0.0.1:29500");
  EXPECT_EQ(here.launcher, "torchrun-style variables");
}

TEST(Place, OwnVariablesGoFirst) {
  EXPECT_EQ(place({{"TRIREME_RANK", "1"}, {"TRIREME_SIZE", "2"}, {"RANK", "5"}, {"WORLD_SIZE", "6"}}).rank, 1);
}

TEST(Place, BadValuesAreRefusedByName) {
  expect_refused({{"RANK", "0"}}, {"no WORLD_SIZE"});
  expect_refused({{"TRIREME_RANK", "0"}}, {"no TRIREME_SIZE"});
  for (const char* text : {"", "one", "-1", "1x", " 1", "1.5", "99999999999"}) {
    expect_refused({{"RANK", text}, {"WORLD_SIZE", "2"}}, {"RANK='" + std::string(text) + "'", "whole number"});
    expect_refused({{"RANK", "0"}, {"WORLD_SIZE", text}}, {"WORLD_SIZE='" + std::string(text) + "'", "whole number"});
  }
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE='0'", "at least 1"});
  expect_refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=2", "WORLD_SIZE=2", "0 to 1"});
}

// ---- every launcher, as a table ----

struct Case {
  const char* name;
  Variables variables;
  Place expected;  // token and token_derived are looked at elsewhere
};

/// Fields by name, so that a table reads.
Place expect(const char* launcher, int rank, int size, const std::string& job, const std::string& coordinator = "",
             bool hosts = false) {
  Place place{rank, size, job, launcher};
  place.coordinator = coordinator;
  place.hosts_coordinator = hosts;
  return place;
}

Place with_mpi(Place place) { return place.mpi = true, place; }

Place with_role(Place place, const char* role, int servers) {
  return place.role = role, place.servers = servers, place;
}

Place with_server(Place place, int server, int servers) {
  return place.role = "server", place.server = server, place.servers = servers, place;
}

Variables join(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Place here;
    ASSERT_NO_THROW(here = place(c.variables));
    EXPECT_EQ(here.launcher, c.expected.launcher);
    EXPECT_EQ(here.rank, c.expected.rank);
    EXPECT_EQ(here.size, c.expected.size);
    EXPECT_EQ(here.job, c.expected.job);
    EXPECT_EQ(here.coordinator, c.expected.coordinator);
    EXPECT_EQ(here.hosts_coordinator, c.expected.hosts_coordinator);
    EXPECT_EQ(here.mpi, c.expected.mpi);
    EXPECT_EQ(here.role, c.expected.role);
    EXPECT_EQ(here.server, c.expected.server);
    EXPECT_EQ(here.servers, c.expected.servers);
    EXPECT_EQ(here.token_derived, !here.coordinator.empty());
    EXPECT_EQ(here.token, here.coordinator.empty() ? "" : derived_token(here.job, here.coordinator));
  }
}

TEST(Place, OwnVariables) {
  const Variables own = {{"TRIREME_RANK", "1"}, {"TRIREME_SIZE", "4"}};
  check({
      {"one machine", join(own, {{"TRIREME_JOB", "j"}}), expect("trireme launch", 1, 4, "j")},
      {"several", join(own, {{"TRIREME_JOB", "j"}, {"TRIREME_COORDINATOR", "node1:7070"}}),
       expect("trireme launch", 1, 4, "j", "node1:7070")},
      {"the coordinator knows the job", join(own, {{"TRIREME_COORDINATOR", "[fd00::1]:7070"}}),
       expect("trireme launch", 1, 4, "", "[fd00::1]:7070")},
      {"empty is not set", join(own, {{"TRIREME_JOB", "j"}, {"TRIREME_COORDINATOR", ""}}),
       expect("trireme launch", 1, 4, "j")},
      {"inside of everything else",
       join(own, {{"TRIREME_JOB", "j"}, {"OMPI_COMM_WORLD_RANK", "7"}, {"SLURM_PROCID", "x"}, {"DMLC_ROLE", "cook"}}),
       expect("trireme launch", 1, 4, "j")},
  });
}

TEST(Place, OfServers) {
  const Variables own = {{"TRIREME_ROLE", "server"},
                         {"TRIREME_SERVER", "1"},
                         {"TRIREME_SERVERS", "2"},
                         {"TRIREME_SIZE", "4"},
                         {"TRIREME_JOB", "j"}};
  const Variables far = {{"TRIREME_ROLE", "server"},
                         {"TRIREME_SERVERS", "2"},
                         {"TRIREME_SIZE", "4"},
                         {"TRIREME_COORDINATOR", "node1:7070"}};
  const auto expect_server = [](int server, const std::string& job, const std::string& coordinator = "") {
    return with_server(expect("trireme launch", -1, 4, job, coordinator), server, 2);
  };
  check({
      {"one machine", own, expect_server(1, "j")},
      {"several", join(own, {{"TRIREME_COORDINATOR", "node1:7070"}}), expect_server(1, "j", "node1:7070")},
      {"the coordinator assigns", far, expect_server(-1, "", "node1:7070")},
      {"an indexed job of servers", join(far, {{"JOB_COMPLETION_INDEX", "1"}}), expect_server(1, "", "node1:7070")},
      {"own number goes first", join(own, {{"JOB_COMPLETION_INDEX", "7"}}), expect_server(1, "j")},
      {"inside of everything else",
       join(own, {{"RANK", "7"}, {"OMPI_COMM_WORLD_RANK", "7"}, {"SLURM_PROCID", "x"}, {"DMLC_ROLE", "cook"}}),
       expect_server(1, "j")},
  });
  for (const char* missing : {"TRIREME_SIZE", "TRIREME_SERVERS", "TRIREME_SERVER"}) {
    Variables variables = own;
    variables.erase(missing);
    expect_refused(variables, {std::string("no ") + missing, "TRIREME_ROLE"});
  }
  for (const char* text : {"", "one", "-1", "1x", " 1", "1.5", "99999999999"})
    for (const char* name : {"TRIREME_SIZE", "TRIREME_SERVERS", "TRIREME_SERVER"})
      expect_refused(join(own, {{name, text}}), {fmt::format("{}='{}'", name, text), "whole number"});
  expect_refused(join(own, {{"TRIREME_SERVER", "2"}}), {"TRIREME_SERVER=2", "TRIREME_SERVERS=2", "0 to 1"});
  expect_refused(join(own, {{"TRIREME_SERVERS", "0"}}), {"TRIREME_SERVERS='0'", "at least 1"});
  expect_refused(join(far, {{"JOB_COMPLETION_INDEX", "2"}}), {"JOB_COMPLETION_INDEX=2", "0 to 1"});
  expect_refused(join(own, {{"TRIREME_RANK", "0"}}), {"TRIREME_RANK='0'", "no rank"});
  expect_refused(join(own, {{"TRIREME_ROLE", "sever"}}), {"TRIREME_ROLE='sever'", "did you mean 'server'"});
  expect_refused(join(own, {{"TRIREME_ROLE", "scheduler"}}), {"TRIREME_ROLE='scheduler'", "trireme coordinator"});
  expect_refused(join(own, {{"TRIREME_ROLE", ""}}), {"TRIREME_ROLE=''"});
}

TEST(Place, RanksHearOfServers) {
  const Variables rank = {
      {"TRIREME_ROLE", "worker"}, {"TRIREME_RANK", "1"}, {"TRIREME_SIZE", "4"}, {"TRIREME_SERVERS", "2"}};
  const Variables torchrun = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TRIREME_SERVERS", "2"}};
  check({
      {"of trireme launch", rank, with_role(expect("trireme launch", 1, 4, ""), "worker", 2)},
      {"none", join(rank, {{"TRIREME_SERVERS", "0"}}), with_role(expect("trireme launch", 1, 4, ""), "worker", 0)},
      {"of another launcher", torchrun, with_role(expect("torchrun-style variables", 0, 1, ":"), "worker", 2)},
  });
  expect_refused(join(rank, {{"TRIREME_SERVERS", "-1"}}), {"TRIREME_SERVERS='-1'"});
  expect_refused(join(rank, {{"TRIREME_SERVERS", ""}}), {"TRIREME_SERVERS=''"});
  expect_refused(join(rank, {{"TRIREME_SERVER", "0"}}), {"TRIREME_SERVER='0'", "TRIREME_ROLE=server"});
  expect_refused({{"TRIREME_SERVERS", "2"}}, {"TRIREME_SERVERS='2'", "no TRIREME_RANK"});
  expect_refused({{"TRIREME_SERVER", "0"}}, {"TRIREME_SERVER='0'", "no TRIREME_ROLE"});
  expect_refused({{"TRIREME_ROLE", "worker"}}, {"TRIREME_ROLE='worker'", "no TRIREME_RANK"});
}

TEST(Place, OfKubernetes) {
  const Variables pod = {
      {"JOB_COMPLETION_INDEX", "2"}, {"TRIREME_SIZE", "4"}, {"TRIREME_COORDINATOR", "trireme-coordinator:7070"}};
  check({
      {"indexed job", pod, expect("Kubernetes indexed Job", 2, 4, "", "trireme-coordinator:7070")},
      {"with a name", join(pod, {{"TRIREME_JOB", "j"}}),
       expect("Kubernetes indexed Job", 2, 4, "j", "trireme-coordinator:7070")},
      {"own rank goes first", join(pod, {{"TRIREME_RANK", "3"}}),
       expect("trireme launch", 3, 4, "", "trireme-coordinator:7070")},
      {"a sweep of runs that are alone", {{"JOB_COMPLETION_INDEX", "2"}}, expect("alone", 0, 1, "")},
  });
  expect_refused({{"JOB_COMPLETION_INDEX", "2"}, {"TRIREME_SIZE", "4"}}, {"no TRIREME_COORDINATOR", "Service"});
  expect_refused({{"JOB_COMPLETION_INDEX", "2"}, {"TRIREME_COORDINATOR", "a:1"}}, {"no TRIREME_SIZE"});
  expect_refused({{"JOB_COMPLETION_INDEX", "4"}, {"TRIREME_SIZE", "4"}, {"TRIREME_COORDINATOR", "a:1"}},
                 {"JOB_COMPLETION_INDEX=4", "0 to 3"});
  expect_refused({{"JOB_COMPLETION_INDEX", "x"}, {"TRIREME_SIZE", "4"}, {"TRIREME_COORDINATOR", "a:1"}},
                 {"JOB_COMPLETION_INDEX='x'"});
}

TEST(Place, OfTorchrunOnSeveralMachines) {
  const Variables torchrun = {
      {"RANK", "2"},       {"WORLD_SIZE", "4"},      {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"},
      {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}};
  const char* name = "torchrun-style variables";
  check({
      {"one of several machines", torchrun, expect(name, 2, 4, "node1:29500", "node1:29501")},
      {"rank 0 hosts", join(torchrun, {{"RANK", "0"}}), expect(name, 0, 4, "node1:29500", "node1:29501", true)},
      {"IPv6", join(torchrun, {{"MASTER_ADDR", "fd00::1"}}), expect(name, 2, 4, "fd00::1:29500", "[fd00::1]:29501")},
      {"all ranks here", join(torchrun, {{"LOCAL_WORLD_SIZE", "4"}}), expect(name, 2, 4, "node1:29500")},
      {"localhost", join(torchrun, {{"MASTER_ADDR", "localhost"}}), expect(name, 2, 4, "localhost:29500")},
      {"127.0.0.1", join(torchrun, {{"MASTER_ADDR", "127.0.0.1"}}), expect(name, 2, 4, "127.0.0.1:29500")},
      {"::1", join(torchrun, {{"MASTER_ADDR", "::1"}}), expect(name, 2, 4, "::1:29500")},
      {"a host that only begins like it", join(torchrun, {{"MASTER_ADDR", "localhost7"}}),
       expect(name, 2, 4, "localhost7:29500", "localhost7:29501")},
      {"by hand on this machine",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}},
       expect(name, 1, 2, ":29500")},
      {"one rank needs nobody",
       {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "node1"}},
       expect(name, 0, 1, "node1:")},
      {"somebody runs a coordinator", join(torchrun, {{"RANK", "0"}, {"TRIREME_COORDINATOR", "other:1"}}),
       expect(name, 0, 4, "", "other:1")},
      {"inside of Slurm and mpirun",
       join(torchrun, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"OMPI_COMM_WORLD_RANK", "0"}}),
       expect(name, 2, 4, "node1:29500", "node1:29501")},
  });
  for (const char* missing : {"WORLD_SIZE", "MASTER_PORT"}) {
    Variables variables = torchrun;
    variables.erase(missing);
    expect_refused(variables, {std::string("no ") + missing});
  }
  Variables nowhere = torchrun;
  nowhere.erase("MASTER_ADDR");
  expect_refused(nowhere, {"LOCAL_WORLD_SIZE=2", "no MASTER_ADDR"});
  Variables no_rank = torchrun;
  no_rank.erase("RANK");
  expect_refused(no_rank, {"WORLD_SIZE='4'", "no RANK"});
  expect_refused({{"LOCAL_RANK", "0"}}, {"LOCAL_RANK='0'", "no RANK"});
  expect_refused(join(torchrun, {{"LOCAL_RANK", "2"}}), {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"});
  expect_refused(join(torchrun, {{"LOCAL_WORLD_SIZE", "5"}}), {"LOCAL_WORLD_SIZE=5", "WORLD_SIZE=4"});
  expect_refused(join(torchrun, {{"LOCAL_WORLD_SIZE", "two"}}), {"LOCAL_WORLD_SIZE='two'"});
  expect_refused(join(torchrun, {{"MASTER_ADDR", "no de"}}), {"MASTER_ADDR='no de'", "host name"});
  expect_refused(join(torchrun, {{"MASTER_ADDR", ""}}), {"MASTER_ADDR=''"});
  expect_refused(join(torchrun, {{"MASTER_PORT", "0"}}), {"MASTER_PORT='0'"});
  expect_refused(join(torchrun, {{"MASTER_PORT", "65535"}}), {"MASTER_PORT='65535'", "at most 65534"});
  expect_refused(join(torchrun, {{"MASTER_PORT", "65536"}}), {"MASTER_PORT='65536'"});
}

// MASTER_PORT does not name a job alone.
TEST(Place, StartsAreToldApart) {
  const Variables far = {{"RANK", "1"},
                         {"WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "node1"},
                         {"MASTER_PORT", "29500"},
                         {"LOCAL_WORLD_SIZE", "2"}};
  const Variables here = join(far, {{"LOCAL_WORLD_SIZE", "4"}});
  const Variables run = {{"TORCHELASTIC_RUN_ID", "abc"}, {"TORCHELASTIC_RESTART_COUNT", "2"}, {"SLURM_JOB_ID", "77"}};
  EXPECT_EQ(place(join(here, run)).job, "node1:29500/abc/2/77");
  EXPECT_EQ(place(join(far, run)).job, "node1:29500/abc");  // what is the same on all machines
  EXPECT_FALSE(place(join(here, run)).job_is_common);
  EXPECT_EQ(place(join(here, {{"TORCHELASTIC_RUN_ID", "none"}})).job, "node1:29500");
  EXPECT_TRUE(place(join(here, {{"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "0"}})).job_is_common);
  EXPECT_TRUE(place(here).job_is_common);
  EXPECT_TRUE(place({{"TRIREME_RANK", "1"}, {"TRIREME_SIZE", "2"}}).job_is_common);
  for (const Variables& variables : {here, Variables{{"TRIREME_RANK", "1"}, {"TRIREME_SIZE", "2"}}})
    EXPECT_FALSE(place(join(variables, {{"TRIREME_JOB", "mine"}})).job_is_common);
}

// What `mpirun -n 2` of Open MPI 4.1 sets, on one machine.
const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                           {"OMPI_UNIVERSE_SIZE", "2"},
                           {"OMPI_MCA_ess_base_jobid", "2050424833"},
                           {"PMIX_NAMESPACE", "2050424833"},
                           {"PMIX_RANK", "1"},
                           {"PMIX_HOSTNAME", "vm"},
                           {"OMPI_MCA_orte_num_nodes", "1"}};

TEST(Place, OfOpenMpi) {
  const Variables several = join(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  const std::string job = "mpirun-2050424833";
  check({
      {"one machine", kMpirun, expect("Open MPI", 1, 2, job)},
      {"several, MPI can tell", several, with_mpi(expect("Open MPI", 1, 2, job))},
      {"several, MASTER_ADDR says", join(several, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}),
       expect("Open MPI", 1, 2, job, "node1:29501")},
      {"rank 0 hosts",
       join(several, {{"OMPI_COMM_WORLD_RANK", "0"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}),
       expect("Open MPI", 0, 2, job, "node1:29501", true)},
      {"several, somebody runs a coordinator",
       join(several, {{"OMPI_COMM_WORLD_RANK", "0"}, {"TRIREME_COORDINATOR", "node1:7070"}}),
       expect("Open MPI", 0, 2, "", "node1:7070")},
      {"mpirun in an allocation starts its daemons by srun",
       join(several,
            {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_JOB_ID", "9"}}),
       with_mpi(expect("Open MPI", 1, 2, job))},
      {"a name from a person", join(kMpirun, {{"TRIREME_JOB", "j"}}), expect("Open MPI", 1, 2, "j")},
  });
  for (const char* missing : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"}) {
    Variables variables = kMpirun;
    variables.erase(missing);
    expect_refused(variables, {std::string("no ") + missing});
  }
  Variables anonymous = kMpirun;
  anonymous.erase("PMIX_NAMESPACE");
  EXPECT_EQ(place(anonymous).job, job);
  anonymous.erase("OMPI_MCA_ess_base_jobid");
  expect_refused(anonymous, {"no PMIX_NAMESPACE", "TRIREME_JOB"});
  EXPECT_EQ(place(join(anonymous, {{"TRIREME_JOB", "j"}})).job, "j");
  expect_refused(join(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}),
                 {"OMPI_COMM_WORLD_LOCAL_SIZE=3", "OMPI_COMM_WORLD_SIZE=2"});
  expect_refused(join(kMpirun, {{"OMPI_COMM_WORLD_RANK", "2"}}), {"OMPI_COMM_WORLD_RANK=2", "0 to 1"});
  expect_refused(join(several, {{"MASTER_ADDR", "node1"}}), {"no MASTER_PORT"});
  expect_refused(join(several, {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}}),
                 {"MASTER_ADDR='localhost'", "several machines"});
}

// What Slurm 22.05 sets: seen with tests/hosts/slurm.py.
const Variables kSrun = {
    {"SLURM_PROCID", "1"},         {"SLURM_NTASKS", "2"},          {"SLURM_NPROCS", "2"},
    {"SLURM_JOB_ID", "2"},         {"SLURM_JOBID", "2"},           {"SLURM_STEP_ID", "0"},
    {"SLURM_STEPID", "0"},         {"SLURM_STEP_NUM_TASKS", "2"},  {"SLURM_STEP_NUM_NODES", "2"},
    {"SLURM_NNODES", "2"},         {"SLURM_STEP_NODELIST", "a,b"}, {"SLURM_NODELIST", "a,b"},
    {"SLURM_JOB_NODELIST", "a,b"}, {"SLURM_NODEID", "1"},          {"SLURM_LOCALID", "0"},
    {"SLURM_GTIDS", "1"},          {"SLURMD_NODENAME", "b"},       {"SLURM_LAUNCH_NODE_IPADDR", "10.77.0.1"}};
const Variables kBatchScript = {{"SLURM_PROCID", "0"},        {"SLURM_NTASKS", "4"},     {"SLURM_NPROCS", "4"},
                                {"SLURM_JOB_ID", "4"},        {"SLURM_JOBID", "4"},      {"SLURM_NNODES", "2"},
                                {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NODELIST", "a,b"}, {"SLURM_NODEID", "0"},
                                {"SLURM_LOCALID", "0"}};
const Variables kSallocShell = {{"SLURM_NTASKS", "4"},
                                {"SLURM_NPROCS", "4"},
                                {"SLURM_JOB_ID", "5"},
                                {"SLURM_NNODES", "2"},
                                {"SLURM_NODELIST", "a,b"}};
const Variables kInteractiveStep = {
    {"SLURM_PROCID", "0"},           {"SLURM_NTASKS", "4"},          {"SLURM_JOB_ID", "1"},
    {"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEPID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"},
    {"SLURM_STEP_NUM_NODES", "1"},   {"SLURM_NNODES", "2"},          {"SLURM_STEP_NODELIST", "a"}};
// sbatch called inside of a task of `srun -n 2`: the new job's variables, and the old step's.
const Variables kBatchFromAStep = {{"SLURM_PROCID", "0"},         {"SLURM_NTASKS", "1"},
                                   {"SLURM_JOB_ID", "3"},         {"SLURM_STEP_ID", "0"},
                                   {"SLURM_NNODES", "1"},         {"SLURM_STEP_NUM_TASKS", "2"},
                                   {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "a,b"}};

TEST(Place, OfSlurm) {
  const std::string meeting = "a:20194";
  const Variables first = join(kSrun, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}});
  check({
      {"rank 1 on the second node", kSrun, expect("Slurm", 1, 2, "slurm-2.0", meeting)},
      {"rank 0 on the first node", first, expect("Slurm", 0, 2, "slurm-2.0", meeting, true)},
      {"arbitrary distribution, rank 0 elsewhere", join(kSrun, {{"SLURM_PROCID", "0"}}),
       expect("Slurm", 0, 2, "slurm-2.0", meeting)},
      {"arbitrary distribution, another rank on the first node", join(kSrun, {{"SLURM_NODEID", "0"}}),
       expect("Slurm", 1, 2, "slurm-2.0", meeting, true)},
      {"a later step", join(kSrun, {{"SLURM_STEP_ID", "3"}}), expect("Slurm", 1, 2, "slurm-2.3", "a:20197")},
      {"large numbers", join(kSrun, {{"SLURM_JOB_ID", "4294967295"}, {"SLURM_STEP_ID", "4000000000"}}),
       expect("Slurm", 1, 2, "slurm-4294967295.4000000000", "a:28575")},
      {"one node", join(kSrun, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "a"}}),
       expect("Slurm", 1, 2, "slurm-2.0")},
      {"ranges", join(kSrun, {{"SLURM_STEP_NODELIST", "gpu[007-123]"}}),
       expect("Slurm", 1, 2, "slurm-2.0", "gpu007:20194")},
      {"very many", join(kSrun, {{"SLURM_STEP_NODELIST", "n[0-999999999],m[0-999999999]"}}),
       expect("Slurm", 1, 2, "slurm-2.0", "n0:20194")},
      {"MASTER_ADDR in the script", join(first, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}, {"WORLD_SIZE", "2"}}),
       expect("Slurm", 0, 2, "slurm-2.0", "a:29501", true)},
      {"somebody runs a coordinator", join(first, {{"TRIREME_COORDINATOR", "login:7070"}}),
       expect("Slurm", 0, 2, "", "login:7070")},
      {"srun --pty, or a node for one command",
       join(first, {{"SLURM_NTASKS", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_NUM_NODES", "1"}}),
       expect("alone", 0, 1, "")},
      {"script of sbatch", kBatchScript, expect("alone", 0, 1, "")},
      {"the same, older", join(kBatchScript, {{"SLURM_STEP_ID", "batch"}}), expect("alone", 0, 1, "")},
      {"the same, as a number", join(kBatchScript, {{"SLURM_STEP_ID", "4294967291"}}), expect("alone", 0, 1, "")},
      {"script of sbatch that was called in a step", kBatchFromAStep, expect("alone", 0, 1, "")},
      {"shell of salloc", kSallocShell, expect("alone", 0, 1, "")},
      {"shell of salloc in an interactive step", kInteractiveStep, expect("alone", 0, 1, "")},
  });
}

TEST(Place, WrongSlurmVariablesAreRefused) {
  for (const char* missing : {"SLURM_STEP_NODELIST"}) {
    Variables variables = kSrun;
    variables.erase(missing);
    expect_refused(variables, {std::string("no ") + missing});
  }
  Variables no_job = kSrun;
  no_job.erase("SLURM_JOB_ID");
  EXPECT_EQ(place(no_job).job, "slurm-2.0");  // SLURM_JOBID, the older name
  no_job.erase("SLURM_JOBID");
  expect_refused(no_job, {"no SLURM_JOB_ID"});
  Variables no_size = kSrun;
  no_size.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(place(no_size).size, 2);
  no_size.erase("SLURM_NTASKS");
  expect_refused(no_size, {"no SLURM_STEP_NUM_TASKS"});
  expect_refused(join(kSrun, {{"SLURM_PROCID", "2"}}), {"SLURM_PROCID=2", "0 to 1"});
  expect_refused(join(kSrun, {{"SLURM_PROCID", "-1"}}), {"SLURM_PROCID='-1'"});
  expect_refused(join(kSrun, {{"SLURM_STEP_ID", "zero"}}), {"SLURM_STEP_ID='zero'"});
  expect_refused(join(kSrun, {{"SLURM_STEP_NUM_NODES", "3"}}), {"SLURM_STEP_NUM_NODES=3", "2 tasks"});
  expect_refused(join(kSrun, {{"SLURM_STEP_NUM_NODES", "0"}}), {"SLURM_STEP_NUM_NODES='0'"});
  expect_refused(join(kSrun, {{"SLURM_NTASKS", "7"}}), {"SLURM_STEP_NUM_TASKS=2", "SLURM_NTASKS=7"});
  expect_refused(join(kSrun, {{"SLURM_STEP_NODELIST", "a[1-"}}),
                 {"SLURM_STEP_NODELIST", "a[1-", "TRIREME_COORDINATOR"});
  expect_refused(join(kSrun, {{"SLURM_NODEID", "x"}}), {"SLURM_NODEID='x'"});
}

TEST(Place, OfPsLite) {
  const Variables dmlc = {{"DMLC_ROLE", "worker"},
                          {"DMLC_NUM_WORKER", "4"},
                          {"DMLC_NUM_SERVER", "2"},
                          {"DMLC_PS_ROOT_URI", "10.0.0.1"},
                          {"DMLC_PS_ROOT_PORT", "9000"}};
  const auto expect_role = [](int rank, const char* role, bool hosts = false) {
    return with_role(expect("ps-lite variables", rank, 4, "10.0.0.1:9000", "10.0.0.1:9000", hosts), role, 2);
  };
  check({
      {"worker", dmlc, expect_role(-1, "worker")},
      {"worker with a number", join(dmlc, {{"DMLC_WORKER_ID", "3"}}), expect_role(3, "worker")},
      {"server", join(dmlc, {{"DMLC_ROLE", "server"}, {"DMLC_WORKER_ID", "3"}}), expect_role(-1, "server")},
      {"server with a number", join(dmlc, {{"DMLC_ROLE", "server"}, {"DMLC_SERVER_ID", "1"}}),
       with_server(expect("ps-lite variables", -1, 4, "10.0.0.1:9000", "10.0.0.1:9000"), 1, 2)},
      {"a worker has no server's number", join(dmlc, {{"DMLC_SERVER_ID", "9"}}), expect_role(-1, "worker")},
      {"the same number twice", join(dmlc, {{"TRIREME_SERVERS", "2"}}), expect_role(-1, "worker")},
      {"scheduler", join(dmlc, {{"DMLC_ROLE", "scheduler"}}), expect_role(-1, "scheduler", true)},
      {"started by mpirun and srun", join(join(dmlc, kMpirun), kSrun), expect_role(-1, "worker")},
      {"the same meeting point twice", join(dmlc, {{"TRIREME_COORDINATOR", "10.0.0.1:9000"}}),
       expect_role(-1, "worker")},
  });
  for (const auto& [missing, value] : dmlc) {
    Variables variables = dmlc;
    variables.erase(missing);
    expect_refused(variables, {"no " + missing});
  }
  expect_refused(join(dmlc, {{"DMLC_ROLE", "workr"}}), {"DMLC_ROLE='workr'", "did you mean 'worker'"});
  expect_refused(join(dmlc, {{"DMLC_ROLE", ""}}), {"DMLC_ROLE=''"});
  expect_refused(join(dmlc, {{"DMLC_NUM_WORKER", "0"}}), {"DMLC_NUM_WORKER='0'", "at least 1"});
  expect_refused(join(dmlc, {{"DMLC_NUM_SERVER", "-1"}}), {"DMLC_NUM_SERVER='-1'"});
  expect_refused(join(dmlc, {{"DMLC_WORKER_ID", "4"}}), {"DMLC_WORKER_ID=4", "0 to 3"});
  const Variables server = join(dmlc, {{"DMLC_ROLE", "server"}});
  expect_refused(join(server, {{"DMLC_SERVER_ID", "2"}}), {"DMLC_SERVER_ID=2", "0 to 1"});
  expect_refused(join(server, {{"DMLC_SERVER_ID", "-1"}}), {"DMLC_SERVER_ID='-1'"});
  expect_refused(join(server, {{"DMLC_NUM_SERVER", "0"}}), {"DMLC_ROLE=server", "DMLC_NUM_SERVER=0"});
  expect_refused(join(server, {{"TRIREME_ROLE", "worker"}}), {"TRIREME_ROLE=worker", "DMLC_ROLE=server"});
  expect_refused(join(dmlc, {{"TRIREME_SERVERS", "3"}}), {"TRIREME_SERVERS=3", "DMLC_NUM_SERVER=2"});
  expect_refused({{"DMLC_SERVER_ID", "0"}}, {"DMLC_SERVER_ID='0'", "no DMLC_ROLE"});
  expect_refused(join(dmlc, {{"DMLC_PS_ROOT_PORT", "70000"}}), {"DMLC_PS_ROOT_PORT='70000'", "at most 65535"});
  expect_refused(join(dmlc, {{"DMLC_PS_ROOT_URI", "tcp://x"}}), {"DMLC_PS_ROOT_URI='tcp://x'"});
  expect_refused(join(dmlc, {{"TRIREME_COORDINATOR", "b:1"}}), {"TRIREME_COORDINATOR='b:1'", "10.0.0.1:9000"});
}

TEST(Place, SettingsAreHeardWhoeverLaunched) {
  const Variables settings = {{"TRIREME_TOKEN", "secret"}, {"TRIREME_TLS", "certificates"}, {"TRIREME_ENGINE", "gloo"}};
  const Variables torchrun = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
  for (const Variables& launcher :
       {Variables{}, torchrun, kMpirun, kSrun, Variables{{"TRIREME_RANK", "0"}, {"TRIREME_SIZE", "1"}}}) {
    const Place here = place(join(launcher, settings));
    EXPECT_EQ(here.token, "secret");
    EXPECT_FALSE(here.token_derived);
    EXPECT_EQ(here.tls, "certificates");
    EXPECT_EQ(here.engine, "gloo");
  }
  expect_refused({{"TRIREME_TOKEN", ""}}, {"TRIREME_TOKEN=''", "unset"});
  expect_refused({{"TRIREME_ENGINE", "streem"}}, {"TRIREME_ENGINE='streem'", "did you mean 'stream'"});
  expect_refused({{"TRIREME_ENGINE", "glo"}}, {"TRIREME_ENGINE='glo'", "did you mean 'gloo'"});
}

TEST(Engine, FollowsFromWhatIsWantedAndWhetherThereAreCertificates) {
  using cluster::engine_for;
  for (const char* any : {"", "auto"}) {
    EXPECT_EQ(engine_for(any, false, false), "gloo");
    EXPECT_EQ(engine_for(any, false, true), "mpi");
    EXPECT_EQ(engine_for(any, true, false), "stream");
    EXPECT_EQ(engine_for(any, true, true), "stream");
  }
  for (const char* name : {"gloo", "mpi"}) {
    EXPECT_EQ(engine_for(name, false, false), name);
    EXPECT_EQ(engine_for(name + std::string(":insecure"), true, false), name);
    try {
      engine_for(name, true, false);
      ADD_FAILURE() << name << " beside certificates";
    } catch (const InvalidArgument& error) {
      for (const std::string& part :
           std::vector<std::string>{"--engine stream", "in the clear", name + std::string(":insecure")})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(engine_for("stream", false, true), "stream");
}

TEST(Place, DerivedTokens) {
  // printf 'slurm-2.0a:20194' | sha256sum
  EXPECT_EQ(place(kSrun).token, "8837f7832159edd731e4ed7abe17d444760b6ec17f09374a62f6508102fc04b8");
  EXPECT_NE(place(kSrun).token, place(join(kSrun, {{"SLURM_STEP_ID", "1"}})).token);
  EXPECT_EQ(place(kSrun).token, place(join(kSrun, {{"SLURM_PROCID", "0"}})).token);
  EXPECT_EQ(place(kMpirun).token, "");  // nobody to show it to
}

TEST(Place, CoordinatorsAreChecked) {
  for (const char* text : {"node", ":7070", "node:", "node:0", "node:65536", "node:x", "node:7070x", "no de:1",
                           "fd00::1:7070", "[]:1", "[fd00::1]", "http://node:1", "node:+1", "a,b:1"})
    expect_refused({{"TRIREME_RANK", "0"}, {"TRIREME_SIZE", "2"}, {"TRIREME_COORDINATOR", text}},
                   {"TRIREME_COORDINATOR='" + std::string(text) + "'", "HOST:PORT"});
}

TEST(Place, NothingIsIgnored) {
  expect_refused({{"TRIREME_SIZE", "2"}}, {"TRIREME_SIZE='2'", "no TRIREME_RANK"});
  expect_refused({{"TRIREME_SIZE", "2"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}, {"no TRIREME_RANK"});
  expect_refused({{"TRIREME_COORDINATOR", "a:1"}}, {"TRIREME_COORDINATOR='a:1'", "no TRIREME_RANK"});
  expect_refused({{"LOCAL_WORLD_SIZE", "2"}}, {"no RANK"});
  expect_refused({{"OMPI_COMM_WORLD_SIZE", "2"}}, {"no OMPI_COMM_WORLD_RANK"});
}

TEST(Place, MessagesStayReadable) {
  try {
    place({{"RANK", std::string(100000, '9') + "\n\x1b[31m"}, {"WORLD_SIZE", "2"}});
    FAIL() << "taken";
  } catch (const InvalidArgument& error) {
    EXPECT_LT(std::string(error.what()).size(), 400u);
  }
  expect_refused({{"RANK", "1\n\x1b[31m"}, {"WORLD_SIZE", "2"}}, {"RANK='1??[31m'"});
}

TEST(World, OfOne) {
  World world({0, 1, "", "alone"}, {});
  EXPECT_TRUE(world.first());
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.launcher(), "alone");
  float x = 3;
  world.comm().allreduce(&x, 1, DType::f32, Op::mean, "x");
  EXPECT_EQ(x, 3);
}

}  // namespace
}  // namespace trireme::cluster::tests
