#pragma once
// A page of memory that a launched process shares with its launcher: signs of life, what it has saved, why it ends. A
// page, because the launcher can read it whenever it wants to know, also after a sudden death, and writing to it never
// blocks. The page is an anonymous file that the process inherits as a descriptor; TRIREME_SLATE says which. A process
// without a launcher of ours has no page, and writes nothing.
//
// One slate per process, because the handler of std::terminate and the constructor of PeerLost, which write on it, are
// the process's too.
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include <trireme/base/descriptor.h>

namespace trireme::cluster {

/// The page. Every field has one writer, the process; a text counts as far as its length says.
struct SlatePage {
  template <size_t N>
  struct Text {
    std::atomic<uint32_t> length;
    char bytes[N];
  };

  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> beats;   // grows while the process gets on with something
  std::atomic<int64_t> updates;  // of models so far
  std::atomic<double> patience;  // seconds that it waits for a peer at most; 0: not known
  std::atomic<int64_t>
      lost_peer_at;  // nanoseconds of the monotonic clock, which all processes of a machine share; 0: it has lost none
  std::atomic<int64_t> failed_at;      // when `failure` was written
  std::atomic<int64_t> saved_at;       // when `saved` was written
  std::atomic<int64_t> saved_updates;  // of the model that was saved
  Text<1024> failure;                  // of an exception that nobody caught
  Text<1024> saved;                    // path of the last model
  std::atomic<int32_t> numbered;       // rank + 1; 0: it has none yet
};

/// The launcher's side: makes the page, and reads it.
class Slate {
 public:
  Slate() = default;
  /// Throws IoError.
  static Slate create();
  ~Slate();
  Slate(Slate&& other) noexcept : file_(std::move(other.file_)), page_(std::exchange(other.page_, nullptr)) {}
  Slate& operator=(Slate&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(page_, other.page_);
    return *this;
  }

  /// To be inherited by the process, which finds `variable()` in TRIREME_SLATE.
  int descriptor() const { return file_.get(); }
  std::string variable() const;
  /// No other process inherits it from now on. What is written on it can still be read.
  void close() { file_.reset(); }

  /// -1: it has none yet.
  int rank() const { return page_ == nullptr ? -1 : page_->numbered.load() - 1; }
  uint64_t beats() const { return page_ == nullptr ? 0 : page_->beats.load(); }
  int64_t updates() const { return page_ == nullptr ? 0 : page_->updates.load(); }
  int64_t saved_updates() const { return page_ == nullptr ? 0 : page_->saved_updates.load(); }
  double patience() const { return page_ == nullptr ? 0 : page_->patience.load(); }
  /// Seconds of the monotonic clock; 0: never.
  double lost_peer_at() const { return page_ == nullptr ? 0 : seconds(page_->lost_peer_at); }
  double failed_at() const { return page_ == nullptr ? 0 : seconds(page_->failed_at); }
  double saved_at() const { return page_ == nullptr ? 0 : seconds(page_->saved_at); }
  /// "" when there is none.
  std::string failure() const;
  std::string saved() const;

 private:
  static double seconds(const std::atomic<int64_t>& nanoseconds) {
    return static_cast<double>(nanoseconds.load()) * 1e-9;
  }

  Descriptor file_;
  SlatePage* page_ = nullptr;
};

/// Now, on the clock of a slate: seconds.
double slate_now();

// ---- the process's side: nothing happens without a page ----

/// Takes the page that TRIREME_SLATE, whose value this is, stands for. From then on a PeerLost is noted on it, and so
/// is an exception that nobody catches. A value that stands for nothing (the descriptor was closed on the way) is
/// passed over. Once per process; thread-safe.
void take_slate(const std::string& variable);

/// It is this rank of its job.
void note_rank(int rank);
/// This process gets on with its work. Costs an increment.
void note_beat();
/// It has made an update of a model, or taken part in one.
void note_update();
/// It has saved its model there, as it is now.
void note_saved(std::string_view path);
/// It waits for a peer so long at most.
void note_patience(double seconds);
/// An exception that nobody caught, from the handler of std::terminate: takes no lock and no memory.
void note_failure(std::string_view text);

}  // namespace trireme::cluster
