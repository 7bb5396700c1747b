#pragma once
// From one crew to the next: who is left, and their group. With a coordinator it says who is; the ranks of one machine
// without one find out among themselves (muster.h).
#include <memory>
#include <string>

#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/group.h>

namespace trireme::cluster {

/// A session's values for ranks that make groups: a wait ends with PeerLost when the crew changes meanwhile, because
/// whoever is waited for may be lost.
class CrewStore final : public comm::network::KeyValue {
 public:
  explicit CrewStore(Session& session) : session_(session) {}
  /// The site's epoch is the one that waits belong to. It outlives this.
  void follow(const Site& site) { site_ = &site; }
  void put(const std::string& key, const std::string& value) override { session_.put(key, value); }
  std::string get(const std::string& key, const Deadline& deadline) override {
    return session_.get_within(site_ == nullptr ? 0 : site_->epoch(), key, deadline);
  }

 private:
  Session& session_;
  const Site* site_ = nullptr;
};

/// Collective among those who are left of `before`. Begins their epoch. Throws Timeout when somebody who lives does not
/// come.
Group next_group(const std::shared_ptr<Site>& site, const Group& before);
/// The same where there is a coordinator, for a rank of the crew of `epoch`: throws PeerLost when the job has failed or
/// this rank was given up, Dismissed when the next crew does without it.
Group next_group(const std::shared_ptr<Site>& site, uint64_t epoch, Session& session);
/// The first crew that has this newcomer. Waits as long as the job lasts.
Group first_group(const std::shared_ptr<Site>& site, Session& session);

}  // namespace trireme::cluster
