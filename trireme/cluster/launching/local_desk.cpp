#include <trireme/base/error.h>
#include <trireme/cluster/coordination/reach.h>
#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/launching/local_desk.h>

namespace trireme::cluster {
namespace {

/// A death is seen at once, by a stream that ends. Silence is a machine with too much to do.
constexpr Seconds kSilence{30};

CoordinatorOptions options_of(const std::string& name, const std::string& token, const std::string& job, int ranks,
                              OnLoss on_loss) {
  CoordinatorOptions options;
  options.socket = name;
  options.job = job;
  options.token = token;
  options.ranks = ranks;
  options.heartbeat_limit = kSilence;
  options.on_loss = on_loss;
  return options;
}

}  // namespace

LocalDesk::LocalDesk(const std::string& job, int ranks, OnLoss on_loss)
    : name_("trireme-desk-" + random_name()),
      token_(random_name() + random_name()),
      variable_(name_ + "/" + token_),
      coordinator_(options_of(name_, token_, job, ranks, on_loss)) {}

SessionOptions desk_session(const std::string& variable) {
  const size_t slash = variable.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == variable.size())
    fail<InvalidArgument>("TRIREME_DESK='{}' is not what a launcher says: unset it", variable);
  SessionOptions options;
  options.coordinator = kUnixSocket + variable.substr(0, slash);
  options.token = variable.substr(slash + 1);
  options.heartbeat_limit = kSilence;
  return options;
}

}  // namespace trireme::cluster
