#pragma once
// What a coordinator is to processes, for ranks that are threads.
#include <condition_variable>
#include <map>
#include <mutex>

#include <trireme/base/error.h>
#include <trireme/comm/network/engine.h>

namespace trireme::tests {

class Board final : public comm::network::KeyValue {
 public:
  void put(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline.left(), [&] { return values_.contains(key) || !failure_.empty(); }))
      fail<Timeout>("nobody put '{}'", key);
    if (!failure_.empty()) fail<PeerLost>("{}", failure_);
    return values_[key];
  }
  /// The job has failed: whoever waits, or looks, hears why.
  void fail_job(const std::string& why) {
    const std::lock_guard lock(mutex_);
    failure_ = why;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::string failure_;
};

}  // namespace trireme::tests
