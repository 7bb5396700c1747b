#pragma once
// The parameters of a server's models: a memory file each, which all servers of a machine and their workers map.
#include <functional>
#include <map>
#include <memory>

#include <trireme/base/lock.h>
#include <trireme/base/segment.h>
#include <trireme/ps/models.h>

namespace trireme::ps::shm {

/// Server 0 makes the files; the other servers of its machine ask it for them, so that a worker finds one memory for
/// all. Thread-safe.
class ParameterFiles final : public ModelMemory {
 public:
  /// Gets a model's file from server 0. May throw.
  using Ask = std::function<std::shared_ptr<Segment>(int model, size_t bytes)>;

  /// `shared`: the files are server 0's. `ask`: null at server 0, and where it is on another machine.
  ParameterFiles(bool shared, Ask ask) : shared_(shared), ask_(std::move(ask)) {}

  bool shared() const { return shared_; }
  std::byte* take(int model, size_t bytes) override;
  void give_back(int model) override;
  /// A model's file; it is made if there is none, for so many bytes.
  std::shared_ptr<Segment> segment(int model, size_t bytes);
  /// One that was taken, and not given back.
  const Segment& of(int model) const;

 private:
  const bool shared_;
  const Ask ask_;
  mutable Mutex mutex_;
  std::map<int, std::shared_ptr<Segment>> files_ TRIREME_GUARDED_BY(mutex_);  // by model
};

}  // namespace trireme::ps::shm
