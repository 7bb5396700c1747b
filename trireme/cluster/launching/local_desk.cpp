#include <cstring>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/cluster/coordination/reach.h>
#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/launching/local_desk.h>

namespace trireme::cluster {
namespace {

constexpr const char* kElastic = "/elastic";
constexpr Seconds kSilence{30};  // of the desk: it is a machine with too much to do

CoordinatorOptions options_of(const std::string& name, const std::string& token, const std::string& job, int ranks,
                              const Elasticity& elasticity, Seconds silence) {
  CoordinatorOptions options;
  options.socket = name;
  options.job = job;
  options.token = token;
  options.ranks = ranks;
  options.heartbeat_limit = silence;
  if (!elasticity.elastic()) return options;
  options.on_loss = OnLoss::change_crew;
  options.least = elasticity.least;
  options.most = elasticity.most;
  options.rejoin_timeout = elasticity.rejoin_timeout;
  return options;
}

}  // namespace

LocalDesk::LocalDesk(const std::string& job, int ranks, const Elasticity& elasticity, Seconds silence)
    : name_("trireme-desk-" + random_name()),
      token_(random_name() + random_name()),
      variable_(name_ + "/" + token_ + (elasticity.elastic() ? kElastic : "")),
      ranks_(ranks),
      coordinator_(options_of(name_, token_, job, ranks, elasticity, silence)) {}

CrewView LocalDesk::crew() {
  coordinator_.take_events();
  const Snapshot now = coordinator_.snapshot();
  std::vector<int> ranks = now.crew.ranks;
  if (!now.crew.underway) {  // some may not have come yet
    ranks.resize(static_cast<size_t>(ranks_));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return {.epoch = now.crew.epoch,
          .ranks = std::move(ranks),
          .target = now.crew.target,
          .complete = now.crew.underway,
          .over = now.crew.over,
          .closing = now.crew.closing,
          .lost = now.crew.lost,
          .failure = now.failures.empty() ? "" : now.failures.front().reason};
}

bool elastic_desk(const std::string& variable) { return variable.ends_with(kElastic); }

SessionOptions desk_session(const std::string& variable) {
  const std::string where =
      elastic_desk(variable) ? variable.substr(0, variable.size() - std::strlen(kElastic)) : variable;
  const size_t slash = where.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == where.size())
    fail<InvalidArgument>("TRIREME_DESK='{}' is not what a launcher says: unset it", variable);
  SessionOptions options;
  options.coordinator = kUnixSocket + where.substr(0, slash);
  options.token = where.substr(slash + 1);
  options.heartbeat_limit = kSilence;
  return options;
}

}  // namespace trireme::cluster
