#include <torch/types.h>

#include <trireme/base/process.h>
#include <trireme/data/loader.h>
#include <trireme/exchange/terms.h>

namespace trireme::data {
namespace {

template <class To, class From>
void gather(const Dataset& set, const uint32_t* order, size_t count, To* out) {
  const size_t elements = set.elements();
  const auto* in = reinterpret_cast<const From*>(set.inputs);
  const To scale = static_cast<To>(set.scale);
  for (size_t i = 0; i < count; i++) {
    const From* sample = in + static_cast<size_t>(order[i]) * elements;
    To* row = out + i * elements;
    for (size_t e = 0; e < elements; e++) row[e] = static_cast<To>(sample[e]) * scale;
  }
}

template <class To>
void gather_any(const Dataset& set, const uint32_t* order, size_t count, To* out) {
  set.dtype == DType::u8 ? gather<To, uint8_t>(set, order, count, out) : gather<To, float>(set, order, count, out);
}

torch::Tensor gather_targets(const Dataset& set, const uint32_t* order, size_t count, torch::Dtype dtype) {
  const auto rows = static_cast<int64_t>(count);
  if (set.task == Task::classify) {
    auto labels = torch::empty({rows}, torch::kInt64);
    for (size_t i = 0; i < count; i++) labels.data_ptr<int64_t>()[i] = set.labels[order[i]];
    return labels;
  }
  auto targets = torch::empty({rows, 1}, torch::kFloat32);
  for (size_t i = 0; i < count; i++) targets.data_ptr<float>()[i] = set.targets[order[i]];
  return targets.to(dtype);
}

}  // namespace

Batch make_batch(const Dataset& set, const std::vector<uint32_t>& order, size_t begin, size_t end, torch::Dtype dtype) {
  Batch batch;
  if (begin == end) return batch;
  std::vector<int64_t> shape = set.shape;
  shape.insert(shape.begin(), static_cast<int64_t>(end - begin));
  batch.x = torch::empty(shape, dtype);
  if (dtype == torch::kFloat64)
    gather_any(set, order.data() + begin, end - begin, batch.x.data_ptr<double>());
  else
    gather_any(set, order.data() + begin, end - begin, batch.x.data_ptr<float>());
  batch.y = gather_targets(set, order.data() + begin, end - begin, dtype);
  return batch;
}

Batch cut_batch(const Dataset& set, const Cut& cut, const std::vector<uint32_t>& order, size_t step, int rank,
                int micro, torch::Dtype dtype) {
  const Piece piece = piece_of(cut, step, rank, micro);
  Batch batch = make_batch(set, order, piece.begin, piece.end, dtype);
  batch.weight = piece.weight;
  batch.step = step;
  batch.micro = micro;
  return batch;
}

Epoch::Epoch(const Dataset& set, const Cut& cut, int rank, int64_t number, const LoaderOptions& options,
             std::shared_ptr<const std::string> terms)
    : set_(set),
      cut_(cut),
      rank_(rank),
      number_(number),
      options_(options),
      terms_(std::move(terms)),
      producer_([this] { produce(); }) {}

Epoch::~Epoch() {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  producer_.join();
}

void Epoch::produce() {
  name_thread("trireme-load");
  try {
    const auto order = epoch_order(set_.count, options_.seed, number_, options_.shuffle);
    for (size_t step = 0; step < cut_.steps(); step++)
      for (int micro = 0; micro < cut_.accumulate; micro++) {
        Batch batch = cut_batch(set_, cut_, order, step, rank_, micro, options_.dtype);
        batch.terms = terms_;
        Lock lock(mutex_);
        if (ready_.size() >= options_.ahead) {  // sleep until half of it is used: a wake-up costs more than a batch
          producer_waits_ = true;
          changed_.wait(lock,
                        [this]() TRIREME_REQUIRES(mutex_) { return stop_ || ready_.size() <= options_.ahead / 2; });
          producer_waits_ = false;
        }
        if (stop_) return;
        ready_.push_back(std::move(batch));
        if (consumer_waits_) changed_.notify_all();
      }
  } catch (...) {
    const Lock lock(mutex_);
    error_ = std::current_exception();
  }
  const Lock lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

bool Epoch::next(Batch& batch) {
  Lock lock(mutex_);
  if (ready_.empty() && !finished_) {
    consumer_waits_ = true;
    changed_.wait(lock, [this]() TRIREME_REQUIRES(mutex_) { return finished_ || !ready_.empty(); });
    consumer_waits_ = false;
  }
  if (ready_.empty()) {
    if (error_) std::rethrow_exception(error_);
    return false;
  }
  batch = std::move(ready_.front());
  ready_.pop_front();
  if (producer_waits_ && ready_.size() <= options_.ahead / 2) changed_.notify_all();
  return true;
}

Loader::Loader(Dataset set, int rank, int ranks, LoaderOptions options)
    : set_(std::move(set)), cut_{set_.count, options.batch, ranks, options.accumulate}, rank_(rank), options_(options) {
  check(cut_, set_.name);
  // Each rank takes its part of an order that all find for themselves: other terms, and samples would be missing or
  // come twice.
  exchange::Terms terms;
  terms.add("samples", set_.count)
      .add("batch", options.batch)
      .add("ranks", ranks)
      .add("accumulate of the loader", options.accumulate);
  terms.add("seed of the loader", options.shuffle ? fmt::format("{}", options.seed) : "not shuffled");
  terms_ = std::make_shared<const std::string>(terms.text());
}

}  // namespace trireme::data
