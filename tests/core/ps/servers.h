#pragma once
// Servers and workers as threads of this process.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/cluster/coordination/tls.h>
#include <trireme/ps/client.h>
#include <trireme/ps/server.h>

#include "../comm/ranks.h"

namespace trireme::ps::tests {

using trireme::tests::expect_all_well;
using trireme::tests::expect_error;
using trireme::tests::message_of;
using trireme::tests::Outcomes;

/// What a coordinator does for servers and workers: small values by key.
class Store final : public comm::network::KeyValue {
 public:
  void put(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline.left(), [&] { return values_.contains(key); }))
      fail<Timeout>("nobody has put {}", key);
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

enum class Way { shm, network, network_tls };

inline std::string job_name() {
  static std::atomic<int> count{0};
  return fmt::format("test {} {}", getpid(), count++);
}

/// A folder of certificates, the same for the whole program.
inline const std::string& certificates() {
  static const struct Folder {
    Folder() {
      std::string pattern = testing::TempDir() + "trireme-ps-tls-XXXXXX";
      if (mkdtemp(pattern.data()) == nullptr) fail<IoError>("no folder for certificates: {}", errno_text());
      path = pattern + "/certificates";
      root = pattern;
      cluster::make_certificates(path);
    }
    ~Folder() { std::filesystem::remove_all(root); }
    std::string root, path;
  } folder;
  return folder.path;
}

/// Servers that run from construction to destruction.
class Servers {
 public:
  Servers(Way way, int workers, int servers) {
    meeting = {.job = job_name(), .token = "a token"};
    if (way != Way::shm) meeting.store = &store_, meeting.remote_only = true;
    if (way == Way::network_tls) meeting.tls = certificates();
    for (int server = 0; server < servers; server++)
      threads_.emplace_back([this, server, workers, servers] {
        try {
          Server running(
              {.server = server, .workers = workers, .servers = servers, .meeting = meeting, .timeout = Seconds(20)});
          running.run();
        } catch (...) {
          const std::lock_guard lock(mutex_);
          errors.push_back(std::current_exception());
        }
      });
  }
  ~Servers() { join(); }
  /// After it, `errors` has what the servers threw.
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  Meeting meeting;
  Outcomes errors;

 private:
  Store store_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

/// Runs `body` once per worker, each in a thread of its own with a client.
inline Outcomes run_workers(const Meeting& meeting, const Job& job, const std::function<void(Client&)>& body,
                            const ClientOptions& options = {.timeout = Seconds(20)}) {
  Outcomes outcomes(static_cast<size_t>(job.workers));
  std::vector<std::thread> threads;
  for (int worker = 0; worker < job.workers; worker++)
    threads.emplace_back([&, worker] {
      try {
        Client client(meeting, worker, job, options);
        body(client);
      } catch (...) {
        outcomes[static_cast<size_t>(worker)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// A model with odd sizes, cut into several buckets and chunks.
inline space::Layout small_model(DType type = DType::f32) {
  return space::Layout({{"conv.weight", type, {6, 5, 5}},
                        {"conv.bias", type, {6}},
                        {"fc1.weight", type, {37, 41}},
                        {"fc1.bias", type, {37}},
                        {"fc2.weight", type, {10, 37}}});
}

inline Job small_job(int workers, int servers, Order order) {
  Job job{.layout = small_model(), .workers = workers, .servers = servers, .bucket_bytes = 2048, .chunk_bytes = 1024};
  job.optimizer = space::sgd({.lr = 0.5});
  job.rules = {.workers = workers, .order = order};
  return job;
}

inline space::Range whole(const Client& client) { return {0, client.job().layout.bytes()}; }
inline float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }

/// Fills the slots' elements of a flat vector; the padding stays.
inline void fill(const space::Layout& layout, std::byte* flat,
                 const std::function<float(size_t slot, size_t i)>& value) {
  for (size_t slot = 0; slot < layout.size(); slot++)
    for (size_t i = 0; i < layout[slot].elements(); i++) floats(flat + layout[slot].range.begin)[i] = value(slot, i);
}

}  // namespace trireme::ps::tests
