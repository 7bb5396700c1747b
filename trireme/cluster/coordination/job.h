#pragma once
// What coordinator and members call things.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::cluster {

/// Exit code of a process that failed only because another one did: it is never named as the one that died first.
constexpr int kPeerLostExit = 75;

/// Exit code of a newcomer that does not fit the others: the next one from the same place would not either.
constexpr int kCannotJoinExit = 76;
/// Exit code of a rank that has nobody to get the model's state from: StateLost.
constexpr int kStateLostExit = 77;

/// What an agent (`trireme join`) needs to know to start its ranks and servers.
struct JobSpec {
  std::vector<std::pair<std::string, int>> hosts;  // name or address, slots; their order is the order of the ranks
  std::vector<std::string> command;                // program and arguments
  std::vector<std::pair<std::string, std::string>> environment;  // added to every rank's
  int show = 0;                             // a Show of the launcher: what becomes of the ranks' output
  std::vector<std::string> server_command;  // program and arguments of a parameter server; empty: agents start none
  int on_failure = 0;                       // an OnFailure of the launcher: what the death of a rank means
};

/// A process that registers: a rank, a parameter server, or the agent that starts those of a host.
struct Member {
  enum Kind { worker = 0, agent = 1, server = 2 };  // as they travel
  Kind kind = worker;
  int rank = -1;     // -1: assign one. An agent's is the first of its ranks, a server's its index among the servers
  int size = 0;      // ranks of the job as this member was told; 0: it was not
  int slots = 0;     // agent: ranks that it starts; 0: as many as the job's host list says
  std::string host;  // as messages name it; an agent's is looked for in the host list
  int pid = 0;
  int servers = 0;        // parameter servers of the job as this member was told; 0: it was not
  bool newcomer = false;  // it comes when the job is under way
  std::string machine;    // worker: which memory it shares with its neighbours; "": it has not said yet
};

/// A rank number is below this, and never used twice in a job.
constexpr int kRankNumbers = 1 << 16;

/// What a rank that was lost, once all had come, means.
enum class OnLoss {
  end_job,     // the job has failed
  change_crew  // the others go on without it, in the next epoch
};

/// Who rows from now on.
struct CrewChange {
  uint64_t epoch = 0;         // 0: the first crew; 1 more with each change
  std::vector<int> ranks;     // in order; empty: too few are left, and they wait for newcomers
  std::string reason;         // a full sentence: who was lost, where, why; who comes in, who goes
  bool announced = false;     // nobody was lost: it interrupts nobody, and begins when the crew before is ready for it
  std::vector<int> machines;  // of each rank: the same number, the same memory. Empty: as at the job's start
  std::vector<int> lost{};    // of the crew before: given up, or dead
  bool closing = false;       // too few are left, and nobody came: they make no step, save what they have, and end
};

/// Why a job cannot go on.
struct Failure {
  int rank = -1;       // -1: not a rank's fault, but a server's or somebody else's
  std::string host;    // where it happened
  std::string reason;  // a full sentence: who, where, what
};

}  // namespace trireme::cluster
