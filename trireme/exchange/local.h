#pragma once
// Ranks train alone, and meet every few steps.
#include <trireme/exchange/exchange.h>
#include <trireme/exchange/servers.h>

namespace trireme::exchange {

/// `local:K`: after K steps of its own each rank takes the mean of all ranks' parameters; through the servers if there
/// are some, with an allreduce otherwise. `elastic:K,RHO`: after K steps a rank and the centre on the servers move
/// towards each other by RHO of their distance; nobody waits for anybody. The trained model is the centre. Optimizer
/// state stays with the ranks.
///
/// `diloco:K`: after K steps of its own the ranks have moved from the parameters that they agreed on; the mean of that,
/// turned around, is the gradient of one step of an outer optimizer, Nesterov's momentum, which all make alike from the
/// same sums (Douillard et al., 2023). So they meet as seldom as with `local`, and what they have learnt goes on in
/// between. settle() meets too, if a step was made since.
class Local final : public Exchange {
 public:
  Local(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
        const Options& options);
  ~Local() override;

  void publish() override;
  void ready(size_t) override {}
  void close() override;
  void settle() override;
  void resume() override;

 private:
  bool begin_step(std::optional<int64_t> leased) override;
  space::Range whole() const { return {0, layout_.bytes()}; }
  void meet();
  void average();
  void draw_nearer();
  void outer_step();
  void take_mean(std::byte* flat);

  comm::Communicator& group_;
  std::optional<Connected> servers_;
  space::Arena own_;                // elastic: this rank's parameters while the centre is looked at
  space::Arena agreed_, momentum_;  // diloco: as of the last meeting, the same on all ranks
  int64_t since_ = 0;               // diloco: steps after that
  int64_t steps_ = 0;

  state::OwnerMap owners() const override;
  Share share_of(int rank, size_t bucket) const override;
  comm::Communicator& group() const override { return group_; }
  bool follows_writes() const override { return true; }
  void come_to_rest() override;
  std::vector<state::Part> parts() override;
  Scalars scalars() override;
  void restore_scalars(const std::vector<int64_t>& values) override;
  bool may_lack(const std::string& vector) const override;
  void restore_elsewhere(state::Source& source) override;
};

}  // namespace trireme::exchange
