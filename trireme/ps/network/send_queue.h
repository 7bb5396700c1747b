#pragma once
// Which of the requests that wait goes next.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace trireme::ps::network {

/// The lowest urgency first; among equals, the lowest number. But what many later ones could overtake goes before them:
/// no request waits for ever, and the service's window of numbers (SeenIds) is not left behind. One thread at a time.
template <class T>
class SendQueue {
 public:
  static constexpr uint64_t kOvertaken = 256;  // numbers

  /// `number`: grows from request to request; one that is put back keeps its own.
  void push(uint32_t urgency, uint64_t number, T item) {
    by_urgency_.insert_or_assign({urgency, number}, std::move(item));
    by_number_.insert_or_assign(number, urgency);
    highest_ = std::max(highest_, number);
  }
  bool empty() const { return by_urgency_.empty(); }
  size_t size() const { return by_urgency_.size(); }
  /// Not when it is empty.
  T pop() {
    const auto oldest = by_number_.begin();
    const bool late = highest_ - oldest->first > kOvertaken;
    const auto next = late ? by_urgency_.find({oldest->second, oldest->first}) : by_urgency_.begin();
    by_number_.erase(next->first.second);
    T item = std::move(next->second);
    by_urgency_.erase(next);
    return item;
  }

 private:
  std::map<std::pair<uint32_t, uint64_t>, T> by_urgency_;
  std::map<uint64_t, uint32_t> by_number_;
  uint64_t highest_ = 0;
};

}  // namespace trireme::ps::network
