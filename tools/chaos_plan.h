#pragma once
// What `trireme chaos` does to a job and when, and what it says about the times that it measured. Pure functions: the
// same seed is the same plan.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tools {

/// Something bad that happens to one worker.
struct Blow {
  enum Kind { kill, stop } kind = kill;  // SIGKILL; SIGSTOP, and SIGCONT later
  double after = 0;                      // seconds since the blow before, or since the job has begun to train
  double choice = 0;                     // in [0, 1): which worker of the crew, see victim_of()
  double lasts = 0;                      // seconds from SIGSTOP to SIGCONT

  bool operator==(const Blow&) const = default;
};

struct PlanOptions {
  uint64_t seed = 0;
  int kills = 10, stops = 0;
  double every = 1;       // seconds between two blows, on average: each pause is half of it to one and a half
  double stop_for = 0.5;  // seconds that a worker is stopped, on average: alike
};

/// All blows in their order; kills and stops are mixed.
std::vector<Blow> plan_of(const PlanOptions& options);

/// Seconds from the first to the last of them, if no blow has to wait for the crew.
double duration_of(const std::vector<Blow>& plan);

/// The place of the victim in the crew, whose size is not 0.
size_t victim_of(const Blow& blow, size_t crew);

/// Whom the blow hit, and what was seen then. Times in milliseconds; nothing: it was not seen.
struct Struck {
  Blow blow;
  double at = 0;  // seconds after the job has begun to train
  int rank = -1;
  int process = 0;
  int before = 0, after = 0;      // workers in the crew: before the blow, and of the step that was made next
  std::optional<double> step_ms;  // of a step before the blow
  std::optional<double> next_ms;  // from the blow to the end of the next step of those who are left
  std::optional<double> full_ms;  // to the end of the first step with as many workers as before
  bool given_up = false;          // one that was stopped, and done without

  /// What the blow cost: what the next step took longer than a step before. Never negative.
  std::optional<double> beyond_ms() const;
};

struct Summary {
  size_t tries = 0;
  double median = 0, p99 = 0, most = 0;
};
/// The p99 is a value that was measured: the smallest that 99 % are not above. All 0 where there is none.
Summary summary_of(std::vector<double> values);

/// A line for each blow, and under them the summaries.
std::string table_of(const std::vector<Struck>& struck);

/// Milliseconds of those that have them, of one kind.
std::vector<double> beyond_of(const std::vector<Struck>& struck, Blow::Kind kind);
std::vector<double> full_of(const std::vector<Struck>& struck, Blow::Kind kind);

}  // namespace trireme::tools
