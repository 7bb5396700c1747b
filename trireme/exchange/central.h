#pragma once
// The teaching baseline: everything goes through rank 0.
#include <trireme/exchange/exchange.h>

namespace trireme::exchange {

/// Ranks send their gradients to rank 0, which sums them, updates, and broadcasts the parameters. Rank 0's time grows
/// with the number of ranks: compare it with Shared and Allreduce to see why nobody trains like this.
class Central final : public Exchange {
 public:
  Central(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
          const Options& options);
  ~Central() override;

  void publish() override;
  void ready(size_t) override {}
  void close() override;

 private:
  space::Range summed(size_t bucket) const override {
    return group_.rank() == 0 ? buckets_[bucket].range : space::Range{};
  }

  comm::Communicator& group_;
  space::Arena incoming_;

  Share share_of(int rank, size_t bucket) const override;
  comm::Communicator& group() const override { return group_; }
};

}  // namespace trireme::exchange
