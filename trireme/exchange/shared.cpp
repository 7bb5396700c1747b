#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <trireme/base/marks.h>
#include <trireme/exchange/shared.h>
#include <trireme/space/kernels.h>

namespace trireme::exchange {
namespace {

constexpr size_t kGrain = space::kBlock * sizeof(float);

/// Of each rank, a number that grows with its machine's place among the machines.
std::vector<int32_t> machines_of(const Group& group) {
  int32_t mine = group.lane != nullptr ? group.lane->rank() : 0;
  group.local.broadcast(&mine, 1, DType::i32, 0, "this machine's number");
  std::vector<int32_t> all(static_cast<size_t>(group.all.size()));
  group.all.all_gather(&mine, all.data(), 1, DType::i32, "the ranks' machines");
  return all;
}

/// Even ones, machine by machine: the ranks of one have neighbouring pieces, and so few roots.
std::vector<Pieces> runs_for(const Group& group, int pieces) {
  const std::vector<Pieces> even = even_runs(pieces, group.all.size());
  if (group.one_machine()) return even;
  const std::vector<int32_t> machine = machines_of(group);
  std::vector<size_t> order(machine.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return machine[a] < machine[b]; });
  std::vector<Pieces> runs(even.size());
  for (size_t i = 0; i < order.size(); i++) runs[order[i]] = even[i];
  return runs;
}

/// What stages 2 and 3 save is memory that is given back, and nobody looks each time whether it is: so once, before
/// anything depends on it. `unused`: pages that have no memory yet.
void check_holes(const Segment& segment, const std::byte* unused, int zero) {
  const auto offset = static_cast<off_t>(*segment.offset_of(unused));
  if (fallocate(segment.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, off_t{kPage}) == 0) return;
  fail<IoError>(
      "zero {} gives memory back to the machine in every step, and this system makes no holes in memory files "
      "(fallocate: {}), as some sandboxes do not: use zero 1",
      zero, errno_text());
}

}  // namespace

using comm::shm::Fingerprint;
using comm::shm::Kind;
using comm::shm::kPrivate;

Shared::Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
               const Options& options)
    : Shared(group, layout, optimizer, options, [&](space::Range bucket) {
        return space::part_of(bucket, group.local.rank(), group.local.size(), grain_of(options));
      }) {}

Shared::Shared(const Group& group, const space::Layout& layout, const space::UpdaterOptions& optimizer,
               const Options& options, const std::function<space::Range(space::Range)>& slice_of)
    : Exchange(layout, options, {.shared = true, .tells = true}), local_(group.local) {
  squares_.resize(buckets_.size());
  any_.resize(layout_.size());
  for (const space::Bucket& bucket : buckets_) {
    slices_.push_back(slice_of(bucket.range));
    name_hashes_.push_back(space::hash_text(bucket.name));
  }
  rounds_of_.resize(buckets_.size());
  // Parameters and state are there once for all ranks of the machine.
  const bool divided = options_.zero > 0 && !group.one_machine();
  berth_.emplace(group.all, local_, layout_.fingerprint());
  std::byte* const parameters =
      berth_->one("parameters", layout_.bytes(), "the model's parameters", slices_, divided && options_.zero == 3);
  gradients_ = berth_->each("gradients", layout_.bytes(), "the ranks' gradients", options_.zero >= 2);
  if (options_.zero >= 2) check_holes(local_.segment(), gradients_of(local_.rank()), options_.zero);
  const int pieces = options_.virtual_workers, ranks = group.all.size();
  const int seats = pieces == 0 ? 1 : most_seats(pieces, pieces - ranks + 1);
  flags_ = berth_->each("flags", layout_.size() * static_cast<size_t>(seats), "the gradients' flags");
  notes_ = berth_->each("notes", sizeof(Note), "the ranks' losses");
  state_ = berth_->state(optimizer.kind, layout_, buckets_, slices_, true, divided);
  updater_.emplace(optimizer, slices_, local_.size() > 1, state_);
  if (options_.elastic) {
    std::byte* const page = berth_->one("decisions", Transaction::page_bytes(), "which steps were decided");
    transaction_.emplace(page, berth_->each("journal", space::Journal::bytes(layout_.size()), "the ranks' journals"),
                         layout_.size(), local_.rank());
    handed_ = berth_->one("handed", layout_.size() * sizeof(int64_t), "the steps of parameters");
    updater_->write_down(&transaction_->own());
    succession_ = this;
  }
  if (options_.chooses() && group.one_machine()) {
    uncompressed_ = {
        .judgement = {.reason = "nothing is compressed: all ranks are on one machine, where nothing travels"},
        .settled = true};
    compression_ = &*uncompressed_;
  }
  vectors_ = {parameters, gradients_of(local_.rank()), flags_of(local_.rank())};
  vectors_.count = seats;
  take_seats(group);
  source_ = pieces == 0 ? std::make_unique<OwnShare>(group.all.rank(), ranks)
                        : std::make_unique<OwnShare>(runs_[static_cast<size_t>(group.all.rank())], pieces, 1);
}

