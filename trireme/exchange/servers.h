#pragma once
// Gradients go to parameter servers, which update and give the parameters back.
#include <trireme/exchange/exchange.h>
#include <trireme/exchange/push_coding.h>
#include <trireme/ps/client.h>

namespace trireme::exchange {

/// A model of this rank's on the servers of `world`, interrupted when the job fails. Collective: models are numbered in
/// the order of their making. While the world lives, this rank is on the servers' roll, so that they stay when it is in
/// no model.
class Connected {
 public:
  Connected(const Group& group, ps::Job job, bool in_place);
  ~Connected();
  Connected(const Connected&) = delete;
  Connected& operator=(const Connected&) = delete;
  ps::Client& operator*() const { return *client_; }
  ps::Client* operator->() const { return client_.get(); }

 private:
  ps::Client& roll_;
  std::unique_ptr<ps::Client> client_;
  FailureWatch watch_;  // last: it uses the client
};

/// Puts this rank on the roll of the servers of `world`, for a model that has no use for them: they stay as long as the
/// job, and end with it. Collective, as it waits for the servers.
void keep_on_roll(World& world);

/// A bucket is pushed when it is ready, while backward goes on; the answer brings its new parameters, which this rank's
/// backward needs no more. With `server` on one machine there is nothing to bring: ranks see the servers' memory, as
/// with Shared, and the bits are the same.
///
/// With `async`, `stale` and `trylock` the ranks ask for their work. A rank's clock is the step of its piece of work:
/// under `stale:S` it may take one of step t only when all pieces of steps before t − S are done.
///
/// With Options::clip in lockstep, servers hold the gradients back until worker 0, who adds up their squares, tells
/// them the factor.
///
/// With a codec, what goes to servers on other machines is encoded, and workers keep what was left out of their own
/// gradients. One that a lock drops was never encoded: what is kept stays as it was.
class Servers final : public Exchange {
 public:
  Servers(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
          const Options& options);

  void publish() override;
  void ready(size_t bucket) override;
  void close() override;
  void await(space::Range part) override;
  void land() override;
  void settle() override;

 private:
  bool begin_step(std::optional<int64_t> leased) override;
  bool lands_later() const;
  space::Range whole() const { return {0, layout_.bytes()}; }
  void push(size_t bucket);
  void push_all();
  void push_clipped();
  bool wins_lock();
  void find_keepers();

  Connected client_;
  std::vector<ps::Pending>
      pushes_;  // of this step, by bucket, until they have landed; with clip in lockstep pulls, in the end
  ps::Pending applied_;
  int64_t step_ = 0;
  bool applies_ = true;               // this rank's gradient of the step, as far as it knows
  std::optional<PushCoding> coding_;  // with a codec, where a server is on another machine
  std::vector<uint8_t> keepers_;      // with a codec, by rank: it has coding_
  int64_t encoded_ = 0;               // steps

  // Servers keep the state; ranks carry it.
  state::OwnerMap owners() const override;
  int keeper_of(int rank) const override {
    return !keepers_.empty() && keepers_[static_cast<size_t>(rank)] != 0 ? rank : kKeepsNothing;
  }
  space::Range kept_of(int /*rank*/, size_t bucket) const override { return buckets_[bucket].range; }
  compress::ErrorFeedback* feedback() override { return coding_ ? &coding_->feedback() : nullptr; }
  comm::Communicator& group() const override { return group_; }
  void come_to_rest() override { settle(); }
  state::About about() const override { return client_->about_state(); }
  std::vector<state::Part> parts() override;
  Scalars scalars() override;
  void restore_scalars(const std::vector<int64_t>& values) override;
  void visit_elsewhere(state::Visitor& visitor) override { client_->visit_state(visitor); }
  void restore_elsewhere(state::Source& source) override { client_->restore_state(source); }

  comm::Communicator& group_;
  World& world_;
};

}  // namespace trireme::exchange
