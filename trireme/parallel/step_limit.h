#pragma once
// How long a step may take. In a step, and where a rank asks for work, it waits for another rank or a server no longer
// than ParallelOptions::step_timeout; then it throws Timeout that names who did not come, and what was waited for. A
// step that took longer on this rank, whoever it waited for, is a Timeout when it is done. All other waits (joining,
// evaluating, saving, between epochs) have the world's timeout. A rank that hangs is found by those who wait for it:
// alone, it is not.
#include <initializer_list>
#include <string>
#include <vector>

#include <trireme/base/advice.h>
#include <trireme/cluster/group.h>
#include <trireme/exchange/exchange.h>

namespace trireme {

/// From construction to destruction, waits of groups and an exchange have a limit of their own. None, if it is 0 s. A
/// group may be null.
class StepLimit {
 public:
  StepLimit(std::initializer_list<const Group*> groups, exchange::Exchange& exchange, const WaitLimit& limit)
      : groups_(groups), exchange_(exchange) {
    if (limit.timeout.count() <= 0) groups_.clear();
    if (!groups_.empty()) set(&limit);
  }
  ~StepLimit() {
    if (!groups_.empty()) set(nullptr);
  }
  StepLimit(const StepLimit&) = delete;
  StepLimit& operator=(const StepLimit&) = delete;

 private:
  void set(const WaitLimit* limit) {
    for (const Group* group : groups_)
      if (group != nullptr) group->limit_waits(limit);
    if (ps::Client* const client = exchange_.client()) client->limit_waits(limit);
  }
  std::vector<const Group*> groups_;
  exchange::Exchange& exchange_;
};

/// Why the job ends after a step that took so long on a rank; "" when it does not. Pure.
std::string too_long(int64_t update, int rank, Seconds taken, const WaitLimit& limit);

}  // namespace trireme
