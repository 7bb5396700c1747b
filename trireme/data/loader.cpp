#include <torch/types.h>

#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/data/loader.h>
#include <trireme/data/masks.h>
#include <trireme/data/random.h>
#include <trireme/exchange/terms.h>

namespace trireme::data {
namespace {

constexpr uint64_t kTrainingMasks = 0x6d61736b73;  // so that no epoch has the masks of a test set

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

template <class Stored>
void copy_tokens(const Dataset& set, size_t first, size_t count, int64_t* out) {
  const auto* tokens = reinterpret_cast<const Stored*>(set.inputs) + first;
  std::copy(tokens, tokens + count, out);
}

void copy_tokens_of(const Dataset& set, size_t first, size_t count, int64_t* out) {
  if (set.token_bytes == 1) return copy_tokens<uint8_t>(set, first, count, out);
  set.token_bytes == 2 ? copy_tokens<uint16_t>(set, first, count, out) : copy_tokens<int32_t>(set, first, count, out);
}

Batch text_batch(const Dataset& set, const uint32_t* order, size_t count, uint64_t masks) {
  const size_t context = set.elements();
  const std::vector<int64_t> shape = {static_cast<int64_t>(count), static_cast<int64_t>(context)};
  Batch batch{.x = torch::empty(shape, torch::kInt64), .y = torch::empty(shape, torch::kInt64)};
  for (size_t i = 0; i < count; i++) {
    int64_t *x = batch.x.data_ptr<int64_t>() + i * context, *y = batch.y.data_ptr<int64_t>() + i * context;
    const size_t first = order[i] * context;
    copy_tokens_of(set, first, context, x);
    if (set.task == Task::next_token)
      copy_tokens_of(set, first + 1, context, y);
    else
      mask_tokens({x, context}, {y, context}, set.classes, mix(masks, order[i]));
  }
  return batch;
}

}  // namespace

Batch make_batch(const Dataset& set, const std::vector<uint32_t>& order, size_t begin, size_t end, torch::Dtype dtype,
                 uint64_t masks) {
  Batch batch;
  if (begin == end) return batch;
  if (is_text(set.task)) return text_batch(set, order.data() + begin, end - begin, masks);
  std::vector<int64_t> shape = set.shape;
  shape.insert(shape.begin(), static_cast<int64_t>(end - begin));
  batch.x = torch::empty(shape, dtype);
  if (dtype == torch::kFloat64)
    gather_any(set, order.data() + begin, end - begin, batch.x.data_ptr<double>());
  else
    gather_any(set, order.data() + begin, end - begin, batch.x.data_ptr<float>());
  if (set.labels != nullptr || set.targets != nullptr)
    batch.y = gather_targets(set, order.data() + begin, end - begin, dtype);
  return batch;
}

size_t batch_to_test(const Dataset& set) {
  constexpr size_t kSamples = 500, kTokens = 4096;
  return is_text(set.task) ? std::max<size_t>(1, kTokens / set.elements()) : kSamples;
}

Stock::Stock(Dataset dataset, int ranks, const LoaderOptions& wanted, bool changes)
    : set(std::move(dataset)),
      options(wanted),
      cut{set.count, wanted.batch, ranks, wanted.accumulate == 0 ? 1 : wanted.accumulate} {
  check(cut, set.name);
  // Each rank takes its part of an order that all find for themselves: other terms, and samples would be missing or
  // come twice.
  exchange::Terms lines;
  lines.add("samples", set.count)
      .add("batch", cut.batch)
      .add("ranks", changes ? 0 : ranks)
      .add("accumulate of the loader", cut.accumulate);
  lines.add("seed of the loader", options.shuffle ? fmt::format("{}", options.seed) : "not shuffled");
  terms = std::make_shared<const std::string>(lines.text());
}

Batch Stock::batch(const std::vector<uint32_t>& order, int64_t epoch, int64_t piece, int micro, int ranks,
                   const std::shared_ptr<const exchange::SampleShares>& shares) const {
  const auto step = static_cast<size_t>(piece / ranks);
  Cut division = cut;
  division.ranks = ranks;
  division.shares = shares;
  const Piece part = piece_of(division, step, static_cast<int>(piece % ranks), micro);
  Batch batch = make_batch(set, order, part.begin, part.end, options.dtype,
                           mix(mix(kTrainingMasks, options.seed), static_cast<uint64_t>(epoch)));
  batch.weight = part.weight;
  batch.step = step;
  batch.piece = piece;
  batch.micro = micro;
  batch.terms = terms;
  batch.epoch = epoch;
  for (size_t i = part.begin; i < part.end; i++) batch.signs += sign_of(order[i]);
  return batch;
}

Epoch::Epoch(const Stock& stock, exchange::WorkSource& source, int64_t number, Stretch stretch, Meetings* meetings)
    : Epoch(stock, &source, nullptr, number, stretch, meetings) {}

Epoch::Epoch(const Stock& stock, int rank, int64_t number)
    : Epoch(stock, nullptr, std::make_unique<exchange::OwnShare>(rank, stock.cut.ranks, stock.cut.accumulate), number,
            {}, nullptr) {}

Epoch::Epoch(const Stock& stock, exchange::WorkSource* source, std::unique_ptr<exchange::WorkSource> own,
             int64_t number, Stretch stretch, Meetings* meetings)
    : stock_(stock),
      own_(std::move(own)),
      source_(own_ ? *own_ : *source),
      meetings_(meetings),
      number_(number),
      steps_(std::min(stretch.end, stock.cut.steps())),
      generation_(source_.generation()),
      reached_(std::min(stretch.first, steps_)),
      ranks_(source_.pieces()),
      aim_(static_cast<int64_t>(reached_) * source_.pieces() + source_.run().begin),
      stride_(source_.pieces()),
      run_(source_.run()),
      limit_(stock.options.ahead) {
  source_.set_batch(stock.cut.batch);
  shares_ = source_.shares();
  begin_course(reached_);
  producer_ = std::thread([this] { produce(); });
}

/// The source gives work from step `first` on, until ranks meet or the epoch ends.
void Epoch::begin_course(size_t first) {
  const int64_t done = number_ * static_cast<int64_t>(stock_.cut.steps()) + static_cast<int64_t>(first);
  const size_t left = steps_ - first;
  const int64_t until = meetings_ != nullptr && left > 0 ? meetings_->until_next(done) : 0;
  course_ = first;
  course_end_ = first + (until > 0 ? std::min(left, static_cast<size_t>(until)) : left);
  source_.begin(done, static_cast<int64_t>(course_end_ - course_));
}

/// At the end of a course: true when there is another one.
bool Epoch::meet() {
  if (course_end_ >= steps_) return false;
  meetings_->meet(number_ * static_cast<int64_t>(stock_.cut.steps()) + static_cast<int64_t>(course_end_));
  begin_course(course_end_);
  return true;
}

Epoch::~Epoch() {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  producer_.join();
}

// ---- the producer ----

void Epoch::produce() {
  name_thread("trireme-load");
  try {
    order_ = stock_.order(number_);
    Lock lock(mutex_);
    ordered_ = true;
    changed_.notify_all();
    while (!stop_) {
      const auto more = [this]() TRIREME_REQUIRES(mutex_) { return aim_ < static_cast<int64_t>(steps_) * ranks_; };
      if (more())
        produce_piece(lock);
      else
        rest(lock, more);
    }
  } catch (...) {
    const Lock lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

template <class Until>
void Epoch::rest(Lock& lock, const Until& until) {
  producer_waits_ = true;
  changed_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return stop_ || until(); });
  producer_waits_ = false;
}

void Epoch::produce_piece(Lock& lock) {
  const size_t guess = guess_;
  const int ranks = ranks_;
  const auto shares = shares_;
  const int64_t piece = making_ = aim_;
  aim_ = after(piece);
  for (int micro = 0; micro < stock_.cut.accumulate; micro++) {
    Batch batch;
    {
      const Unlocked unlocked(mutex_);
      batch = stock_.batch(order_, number_, piece, micro, ranks, shares);
    }
    // Sleep until half of it is used: a wake-up costs more than a batch.
    if (ready_.size() >= limit_)
      rest(lock, [&]() TRIREME_REQUIRES(mutex_) { return guess != guess_ || ready_.size() <= limit_ / 2; });
    if (stop_ || guess != guess_) return;
    ready_.push_back(std::move(batch));
    if (consumer_waits_) changed_.notify_all();
  }
  making_ = kNone;
}

// ---- the consumer ----

bool Epoch::next(Batch& batch) {
  if (source_.generation() != generation_ && !follow_crew()) return false;
  if (micro_ == 0 && !take_piece()) return false;
  if (made_here_) {
    batch = stock_.batch(order_, number_, taken_, micro_, source_.pieces(), source_.shares());
  } else {
    Lock lock(mutex_);
    await(lock, [this]() TRIREME_REQUIRES(mutex_) { return !ready_.empty(); });
    batch = std::move(ready_.front());
    ready_.pop_front();
    if (producer_waits_ && ready_.size() <= limit_ / 2) changed_.notify_all();
  }
  micro_ = (micro_ + 1) % stock_.cut.accumulate;
  return true;
}

/// The steps that are left are cut anew, from the first one that was not made. False when there are none.
bool Epoch::follow_crew() {
  const int64_t done = source_.next_step() - number_ * static_cast<int64_t>(stock_.cut.steps());
  const size_t first = std::min(static_cast<size_t>(std::max<int64_t>(done, 0)), steps_);
  micro_ = 0;
  {
    const Lock lock(mutex_);
    guess_++;
    ready_.clear();
    making_ = taken_ = kNone;
    ranks_ = source_.pieces();
    shares_ = source_.shares();
    stride_ = ranks_;
    run_ = source_.run();
    aim_ = static_cast<int64_t>(first) * ranks_ + run_.begin;
    limit_ = stock_.options.ahead;
    changed_.notify_all();
  }
  reached_ = first;
  begin_course(first);
  generation_ = source_.generation();
  return first < steps_ || course_end_ < steps_;
}

bool Epoch::take_piece() {
  ps::Lease lease = source_.take();
  while (lease.what == ps::Lease::end && meet()) lease = source_.take();
  stopped_ = lease.what == ps::Lease::stopped;
  if (lease.what != ps::Lease::piece) return false;
  const int64_t piece = static_cast<int64_t>(course_) * source_.pieces() + lease.index;
  reached_ = static_cast<size_t>(piece / source_.pieces()) + 1;
  Lock lock(mutex_);
  if (taken_ != kNone) stride_ = std::max<int64_t>(1, piece - taken_);
  run_ = source_.run();
  taken_ = piece;
  const bool divided_anew = shares_ != source_.shares();  // what was prepared has other samples
  if (divided_anew) shares_ = source_.shares();
  made_here_ = divided_anew || !foreseen();
  if (made_here_) {
    guess_anew();
    await(lock, [this]() TRIREME_REQUIRES(mutex_) { return ordered_; });
  } else {
    limit_ = std::min(2 * limit_, stock_.options.ahead);
  }
  return true;
}

/// The piece that this rank gets next, as far as one can tell.
int64_t Epoch::after(int64_t piece) const {
  if (run_.size() == 1) return piece + stride_;
  const int64_t pieces = ranks_, step = piece / pieces;
  return piece % pieces + 1 < run_.end ? piece + 1 : (step + 1) * pieces + run_.begin;
}

/// Whether the piece that was taken is ready, or will be before any other.
bool Epoch::foreseen() const {
  if (!ready_.empty()) return ready_.front().piece == taken_;
  return (making_ != kNone ? making_ : aim_) == taken_;
}

/// What was prepared is for others. One piece now, until a guess has been right.
void Epoch::guess_anew() {
  unforeseen_++;
  guess_++;
  ready_.clear();
  making_ = kNone;
  aim_ = after(taken_);
  limit_ = std::min(static_cast<size_t>(stock_.cut.accumulate), stock_.options.ahead);
  if (producer_waits_) changed_.notify_all();
}

template <class Until>
void Epoch::await(Lock& lock, const Until& until) {
  if (!until() && !error_) {
    consumer_waits_ = true;
    changed_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return error_ || until(); });
    consumer_waits_ = false;
  }
  if (!until()) std::rethrow_exception(error_);
}

namespace {

LoaderOptions with_micros(LoaderOptions options, int micros) {
  if (options.accumulate != 0 && options.accumulate != micros)
    fail<InvalidArgument>(
        "the feed cuts a piece into {} micro-batches, but {} calls of step() make an update: leave "
        "LoaderOptions::accumulate out, or make it the same as ParallelOptions::accumulate",
        options.accumulate, micros);
  options.accumulate = micros;
  return options;
}

}  // namespace

Feed::Feed(exchange::WorkSource& source, Dataset set, const LoaderOptions& options)
    : source_(source),
      stock_(std::move(set), source.pieces(), with_micros(options, source.micros()), source.generation().has_value()) {}

}  // namespace trireme::data
