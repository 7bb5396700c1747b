#pragma once
// What members of a job have counted: how they tell their coordinator, and how it is shown.
#include <functional>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/cluster/coordination/job.h>
#include <trireme/metrics/snapshot.h>

namespace trireme::cluster {

/// What is known of one member of a job.
struct MemberMetrics {
  std::string job;  // as job_id() names it
  Member member;    // kind, rank, host and process
  metrics::Snapshot snapshot;
  double age = 0;  // seconds since it was taken
};

/// 16 hexadecimal digits that stand for the name under which a job's processes meet, which may be a secret.
std::string job_id(const std::string& meeting);

/// "rank 0", "server 1"; "launcher" for who starts them.
std::string short_name(const Member& member);

/// One JSON object, in one line: job, member, host, process, and its metrics.
std::string line_of(const MemberMetrics& of);

/// What a member's heartbeats say of its metrics: a snapshot, at most once a second, and none while nothing changes.
/// One thread at a time.
class MetricsNews {
 public:
  static constexpr size_t kMostBytes = 16 << 10;  // a heartbeat stays small
  static constexpr Seconds kPause{1};

  /// Null: there is never any.
  explicit MetricsNews(std::function<metrics::Snapshot()> look) : look_(std::move(look)) {}
  /// Encoded; "": there is none. `last`: the member leaves, and does not wait for the second to pass.
  std::string next(Clock::time_point now, bool last = false);

 private:
  std::function<metrics::Snapshot()> look_;
  std::string told_;
  Clock::time_point at_{};
};

}  // namespace trireme::cluster
