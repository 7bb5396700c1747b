#pragma once
// No lock at all: every rank updates the one copy of the parameters whenever it has a gradient.
#include <trireme/exchange/exchange.h>
#include <trireme/exchange/pile.h>

namespace trireme::exchange {

/// For one machine. Ranks read parameters while others write them, and updates of the same element may be lost: with
/// small or sparse steps that is rare and training gets over it (Niu et al., 2011). Momentum and other state are each
/// rank's own, whatever the rate. Not reproducible.
class Hogwild final : public Exchange {
 public:
  Hogwild(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
          const Options& options);

  void publish() override;
  void ready(size_t bucket) override;
  void close() override;
  void settle() override { local_.barrier("settle"); }

 private:
  bool begin_step(std::optional<int64_t> leased) override;

  comm::shm::Communicator& local_;
  Pile* pile_ = nullptr;  // the source

  Share share_of(int rank, size_t bucket) const override;
  comm::Communicator& group() const override { return local_; }
  void come_to_rest() override { local_.barrier("rest"); }
  Scalars scalars() override;
  void restore_scalars(const std::vector<int64_t>& values) override;
};

}  // namespace trireme::exchange
