#include <trireme/exchange/allreduce.h>
#include <trireme/exchange/central.h>

namespace trireme::exchange {

Central::Central(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
                 const Options& options)
    : Exchange(layout, options, {}), group_(group.all) {
  berth_.emplace(group.all, group.local, layout_.fingerprint());
  vectors_ = own_vectors(group.local.rank());
  source_ = std::make_unique<OwnShare>(group_.rank(), group_.size());
  std::vector<space::Range> all = bucket_ranges();
  if (group_.rank() == 0) incoming_ = space::Arena::of_process(layout_.bytes());
  if (group_.rank() != 0) all.assign(all.size(), {});  // optimizer state lives on rank 0 alone
  updater_.emplace(optimizer, all, false, berth_->state(optimizer.kind, layout_, buckets_, all, true));
}

Central::~Central() { before_writing(); }

void Central::publish() {
  if (group_.rank() != 0) before_writing();
  group_.broadcast(parameters(), layout_.bytes(), DType::u8, 0, "parameters");
  complete();
}

void Central::close() {
  for (const space::Bucket& bucket : buckets_) zero_absent(layout_, bucket, flags(), gradients());
  group_.allreduce(flags(), layout_.size(), DType::u8, Op::max, "which parameters have gradients");
  if (group_.rank() != 0) group_.send(gradients(), layout_.bytes(), DType::u8, 0, "gradients");
  if (group_.rank() == 0) {
    for (size_t bucket = 0; bucket < buckets_.size(); bucket++) look(bucket, buckets_[bucket].range);
    for (int from = 1; from < group_.size(); from++) {
      group_.receive(incoming_.data(), layout_.bytes(), DType::u8, from, "gradients");
      for (const space::Bucket& b : buckets_)
        space::kernels().accumulate(b.dtype, gradients() + b.range.begin, incoming_.data() + b.range.begin,
                                    b.range.size() / size_of(b.dtype));
    }
    if (!whole_first() || clip_here()) update_all();
  }
  publish();
  uint8_t sound = outcome_.sound ? 1 : 0;
  if (watches()) group_.broadcast(&sound, 1, DType::u8, 0, "whether all gradients were finite");
  outcome_.sound = sound != 0;
}

Exchange::Share Central::share_of(int rank, size_t bucket) const {
  return {.parameters = buckets_[bucket].range, .updated = rank == 0 ? buckets_[bucket].range : space::Range{}};
}

}  // namespace trireme::exchange
