#pragma once
// A parameter server: its models, its doors, and the thread that goes between them.
#include <memory>
#include <optional>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/metrics/metrics.h>
#include <trireme/ps/client.h>

namespace trireme::ps {

struct ServerOptions {
  int server = 0;
  int workers = 1, servers = 1;  // of the job
  int replicas = 0;              // 1: another server stands in for this one (placement.h); all on one machine
  Meeting meeting;
  std::string host = "127.0.0.1";  // several machines: this one, as workers reach it
  Seconds timeout{60};             // for the first worker to come
  Seconds silence{5};              // of a backup that has something to do, until it is given up
  std::optional<int> helpers{};    // threads for long passes; default: helpers_for(workers, servers, usable cores)
  metrics::Registry* registry = nullptr;  // where it counts; null: one of its own
};

/// Serves until all workers have left all models, and the roll if the program keeps one (ps/models.h). `run()` in one
/// thread; stop() from any.
class Server {
 public:
  /// Opens its doors. Throws IoError when its place is taken.
  explicit Server(const ServerOptions& options);
  ~Server();

  /// Blocks. Throws PeerLost when a worker died (after the others have left), Timeout when none came.
  void run();
  /// run() returns soon.
  void stop() noexcept;
  /// run() throws PeerLost for this reason.
  void interrupt(const std::string& reason) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What `trireme serve` does, and a program whose role is server: joins the job that a launcher started this process
/// for, and serves it. Blocks.
void serve(const cluster::Place& place, Seconds timeout = Seconds(60), Seconds heartbeat_limit = Seconds(3));
void serve();
/// Whether a launcher started this process as a server: `if (trireme::ps::is_server()) return trireme::ps::serve(), 0;`
bool is_server();

}  // namespace trireme::ps
