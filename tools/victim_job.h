#pragma once
// A training job that is disturbed on purpose: started as a user would start it, in a process of its own, and watched
// through the doors of its processes. Only processes that its launcher has started are ever sent a signal.
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>

namespace trireme::tools {

/// What one worker says of itself. Times in seconds.
struct WorkerLook {
  int rank = -1;
  pid_t process = 0;
  double updates = 0;          // that it took part in
  double steps = 0, busy = 0;  // steps, and how long they took
  double crew = 0, epoch = 0;  // of the crew that it is in; 0 workers: it is in none yet
  double since = 0;            // when this crew's first step was made, on the machine's steady clock; 0: not yet
};

/// Those that are in the crew, by rank: of the newest epoch that anybody tells.
std::vector<WorkerLook> crew_of(const std::vector<WorkerLook>& workers);

/// The machine's steady clock, which all its processes share.
double steady_seconds();

class VictimJob {
 public:
  /// Starts it; its output goes to a file. Signals that would end this process are held back from now on: somebody has
  /// to look at stop_wanted(). Throws IoError.
  VictimJob(std::vector<std::string> command, std::filesystem::path log);
  /// Ends all of it.
  ~VictimJob();
  VictimJob(const VictimJob&) = delete;
  VictimJob& operator=(const VictimJob&) = delete;

  /// Waits for so long, less if the job ends or somebody wants to stop. True while it runs and nobody does.
  bool pass(Seconds time);
  /// SIGINT, SIGTERM or SIGHUP has come to this process: its number. 0: none.
  int stop_wanted() const { return signal_; }
  /// As a shell gives it; nothing while it runs.
  const std::optional<int>& exit_code() const { return code_; }
  /// Asks it to stop, and ends what has not ended after that time.
  void end(Seconds patience);

  /// Processes that the launcher has started and that are there.
  std::vector<pid_t> processes() const;
  /// What those say that answer within that time. One that loads its libraries, or is stopped, does not.
  std::vector<WorkerLook> look(Seconds timeout, const std::set<pid_t>& but = {});
  std::optional<WorkerLook> look_at(pid_t process, Seconds timeout);
  /// False: it is not there any more, or no process of this job.
  bool signal(pid_t process, int number) const;
  /// Of all processes that were ever seen, those that are still there.
  std::vector<pid_t> left() const;
  /// The last lines of its output.
  std::vector<std::string> last_lines(size_t most) const;

 private:
  void reap();

  std::filesystem::path log_;
  Descriptor signals_, process_;
  pid_t pid_ = 0;
  std::optional<int> code_;
  int signal_ = 0;
  mutable std::map<pid_t, std::string> seen_;  // with the time of their start, which tells them from later ones
};

}  // namespace trireme::tools