size_t Shared::grain_of(const Options& options) {
  return options.virtual_workers > 0 && options.clip > 0 ? kGrain : space::kLine;
}

/// What virtual workers need. Seats that no rank uses have no memory.
void Shared::take_seats(const Group& group) {
  for (int rank = 0; rank < local_.size(); rank++) seated_.push_back({rank, 0});
  if (options_.virtual_workers == 0) return;
  virtual_workers_ = this;
  const auto pieces = static_cast<size_t>(options_.virtual_workers);
  if (seats() > 1) {
    seats_ = berth_->each("seats", static_cast<size_t>(seats() - 1) * seat_bytes(), "sums over pieces", true);
    vectors_.seats = seats_.parts[static_cast<size_t>(local_.rank())];
  }
  piece_losses_ = berth_->each("piece losses", pieces * sizeof(double), "the pieces' losses");
  losses_.resize(pieces);
  here_.resize(static_cast<size_t>(local_.size()));
  const int32_t mine = group.all.rank();
  local_.all_gather(&mine, here_.data(), 1, DType::i32, "the ranks of this machine");
  if (squares_by_block()) {
    size_t blocks = 0;
    for (const space::Bucket& bucket : buckets_) {
      first_block_.push_back(blocks);
      blocks += (bucket.range.size() + kGrain - 1) / kGrain;
    }
    std::byte* const at = berth_->one("squares", blocks * sizeof(double), "the norm of the gradient", {}, false);
    blocks_ = {reinterpret_cast<double*>(at), blocks};
  }
  Shared::divide(runs_for(group, options_.virtual_workers));
}

void Shared::divide(const std::vector<Pieces>& runs) {
  const int pieces = options_.virtual_workers;
  std::vector<Pieces> sorted = runs;
  std::sort(sorted.begin(), sorted.end(), [](Pieces a, Pieces b) { return a.begin < b.begin; });
  int next = 0;
  for (const Pieces& run : sorted) next = run.begin == next && run.size() > 0 ? run.end : -1;
  if (next != pieces || (!runs_.empty() && runs.size() != runs_.size()))
    fail<InvalidArgument>(
        "these runs do not divide {} pieces among {} ranks: each piece belongs to one, and each rank "
        "has at least one",
        pieces, runs_.size());
  runs_ = runs;
  seated_.clear();
  for (int rank = 0; rank < local_.size(); rank++) {
    const std::vector<Pieces> roots = roots_of(pieces, runs[static_cast<size_t>(here_[static_cast<size_t>(rank)])]);
    for (size_t seat = 0; seat < roots.size(); seat++) seated_.push_back({rank, static_cast<int>(seat), roots[seat]});
  }
  std::sort(seated_.begin(), seated_.end(),
            [](const Seated& a, const Seated& b) { return a.root.begin < b.root.begin; });
  // Of several machines each sums the roots that lie in it whole, one by one: their tree is the rest of what is here.
  std::vector<Pieces> nodes;
  for (const Seated& one : seated_) nodes.push_back(one.root);
  for (const Pieces& root : roots_of(pieces, nodes)) {
    const auto inside = [&](const Pieces& node) { return root.begin <= node.begin && node.end <= root.end; };
    const auto first = static_cast<size_t>(std::find_if(nodes.begin(), nodes.end(), inside) - nodes.begin());
    const auto count = static_cast<size_t>(std::count_if(nodes.begin(), nodes.end(), inside));
    const std::vector<uint8_t> adds = adds_over(pieces, std::span(nodes).subspan(first, count));
    for (size_t i = 0; i < count; i++) seated_[first + i].adds = adds[i];
  }
  if (source_) dynamic_cast<OwnShare&>(*source_).set_run(runs_[static_cast<size_t>(group().rank())]);
}

Shared::~Shared() { before_writing(); }

void Shared::publish() {
  local_.barrier("parameters");
  if (transaction_ && !std::exchange(began_, true)) begin_crew();
  complete();
}

bool Shared::begin_step(std::optional<int64_t> /*leased*/) {
  std::fill(losses_.begin(), losses_.end(), 0.0);
  return true;
}

void Shared::open() {
  Exchange::open();
  step_++;
  worked_ = given_back_ = 0;
}

