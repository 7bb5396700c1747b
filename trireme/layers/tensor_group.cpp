#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/layers/tensor_group.h>
#include <trireme/torch/compat.h>

namespace trireme::layers {
namespace {

using torch::Tensor;

bool narrow(const Tensor& tensor) {
  return tensor.scalar_type() == torch::kBFloat16 || tensor.scalar_type() == torch::kFloat16;
}

bool has_tensor_axis(const Mesh& mesh) {
  return std::any_of(mesh.axes().begin(), mesh.axes().end(), [](const Axis& axis) { return axis.name == "tensor"; });
}

size_t count_of(const Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

/// [ranks, …] with one part for each becomes one tensor, parts one behind the other along `dim`.
Tensor joined(const Tensor& parts, int64_t dim) { return parts.movedim(0, dim).flatten(dim, dim + 1).contiguous(); }

/// The other way round.
Tensor separated(const Tensor& whole, int64_t dim, int64_t ranks) {
  return whole.unflatten(dim, {ranks, whole.size(dim) / ranks}).movedim(dim, 0).contiguous();
}

}  // namespace

TensorGroup::TensorGroup(const Group& group) {
  if (group.size() > 1) state_ = c10::make_intrusive<State>(group);
}

TensorGroup::TensorGroup(const Mesh& mesh) {
  if (has_tensor_axis(mesh)) *this = TensorGroup(mesh.group("tensor"));
}

int TensorGroup::rank() const { return alone() ? 0 : state_->group.rank(); }
int TensorGroup::size() const { return alone() ? 1 : state_->group.size(); }

int64_t TensorGroup::share_of(std::string_view what, int64_t extent) const {
  const int64_t ranks = size();
  if (extent < 1) fail<InvalidArgument>("{} {}: at least 1", what, extent);
  if (extent % ranks == 0) return extent / ranks;
  const int64_t below = extent / ranks * ranks, above = below + ranks;
  const std::string nearest = below > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above);
  fail<InvalidArgument>("{} {} cannot be divided among {} tensor ranks: use {}", what, extent, ranks, nearest);
}

torch::Tensor TensorGroup::part_of(const Tensor& whole, int64_t dim) const {
  if (alone()) return whole;
  const int64_t extent = share_of("a tensor's extent of", whole.size(dim));
  return whole.narrow(dim, rank() * extent, extent);
}

void TensorGroup::allreduce(Tensor& data, Op op) const {
  if (alone() || data.numel() == 0) return;
  if (narrow(data) && op != Op::max) {
    Tensor wide = data.to(torch::kFloat32);
    allreduce(wide, op);
    data.copy_(wide);
    return;
  }
  state_->group.comm().allreduce(data.data_ptr(), count_of(data), torch_compat::dtype_of(data.scalar_type()), op,
                                 "sum over tensor ranks");
}

torch::Tensor TensorGroup::all_gather(const Tensor& part, int64_t dim) const {
  if (alone()) return part;
  const int64_t along = dim < 0 ? dim + part.dim() : dim;
  const Tensor mine = part.contiguous();
  std::vector<int64_t> sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), size());
  const Tensor parts = torch::empty(sizes, mine.options());
  state_->group.comm().all_gather(mine.data_ptr(), parts.data_ptr(), count_of(mine),
                                  torch_compat::dtype_of(mine.scalar_type()), "parts of tensor ranks");
  return joined(parts, along);
}

torch::Tensor TensorGroup::reduce_scatter(const Tensor& whole, int64_t dim) const {
  if (alone()) return whole;
  if (narrow(whole)) return reduce_scatter(whole.to(torch::kFloat32), dim).to(whole.scalar_type());
  const int64_t along = dim < 0 ? dim + whole.dim() : dim;
  share_of("a tensor's extent of", whole.size(along));
  const Tensor parts = separated(whole, along, size());
  const Tensor mine = torch::empty(parts.sizes().slice(1), parts.options());
  state_->group.comm().reduce_scatter(parts.data_ptr(), mine.data_ptr(), count_of(mine),
                                      torch_compat::dtype_of(mine.scalar_type()), Op::sum,
                                      "sum of tensor ranks' parts");
  return mine;
}

c10::IValue TensorGroup::kept() const { return c10::IValue::make_capsule(state_); }

TensorGroup TensorGroup::from(const c10::IValue& kept) {
  TensorGroup group;
  group.state_ = c10::static_intrusive_pointer_cast<State>(kept.toCapsule());
  return group;
}

}  // namespace trireme::layers
