#pragma once
// How gradients become new parameters. Each way of synchronising is one small implementation.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/space/layout.h>
#include <trireme/space/updater.h>

namespace trireme::exchange {

enum class Sync : uint8_t { shared, allreduce, central };

struct Options {
  Sync sync = Sync::shared;
  size_t bucket_bytes = 1 << 20;  // gradients travel in buckets of about this size
  bool overlap = true;            // work on complete buckets while the backward pass goes on
};

/// Who trains together. A *lane* joins one rank of every machine; there are as many lanes as the machine with the fewest ranks has ranks.
struct Group {
  comm::Communicator& all;
  comm::shm::Communicator& local;               // the ranks of this machine
  comm::network::Communicator* lane = nullptr;  // this rank's, machine by machine; null with one machine, and for a rank beyond the number of lanes
  int lanes = 1;

  Group(comm::Communicator& all, comm::shm::Communicator& local, comm::network::Communicator* lane, int lanes)
      : all(all), local(local), lane(lane), lanes(lanes) {}
  /// One machine.
  Group(comm::shm::Communicator& local) : all(local), local(local), lanes(local.size()) {}  // NOLINT: a machine's ranks are a group
  bool one_machine() const { return all.size() == local.size(); }
};

/// Numbers that travel with a step: its loss, and whether a rank wants to stop.
using Told = std::array<double, 2>;

/// One step: begin(), then for every slot with a gradient write it to gradients() and call present(), ready() for each bucket in order, finish().
/// Gradients are summed over ranks: whoever wants a mean weights them before. Not thread-safe.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// The flat vectors. All slots of the layout are views of these.
  virtual std::byte* parameters() const = 0;
  virtual std::byte* gradients() const = 0;
  /// Collective: rank 0's parameters become everybody's.
  virtual void publish_parameters() = 0;
  /// True when all ranks of a machine look at the same memory: one rank writes, and publish_parameters() carries it to the other machines.
  virtual bool parameters_are_shared() const = 0;

  void begin(double lr);
  /// This rank's gradient of a slot is in place. Slots that no rank has a gradient for are left as they are, like libtorch
  /// does (but Adam's bias correction counts steps of the run, not of the slot).
  void present(size_t slot) { flags()[slot] = 1; }
  /// All gradients of a bucket are in place, or will not come. Buckets become ready in the order of buckets(); may do work, does not wait.
  virtual void ready(size_t bucket) = 0;
  /// Blocks until this step's parameters are in place on this rank and may be used.
  virtual void finish() = 0;

  /// A few numbers of this rank's, before the last bucket's ready().
  void tell(const Told& numbers) { mine_ = numbers; }
  /// After finish(): their sums over all ranks, the same bits everywhere, if this exchange carries them along with the gradients; null if it does not.
  virtual const Told* told() const { return nullptr; }

  /// After finish() of an exchange without optimizer: whether any rank had a gradient for the slot.
  bool was_present(size_t slot) const { return flags()[slot] != 0; }

  const space::Layout& layout() const { return layout_; }
  const std::vector<space::Bucket>& buckets() const { return buckets_; }
  /// Null when the user keeps an optimizer: then finish() leaves the summed gradients in gradients().
  const space::Updater* updater() const { return updater_ ? &*updater_ : nullptr; }

 protected:
  Exchange(space::Layout layout, const Options& options);
  /// One byte per slot: this rank has a gradient for it.
  virtual uint8_t* flags() const = 0;

  space::Layout layout_;
  Options options_;
  Told mine_{};
  std::vector<space::Bucket> buckets_;
  std::optional<space::Updater> updater_;
};

/// Collective. Throws Mismatch that names the first parameter in which ranks' layouts differ. Without an optimizer, `sync` must be allreduce.
std::unique_ptr<Exchange> make_exchange(const Group& group, const space::Layout& layout, const std::optional<space::UpdaterOptions>& optimizer,
                                        const Options& options);

Sync sync_named(const std::string& name);
std::string name_of(Sync sync);
std::vector<std::string> sync_names();

}  // namespace trireme::exchange
