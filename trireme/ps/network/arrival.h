#pragma once
// What a server sends to a worker, on its way to where it belongs. Not installed.
#include <functional>
#include <optional>

#include <trireme/ps/shm/memory.h>

#include "assembly.h"

namespace trireme::ps::network {

/// A welcome or an answer that comes piece by piece. Data go straight to the worker's memory. One thread at a time.
class Arrival {
 public:
  /// By number; nothing when it was answered before.
  using FindRequest = std::function<std::optional<Request>(uint64_t id)>;

  /// Takes the next piece. Returns what is wrong, or "".
  std::string take(const grpc::ByteBuffer& piece, shm::Memory& memory, const FindRequest& find);
  bool complete() const { return assembly_.complete(); }
  const Frame& frame() const { return assembly_.frame(); }
  /// The words of a welcome or an error, or an answer in words.
  std::string take_text() { return std::move(text_); }
  /// It brought data that do not fit what was asked; they were left out.
  bool unasked() const { return unasked_; }

 private:
  std::byte* place(const Frame& frame, size_t bytes, shm::Memory& memory, const FindRequest& find);

  Assembly assembly_;
  std::string text_;
  bool unasked_ = false;
};

}  // namespace trireme::ps::network
