#pragma once
// Gradients go to parameter servers, which update and give the parameters back.
#include <trireme/exchange/exchange.h>
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

/// A bucket is pushed when it is ready, while backward goes on; the answer brings its new parameters, which this rank's
/// backward needs no more. With `server` on one machine there is nothing to bring: ranks see the servers' memory, as
/// with Shared, and the bits are the same.
///
/// With `async`, `stale` and `trylock` the ranks ask for their work. A rank's clock is the step of its piece of work:
/// under `stale:S` it may take one of step t only when all pieces of steps before t − S are done.
///
/// With Options::clip in lockstep, servers hold the gradients back until worker 0, who adds up their squares, tells
/// them the factor.
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
  std::vector<metrics::Snapshot> counted_by_servers() override { return client_->counted(); }
  ps::Client* client() override { return &*client_; }

 private:
  bool begin_step(std::optional<int64_t> leased) override;
  bool lands_later() const;
  space::Range whole() const { return {0, layout_.bytes()}; }
  void push(size_t bucket);
  void push_all();
  void push_clipped();
  bool wins_lock();

  Connected client_;
  std::vector<ps::Pending>
      pushes_;  // of this step, by bucket, until they have landed; with clip in lockstep pulls, in the end
  ps::Pending applied_;
  int64_t step_ = 0;

  // Servers keep the state; ranks carry it.
  state::OwnerMap owners() const override { return client_->state_owners(); }
  comm::Communicator& group() const override { return group_; }
  void come_to_rest() override { settle(); }
  state::About about() const override { return client_->about_state(); }
  std::vector<state::Part> parts() override { return client_->state_parts(); }
  Scalars scalars() override;
  void restore_scalars(const std::vector<int64_t>& values) override;
  void visit_elsewhere(state::Visitor& visitor) override { client_->visit_state(visitor); }
  void restore_elsewhere(state::Source& source) override { client_->restore_state(source); }

  comm::Communicator& group_;
};

}  // namespace trireme::exchange