void Shared::ready(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  while (open_.size() >= comm::shm::kAhead / 2) work_next();
  const Fingerprint what{.kind = Kind::step,
                         .dtype = b.dtype,
                         .part = static_cast<uint32_t>(bucket),
                         .count = b.range.size(),
                         .name = name_hashes_[bucket]};
  if (last(bucket)) {
    note_of(local_.rank()).told = mine_;
    if (!losses_.empty())
      std::copy(losses_.begin(), losses_.end(),
                reinterpret_cast<double*>(piece_losses_.parts[static_cast<size_t>(local_.rank())]));
  }
  mark("bucket: ready", bucket);
  last_round_ = rounds_of_[bucket] = local_.rounds().arrive(what, kPrivate, b.name);
  mark("bucket: arrived", bucket);
  open_.push_back({bucket, last_round_});
  if (options_.overlap) proceed();
}

void Shared::work_arrived() {
  while (!open_.empty() && local_.rounds().all_arrived(open_.front().round)) work_next();
}

void Shared::proceed() {
  work_arrived();
  if (whole_first()) return;
  for (; given_back_ < buckets_.size() && can_give_back(given_back_); given_back_++)
    give_back_gradients(buckets_[given_back_].range);
}

/// The last one's are with all others, in close(). After a flaw they stay: whose it is will be asked.
bool Shared::can_give_back(size_t bucket) const {
  return options_.zero >= 2 && given_back_ < worked_ && !last(bucket) &&
         local_.rounds().all_finished(rounds_of_[bucket]) && sound_here();
}

void Shared::give_back_gradients(space::Range range) {
  const space::Range pages = whole_pages(range);
  if (const auto offset = local_.segment().offset_of(gradients()); offset && !pages.empty())
    local_.segment().give_back(*offset + pages.begin, pages.size());
}

void Shared::close() {
  while (!open_.empty()) work_next();
  if (!whole_first()) {
    complete();
    local_.rounds().await_finished(last_round_);
    outcome_.sound = sound_here();
    if (options_.zero >= 2 && outcome_.sound) give_back_gradients({0, round_up(layout_.bytes(), kPage)});
    return;
  }
  if (transaction_)
    update_whole(clip_by(squares_together()));
  else
    clip_and_update(
        squares_together(), [&](size_t b) { update_gathered(b); }, [](size_t) {});
  complete();
  local_.barrier("updated");
  if (options_.zero >= 2 && outcome_.sound) give_back_gradients({0, round_up(layout_.bytes(), kPage)});
}

bool Shared::sound_here() const {
  for (int rank = 0; rank < local_.size(); rank++)
    if (note_of(rank).flawed == step_) return false;
  return true;
}

/// In the order of buckets and ranks, so that the bits do not depend on what came first.
double Shared::squares_together() {
  if (squares_by_block()) {
    local_.barrier("squares of the gradient");
    return std::accumulate(blocks_.begin(), blocks_.end(), 0.0);
  }
  double squares = std::accumulate(squares_.begin(), squares_.end(), 0.0);
  norm_group().allreduce(&squares, 1, DType::f64, Op::sum, "the norm of the gradient");
  return squares;
}

/// Between machines sums are not there before close(). A step that is not decided changes nothing.
void Shared::go_ahead(const std::function<bool()>& enough) {
  if (!whole_first() || traits_.patient || transaction_) return;
  work_arrived();
  const double squares = std::accumulate(squares_.begin(), squares_.begin() + static_cast<ptrdiff_t>(worked_), 0.0);
  update_ahead(
      squares, worked_, [&](size_t b) { update_gathered(b); }, enough);
}

void Shared::work_next() {
  const Open next = open_.front();
  local_.rounds().await_arrivals(next.round);
  if (last(next.bucket)) hear_machine();
  work(next.bucket);
  local_.rounds().finish(next.round);
  worked_ = next.bucket + 1;
  open_.pop_front();
}

/// What the ranks of this machine tell, in their order.
void Shared::hear_machine() {
  outcome_.told = {};
  for (int rank = 0; rank < local_.size(); rank++)
    for (size_t i = 0; i < outcome_.told.size(); i++) outcome_.told[i] += note_of(rank).told[i];
  if (!losses_.empty()) outcome_.told[0] = sum_over(piece_losses());
}

std::vector<double> Shared::piece_losses() const {
  std::vector<double> all(losses_.size(), 0.0);
  for (int rank = 0; rank < local_.size(); rank++) {
    const auto* const theirs = reinterpret_cast<const double*>(piece_losses_.parts[static_cast<size_t>(rank)]);
    const Pieces run = runs_[static_cast<size_t>(here_[static_cast<size_t>(rank)])];
    std::copy(theirs + run.begin, theirs + run.end, all.begin() + run.begin);
  }
  return all;
}

