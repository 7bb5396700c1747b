#include <trireme/base/error.h>
#include <trireme/stages/parcels.h>
#include <trireme/stages/parcels_local.h>
#include <trireme/stages/parcels_remote.h>

namespace trireme::stages {
namespace {

std::vector<int> numbers_on_this_machine(const Group& group) {
  std::vector<int> numbers;
  int next = 0;
  for (int rank = 0; rank < group.size(); rank++)
    numbers.push_back(group.machine_of(rank) == group.machine_of(group.rank()) ? next++ : -1);
  return numbers;
}

}  // namespace

Parcels::Parcels(const Group& pipeline, size_t in_flight)
    : group_(pipeline), local_number_(numbers_on_this_machine(pipeline)) {
  if (in_flight == 0) fail<InvalidArgument>("a pipeline without parcels in flight cannot move: in_flight is 0");
  local_ = std::make_unique<LocalParcels>(group_.local(), in_flight);
  if (auto* network = group_.network())
    remote_ = std::make_unique<RemoteParcels>(*network, group_.local().rounds(), group_.ranks(), in_flight);
}

Parcels::~Parcels() = default;

void Parcels::check(int other, const char* verb, const Label& label) const {
  if (other < 0 || other >= group_.size() || other == group_.rank())
    fail<InvalidArgument>("rank {} of {} cannot {} rank {}: the {}", group_.rank(), group_.describe(), verb, other,
                          describe(label));
}

void Parcels::send(int to, const Label& label, std::span<const TensorView> tensors) {
  check(to, "send to", label);
  if (here(to))
    local_->send(local_number_[static_cast<size_t>(to)], label, tensors);
  else
    remote_->send(to, label, tensors);
}

void Parcels::expect(int from, const Label& label) {
  check(from, "receive from", label);
  if (!here(from)) remote_->expect(from, label);
}

bool Parcels::arrived(int from, const Label& label) {
  check(from, "receive from", label);
  return here(from) ? local_->arrived(local_number_[static_cast<size_t>(from)], label) : remote_->arrived(from, label);
}

Parcel Parcels::receive(int from, const Label& label) {
  check(from, "receive from", label);
  return here(from) ? local_->receive(local_number_[static_cast<size_t>(from)], label) : remote_->receive(from, label);
}

void Parcels::flush() {
  if (remote_) remote_->flush();
}

size_t Parcels::shared_bytes() const { return local_->shared_bytes(); }

}  // namespace trireme::stages
