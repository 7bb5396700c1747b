#pragma once
// A user's module, trained by all ranks together.
#include <torch/nn/module.h>

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/plan.h>
#include <trireme/cluster/mesh.h>
#include <trireme/cluster/world.h>
#include <trireme/exchange/balance.h>
#include <trireme/exchange/exchange.h>
#include <trireme/parallel/options.h>
#include <trireme/parallel/pipeline.h>
#include <trireme/state/visitor.h>

namespace trireme {

/// What a call of step() did.
struct Step {
  bool updated = false;  // false while micro-batches accumulate
  double loss = 0;     // weighted mean over all ranks and micro-batches of this update; valid when updated. Where ranks
                       // train on their own, this rank's
  int64_t number = 0;  // updates so far, of this rank
  bool skipped = false;    // with OnNan::skip: the update had a NaN and was not made, nor is it counted. Not updated
                           // then; all ranks in lockstep() see it alike
  std::string reason{};    // of a skipped update: who had it, and where
  bool regrouped = false;  // the crew has changed (Options::elastic): group() is another one. If not updated, the step
                           // was not made, and its samples are divided anew; a Feed does so by itself
  double change_seconds = 0;     // that it took, from the news to the new crew
  double computing_seconds = 0;  // of an update: this rank's forward and backward passes, without what is exchanged
                                 // beside them and what it waits for; 0 in a pipeline
  bool stop = false;  // some rank asked to stop: all ranks see it after the same update, or when they ask for work. Not
                      // updated then: nothing was done
};

/// From construction to destruction the module's parameters are views of the flat space. Parameters may be frozen and
/// unfrozen between steps with requires_grad_(), on all ranks alike. Collective: all ranks of the group that trains it
/// construct, step and destroy in the same order; "all ranks" below are those of the group. One thread at a time.
/// Outlived by its World; the module may outlive it (its parameters become ordinary tensors again; with ZeRO 3 across
/// machines empty ones, as nobody has all of them: save() before).
class Parallel {
 public:
  /// Rank 0's initial parameters and buffers become everybody's. Without an optimizer, step() leaves the mean gradients
  /// in `.grad()` for an optimizer of the user's. Throws Mismatch when ranks' models or settings differ, and names the
  /// first difference.
  Parallel(World& world, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer,
           const ParallelOptions& options = {});
  /// The ranks of a group, such as an axis of a mesh: other groups may train other models at the same time. Modes with
  /// parameter servers need all of the world.
  Parallel(const Group& group, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer,
           const ParallelOptions& options = {});
  /// The ranks of a mesh: those of its axis "data" divide the samples and sum their gradients; those of the others hold
  /// the parts of one model between them, as its layers say (layers/divided.h), and are given the same samples. Without
  /// such an axis all hold parts of one. Checkpoints, hashes, saved files, clipping, NaN and stopping are those of the
  /// whole model: "all ranks" are those of the mesh then, and "rank 0" is the first of them.
  Parallel(const Mesh& mesh, torch::nn::Module& module, std::optional<space::UpdaterOptions> optimizer,
           const ParallelOptions& options = {});
  /// The same with a model in stages along the axis "pipeline", whose module the pipeline has.
  Parallel(const Mesh& mesh, const Pipeline& pipeline, std::optional<space::UpdaterOptions> optimizer,
           const ParallelOptions& options = {});
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  /// Runs `loss` forward and backward and, every `accumulate` calls, updates the parameters. `loss` returns the mean
  /// over its samples, and counts with `weight`; the weights of an update add up to 1 over all ranks and calls. With
  /// weight 0 `loss` is not called: a rank without samples.
  ///
  /// With OnNan::stop, throws NotFinite where a loss or gradient is NaN or infinite, with rank, update and the tensor
  /// that had it first. In lockstep() all ranks throw the same, after the same update (with overlap_next and a
  /// gradient, from the call that looks at its parameters), and may go on, save or load. Otherwise the rank that had it
  /// throws before others see anything of it; they hear that it is gone when it ends. No NaN reaches parameters or
  /// optimizer state. Those of that update are: with a loss, what the other ranks' gradients made of them (as they
  /// were, if all ranks had it); with a gradient and `clip`, as they were; with a gradient and no `clip`, as they were
  /// in the blocks of 1024 elements that had it, and updated elsewhere.
  ///
  /// With OnNan::skip nothing is thrown, and nothing of such an update is applied, on no rank (where ranks go at their
  /// own pace: of this rank's): parameters, optimizer state and buffers are as if its batch had not been there. With an
  /// optimizer of the user's, no parameter has a `.grad()` then. Random numbers that the batch has drawn stay drawn.
  Step step(double weight, const std::function<torch::Tensor()>& loss);
  /// Equal weights: every rank has the same number of samples.
  Step step(const std::function<torch::Tensor()>& loss);
  /// The weight of a batch from the library's loader.
  template <class Batch>
  requires requires(const Batch& batch) {
    { batch.weight } -> std::convertible_to<double>;
  }
  Step step(const Batch& batch, const std::function<torch::Tensor()>& loss) {
    if constexpr (requires { batch.terms; }) use_loader(batch.terms);
    if constexpr (requires { batch.signs; })
      count_samples(batch.epoch, static_cast<double>(batch.samples()), batch.signs);
    return step(static_cast<double>(batch.weight), loss);
  }

