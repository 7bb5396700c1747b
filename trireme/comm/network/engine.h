#pragma once
// Engines by name. Those that need a library of their own (c10d: libtorch, mpi: Open MPI) are added by whoever links
// them.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <trireme/comm/network/transport.h>
#include <trireme/metrics/metrics.h>

namespace trireme::comm::network {

/// Small values that all ranks of a job can see.
class KeyValue {
 public:
  virtual ~KeyValue() = default;
  virtual void put(const std::string& key, const std::string& value) = 0;
  /// Blocks until somebody has put it. Throws Timeout, or PeerLost when the job has failed.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
};

/// A value of the store that is a whole number. Throws Corruption that names the key and what stands there.
uint64_t number_under(const std::string& key, const std::string& value);

/// What a job's ranks know each other by. Engines that protect what they carry need it, the others do not look.
struct Secrets {
  std::string job;                          // its name, or what stands for it: two jobs may have one token
  std::string token;                        // whoever has it belongs to the job
  std::string authority, certificate, key;  // PEM, of the folder that --tls names; empty: the token has to do
};

/// Who is to be connected. `name` is the same in all ranks of the group and different between groups.
struct Meeting {
  KeyValue& store;
  std::string name;
  int rank = 0, size = 1;  // in this group
  std::string address;     // of this host, as the others reach it
  Seconds timeout{60};
  Secrets secrets{};
  metrics::Registry* registry = nullptr;           // where it is counted who was turned away; null: nowhere
  std::function<void(const std::string&)> note{};  // of what the user should know; may be empty
};

struct Engine {
  std::string name;         // "gloo"
  std::string description;  // "Gloo of libtorch 1.13.1"
  /// Collective among the ranks of the meeting. Throws Timeout with the ranks that did not come.
  std::function<std::unique_ptr<Transport>(const Meeting&)> connect;
  bool secure = false;  // every byte is authenticated, and encrypted; others are for trusted networks
};

/// Before main() or before the first join(). Not thread-safe.
void add_engine(Engine engine);
/// Throws InvalidArgument that says why, and what there is, when there is no such engine.
const Engine& engine_named(const std::string& name);
std::vector<std::string> engine_names();

}  // namespace trireme::comm::network
