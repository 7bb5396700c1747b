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
  Statistics statistics();

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
  std::optional<Statistics> statistics() override { return client_.statistics(); }
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
};

}  // namespace trireme::exchange
