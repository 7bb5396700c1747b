#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/base/sha256.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/cluster/environment/nodelist.h>

#include "variables.h"

namespace trireme::cluster {
namespace {

constexpr int64_t kFirstSpecialStep =
    0xfffffff0;  // Slurm numbers its batch, extern and interactive steps downwards from 2^32

/// TRIREME_COORDINATOR, checked; "" when it is not set or empty.
std::string given_coordinator(const Variables& variables) {
  std::string text = variables.text("TRIREME_COORDINATOR");
  if (text.empty()) return "";
  const size_t colon = text.rfind(':');
  const std::string_view all = text, port = colon == std::string::npos ? "" : all.substr(colon + 1);
  std::string_view host = all.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  const auto number = whole_number(port);
  const bool good_host = is_host(host) && (bracketed || host.find(':') == std::string_view::npos);
  if (!good_host || !number || *number < 1 || *number > kLargestPort)
    fail<InvalidArgument>(
        "the environment variable TRIREME_COORDINATOR='{}' must be HOST:PORT with a port from 1 to 65535, such as "
        "node1:7070 or [fd00::1]:7070",
        shown(text));
  return text;
}

/// MASTER_PORT itself may be taken by the launcher's own store, on every machine or on the first: the port behind it is
/// ours.
std::string beside_master(const Variables& variables, const std::string& host) {
  return host_and_port(host, variables.number("MASTER_PORT", "MASTER_ADDR", 1, kLargestPort - 1) + 1);
}

Place ranked(const Variables& variables, const char* rank, const char* size, const char* launcher) {
  Place place;
  place.rank = static_cast<int>(variables.number(rank, rank, 0));
  place.size = static_cast<int>(variables.number(size, rank, 1));
  place.launcher = launcher;
  if (place.rank >= place.size)
    fail<InvalidArgument>("{}={} but {}={}: ranks run from 0 to {}", rank, place.rank, size, place.size,
                          place.size - 1);
  return place;
}

// ---- our own ----

/// TRIREME_ROLE, checked; "" when it is not set.
std::string given_role(const Variables& variables) {
  static const std::vector<std::string> roles = {"worker", "server"};
  const std::string role = variables.text("TRIREME_ROLE");
  if (variables.has("TRIREME_ROLE") && std::find(roles.begin(), roles.end(), role) == roles.end())
    fail<InvalidArgument>(
        "the environment variable TRIREME_ROLE='{}' must be worker or server{}; the coordinator is `trireme "
        "coordinator`",
        shown(role), did_you_mean(shown(role), roles));
  return role;
}

/// A number from 0 to one less than the value of `count`.
int index_of_server(const Variables& variables, const char* name, const char* because, const char* count, int servers) {
  const auto index = static_cast<int>(variables.number(name, because, 0));
  if (index >= servers)
    fail<InvalidArgument>("{}={} but {}={}: servers run from 0 to {}", name, index, count, servers, servers - 1);
  return index;
}

Place of_server(const Variables& variables) {
  if (variables.has("TRIREME_RANK"))
    fail<InvalidArgument>("TRIREME_ROLE=server but TRIREME_RANK='{}': a server is no rank; unset one of them",
                          shown(variables.text("TRIREME_RANK")));
  Place place;
  place.launcher = "trireme launch";
  place.role = "server";
  place.rank = -1;
  place.size = static_cast<int>(variables.number("TRIREME_SIZE", "TRIREME_ROLE", 1));
  place.servers = static_cast<int>(variables.number("TRIREME_SERVERS", "TRIREME_ROLE", 1));
  place.coordinator = given_coordinator(variables);
  const char* index = variables.has("TRIREME_SERVER") || !variables.has("JOB_COMPLETION_INDEX")
                          ? "TRIREME_SERVER"
                          : "JOB_COMPLETION_INDEX";
  if (variables.has(index) || place.coordinator.empty())
    place.server = index_of_server(variables, index, "TRIREME_ROLE", "TRIREME_SERVERS", place.servers);
  return place;
}

/// A process that comes when the job is under way.
Place of_newcomer(const Variables& variables) {
  Place place;
  place.newcomer = variables.number("TRIREME_NEWCOMER", "TRIREME_NEWCOMER", 0, 1) == 1;
  if (!place.newcomer) return ranked(variables, "TRIREME_RANK", "TRIREME_SIZE", "trireme launch");
  place.rank = static_cast<int>(variables.number("TRIREME_RANK", "TRIREME_NEWCOMER", -1, kLargestRank));
  place.size = static_cast<int>(variables.number("TRIREME_SIZE", "TRIREME_RANK", 1));
  place.launcher = "trireme launch";
  if (variables.text("TRIREME_DESK").empty() && variables.text("TRIREME_COORDINATOR").empty())
    fail<InvalidArgument>(
        "TRIREME_NEWCOMER=1, but neither TRIREME_DESK nor TRIREME_COORDINATOR says which job this process comes to; "
        "set one of them, or unset TRIREME_NEWCOMER");
  return place;
}

Place of_trireme(const Variables& variables) {
  Place place = variables.has("TRIREME_NEWCOMER") ? of_newcomer(variables)
                                                  : ranked(variables, "TRIREME_RANK", "TRIREME_SIZE", "trireme launch");
  place.coordinator = given_coordinator(variables);
  place.job_is_common = true;  // unless TRIREME_JOB names it
  return place;
}

Place of_kubernetes(const Variables& variables) {
  Place place = ranked(variables, "JOB_COMPLETION_INDEX", "TRIREME_SIZE", "Kubernetes indexed Job");
  place.coordinator = given_coordinator(variables);
  if (place.size > 1 && place.coordinator.empty())
    fail<InvalidArgument>(
        "the environment has JOB_COMPLETION_INDEX and TRIREME_SIZE={} but no TRIREME_COORDINATOR; set it to HOST:PORT "
        "of the coordinator's Service",
        place.size);
  return place;
}

// ---- torchrun ----

/// Wrong neighbours of RANK are refused even where their value would not matter.
void check_local_ranks(const Variables& variables, int size) {
  const bool has_size = variables.has("LOCAL_WORLD_SIZE");
  const int64_t local_size = has_size ? variables.number("LOCAL_WORLD_SIZE", "RANK", 1) : size;
  if (local_size > size)
    fail<InvalidArgument>("LOCAL_WORLD_SIZE={} but WORLD_SIZE={}: a machine cannot have more ranks than the job",
                          local_size, size);
  const int64_t local_rank = variables.has("LOCAL_RANK") ? variables.number("LOCAL_RANK", "RANK", 0) : 0;
  if (local_rank >= local_size)
    fail<InvalidArgument>("LOCAL_RANK={} but {}={}: local ranks run from 0 to {}", local_rank,
                          has_size ? "LOCAL_WORLD_SIZE" : "WORLD_SIZE", local_size, local_size - 1);
}

/// Adds to the job's name what tells one start from another beside MASTER_PORT, which many jobs have in common. `here`:
/// all ranks are on this machine, so that one agent's or one scheduler's variables are everybody's.
void name_start(const Variables& variables, bool here, Place& place) {
  const auto add = [&](const char* name) {
    const std::string value = variables.text(name);
    if (value.empty() || value == "none") return false;  // torchrun's run id, if nobody gave one
    place.job += "/" + value;
    return true;
  };
  bool told_apart = add("TORCHELASTIC_RUN_ID");
  if (here) {
    add("TORCHELASTIC_RESTART_COUNT");
    for (const char* name :
         {"SLURM_HET_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PMIX_NAMESPACE"})
      if (add(name)) {
        told_apart = true;
        break;
      }
  }
  place.job_is_common = !told_apart;
}

Place of_torchrun(const Variables& variables) {
  Place place = ranked(variables, "RANK", "WORLD_SIZE", "torchrun-style variables");
  check_local_ranks(variables, place.size);
  const std::string host = variables.has("MASTER_ADDR") ? variables.host("MASTER_ADDR", "RANK") : "";
  if (place.size > 1 || variables.has("MASTER_PORT")) variables.number("MASTER_PORT", "RANK", 1, kLargestPort);
  place.job = variables.text("MASTER_ADDR") + ":" + variables.text("MASTER_PORT");
  place.coordinator = given_coordinator(variables);
  const bool all_here =
      variables.text("LOCAL_WORLD_SIZE") == std::to_string(place.size) || place.size == 1 || is_loopback(host);
  name_start(variables, all_here || host.empty(), place);
  if (all_here || !place.coordinator.empty()) return place;
  if (host.empty() && variables.has("LOCAL_WORLD_SIZE"))
    fail<InvalidArgument>(
        "LOCAL_WORLD_SIZE={} and WORLD_SIZE={} say that there are several machines, but there is no MASTER_ADDR to "
        "meet at; set it to the host of rank 0",
        variables.text("LOCAL_WORLD_SIZE"), place.size);
  if (host.empty()) return place;  // RANK, WORLD_SIZE and MASTER_PORT alone: processes of this machine
  place.coordinator = beside_master(variables, host);
  place.hosts_coordinator = place.rank == 0;
  return place;
}

// ---- ps-lite ----

Place of_ps_lite(const Variables& variables) {
  static const std::vector<std::string> roles = {"worker", "server", "scheduler"};
  Place place;
  place.launcher = "ps-lite variables";
  place.role = variables.text("DMLC_ROLE");
  if (std::find(roles.begin(), roles.end(), place.role) == roles.end())
    fail<InvalidArgument>("the environment variable DMLC_ROLE='{}' must be worker, server or scheduler{}",
                          shown(place.role), did_you_mean(shown(place.role), roles));
  if (given_role(variables) == "worker" && place.role != "worker")
    fail<InvalidArgument>("TRIREME_ROLE=worker but DMLC_ROLE={}: unset one of them", place.role);
  place.rank = -1;
  place.size = static_cast<int>(variables.number("DMLC_NUM_WORKER", "DMLC_ROLE", 1));
  place.servers = static_cast<int>(variables.number("DMLC_NUM_SERVER", "DMLC_ROLE", 0));
  if (place.role == "worker" && variables.has("DMLC_WORKER_ID")) {
    place.rank = static_cast<int>(variables.number("DMLC_WORKER_ID", "DMLC_ROLE", 0));
    if (place.rank >= place.size)
      fail<InvalidArgument>("DMLC_WORKER_ID={} but DMLC_NUM_WORKER={}: workers run from 0 to {}", place.rank,
                            place.size, place.size - 1);
  }
  if (place.role == "server" && place.servers == 0)
    fail<InvalidArgument>(
        "DMLC_ROLE=server but DMLC_NUM_SERVER=0: the job has no servers. Start none, or set DMLC_NUM_SERVER for all of "
        "its processes");
  if (place.role == "server" && variables.has("DMLC_SERVER_ID"))
    place.server = index_of_server(variables, "DMLC_SERVER_ID", "DMLC_ROLE", "DMLC_NUM_SERVER", place.servers);
  place.job = host_and_port(variables.host("DMLC_PS_ROOT_URI", "DMLC_ROLE"),
                            variables.number("DMLC_PS_ROOT_PORT", "DMLC_ROLE", 1, kLargestPort));
  place.coordinator = place.job;
  place.hosts_coordinator = place.role == "scheduler";
  if (const std::string given = given_coordinator(variables); !given.empty() && given != place.coordinator)
    fail<InvalidArgument>(
        "TRIREME_COORDINATOR='{}' but DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT say {}: unset one of them", given,
        place.coordinator);
  return place;
}

// ---- Open MPI ----

std::string mpi_job(const Variables& variables) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"})
    if (!variables.text(name).empty()) return "mpirun-" + variables.text(name);
  if (!variables.text("TRIREME_JOB").empty() || !variables.text("TRIREME_COORDINATOR").empty())
    return "";  // these will tell
  fail<InvalidArgument>(
      "the environment has OMPI_COMM_WORLD_RANK but no PMIX_NAMESPACE, which tells one job from another; set "
      "TRIREME_JOB: mpirun -x TRIREME_JOB=NAME ...");
}

/// Where a person said to meet, for launchers that do not say it themselves: TRIREME_COORDINATOR, else beside
/// MASTER_ADDR. "" when nobody did.
void meet_where_said(const Variables& variables, Place& place) {
  place.coordinator = given_coordinator(variables);
  if (!place.coordinator.empty() || !variables.has("MASTER_ADDR")) return;
  const std::string host = variables.host("MASTER_ADDR", "MASTER_ADDR");
  if (is_loopback(host))
    fail<InvalidArgument>(
        "MASTER_ADDR='{}', but {} has started ranks on several machines; set it to the host of rank 0 or unset it",
        host, place.launcher);
  place.coordinator = beside_master(variables, host);
  place.hosts_coordinator = place.rank == 0;
}

Place of_open_mpi(const Variables& variables) {
  Place place = ranked(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI");
  const int64_t local = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK", 1);
  if (local > place.size)
    fail<InvalidArgument>(
        "OMPI_COMM_WORLD_LOCAL_SIZE={} but OMPI_COMM_WORLD_SIZE={}: a machine cannot have more ranks than the job",
        local, place.size);
  place.job = mpi_job(variables);
  if (local == place.size) {
    place.coordinator = given_coordinator(variables);
    return place;
  }
  meet_where_said(variables, place);
  place.mpi = place.coordinator.empty();
  return place;
}

// ---- Slurm ----

const char* either(const Variables& variables, const char* name, const char* older) {
  return variables.has(name) || !variables.has(older) ? name : older;
}

/// Are we a task of a step that srun started? Scripts of sbatch have SLURM_PROCID=0 and the size of the whole
/// allocation, but no step; shells of salloc have no SLURM_PROCID, or they are tasks of a special step. Both inherit
/// the step of a shell they were submitted from, but then the two sizes differ: srun sets both.
bool is_slurm_task(const Variables& variables) {
  const char* step = either(variables, "SLURM_STEP_ID", "SLURM_STEPID");
  if (!variables.has("SLURM_PROCID") || !variables.has(step)) return false;
  const std::string text = variables.text(step);
  if (text == "batch" || text == "interactive" || text == "extern") return false;
  if (variables.number(step, "SLURM_PROCID", 0, UINT32_MAX) >= kFirstSpecialStep) return false;
  if (!variables.has("SLURM_STEP_NUM_TASKS") || !variables.has("SLURM_NTASKS")) return true;
  const int64_t of_step = variables.number("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", 1),
                of_all = variables.number("SLURM_NTASKS", "SLURM_PROCID", 1);
  if (of_step == of_all) return true;
  if (variables.text("SLURM_PROCID") != "0")
    fail<InvalidArgument>(
        "SLURM_PROCID={} is not a shell's, but SLURM_STEP_NUM_TASKS={} and SLURM_NTASKS={} differ; start ranks by "
        "srun, or set TRIREME_RANK and TRIREME_SIZE",
        shown(variables.text("SLURM_PROCID")), of_step, of_all);
  return false;
}

std::string first_slurm_node(const Variables& variables) {
  const std::string list = variables.needed("SLURM_STEP_NODELIST", "SLURM_PROCID");
  try {
    return expand_nodelist(list, 1).at(0);
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>(
        "the environment variable SLURM_STEP_NODELIST: {}. Set TRIREME_COORDINATOR to HOST:PORT instead", error.what());
  }
}

Place of_slurm(const Variables& variables) {
  Place place = ranked(variables, "SLURM_PROCID", either(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "Slurm");
  const int64_t job = variables.number(either(variables, "SLURM_JOB_ID", "SLURM_JOBID"), "SLURM_PROCID", 0, UINT32_MAX);
  const int64_t step =
      variables.number(either(variables, "SLURM_STEP_ID", "SLURM_STEPID"), "SLURM_PROCID", 0, UINT32_MAX);
  const int64_t nodes = variables.number(either(variables, "SLURM_STEP_NUM_NODES", "SLURM_NNODES"), "SLURM_PROCID", 1);
  place.job = fmt::format("slurm-{}.{}", job, step);
  if (nodes > place.size)
    fail<InvalidArgument>("SLURM_STEP_NUM_NODES={} but only {} tasks: each node of a step has one at least", nodes,
                          place.size);
  if (nodes == 1) {
    place.coordinator = given_coordinator(variables);
    return place;
  }
  meet_where_said(variables, place);
  if (!place.coordinator.empty()) return place;
  // Below the ports that Linux gives to outgoing connections; neighbouring jobs and steps get different ones.
  place.coordinator = host_and_port(first_slurm_node(variables), 20000 + (job * 97 + step) % 12768);
  // The first node of the list is node 0, but with `srun -m arbitrary` or `plane` rank 0 may be elsewhere.
  const bool told = variables.has("SLURM_NODEID") && variables.has("SLURM_LOCALID");
  place.hosts_coordinator = told ? variables.number("SLURM_NODEID", "SLURM_PROCID", 0) == 0 &&
                                       variables.number("SLURM_LOCALID", "SLURM_PROCID", 0) == 0
                                 : place.rank == 0;
  return place;
}

// ---- all of them ----

/// Parts of a place without its rank: somebody meant something, and we do not know what.
void refuse_remains(const Variables& variables) {
  constexpr std::pair<const char*, const char*> parts[] = {{"TRIREME_SIZE", "TRIREME_RANK"},
                                                           {"TRIREME_ROLE", "TRIREME_RANK"},
                                                           {"TRIREME_SERVER", "TRIREME_ROLE"},
                                                           {"TRIREME_SERVERS", "TRIREME_RANK"},
                                                           {"TRIREME_COORDINATOR", "TRIREME_RANK"},
                                                           {"WORLD_SIZE", "RANK"},
                                                           {"LOCAL_RANK", "RANK"},
                                                           {"LOCAL_WORLD_SIZE", "RANK"},
                                                           {"DMLC_NUM_WORKER", "DMLC_ROLE"},
                                                           {"DMLC_NUM_SERVER", "DMLC_ROLE"},
                                                           {"DMLC_PS_ROOT_URI", "DMLC_ROLE"},
                                                           {"DMLC_PS_ROOT_PORT", "DMLC_ROLE"},
                                                           {"DMLC_WORKER_ID", "DMLC_ROLE"},
                                                           {"DMLC_SERVER_ID", "DMLC_ROLE"},
                                                           {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}};
  for (const auto& [part, key] : parts)
    if (!variables.text(part).empty())
      fail<InvalidArgument>("the environment has {}='{}' but no {}; a launcher sets both. Set {}, or unset {}", part,
                            shown(variables.text(part)), key, key, part);
}

Place of_launcher(const Variables& variables) {
  if (given_role(variables) == "server") return of_server(variables);
  if (variables.has("TRIREME_RANK")) return of_trireme(variables);
  if (variables.has("JOB_COMPLETION_INDEX") && (variables.has("TRIREME_SIZE") || variables.has("TRIREME_COORDINATOR")))
    return of_kubernetes(variables);
  if (variables.has("TRIREME_SIZE")) refuse_remains(variables);
  if (variables.has("RANK")) return of_torchrun(variables);
  if (variables.has("DMLC_ROLE")) return of_ps_lite(variables);
  if (variables.has("OMPI_COMM_WORLD_RANK")) return of_open_mpi(variables);
  // One task is a shell of `srun --pty`, or a node that a command gets for itself: nobody to meet, and the command may
  // start workers of its own.
  if (is_slurm_task(variables))
    if (Place place = of_slurm(variables); place.size > 1) return place;
  refuse_remains(variables);
  return {0, 1, "", "alone"};
}

/// How many servers there are: TRIREME_SERVERS, heard whoever launched, must not say something else than the launcher
/// does.
void add_servers(const Variables& variables, Place& place) {
  if (place.role == "worker" && variables.has("TRIREME_SERVER"))
    fail<InvalidArgument>(
        "the environment has TRIREME_SERVER='{}' but no TRIREME_ROLE=server; set both for a server, and neither for a "
        "rank",
        shown(variables.text("TRIREME_SERVER")));
  if (!variables.has("TRIREME_SERVERS")) return;
  const auto servers = static_cast<int>(variables.number("TRIREME_SERVERS", "TRIREME_SERVERS", 0));
  if (place.launcher == "ps-lite variables" && servers != place.servers)
    fail<InvalidArgument>("TRIREME_SERVERS={} but DMLC_NUM_SERVER={}: unset one of them", servers, place.servers);
  place.servers = servers;
  if (place.mpi && servers > 0)
    fail<InvalidArgument>(
        "TRIREME_SERVERS={}, but mpirun has started ranks on several machines, and servers cannot ask MPI where to "
        "meet them; run `trireme coordinator "
        "--servers "
        "{}` and set TRIREME_COORDINATOR to its HOST:PORT",
        servers, servers);
}

/// The settings that are heard whoever launched.
void add_settings(const Variables& variables, Place& place) {
  place.tls = variables.text("TRIREME_TLS");
  if (variables.has("TRIREME_REPLICAS"))
    place.replicas = static_cast<int>(variables.number("TRIREME_REPLICAS", "TRIREME_REPLICAS", 0));
  place.slate = variables.text("TRIREME_SLATE");
  place.segment = variables.text("TRIREME_SEGMENT");
  place.desk = variables.text("TRIREME_DESK");
  place.engine = variables.text("TRIREME_ENGINE");
  const std::vector<std::string>& engines = engine_words();
  if (!place.engine.empty() && std::find(engines.begin(), engines.end(), place.engine) == engines.end())
    fail<InvalidArgument>("the environment variable TRIREME_ENGINE='{}' must be auto, stream, gloo, mpi or nccl{}",
                          shown(place.engine), did_you_mean(shown(place.engine), engines));
  const std::string job = variables.text("TRIREME_JOB");
  const bool elsewhere = place.launcher != "ps-lite variables" &&
                         !variables.text("TRIREME_COORDINATOR").empty();  // run by somebody who named the job
  if (place.launcher != "alone" && (!job.empty() || elsewhere)) place.job = job;
  if (!job.empty() || elsewhere) place.job_is_common = false;
  place.token = variables.text("TRIREME_TOKEN");
  if (variables.has("TRIREME_TOKEN") && place.token.empty())
    fail<InvalidArgument>(
        "the environment variable TRIREME_TOKEN='' is empty, which would let everybody in; set it to the job's secret "
        "or unset it");
  place.token_derived = place.token.empty() && !place.coordinator.empty();
  if (place.token_derived) place.token = derived_token(place.job, place.coordinator);
}

}  // namespace

Place place_from(const Lookup& lookup) {
  const Variables variables(lookup);
  Place place = of_launcher(variables);
  add_servers(variables, place);
  add_settings(variables, place);
  return place;
}

Place place_here() {
  return place_from([](const char* name) -> const char* { return std::getenv(name); });
}

const std::vector<std::string>& engine_words() {
  static const std::vector<std::string> words = {"auto", "stream",        "gloo",        "mpi",
                                                 "nccl", "gloo:insecure", "mpi:insecure"};
  return words;
}

std::string engine_for(const std::string& wanted, bool tls, bool mpi) {
  if (wanted.empty() || wanted == "auto") return tls ? "stream" : mpi ? "mpi" : "gloo";
  const std::string name = wanted.substr(0, wanted.find(':'));
  if (tls && wanted == name && (name == "gloo" || name == "mpi"))
    fail<InvalidArgument>(
        "there are certificates (--tls or TRIREME_TLS), and the engine '{}' would send gradients beside them in the "
        "clear: use --engine stream, which auto takes then, or, on a network that is yours alone, --engine {}:insecure",
        name, name);
  return name;
}

std::string cache_file(const std::string& name) {
  const char* folder = std::getenv("XDG_CACHE_HOME");
  if (folder != nullptr && *folder != 0) return std::string(folder) + "/trireme/" + name;
  const char* home = std::getenv("HOME");
  return home == nullptr ? "" : std::string(home) + "/.cache/trireme/" + name;
}

std::string derived_token(const std::string& job, const std::string& coordinator) {
  Sha256 hash;
  hash.add(job.data(), job.size());
  hash.add(coordinator.data(), coordinator.size());
  return hash.finish();
}

}  // namespace trireme::cluster