void Shared::work(size_t bucket) {
  if (whole_first()) return gather(bucket);
  if (transaction_) return last(bucket) ? update_whole() : void();
  update_slice(bucket, slices_[bucket], sources_of(bucket));
}

void Shared::update_slice(size_t bucket, space::Range range, std::span<const space::Source> sources) {
  update(bucket, range, sources);
  if (!outcome_.sound) note_flaw();
}

std::vector<space::Source> Shared::sources_of(size_t bucket, std::span<const Seated> seated) const {
  std::vector<space::Source> sources;
  sources.reserve(seated.size());
  for (const auto& [rank, seat, root, adds] : seated)
    sources.push_back({gradients_of(rank, seat), flags_of(rank, seat) + buckets_[bucket].first, adds});
  return sources;
}

/// The slice's sum over ranks, into this rank's own gradients: nobody else reads them there. What is not finite stays
/// as it is, so that the rank who had it finds it; where nobody looks, nothing is written, and the update sums once
/// more.
void Shared::gather(size_t bucket) {
  const space::Bucket& b = buckets_[bucket];
  if (squares_by_block()) {
    look(bucket, slices_[bucket]);
    sum_here(bucket, slices_[bucket], any_.data());
    return count_squares(bucket, slices_[bucket], any_.data());
  }
  squares_[bucket] = space::squares_present(layout_, b.first, b.last, slices_[bucket], b.dtype,
                                            watches() ? gradients() : nullptr, sources_of(bucket));
  for (size_t slot = b.first; slot < b.last; slot++) {
    any_[slot] = 0;
    for (const Seated& one : seated_) any_[slot] |= flags_of(one.rank, one.seat)[slot];
  }
}

/// Of the sum alone, block by block: how it came about leaves no trace.
void Shared::count_squares(size_t bucket, space::Range part, const uint8_t* present) {
  const space::Bucket& b = buckets_[bucket];
  const space::Source sum[] = {{gradients(), present + b.first}};
  for (size_t begin = part.begin; begin < part.end; begin += kGrain) {
    const space::Range block{begin, std::min(part.end, begin + kGrain)};
    blocks_[first_block_[bucket] + (begin - b.range.begin) / kGrain] =
        space::squares_present(layout_, b.first, b.last, block, b.dtype, nullptr, sum);
  }
}

/// The gradients of a slot in this machine. True when every rank has one.
bool Shared::sources_of(size_t slot, std::vector<const std::byte*>& sources) const {
  sources.clear();
  for (int rank = 0; rank < local_.size(); rank++)
    if (flags_of(rank)[slot] != 0) sources.push_back(gradients_of(rank));
  return sources.size() == static_cast<size_t>(local_.size());
}

void Shared::sum_here(size_t bucket, space::Range slice, uint8_t* any) {
  const space::Bucket& b = buckets_[bucket];
  if (options_.virtual_workers > 0) {
    for (size_t slot = b.first; slot < b.last; slot++) {
      any[slot] = 0;
      for (const Seated& one : seated_) any[slot] |= flags_of(one.rank, one.seat)[slot];
    }
    return space::sum_present(layout_, b.first, b.last, slice, b.dtype, gradients(), sources_of(bucket));
  }
  const auto sum = [&](space::Range range, const std::vector<const std::byte*>& sources) {
    if (range.empty()) return;
    std::byte* own = gradients() + range.begin;
    if (sources.size() == 1 && sources[0] == gradients())
      return;  // a rank that is alone on its machine: the sum is there
    if (sources.empty()) return void(std::memset(own, 0, range.size()));
    std::vector<const void*> from;
    from.reserve(sources.size());
    for (const std::byte* source : sources) from.push_back(source + range.begin);
    void* const outs[] = {own};
    space::kernels().reduce(b.dtype, Op::sum, outs, 1, from.data(), static_cast<int>(from.size()),
                            range.size() / size_of(b.dtype));
  };
  std::vector<const std::byte*> sources;
  bool everybody = true;
  for (size_t slot = b.first; slot < b.last; slot++) {
    everybody = sources_of(slot, sources) && everybody;
    any[slot] = sources.empty() ? 0 : 1;
  }
  if (everybody) return sum(slice, sources);
  for (size_t slot = b.first; slot < b.last; slot++) {
    sources_of(slot, sources);
    sum(intersect(slice, layout_[slot].range), sources);
  }
}

Exchange::Share Shared::share_of(int rank, size_t bucket) const {
  const space::Range slice = space::part_of(buckets_[bucket].range, rank, local_.size(), grain_of(options_));
  return {.parameters = slice, .updated = slice};
}

}  // namespace trireme::exchange
