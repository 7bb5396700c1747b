#pragma once
// A model in stages: ranks along the mesh's axis "pipeline" have parts of it, and several micro-batches are under way
// at a time.
//
//   auto pipe  = trireme::pipeline(mesh, trireme::cut(net, 2), {.micro = 8, .schedule = Schedule::zero_bubble});
//   auto train = trireme::parallel(mesh, pipe, trireme::adamw({.lr = 3e-4}), {.zero = 1});
//   train.step(batch, [&](const auto& output, const auto& y) { return loss(output, y); });
//
// Who does what and when is a schedule, a list that was checked before anything starts (stages/schedule.h); one small
// interpreter carries it out (parallel/interpreter.h). Parts are functions of what the part before has given
// (layers/cut.h). A rank trains the parameters of its parts; those of the others become empty when Parallel is made.
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/mesh.h>
#include <trireme/layers/cut.h>
#include <trireme/stages/schedule.h>
#include <trireme/stages/timeline.h>

namespace trireme {

/// gpipe, one_f_one_b, interleaved, zero_bubble.
using Schedule = stages::ScheduleSpec::Name;

/// By its name, or as a spec: `{.name = Schedule::interleaved, .chunks = 2}`, `parse_schedule("file:mine.txt")`.
struct AnySchedule : stages::ScheduleSpec {
  AnySchedule(Schedule name = Schedule::one_f_one_b)  // NOLINT(google-explicit-constructor)
      : ScheduleSpec{.name = name, .chunks = name == Schedule::interleaved ? 2 : 1} {}
  AnySchedule(const ScheduleSpec& spec) : ScheduleSpec(spec) {}  // NOLINT(google-explicit-constructor)
};

struct PipelineOptions {
  int micro = 0;  // micro-batches that a batch is divided into; 0: four for each stage. The batch need not be divisible
  AnySchedule schedule{};
  bool record = false;  // keep when each action of the last step was carried out: see recorded()
};

/// The loss of a micro-batch: what the model's last part gives, and the targets. A mean over samples.
using LossOf = std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& y)>;

/// A handle that is copied freely. One thread at a time. Outlived by the mesh's World.
class Pipeline {
 public:
  /// Collective among the mesh. A mesh without the axis has one stage. Throws InvalidArgument where the parts are not
  /// as many as stages (times chunks of a stage), where a schedule cannot work (with the reason), and Mismatch where
  /// ranks have cut the model elsewhere or ask for something else.
  Pipeline(const Mesh& mesh, layers::Cut cut, const PipelineOptions& options = {});

  int stage() const;
  int stages() const;
  int micro() const;
  torch::nn::Module& module() const;
  /// Of a batch with at least `micro` samples.
  const stages::Schedule& schedule() const;
  /// A sentence: where the model is cut, and why; with fewer micro-batches than stages also what that costs.
  const std::string& reason() const;

  /// Collective among the ranks of a pipeline: what the model's last part makes of x, on ranks of the last stage;
  /// undefined elsewhere. No graph is kept. Ranks of earlier stages do not wait for the later ones.
  torch::Tensor forward(const torch::Tensor& x);
  /// When this rank did what in the last step, in seconds from its beginning; with PipelineOptions::record.
  const std::vector<stages::Span>& recorded() const;
  /// That beginning, by this machine's clock.
  Clock::time_point began() const;

  // ---- for Parallel ----

  /// Whether a stage uses a parameter or buffer, by its first name in the model.
  bool uses(int stage, const std::string& name) const;
  /// The stages that do, in their order.
  std::vector<int> users(const std::string& name) const;
  /// Collective among the users of a parameter: it becomes that of the first of them.
  void take_first(const std::string& name, torch::Tensor& parameter);
  /// What a rank does before it waits, until `enough`.
  using Meanwhile = std::function<void(const std::function<bool()>& enough)>;
  /// Collective among the users of a parameter: the sum of what they have, in their order; who gives nothing
  /// (undefined) gets the others'. Undefined when nobody gives anything.
  torch::Tensor sum(const std::string& name, const torch::Tensor& mine, const Meanwhile& meanwhile);
  /// Chunks of this stage that use a parameter.
  std::vector<int> chunks_of(const std::string& name) const;

  /// Collective among the ranks of a replica, before a step: throws Mismatch on all of them where they have batches of
  /// different sizes (0: no batch), as micro-batches would be missing then.
  void compare_samples(int64_t samples);
  /// A step of this rank.
  struct Work {
    torch::Tensor x, y;
    double weight = 1;  // of the batch; micro-batches have their parts of it
    const LossOf& loss;
    /// The loss of a micro-batch and its weight, on the last stage.
    std::function<void(double loss, double weight)> heard;
    /// Runs what it is given around each backward pass, and around forward passes.
    std::function<void(const std::function<void()>&)> in_forward, in_backward;
    /// A chunk has all gradients of one more micro-batch.
    std::function<void(int chunk)> done;
  };
  void run(const Work& work);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

Pipeline pipeline(const Mesh& mesh, layers::Cut cut, const PipelineOptions& options = {});

}  // namespace trireme
