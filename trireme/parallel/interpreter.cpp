#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <algorithm>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/parallel/interpreter.h>
#include <trireme/torch/compat.h>

namespace trireme {
namespace {

using stages::Action;
using stages::Kind;
using stages::Label;
using stages::What;
using torch::Tensor;
using torch::autograd::variable_list;

/// In the order of their names, x first: the same on both sides.
void each_tensor(layers::Carried& carried, const std::function<void(const std::string& name, Tensor&)>& visit) {
  visit("", carried.x);
  for (auto& [name, tensor] : carried.kept) visit(name, tensor);
}

/// Something to train with came in: a leaf of this rank's graph.
Tensor leaf_of(const Tensor& tensor) {
  const Tensor leaf = tensor.detach();
  return leaf.is_floating_point() ? leaf.requires_grad_() : leaf;
}

bool wants_gradient(const Tensor& tensor) { return tensor.requires_grad(); }

bool has_channels_last(const Tensor& tensor) {
  return tensor.dim() == 4 && !tensor.is_contiguous() && tensor.is_contiguous(torch::MemoryFormat::ChannelsLast);
}

}  // namespace

Tensor view_of(const stages::TensorView& tensor, const stages::Parcel& parcel) {
  void* const data = const_cast<void*>(tensor.data);  // NOLINT: nobody writes to it
  const auto let_go = [hold = parcel.hold](void*) {};
  const auto options = torch::TensorOptions().dtype(torch_compat::type_of(tensor.dtype));
  if (!tensor.channels_last) return torch::from_blob(data, tensor.sizes, let_go, options);
  return torch::from_blob(data, tensor.sizes, c10::get_channels_last_strides_2d(tensor.sizes), let_go, options);
}

Tensor dense(const Tensor& tensor) { return has_channels_last(tensor) ? tensor : tensor.contiguous(); }

stages::TensorView view_of(const std::string& name, const Tensor& tensor) {
  return {name, torch_compat::dtype_of(tensor.scalar_type()), tensor.sizes().vec(), tensor.data_ptr(),
          has_channels_last(tensor)};
}

Interpreter::Interpreter(const stages::Schedule& schedule, int stage, std::vector<const layers::Part*> parts,
                         stages::Parcels* parcels)
    : schedule_(schedule), stage_(stage), parts_(std::move(parts)), parcels_(parcels) {}

void Interpreter::run(const Pipeline::Work& work) {
  work_ = &work;
  const std::vector<Action>& row = schedule_.rows[static_cast<size_t>(stage_)];
  xs_ = work.x.tensor_split(schedule_.micro);
  ys_ = work.y.tensor_split(schedule_.micro);
  passes_.clear();
  spans_.clear();
  expect_all();
  const auto start = Clock::now();
  for (const Action& action : row) {
    const double begin = seconds_since(start);
    carry_out(action);
    spans_.push_back({stage_, action, begin, seconds_since(start)});
  }
  passes_.clear();
  if (parcels_ != nullptr) parcels_->flush();
}

/// What will come may travel while this rank computes.
void Interpreter::expect_all() {
  for (const Action& action : schedule_.rows[static_cast<size_t>(stage_)])
    if (stages::is_receive(action.kind)) parcels_->expect(partner(action).stage, label_of(action));
}

/// Under which a parcel travels: its receiver's chunk.
Label Interpreter::label_of(const Action& action) const {
  const bool gradient = action.kind == Kind::send_gradient || action.kind == Kind::receive_gradient;
  const int chunk = stages::is_send(action.kind) ? partner(action).action.chunk : action.chunk;
  return {gradient ? What::gradient : What::activation, action.micro, chunk};
}

void Interpreter::carry_out(const Action& action) {
  Pass& pass = pass_of(action);
  switch (action.kind) {
    case Kind::receive_activation:
      return receive_activation(action, pass);
    case Kind::forward:
      return forward(action, pass);
    case Kind::send_activation:
      return send_activation(action, pass);
    case Kind::receive_gradient:
      return receive_gradient(action, pass);
    case Kind::backward:
    case Kind::backward_input:
      return backward(action, pass);
    case Kind::backward_weight:
      work_->in_backward([&] { pass.split->weights(); });
      return end(action);
    case Kind::send_gradient:
      return send_gradient(action, pass);
  }
}

void Interpreter::receive_activation(const Action& action, Pass& pass) {
  const stages::Parcel parcel = parcels_->receive(partner(action).stage, label_of(action));
  for (const stages::TensorView& view : parcel.tensors) {
    const Tensor leaf = leaf_of(view_of(view, parcel));
    (view.name.empty() ? pass.in.x : pass.in.kept[view.name]) = leaf;
  }
}

/// The micro-batch itself, or what was received, or with one stage what the chunk before has given.
void Interpreter::forward(const Action& action, Pass& pass) {
  if (stages::is_first(stage_, action.chunk)) pass.in.x = xs_[static_cast<size_t>(action.micro)];
  if (schedule_.stages == 1 && action.chunk > 0) {
    Pass& before = passes_[{action.chunk - 1, action.micro}];
    pass.in = before.out;
    each_tensor(pass.in, [](const std::string&, Tensor& tensor) { tensor = leaf_of(tensor); });
    before.out = {};
  }
  layers::Carried out;
  work_->in_forward([&] {
    out = parts_[static_cast<size_t>(action.chunk)]->run(pass.in);
    if (last(action.chunk)) out.x = work_->loss(out.x, ys_[static_cast<size_t>(action.micro)]);
  });
  if (last(action.chunk)) return end_in_loss(action, pass, out.x);
  each_tensor(out, [&](const std::string& name, Tensor& tensor) {
    if (wants_gradient(tensor))
      pass.outputs.push_back(
          {name, torch::autograd::impl::gradient_edge(tensor), tensor.sizes().vec(), tensor.scalar_type()});
    tensor = tensor.detach();
  });
  pass.out = std::move(out);
}

void Interpreter::end_in_loss(const Action& action, Pass& pass, const Tensor& loss) {
  if (loss.numel() != 1)
    fail<InvalidArgument>("the loss must be a single number, not a tensor of {} elements", loss.numel());
  const Tensor value = loss.scalar_type() == torch::kBFloat16 ? loss.to(torch::kFloat32) : loss;
  const double samples = static_cast<double>(xs_[static_cast<size_t>(action.micro)].size(0));
  const double weight = work_->weight * samples / static_cast<double>(work_->x.size(0));
  work_->heard(value.item<double>(), weight);
  if (!wants_gradient(value))
    fail<InvalidArgument>("the loss does not depend on what the model's last part gave: return one that does");
  pass.outputs.push_back({"", torch::autograd::impl::gradient_edge(value), value.sizes().vec(), value.scalar_type()});
  pass.gradients.push_back(torch::full_like(value, weight, torch::TensorOptions().requires_grad(false)));
}

void Interpreter::send_activation(const Action& action, Pass& pass) {
  std::vector<Tensor> whole;
  std::vector<stages::TensorView> views;
  each_tensor(pass.out, [&](const std::string& name, Tensor& tensor) {
    whole.push_back(dense(tensor));
    views.push_back(view_of(name, whole.back()));
  });
  parcels_->send(partner(action).stage, label_of(action), views);
  pass.out = {};
}

/// Of a pass's outputs, in their order; zeros where nobody has used one.
void Interpreter::take_gradients(Pass& pass, const std::map<std::string, Tensor>& by_name) {
  for (const Output& output : pass.outputs) {
    const auto found = by_name.find(output.name);
    pass.gradients.push_back(found != by_name.end() ? found->second : torch::zeros(output.sizes, output.type));
  }
}

void Interpreter::receive_gradient(const Action& action, Pass& pass) {
  const stages::Parcel parcel = parcels_->receive(partner(action).stage, label_of(action));
  std::map<std::string, Tensor> by_name;
  for (const stages::TensorView& view : parcel.tensors) by_name[view.name] = view_of(view, parcel);
  take_gradients(pass, by_name);
}

void Interpreter::backward(const Action& action, Pass& pass) {
  torch::autograd::edge_list roots;
  for (const Output& output : pass.outputs) roots.push_back(output.edge);
  pass.outputs.clear();
  variable_list gradients = std::exchange(pass.gradients, {});
  if (action.kind == Kind::backward) {
    work_->in_backward([&] { run_backward(roots, gradients); });
  } else {
    std::vector<Tensor> leaves;
    each_tensor(pass.in, [&](const std::string&, Tensor& tensor) {
      if (wants_gradient(tensor)) leaves.push_back(tensor);
    });
    pass.split.emplace(std::move(roots), leaves);
    work_->in_backward([&] { pass.split->inputs(std::move(gradients)); });
  }
  if (schedule_.stages == 1 && action.chunk > 0) hand_down(action, pass);
  if (action.kind == Kind::backward) end(action);
}

/// With one stage: to the chunk before.
void Interpreter::hand_down(const Action& action, Pass& pass) {
  take_gradients(passes_[{action.chunk - 1, action.micro}], gradients_of(pass));
}

std::map<std::string, Tensor> Interpreter::gradients_of(Pass& pass) {
  std::map<std::string, Tensor> by_name;
  each_tensor(pass.in, [&](const std::string& name, Tensor& tensor) {
    if (wants_gradient(tensor) && tensor.grad().defined()) by_name[name] = dense(tensor.grad());
  });
  pass.in = {};
  return by_name;
}

void Interpreter::send_gradient(const Action& action, Pass& pass) {
  const std::map<std::string, Tensor> gradients = gradients_of(pass);
  std::vector<stages::TensorView> views;
  for (const auto& [name, tensor] : gradients) views.push_back(view_of(name, tensor));
  parcels_->send(partner(action).stage, label_of(action), views);
}

/// Nothing more is expected of a micro-batch's parameters in a chunk. What came in is still to be sent back.
void Interpreter::end(const Action& action) {
  pass_of(action).split.reset();
  work_->done(action.chunk);
}

}  // namespace trireme
