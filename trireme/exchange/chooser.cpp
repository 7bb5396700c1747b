#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <trireme/base/clock.h>
#include <trireme/exchange/chooser.h>

namespace trireme::exchange {
namespace {

std::vector<std::string> names_of(const std::vector<compress::Spec>& specs) {
  std::vector<std::string> names;
  for (const compress::Spec& spec : specs) names.push_back(compress::name_of(spec));
  return names;
}

std::vector<uint8_t> codable_buckets(const space::Layout& layout, std::span<const space::Bucket> buckets,
                                     const Options& options) {
  std::vector<uint8_t> codable;
  for (const space::Bucket& bucket : buckets) {
    uint8_t any = 0;
    for (size_t slot = bucket.first; slot < bucket.last; slot++)
      any |= compress::is_coded(layout[slot], options.codec_excludes) ? 1 : 0;
    codable.push_back(any);
  }
  return codable;
}

/// The same with one codec.
Options fixed(Options options, const compress::Spec& codec) {
  options.candidates.clear();
  options.codec = codec;
  return options;
}

double cosine_of(double product, double wanted, double sent) {
  if (wanted == 0) return std::numeric_limits<double>::quiet_NaN();
  return sent == 0 ? 0 : product / std::sqrt(wanted * sent);
}

}  // namespace

Chooser::Chooser(const space::Layout& layout, std::span<const space::Bucket> buckets,
                 std::span<const space::Range> slices, const Options& options, size_t usual_piece,
                 comm::Communicator& all, comm::network::Communicator* lane, metrics::Registry* registry)
    : layout_(layout),
      buckets_(buckets),
      slices_(slices),
      options_(options),
      usual_piece_(usual_piece),
      all_(all),
      lane_(lane),
      registry_(registry),
      feedback_(nullptr, layout.bytes(), options.on_nan == OnNan::skip),
      trials_(names_of(options.candidates), codable_buckets(layout, buckets, options)),
      codings_(options.candidates.size()),
      rest_(buckets.size(), 0),
      whole_(buckets.size(), 1),
      likeness_(buckets.size()),
      count_(registry),
      coding_(buckets.size()) {
  compression_.candidates = trials_.names();
  for (const space::Bucket& bucket : buckets) compression_.buckets.push_back(bucket.name);
  if (all.rank() == 0 && registry != nullptr)
    for (size_t b = 0; b < buckets.size(); b++) shown_.emplace_back(registry, fmt::format("bucket {}", b));
  show();
}

void Chooser::begin_step() {
  const auto now = Clock::now();
  const double busy = lane_ != nullptr ? lane_->busy_seconds() : 0;
  for (double& seconds : coding_) seconds = -seconds;
  add_seconds();
  if (!std::exchange(first_, false) &&
      trials_.add(std::chrono::duration<double>(now - begun_).count(), busy - busy_, coding_)) {
    trials_.conclude(gather());
    use_choice();
    show();
  }
  for (const auto& one : codings_)
    if (one) one->compare(trials_.first() ? &likeness_ : nullptr);
  std::fill(coding_.begin(), coding_.end(), 0.0);
  add_seconds();
  busy_ = lane_ != nullptr ? lane_->busy_seconds() : 0;
  begun_ = Clock::now();
}

void Chooser::add_seconds() {
  for (const auto& one : codings_)
    for (size_t b = 0; one && b < coding_.size(); b++) coding_[b] += one->seconds(b);
}

/// Of all ranks. The last one at a wire does not wait in it for others: it says how long the wire takes.
compress::Heat Chooser::gather() {
  compress::Heat mine = trials_.mine();
  const size_t count = buckets_.size();
  std::vector<double> most = {mine.step, lane_ != nullptr ? -mine.link : -std::numeric_limits<double>::max()};
  most.insert(most.end(), mine.coding.begin(), mine.coding.end());
  all_.allreduce(most.data(), most.size(), DType::f64, Op::max, "what a heat of codecs took");
  std::vector<double> sums;
  for (size_t b = 0; b < count; b++)
    for (const double sum : {sent_bytes(b), likeness_[b].product, likeness_[b].wanted, likeness_[b].sent})
      sums.push_back(sum);
  all_.allreduce(sums.data(), sums.size(), DType::f64, Op::sum, "what codecs have sent");
  std::fill(likeness_.begin(), likeness_.end(), compress::ErrorFeedback::Likeness{});
  compress::Heat all;
  all.step = most[0];
  all.link = -most[1];
  all.coding.assign(most.begin() + 2, most.end());
  for (size_t b = 0; b < count; b++) {
    all.bytes.push_back(sums[4 * b]);
    all.cosines.push_back(cosine_of(sums[4 * b + 1], sums[4 * b + 2], sums[4 * b + 3]));
  }
  return all;
}

/// That this lane sends of a bucket, divided by the machines: over all lanes, what a machine sends.
double Chooser::sent_bytes(size_t bucket) const {
  if (lane_ == nullptr) return 0;
  const double machines = lane_->size();
  const size_t codec = codec_of(bucket);
  const double messages = codec == 0 ? 2 / machines * static_cast<double>(slices_[bucket].size())
                                     : static_cast<double>(codings_[codec - 1]->bytes(bucket));
  return messages * (machines - 1) / machines;
}

/// Codecs that the choice has no bucket for give their memory back, once it stays.
void Chooser::use_choice() {
  const compress::Choice& choice = trials_.choice();
  for (size_t i = 0; i < codings_.size() && lane_ != nullptr; i++) {
    const bool used = std::find(choice.begin(), choice.end(), i + 1) != choice.end();
    if (trials_.settled() && !used) codings_[i].reset();
    if (!used || codings_[i]) continue;
    const Options with = fixed(options_, options_.candidates[i]);
    codings_[i] = std::make_unique<Coding>(layout_, buckets_, slices_, with, Coding::piece_bytes(with, usual_piece_),
                                           *lane_, registry_, &feedback_);
    codings_[i]->measure();
  }
}

void Chooser::show() {
  compression_.judgement = trials_.judgement();
  compression_.looks = trials_.looks();
  compression_.settled = trials_.settled();
  const auto& verdicts = compression_.judgement.buckets;
  for (size_t b = 0; b < shown_.size() && b < verdicts.size(); b++) {
    shown_[b].codec.set(static_cast<double>(verdicts[b].codec));
    shown_[b].before_bytes.set(verdicts[b].before);
    shown_[b].after_bytes.set(verdicts[b].after);
    shown_[b].saved_seconds.set(verdicts[b].saved.mean);
    shown_[b].cosine.set(verdicts[b].cosine);
  }
}

Coding* Chooser::coding(size_t bucket) {
  const size_t codec = codec_of(bucket);
  return codec == 0 ? nullptr : codings_[codec - 1].get();
}

size_t Chooser::piece_bytes(size_t bucket) const {
  const size_t codec = codec_of(bucket);
  return codec == 0 ? usual_piece_ : Coding::piece_bytes(fixed(options_, options_.candidates[codec - 1]), usual_piece_);
}

void Chooser::add_rest(size_t bucket, std::byte* gradients, std::span<const uint8_t> flags) {
  const space::Bucket& b = buckets_[bucket];
  whole_[bucket] = 1;
  for (size_t slot = b.first; slot < b.last && rest_[bucket] > 0; slot++) {
    const space::Slot& s = layout_[slot];
    const space::Range values{s.range.begin, s.range.begin + s.elements() * sizeof(float)};
    const space::Range part = intersect(slices_[bucket], values);
    if (part.empty() || !compress::is_coded(s, options_.codec_excludes)) continue;
    const compress::Strip strip{part.begin, 1, part.size() / sizeof(float), 0};
    if (flags[slot - b.first] != 0) {
      feedback_.add_rest(strip, reinterpret_cast<float*>(gradients + part.begin));
      continue;
    }
    feedback_.keep(strip);
    whole_[bucket] = 0;
  }
}

void Chooser::settle(bool applied) {
  feedback_.settle(applied);
  for (size_t b = 0; b < rest_.size(); b++) {
    if (codec_of(b) != 0)
      rest_[b] = kRests;
    else if (applied && whole_[b] != 0 && rest_[b] > 0)
      rest_[b]--;
  }
  count_.show(feedback_.balance());
}

double Chooser::carried() const {
  double all = 0, carried = 0;
  for (size_t b = 0; b < buckets_.size(); b++) {
    const auto bytes = static_cast<double>(slices_[b].size());
    const size_t codec = codec_of(b);
    all += bytes;
    carried += bytes * (codec == 0 || !codings_[codec - 1] ? 1 : codings_[codec - 1]->carried());
  }
  return all > 0 ? carried / all : 1;
}

}  // namespace trireme::exchange
