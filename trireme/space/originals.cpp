#include <emmintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/space/originals.h>

namespace trireme::space {
namespace {

/// Memory comes and goes by this: a page of the larger kind.
constexpr size_t kHuge = size_t{2} << 20;

/// Past the caches, in which there are things that are needed sooner. `to` is at the start of a line.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
  size_t done = 0;
  for (; done + sizeof(__m128i) <= bytes; done += sizeof(__m128i))
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
  std::memcpy(to + done, from + done, bytes - done);
  _mm_sfence();  // whoever sees what is published next sees this
}

}  // namespace

Originals::Originals(size_t bytes) : Originals(bytes, nullptr) { keep_ = false; }

Originals::Originals(size_t bytes, const Originals* before) : keep_(true) {
  const bool enough = before != nullptr && before->released() && before->room() >= round_up(bytes, kHuge);
  room_ = enough ? before->room_ : Arena::of_process(bytes == 0 ? 0 : round_up(bytes, kHuge) + kHuge);
  const auto address = reinterpret_cast<uintptr_t>(room_.data());
  start_ = room_.data() + (round_up(address, kHuge) - address);
}

size_t Originals::add(const std::byte* live, size_t size) {
  spans_.push_back({live, size, used_, chunks_});
  used_ += size;
  chunks_ += spans_.back().chunks();
  if (used_ > room()) fail<Error>("no room for {} bytes aside", used_);
  return spans_.size() - 1;
}

size_t Originals::copy(std::span<const std::byte> bytes) {
  const size_t span = add(nullptr, bytes.size());
  if (!bytes.empty()) std::memcpy(start_ + spans_[span].home, bytes.data(), bytes.size());
  return span;
}

size_t Originals::follow(std::span<const std::byte> live) {
  used_ = round_up(used_, kLine);
  followed_.push_back(spans_.size());
  return add(live.data(), live.size());
}

void Originals::seal() {
  std::sort(followed_.begin(), followed_.end(), [&](size_t a, size_t b) { return spans_[a].live < spans_[b].live; });
  states_ = std::make_unique<Word[]>(chunks_);
  next_ = std::make_unique<std::atomic<size_t>[]>(spans_.size());
  rest_ = std::make_unique<std::atomic<size_t>[]>(room() / kHuge);
  for (const Span& span : spans_)
    for (size_t chunk = 0; chunk < span.chunks(); chunk++) {
      states_[span.first_chunk + chunk].store(span.live != nullptr ? live : saved, std::memory_order_relaxed);
      each_block(home_of(span, chunk), [&](size_t block, size_t bytes) { rest_[block] += bytes; });
    }
  left_.store(chunks_, std::memory_order_release);
}

size_t Originals::room() const { return room_.bytes() == 0 ? 0 : room_.bytes() - kHuge; }

Range Originals::home_of(const Span& span, size_t chunk) const {
  const size_t begin = chunk * kChunk;
  return {span.home + begin, span.home + std::min(span.size, begin + kChunk)};
}

template <class Visit>
void Originals::each_block(Range home, const Visit& visit) {
  for (size_t at = home.begin, end = at; at < home.end; at = end) {
    end = std::min(home.end, round_up(at + 1, kHuge));
    visit(at / kHuge, end - at);
  }
}

// ---- who writes ----

void Originals::save(const std::byte* begin, size_t bytes) {
  const std::byte* const end = begin + bytes;
  const auto ends_before = [&](size_t span) { return spans_[span].live + spans_[span].size <= begin; };
  auto at = std::partition_point(followed_.begin(), followed_.end(), ends_before);
  for (; at != followed_.end() && spans_[*at].live < end; ++at) {
    const Span& span = spans_[*at];
    const size_t from = begin > span.live ? static_cast<size_t>(begin - span.live) : 0;
    const size_t to = std::min(span.size, static_cast<size_t>(end - span.live));
    for (size_t chunk = from / kChunk; chunk * kChunk < to; chunk++) save_chunk(span, chunk);
  }
}

void Originals::save_all() {
  for (const size_t span : followed_)
    for (size_t chunk = 0; chunk < spans_[span].chunks(); chunk++) save_chunk(spans_[span], chunk);
}