  /// Of a pipeline: divides the samples into its micro-batches, carries out its schedule and updates the parameters.
  /// All ranks of a replica give the same x and y; the first stage looks at x, the last at y, which have a sample in
  /// each row. Weights, NaN and stopping as above.
  Step step(double weight, const torch::Tensor& x, const torch::Tensor& y, const LossOf& loss);
  template <class Batch>
  requires requires(const Batch& batch) {
    { batch.weight } -> std::convertible_to<double>;
    { batch.x } -> std::convertible_to<torch::Tensor>;
    { batch.y } -> std::convertible_to<torch::Tensor>;
  }
  Step step(const Batch& batch, const LossOf& loss) {
    if constexpr (requires { batch.terms; }) use_loader(batch.terms);
    if constexpr (requires { batch.signs; })
      count_samples(batch.epoch, static_cast<double>(batch.samples()), batch.signs);
    return step(static_cast<double>(batch.weight), batch.x, batch.y, loss);
  }

  // ---- a crew that changes (exchange::Options::elastic; docs/elastic.md) ----

  /// Whether step() goes through losses and joins: those who are left make the step anew, or go on with the next.
  bool elastic() const;
  /// After a PeerLost of a collective outside of step(): on with those who are left. What comes back is what has become
  /// of a step that was under way. Collective among them: others may be inside of step(), which does the same.
  Step change_crew();
  /// What step() is given next is made of these samples, the sum of whose signs (data::sign_of) this is. Batches of a
  /// Feed say so themselves.
  void count_samples(int64_t epoch, double samples, double signs);
  /// With batches of a Feed, in lockstep: which samples of the epoch that is under way, or was the last, steps were
  /// made with.
  const exchange::Ledger& ledger() const;
  /// All ranks leave out a step with these samples, of all ranks together.
  void leave_out(int64_t epoch, double samples, double signs);
  /// After load_state(): what a checkpoint says of its epoch, which the ledger goes on with. All ranks say the same.
  void take_up(const exchange::Ledger& ledger);
  /// What ranks have settled together outside of steps, such as the result of an evaluation: `number` grows. After a
  /// change of the crew all have the furthest of them, those who come anew too; so nobody does again what others have
  /// done.
  void settle_on(int64_t number, std::string what);
  /// -1: nothing yet.
  const std::pair<int64_t, std::string>& settled_on() const;

  /// Runs `meet`, in which ranks wait for others' steps to end, with the time limit of a step (ParallelOptions::
  /// step_timeout).
  void limited(const std::function<void()>& meet);

  /// With ParallelOptions::balance: how a feed divides the samples of a step, why, and who makes the others wait.
  const exchange::Balance& balance() const;

  /// Makes the next completed update report `stop` on all ranks, and feeds end. Safe in a signal handler.
  void request_stop() noexcept;

  /// Whether every update is one of all ranks together; otherwise each rank goes at its own pace, and what step() is
  /// given counts with its weight among this rank's samples.
  bool lockstep() const;
  /// Where this rank's work comes from, for a data::Feed: its share of every step, or, where work is given, the pieces
  /// that it takes. The schedule follows what was taken; without a feed, this rank's updates. Ends when somebody stops.
  exchange::WorkSource& source();

  /// Runs `look` while the parameters are those that all ranks agree on, and buffers are averaged: for evaluating and
  /// saving. Collective. With ZeRO 3 across machines this is where parameters may be looked at: each machine has all of
  /// them meanwhile, unless all ranks run the same operators in the same order and say so: then they come and go as in
  /// a step.
  enum class Looks { freely, alike };
  void settled(const std::function<void()>& look, Looks looks = Looks::freely);
  /// This rank's way to the parameter servers: push_rows() and pull_rows() of the tables. Throws InvalidArgument when
  /// the mode has no servers.
  ps::Client& servers();
  /// What each parameter server has counted so far, by its number; nothing without servers (docs/metrics.md).
  std::vector<metrics::Snapshot> counted_by_servers();

