#pragma once
// What coordinator and members call things.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::cluster {

/// Exit code of a process that failed only because another one did: it is never named as the one that died first.
constexpr int kPeerLostExit = 75;

/// What an agent (`trireme join`) needs to know to start its ranks and servers.
struct JobSpec {
  std::vector<std::pair<std::string, int>> hosts;  // name or address, slots; their order is the order of the ranks
  std::vector<std::string> command;                // program and arguments
  std::vector<std::pair<std::string, std::string>> environment;  // added to every rank's
  int show = 0;                             // a Show of the launcher: what becomes of the ranks' output
  std::vector<std::string> server_command;  // program and arguments of a parameter server; empty: agents start none
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
  int servers = 0;  // parameter servers of the job as this member was told; 0: it was not
};

/// What a rank that was lost, once all had come, means.
enum class OnLoss {
  end_job,     // the job has failed
  change_crew  // the others go on without it, in the next epoch
};

/// The ranks that are left.
struct CrewChange {
  uint64_t epoch = 0;      // 0: none has been lost; 1 more with each change
  std::vector<int> ranks;  // in order
  std::string reason;      // a full sentence: who was lost, where, why
};

/// Why a job cannot go on.
struct Failure {
  int rank = -1;       // -1: not a rank's fault, but a server's or somebody else's
  std::string host;    // where it happened
  std::string reason;  // a full sentence: who, where, what
};

}  // namespace trireme::cluster
