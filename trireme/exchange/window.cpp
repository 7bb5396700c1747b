#include <algorithm>
#include <limits>
#include <utility>

#include <trireme/exchange/window.h>

namespace trireme::exchange {
namespace {

constexpr size_t kNotAgain = std::numeric_limits<size_t>::max();

}  // namespace

Window::Window(std::vector<size_t> bytes, size_t room)
    : bytes_(std::move(bytes)), room_(room), here_(bytes_.size()), used_(bytes_.size()) {}

void Window::end_pass() {
  if (pass_ < 0) return;
  Log& log = passes_[static_cast<size_t>(pass_)];
  log.learned = std::exchange(log.now, {});
  pass_ = -1;
}

Window::Actions Window::begin(int pass) {
  end_pass();
  pass_ = pass;
  cursor_ = 0;
  Actions actions;
  look_ahead({}, actions);
  return actions;
}

/// A use that was not expected here changes nothing, unless it comes later: then some were left out.
void Window::follow(size_t bucket) {
  used_[bucket] = ++clock_;
  if (pass_ < 0) return;
  const std::vector<size_t>& learned = expected();
  std::vector<size_t>& now = passes_[static_cast<size_t>(pass_)].now.order;
  if (!now.empty() && now.back() == bucket) return;
  now.push_back(bucket);
  const auto found =
      std::find(learned.begin() + static_cast<ptrdiff_t>(std::min(cursor_, learned.size())), learned.end(), bucket);
  if (found != learned.end()) cursor_ = static_cast<size_t>(found - learned.begin()) + 1;
}

size_t Window::next_use(size_t bucket) const {
  if (pass_ < 0) return kNotAgain;
  const std::vector<size_t>& learned = expected();
  for (size_t at = cursor_; at < learned.size(); at++)
    if (learned[at] == bucket) return at;
  return kNotAgain;
}

/// By giving up what is used after `before`: the last of these first, and of those that are not known to be used at all
/// the one that has not been for longest.
bool Window::make_room(size_t bytes, size_t before, std::span<const int> pinned, Actions& actions) {
  while (held_ + bytes > room_) {
    size_t victim = kNotAgain, its_next = 0;
    for (size_t b = 0; b < here_.size(); b++) {
      if (here_[b] == 0 || (!pinned.empty() && pinned[b] > 0)) continue;
      const size_t next = next_use(b);
      if (next != kNotAgain && next <= before && before != 0) continue;
      if (victim == kNotAgain || next > its_next || (next == its_next && used_[b] < used_[victim]))
        victim = b, its_next = next;
    }
    if (victim == kNotAgain) return false;
    here_[victim] = 0;
    held_ -= bytes_[victim];
    actions.push_back({Action::give_up, victim});
  }
  return true;
}

void Window::gather(size_t bucket, Actions& actions) {
  here_[bucket] = 1;
  held_ += bytes_[bucket];
  actions.push_back({Action::gather, bucket});
}

Window::Actions Window::use(std::span<const size_t> buckets, std::span<const int> pinned) {
  std::vector<int> kept(here_.size());
  std::copy(pinned.begin(), pinned.end(), kept.begin());
  for (size_t b : buckets) kept[b]++;
  note({Event::use, {buckets.begin(), buckets.end()}});
  Actions actions;
  for (size_t b : buckets) follow(b);
  for (size_t b : buckets) {
    if (here_[b] != 0) continue;
    make_room(bytes_[b], 0, kept, actions);
    gather(b, actions);
  }
  look_ahead(kept, actions);
  return actions;
}

/// The next ones in their order, until one has no room.
void Window::look_ahead(std::span<const int> pinned, Actions& actions) {
  if (pass_ < 0) return;
  const std::vector<size_t>& learned = expected();
  size_t met = 0;  // bytes of those that are here, and come before
  std::vector<uint8_t> seen(here_.size());
  for (size_t at = cursor_; at < learned.size() && met <= room_; at++) {
    const size_t b = learned[at];
    if (seen[b] != 0) continue;
    seen[b] = 1;
    met += bytes_[b];
    if (here_[b] != 0) continue;
    if (bytes_[b] > room_ || !make_room(bytes_[b], at, pinned, actions)) return;
    gather(b, actions);
  }
}

Window::Actions Window::abandon() {
  if (pass_ >= 0) passes_[static_cast<size_t>(pass_)].now = {};
  pass_ = -1;
  return clear();
}

Window::Actions Window::clear() {
  end_pass();
  Actions actions;
  for (size_t b = 0; b < here_.size(); b++)
    if (here_[b] != 0) actions.push_back({Action::give_up, b});
  std::fill(here_.begin(), here_.end(), uint8_t{0});
  held_ = 0;
  return actions;
}

}  // namespace trireme::exchange