  /// Runs `change` where it is safe to write to the parameters by hand. Collective; `change` runs on one rank when
  /// ranks share their parameters.
  void exclusive(const std::function<void()>& change);
  /// Of all parameters and buffers, in the order of their registration. Collective, the same on every rank.
  std::string sha256();
  /// Writes all parameters and buffers in safetensors format, from rank 0; tied weights under all their names.
  /// Collective. `metadata` is what the file says besides, such as what the model's inputs are (docs/data.md).
  void save(const std::string& path, const std::map<std::string, std::string>& metadata = {});

  double learning_rate() const;
  const exchange::Exchange& exchange() const;
  /// The ranks that divide the samples of a step.
  const Group& group() const;
  /// All that train it: on a mesh, also those with other parts of the model.
  const Group& whole() const;
  /// "data 2 × tensor 2", where ranks have parts of the model; "" where each has all of it.
  const std::string& mesh() const;

 private:
  /// Batches come from a loader with these terms: found to differ between ranks, they are a Mismatch.
  void use_loader(const std::shared_ptr<const std::string>& terms);

  class Impl;
  std::unique_ptr<Impl> impl_;

 public:
  // State: all that training goes on with, see state/visitor.h. Between updates.

  /// Which rank shows and takes which range of which vector: what the exchange has, and buffers, which all ranks have.
  state::OwnerMap owners() const;
  /// Collective: shows this rank's part. Of buffers it shows the mean over all ranks, and this rank's own.
  void visit(state::Visitor& visitor);
  /// Collective: the same as of now, to be read in another thread while training goes on; of it this rank keeps what
  /// `division` gives its number, as exchange::State says. Hardly takes time where updates are made in the
  /// workers.
  std::shared_ptr<state::Snapshot> snapshot(const state::OwnerMap& division);
  /// Collective: takes this rank's part back. Returns and throws as exchange::State::restore() does; nothing has
  /// changed when it has thrown.
  std::string restore(state::Source& source);

  /// What a checkpoint of it consists of, and who would write it: the same on all ranks.
  checkpoint::Contents contents() const;
  checkpoint::CrewNote crew() const;
  /// Collective: all state in a checkpoint of its own in `dir`, complete when this returns. In a loop that goes on,
  /// Saver (saver.h) and Checkpoints (train/checkpoints.h) do it in the background. Returns its path.
  std::string save_state(const std::string& dir);
  /// Collective: goes on with the newest usable checkpoint of `dir`, or with the one that `dir` is, whatever crew, sync
  /// mode and servers it was saved with. Returns the updates that it has had. Throws as load_state() in saver.h.
  int64_t load_state(const std::string& dir);
};

/// `auto train = trireme::parallel(world, *net, trireme::momentum({.lr = 0.05}));` Where only the exchange is asked
/// something, its options may stand alone: `{.sync = trireme::Sync::async, .clip = 1}`.
Parallel parallel(World& world, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const ParallelOptions& options = {});
Parallel parallel(World& world, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const exchange::Options& options);
/// With an optimizer of the user's own: step() averages the gradients, then call its step().
Parallel parallel(World& world, torch::nn::Module& module,
                  const exchange::Options& options = {.sync = exchange::Sync::allreduce});
Parallel parallel(World& world, torch::nn::Module& module, const ParallelOptions& options);
/// The same for the ranks of a group: `trireme::parallel(mesh.group("data"), *net, …)`
Parallel parallel(const Group& group, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const ParallelOptions& options = {});
Parallel parallel(const Group& group, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const exchange::Options& options);
Parallel parallel(const Group& group, torch::nn::Module& module,
                  const exchange::Options& options = {.sync = exchange::Sync::allreduce});
Parallel parallel(const Group& group, torch::nn::Module& module, const ParallelOptions& options);
/// And of a mesh, for models in parts: `trireme::parallel(world.mesh({{"data", 2}, {"tensor", 2}}), *net, …)`
Parallel parallel(const Mesh& mesh, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const ParallelOptions& options = {});
Parallel parallel(const Mesh& mesh, torch::nn::Module& module, const space::UpdaterOptions& optimizer,
                  const exchange::Options& options);
Parallel parallel(const Mesh& mesh, torch::nn::Module& module,
                  const exchange::Options& options = {.sync = exchange::Sync::allreduce});
Parallel parallel(const Mesh& mesh, torch::nn::Module& module, const ParallelOptions& options);
/// And in stages: `trireme::parallel(mesh, trireme::pipeline(mesh, trireme::cut(net, 2)), …)`
Parallel parallel(const Mesh& mesh, const Pipeline& pipeline, const space::UpdaterOptions& optimizer,
                  const ParallelOptions& options = {});
Parallel parallel(const Mesh& mesh, const Pipeline& pipeline, const space::UpdaterOptions& optimizer,
                  const exchange::Options& options);

}  // namespace trireme
