#pragma once
// `trireme doctor --hosts`: what hosts say about themselves and their links, before anybody trains on them.
#include <memory>
#include <string>

#include <trireme/base/clock.h>

#include "hosts.h"

namespace trireme::tools {

/// Exit code of a preflight's rank 0 that ran to its end and found something.
constexpr int kProblemsExit = 3;

/// Measures and prints; 0 when all is well, 1 when not.
int preflight(const HostsFlags& flags, const std::string& program);

/// The part of one host, which preflight() starts there as a rank; rank 0 prints.
int preflight_probe();

/// Lets others measure their way to this host. Serves, in a thread of its own, whoever knows the secret, one at a time;
/// who says nothing, or something else, keeps nobody waiting.
class Responder {
 public:
  /// On a free port of that address of ours. Throws IoError.
  explicit Responder(const std::string& address);
  ~Responder();
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;

  int port() const { return port_; }
  const std::string& secret() const { return secret_; }

 private:
  struct Thread;
  std::string secret_;
  int port_ = 0;
  std::unique_ptr<Thread> thread_;
};

/// A link as its sending side saw it.
struct MeasuredLink {
  std::string fault;     // why there is no connection; then the rest means nothing
  double latency = 0;    // seconds, of a small round trip
  double bandwidth = 0;  // bits per second
  double clock = 0;      // seconds that the other one's is ahead
};

/// To a responder; sends at full speed for so long. Takes a few seconds at most, and throws nothing.
MeasuredLink measure_link(const std::string& address, int port, const std::string& secret, Seconds streaming);

}  // namespace trireme::tools
