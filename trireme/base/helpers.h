#pragma once
// Threads that help another one with long passes over memory.
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <trireme/base/bell.h>
#include <trireme/base/lock.h>

namespace trireme {

/// One thread has them and decides what is done; the helpers only lend their cores. A helper that does not come is
/// not waited for. One caller at a time.
class Helpers {
 public:
  using Body = std::function<void(size_t begin, size_t end)>;

  /// With none the caller does everything. Throws IoError when there can be no more threads.
  explicit Helpers(int count);
  /// Ends and joins the helpers.
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  /// Calls `body` for pieces that together are [0, total) bytes, each once, here and in the helpers, in any order;
  /// returns when all are done. Pieces begin on a multiple of 64. A pass of fewer than `kLong` bytes is one call, here.
  /// The caller takes pieces from the front and helpers from the back, so that each core finds in its cache what it had
  /// in the pass before. Rethrows what `body` has thrown; the other pieces are done all the same.
  void run(size_t total, const Body& body);

  int count() const { return static_cast<int>(threads_.size()); }

  static constexpr size_t kLong = 256 << 10;  // bytes; waking a helper costs as much as a shorter pass
  static constexpr size_t kPiece = 64 << 10;

 private:
  /// What is left of a pass, in one word: whoever takes a piece knows that the pass has not ended, and that what it has
  /// read of it is still true.
  struct Left {
    uint32_t pass = 0;
    uint16_t front = 0, back = 0;  // pieces [front, back) are free
  };
  enum class End : uint8_t { front, back };

  void stop();
  void keep_apart();
  void help();
  void work(End end);
  void do_piece(const Body& body, size_t begin, size_t end);
  bool all_done() const { return done_.load() == pieces_; }

  std::vector<std::thread> threads_;
  Bell work_bell_, done_bell_;
  Patience caller_patience_;
  cpu_set_t allowed_{};   // cores of this process
  int caller_core_ = -1;  // where the helpers do not go
  std::atomic<bool> stopped_{false};

  alignas(64) std::atomic<Left> left_{};
  std::atomic<const Body*> body_{nullptr};
  std::atomic<size_t> total_{0}, piece_{0};
  alignas(64) std::atomic<size_t> done_{0};  // pieces
  size_t pieces_ = 0;                        // the caller's

  Mutex mutex_;
  std::exception_ptr error_ TRIREME_GUARDED_BY(mutex_);  // the first
};

}  // namespace trireme
