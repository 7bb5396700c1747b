#pragma once
// Starts the ranks and parameter servers of a job on this machine and stays with them until the last has ended.
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/coordination/job.h>
#include <trireme/cluster/launching/staffing.h>

namespace trireme::cluster {

/// What becomes of the processes' output.
enum class Show {
  labelled,  // everybody's, each line with "[rank] " or "[server 0] " before it
  first,     // that of the first rank of the crew alone, unchanged: of rank 0, and when it is lost of the next one
  plain      // everybody's, unchanged
};

struct LaunchOptions {
  std::vector<std::string> command;  // program and arguments
  int ranks = 1;                     // processes to start here
  int threads = 0;                   // compute threads per rank (OMP_NUM_THREADS); 0: cores / ranks, at least 1
  Show show = Show::labelled;
  Seconds grace{1.0};  // between one rank's death and the end of those who do not end by themselves
  std::vector<std::pair<std::string, std::string>> environment;  // added to every rank's
  Elasticity elasticity;  // what a rank's bad end means, and how many workers there may be. Where the others go on
                          // (World::regroup) they do so as long as one is left, and the desk finds them enough
  Seconds silence{30};    // of a job that is all on this machine: how long a rank that lives may not be heard of. Its
                          // death is seen at once

  // A job that spans machines: this process starts a part of it.
  int first_rank = 0;      // of those started here
  bool newcomers = false;  // the job is under way, and they come to it
  int size = 0;            // of the job; 0: `ranks`
  std::string job;         // its name; "": a new one
  std::string master = "127.0.0.1";
  int master_port = 0;  // where programs with torchrun's variables meet; 0: one that is free here
  int failed = -1;      // descriptor: when it becomes readable the job has failed elsewhere, and the ranks end
  std::function<CrewView()> crew;  // of an elastic one: what its coordinator says; null: the desk here
  int crew_changed = -1;           // descriptor: readable when that may have changed. Whoever asks `crew` reads it
  int hangup = -1;  // descriptor: "stop" on it, and its end, are as if SIGINT had come; "end", and its end after
                    // "stop", as if it had come again

  // When somebody interrupts.
  std::function<void(const std::string&)>
      say;  // hears what happens, a sentence without a full stop each; null: nobody does
  std::optional<std::string>
      saves;             // what the ranks save then: "the model to m.safetensors"; "": nothing; none: not known here
  Seconds patience{30};  // for ranks that make no progress: then they are ended
  std::function<void()> interrupted;  // called once when somebody has; must not block
  std::function<bool()>
      alive;  // whether those who are waited for live, as somebody else knows; null: their progress is looked at

  // Parameter servers: started before the ranks, and no ranks themselves. They are told TRIREME_ROLE=server,
  // TRIREME_SERVER, TRIREME_SERVERS, TRIREME_SIZE, TRIREME_JOB and `environment`, and have one compute thread.
  std::vector<std::string> server_command;  // program and arguments
  std::vector<int> servers;                 // indices of those started here
  int total_servers = 0;                    // of the job, which the ranks are told too; 0: as many as `servers`
  int replicas = 0;                         // of what each server keeps, on others: the job goes on when one dies
  std::function<void()> ranks_ended;        // called once when all ranks started here have ended; must not block
  int others_ended = -1;  // descriptor: when it becomes readable the ranks elsewhere have ended too; -1: there are none

  // Processes that are not ranks, but start some elsewhere.
  std::vector<std::vector<std::string>> commands;  // one per process, instead of `command` and `ranks`
  std::vector<std::string> names;                  // what messages call them, instead of "rank 0", …
  std::string input;  // on everybody's standard input, which then stays open, and where `hangup` listens; "": nothing
};

/// A rank that ended badly, and was done without.
struct Loss {
  std::string who;   // "rank 2", "the agent of host b"
  std::string how;   // "killed by signal 9 (SIGKILL; …)"
  double after = 0;  // seconds after the job's start
};

struct LaunchResult {
  int exit_code = 0;       // 0, or that of whoever failed first (128 + signal when one killed it)
  int first_failed = -1;   // rank (with `commands`: index), or -1: nobody, or a server
  int failed_server = -1;  // its index, when a server failed first
  std::string culprit;     // "rank 1", "server 0", "the agent of host b": who failed first, or ""
  bool interrupted = false;
  bool failed = false;       // somebody ended badly, interrupted or not
  bool under_way = true;     // of a crew that changes: all of the first one had come
  std::string lost;          // after an interruption: which model was not saved, a sentence without a full stop, or ""
  std::vector<Loss> losses;  // ranks that ended badly while others went on, see LaunchOptions::elasticity
  std::string reason;        // "rank 1 died first: killed by signal 9 (SIGKILL) (after 3.2 s)", or ""
  std::vector<std::string> last_lines;  // of the culprit
};

/// Starts the processes, writes their output to standard output and standard error, and ends all when one dies.
///
/// SIGINT, SIGTERM and SIGHUP are a wish to stop, which the ranks are told (one that handles another of the three gets
/// that). They have as long as they need to save, while they get on: see Headway in interruption.h. A second
/// SIGINT or SIGTERM kills all at once. A SIGHUP that is ignored (nohup) stays so. Servers end by themselves when all
/// ranks of the job have left, whether these were interrupted or not; those that do not within five seconds are ended,
/// and that is no failure. Nobody survives this process, even if it is killed.
///
/// Where workers may come and go, and one is killed before all of the first crew have come, all are started again, a
/// few times.
LaunchResult launch(const LaunchOptions& options);

/// For a program that makes threads before it calls launch(): while this lives, the signals that launch() forwards go
/// to nobody else.
class SignalsForLauncher {
 public:
  SignalsForLauncher();
  ~SignalsForLauncher();
  SignalsForLauncher(const SignalsForLauncher&) = delete;
  SignalsForLauncher& operator=(const SignalsForLauncher&) = delete;

 private:
  sigset_t before_;
};

/// 16 hexadecimal digits that nobody has chosen before.
std::string random_name();
/// A port that is free now: what torchrun-style programs use to meet.
int free_port();

}  // namespace trireme::cluster
