#pragma once
// Which launcher started this process, and as what. A pure function of environment variables.
#include <functional>
#include <string>
#include <vector>

namespace trireme::cluster {

struct Place {
  int rank = 0;  // -1: the coordinator assigns it
  int size = 1;
  std::string job;       // the same in all ranks of a job, different between jobs; "": whichever the coordinator serves
  std::string launcher;  // "alone", "trireme launch", "Kubernetes indexed Job", "torchrun-style variables", "ps-lite
                         // variables", "Open MPI", "Slurm"
  std::string coordinator;  // "host:port" where ranks of several machines meet; "" when all ranks are on this machine
  bool hosts_coordinator = false;  // this process is the one that runs it
  std::string token;   // what a rank shows to the coordinator; "" without a coordinator, unless one was given
  std::string tls;     // folder with certificates; "": none
  std::string engine;  // which network engine; "": not said
  bool token_derived =
      false;  // nobody gave a token: it follows from job and coordinator, keeps accidents out, and stops no attacker
  bool mpi = false;             // ranks are on several machines and nobody said where to meet: MPI itself can tell
  std::string role = "worker";  // "worker" or "server", and with ps-lite variables also "scheduler". Servers and
                                // schedulers have rank -1
  int server = -1;              // this server's index; -1: it is none, or the coordinator assigns it
  int servers = 0;              // parameter servers of the job, beside its ranks
  int replicas = 0;             // of what each of them keeps, on others
  bool job_is_common =
      false;              // others may have a job of the same name: it follows from MASTER_PORT alone, or there is none
  std::string slate;      // of slate.h: what TRIREME_SLATE says; "": no launcher of ours waits for signs of life
  std::string desk;       // of local_desk.h: what TRIREME_DESK says; "": no launcher of ours has a desk for this job
  std::string segment;    // of keeper.h: what TRIREME_SEGMENT says; "": no launcher of ours keeps the memory
  bool newcomer = false;  // TRIREME_NEWCOMER=1: the job is under way; `rank` is a number that nobody has had, or -1:
                          // the coordinator gives it one
};

/// The value of a variable, or nullptr.
using Lookup = std::function<const char*(const char* name)>;

/// The first of these that is there says the place:
/// - TRIREME_ROLE=server, TRIREME_SERVER, TRIREME_SERVERS, TRIREME_SIZE, TRIREME_JOB: a parameter server, of the same
///   launchers as the next
/// - TRIREME_RANK, TRIREME_SIZE, TRIREME_JOB: trireme launch, trireme train --hosts, or a script
/// - JOB_COMPLETION_INDEX, TRIREME_SIZE, TRIREME_COORDINATOR: indexed Jobs of Kubernetes, one rank a pod
/// - RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE: torchrun
/// - DMLC_ROLE, DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_WORKER_ID, DMLC_SERVER_ID:
///   ps-lite
/// - OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE: Open MPI's mpirun
/// - SLURM_PROCID, SLURM_STEP_ID and others: srun; scripts of sbatch and shells of salloc are "alone"
///
/// TRIREME_NEWCOMER=1 beside TRIREME_RANK: the job is under way, and the rank may be beyond its size.
///
/// What people say goes before what schedulers leave in the environment. A server without TRIREME_SERVER takes
/// JOB_COMPLETION_INDEX, or what the coordinator assigns. TRIREME_COORDINATOR (somebody runs it there),
/// TRIREME_SERVERS, TRIREME_REPLICAS, TRIREME_JOB, TRIREME_TOKEN, TRIREME_TLS and TRIREME_ENGINE are heard whoever
/// launched. Throws InvalidArgument that names the variable, its value and what to do when one is missing, malformed,
/// out of range or contradicts another.
Place place_from(const Lookup& lookup);

/// From this process's environment.
Place place_here();

/// What --engine and TRIREME_ENGINE may say. ":insecure" behind a name: also where certificates ask for encryption.
const std::vector<std::string>& engine_words();

/// The engine that carries data between machines: `wanted` is one of the words, or "". `tls`: certificates were given.
/// Throws InvalidArgument for one that would send in the clear what was to be encrypted, unless the user insists.
std::string engine_for(const std::string& wanted, bool tls, bool mpi);

/// Where a file of that name is kept between runs: $XDG_CACHE_HOME/trireme/NAME or ~/.cache/trireme/NAME; "" when there
/// is neither.
std::string cache_file(const std::string& name);

/// The token of those who were given none: SHA-256 of job and coordinator, in hexadecimal.
std::string derived_token(const std::string& job, const std::string& coordinator);

}  // namespace trireme::cluster
