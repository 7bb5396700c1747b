#include <fmt/format.h>

#include <algorithm>

#include <trireme/exchange/gatherer.h>

namespace trireme::exchange {

Gatherer::Gatherer(Berth& berth, comm::shm::Communicator& local, comm::network::Communicator* lane,
                   const Shares& shares, int machine, const std::vector<space::Bucket>& buckets, std::byte* parameters,
                   bool sparse)
    : local_(local),
      lane_(lane),
      shares_(shares),
      machine_(machine),
      buckets_(buckets),
      parameters_(parameters),
      sparse_(sparse),
      landed_(berth.each("gathered", sizeof(Stamp) * (buckets.size() + 1), "which parameters are here")),
      numbers_(buckets.size()),
      seen_(buckets.size()) {
  for (const space::Bucket& b : buckets_) counts_.push_back(shares_.counts(b.range, local_.rank(), size_of(b.dtype)));
}

Gatherer::~Gatherer() {
  for (const Travelling& one : travelling_) try {
      one.work->wait();
    } catch (...) {  // after an error all of them fail, and it was thrown before
    }
}

void Gatherer::start(size_t bucket) {
  // It comes again, before all have given it up: what is there still is what will come.
  std::erase_if(leaving_, [&](const Leaving& one) { return one.bucket == bucket; });
  while (leaving_.size() > kMostLeaving) await_leaving(leaving_.front());
  const space::Bucket& b = buckets_[bucket];
  const space::Range slice = shares_.slice(b.range, local_.rank());
  const uint64_t number = numbers_[bucket] = ++starts_;
  if (lane_ == nullptr || slice.empty()) return mark(bucket, number);
  const space::Range own = shares_.part(b.range, local_.rank(), machine_);
  for (const space::Range& pages : shares_.foreign_pages(b.range, local_.rank(), machine_))
    if (sparse_) Segment::populate(parameters_ + pages.begin, pages.size());
  travelling_.push_back(
      {bucket, number,
       lane_->start_all_gather(parameters_ + own.begin, parameters_ + slice.begin, counts_[bucket], b.dtype, b.name)});
}

void Gatherer::mark(size_t bucket, uint64_t number) {
  landed(local_.rank(), bucket).store(number);
  local_.rounds().ring();
}

void Gatherer::land_first() {
  travelling_.front().work->wait();
  const Travelling done = std::move(travelling_.front());
  travelling_.pop_front();
  mark(done.bucket, done.number);
}

void Gatherer::poll() {
  while (!travelling_.empty() && travelling_.front().work->test()) land_first();
  sweep();
}

void Gatherer::land() {
  while (!travelling_.empty()) land_first();
}

bool Gatherer::under_way(size_t bucket) const {
  return std::any_of(travelling_.begin(), travelling_.end(),
                     [&](const Travelling& one) { return one.bucket == bucket; });
}

void Gatherer::await(size_t bucket) {
  const uint64_t number = numbers_[bucket];
  if (seen_[bucket] == number) return;
  while (under_way(bucket)) land_first();
  for (int step = 1; step < local_.size(); step++) {
    const int peer = (local_.rank() + step) % local_.size();
    const auto there = [&] { return landed(peer, bucket).load() >= number; };
    // A peer may need what travels here before it can go on to this bucket: land that first, and only then sleep.
    while (!there() && !travelling_.empty()) land_first();
    local_.rounds().await(peer, there, [&] { return fmt::format("the parameters of '{}'", buckets_[bucket].name); });
  }
  seen_[bucket] = number;
}

void Gatherer::give_up(size_t bucket) {
  while (under_way(bucket)) land_first();  // it was gathered ahead, and in vain
  leaving_.push_back({bucket, ++leaves_});
  given_up(local_.rank()).store(leaves_);
  if (local_.size() > 1) local_.rounds().ring();
  sweep();
}

void Gatherer::sweep() {
  const auto all_have = [&](const Leaving& one) {
    for (int rank = 0; rank < local_.size(); rank++)
      if (given_up(rank).load() < one.number) return false;
    return true;
  };
  for (; !leaving_.empty() && all_have(leaving_.front()); leaving_.pop_front())
    give_back(leaving_.front().bucket, local_.rank());
}

void Gatherer::await_leaving(const Leaving& leaving) {
  for (int peer = 0; peer < local_.size(); peer++) {
    const auto gone = [&] { return given_up(peer).load() >= leaving.number; };
    while (!gone() && !travelling_.empty()) land_first();  // as in await()
    local_.rounds().await(peer, gone, [&] {
      return fmt::format("the end of its use of the parameters of '{}'", buckets_[leaving.bucket].name);
    });
  }
  sweep();
}

void Gatherer::give_back(size_t bucket, int lane) const {
  const auto offset = local_.segment().offset_of(parameters_);
  for (const space::Range& pages : shares_.foreign_pages(buckets_[bucket].range, lane, machine_))
    local_.segment().give_back(*offset + pages.begin, pages.size());
}

}  // namespace trireme::exchange
