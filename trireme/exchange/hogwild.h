#pragma once
// No lock at all: every rank updates the one copy of the parameters whenever it has a gradient.
#include <trireme/exchange/exchange.h>

namespace trireme::exchange {

/// For one machine. Ranks read parameters while others write them, and updates of the same element may be lost: with
/// small or sparse steps that is rare and training gets over it (Niu et al., 2011). Momentum and other state are each
/// rank's own, whatever the rate. Not reproducible.
class Hogwild final : public Exchange {
 public:
  Hogwild(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
          const Options& options);

  std::byte* parameters() const override { return parameters_.parts[0]; }
  std::byte* gradients() const override { return gradients_.data(); }
  bool parameters_are_shared() const override { return true; }
  void publish_parameters() override { local_.barrier("parameters"); }
  void ready(size_t bucket) override;
  void close() override;
  bool lockstep() const override { return false; }
  bool gives_work() const override { return true; }
  ps::Work take(int64_t epoch, int64_t first_step, int64_t pieces) override;
  void settle() override { local_.barrier("settle"); }

 private:
  struct Desk;
  bool begin_step() override;
  bool ask_to_stop();
  uint8_t* flags() const override { return flags_.get(); }
  Desk& desk() const;

  comm::shm::Communicator& local_;
  comm::shm::SharedBlock parameters_, desk_;
  space::Arena gradients_;
  std::unique_ptr<uint8_t[]> flags_;
  bool taken_ = false;  // the next step is that of a piece from the desk
};

}  // namespace trireme::exchange
