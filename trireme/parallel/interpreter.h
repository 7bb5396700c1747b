#pragma once
// Carries out a rank's row of a schedule: forward and backward passes of its parts of a model, one action after
// another.
//
// It keeps, of each micro-batch under way and each chunk, the leaves that came in, and the places in the graph of what
// went out; outputs themselves belong to the next stage. Gradients of parameters arrive at their leaves, as always.
// Weight parts of backward passes fill waits where the schedule has them: one that is begun because a parcel is not
// there yet is not over when it comes (docs/architecture.md). Not installed.
#include <torch/types.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <trireme/layers/cut.h>
#include <trireme/parallel/pipeline.h>
#include <trireme/parallel/split_backward.h>
#include <trireme/stages/parcels.h>
#include <trireme/stages/schedule.h>

namespace trireme {

/// One thread.
class Interpreter {
 public:
  /// Refers to `parts`, this rank's chunks in their order, and to `parcels`, which outlive it.
  Interpreter(const stages::Schedule& schedule, int stage, std::vector<const layers::Part*> parts,
              stages::Parcels* parcels);

  void run(const Pipeline::Work& work);
  /// When each action was carried out, in seconds from the beginning of run().
  const std::vector<stages::Span>& spans() const { return spans_; }

 private:
  /// A tensor that went out: where its gradient enters the graph, and what it looked like.
  struct Output {
    std::string name;
    torch::autograd::Edge edge;
    std::vector<int64_t> sizes;
    torch::ScalarType type = torch::kFloat32;
  };
  /// A micro-batch in a chunk.
  struct Pass {
    layers::Carried in, out;
    std::vector<Output> outputs;
    torch::autograd::variable_list gradients;  // of outputs, in their order
    std::optional<SplitBackward> split;
  };

  void carry_out(const stages::Action& action);
  void receive_activation(const stages::Action& action, Pass& pass);
  void send_activation(const stages::Action& action, Pass& pass);
  void forward(const stages::Action& action, Pass& pass);
  void end_in_loss(const stages::Action& action, Pass& pass, const torch::Tensor& loss);
  void receive_gradient(const stages::Action& action, Pass& pass);
  void backward(const stages::Action& action, Pass& pass);
  void send_gradient(const stages::Action& action, Pass& pass);
  void hand_down(const stages::Action& action, Pass& pass);
  std::map<std::string, torch::Tensor> gradients_of(Pass& pass);
  void take_gradients(Pass& pass, const std::map<std::string, torch::Tensor>& by_name);
  void end(const stages::Action& action);
  void expect_all();
  stages::Label label_of(const stages::Action& action) const;
  Pass& pass_of(const stages::Action& action) { return passes_[{action.chunk, action.micro}]; }
  bool last(int chunk) const { return stages::is_last(schedule_, stage_, chunk); }
  stages::Partner partner(const stages::Action& action) const { return stages::partner(schedule_, stage_, action); }

  const stages::Schedule& schedule_;
  int stage_;
  std::vector<const layers::Part*> parts_;
  stages::Parcels* parcels_;
  const Pipeline::Work* work_ = nullptr;
  std::vector<torch::Tensor> xs_, ys_;  // by micro-batch
  std::map<std::pair<int, int>, Pass> passes_;
  std::vector<stages::Span> spans_;
};

/// A tensor that lies in a parcel, as long as it is used.
torch::Tensor view_of(const stages::TensorView& tensor, const stages::Parcel& parcel);
/// As it can be sent: row-major or with channels last, and otherwise a row-major copy.
torch::Tensor dense(const torch::Tensor& tensor);
/// Of one that is so.
stages::TensorView view_of(const std::string& name, const torch::Tensor& tensor);

}  // namespace trireme
