#pragma once
// Every rank has all parameters and all optimizer state; gradients are allreduced.
#include <deque>

#include <trireme/exchange/exchange.h>
#include <trireme/exchange/lane_sum.h>

namespace trireme::exchange {

/// Each bucket's allreduce starts when it is ready and moves on whenever this rank comes by. Works on any communicator.
/// With a codec sums are made between machines, and all machines have all bits of them alike (lane_sum.h).
class Allreduce final : public Exchange {
 public:
  Allreduce(const Group& group, const space::Layout& layout, const std::optional<space::UpdaterOptions>& optimizer,
            const Options& options);
  ~Allreduce() override;

  void publish() override;
  void ready(size_t bucket) override;
  void close() override;

 private:
  space::Range summed(size_t bucket) const override { return buckets_[bucket].range; }
  void take_sum();
  void look_at_sum_of(size_t bucket);

  comm::Communicator& group_;
  struct Open {
    size_t bucket;
    std::unique_ptr<comm::Work> sum;
  };
  std::deque<Open> open_;
  double squares_ = 0;            // of the sums that are there
  std::optional<LaneSum> coded_;  // with a codec

  Share share_of(int rank, size_t bucket) const override;
  comm::Communicator& group() const override { return group_; }
  int keeper_of(int rank) const override { return coded_ ? coded_->machine_of(rank) : kKeepsNothing; }
  space::Range kept_of(int rank, size_t bucket) const override { return coded_->slice_of(rank, bucket); }
  compress::ErrorFeedback* feedback() override { return coded_ ? coded_->feedback() : nullptr; }
};

/// Zeroes the gradients of a bucket's slots that this rank has none for, so that a sum may include them.
void zero_absent(const space::Layout& layout, const space::Bucket& bucket, const uint8_t* flags, std::byte* gradients);

}  // namespace trireme::exchange