void Originals::save_chunk(const Span& span, size_t chunk) {
  Word& state = states_[span.first_chunk + chunk];
  if (!enter(state, live, saving)) return;
  const Range home = home_of(span, chunk);
  copy_past_caches(start_ + home.begin, span.live + chunk * kChunk, home.size());
  saved_bytes_.fetch_add(home.size(), std::memory_order_relaxed);
  leave(state, saved);
}

/// False when it is neither `from` nor on its way to be: saved or released. Otherwise it is `to` now, and this
/// thread's.
bool Originals::enter(Word& state, State from, State to) {
  for (uint32_t now = state.load(std::memory_order_acquire);;) {
    if (now == reading || now == saving) {
      state.wait(now, std::memory_order_acquire);
      now = state.load(std::memory_order_acquire);
    } else if (now != from) {
      return false;
    } else if (state.compare_exchange_weak(now, to, std::memory_order_acquire)) {
      return true;
    }
  }
}

void Originals::leave(Word& state, State to) {
  state.store(to, std::memory_order_release);
  state.notify_all();
}

// ---- readers ----

/// What is read before it changes needs no memory, but who knows what will be: where some of a block is live, the block
/// gets it.
void Originals::prepare() {
  if (prepared_.exchange(true)) return;
  size_t ready = 0;  // blocks before this one have memory, or need none
  for (const Span& span : spans_)
    for (size_t chunk = 0; span.live != nullptr && chunk < span.chunks(); chunk++) {
      if (states_[span.first_chunk + chunk].load(std::memory_order_relaxed) != live) continue;
      each_block(home_of(span, chunk), [&](size_t block, size_t) {
        if (block < ready) return;
        madvise(start_ + block * kHuge, kHuge, MADV_POPULATE_WRITE);  // in vain before Linux 5.14: save() is slower
        ready = block + 1;
      });
    }
}

void Originals::read(size_t index, size_t offset, std::span<std::byte> into) {
  const Span& span = spans_.at(index);
  if (offset > span.size || into.size() > span.size - offset)
    fail<InvalidArgument>("bytes {} to {} of a span of {} cannot be read", offset, offset + into.size(), span.size);
  prepare();
  for (size_t done = 0, size = 0; done < into.size(); done += size) {
    const size_t chunk = (offset + done) / kChunk, within = (offset + done) % kChunk;
    size = std::min(into.size() - done, kChunk - within);
    read_chunk(span, chunk, within, into.subspan(done, size));
  }
}

void Originals::read_chunk(const Span& span, size_t chunk, size_t offset, std::span<std::byte> into) {
  Word& state = states_[span.first_chunk + chunk];
  if (enter(state, live, reading)) {
    std::memcpy(into.data(), span.live + chunk * kChunk + offset, into.size());
    return leave(state, live);
  }
  if (state.load(std::memory_order_acquire) == freed)
    fail<InvalidArgument>("bytes that were released cannot be read any more");
  std::memcpy(into.data(), start_ + home_of(span, chunk).begin + offset, into.size());
}

void Originals::release(size_t index, size_t end) {
  const Span& span = spans_.at(index);
  size_t chunk = next_[index].load(std::memory_order_relaxed);
  for (; chunk < span.chunks() && home_of(span, chunk).end - span.home <= end; chunk++) release_chunk(span, chunk);
  next_[index].store(chunk, std::memory_order_relaxed);
}

void Originals::release_all() {
  if (!states_) return;  // not sealed: whoever made it gave up
  for (size_t span = 0; span < spans_.size(); span++) release(span, spans_[span].size);
}

void Originals::release_chunk(const Span& span, size_t chunk) {
  Word& state = states_[span.first_chunk + chunk];
  if (!enter(state, live, freed) && !enter(state, saved, freed)) return;
  each_block(home_of(span, chunk), [&](size_t block, size_t bytes) {
    if (rest_[block].fetch_sub(bytes) == bytes && !keep_) madvise(start_ + block * kHuge, kHuge, MADV_DONTNEED);
  });
  left_.fetch_sub(1, std::memory_order_release);
}

}  // namespace trireme::space
