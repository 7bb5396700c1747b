#pragma once
// Every rank has all parameters and all optimizer state; gradients are allreduced.
#include <deque>

#include <trireme/exchange/exchange.h>

namespace trireme::exchange {

/// Each bucket's allreduce starts when it is ready and moves on whenever this rank comes by. Works on any communicator.
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

  comm::Communicator& group_;
  struct Open {
    size_t bucket;
    std::unique_ptr<comm::Work> sum;
  };
  std::deque<Open> open_;
  double squares_ = 0;  // of the sums that are there

  Share share_of(int rank, size_t bucket) const override;
  comm::Communicator& group() const override { return group_; }
};

/// Zeroes the gradients of a bucket's slots that this rank has none for, so that a sum may include them.
void zero_absent(const space::Layout& layout, const space::Bucket& bucket, const uint8_t* flags, std::byte* gradients);

}  // namespace trireme::exchange
