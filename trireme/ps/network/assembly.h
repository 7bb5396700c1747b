#pragma once
// Pieces become frames again. Not installed.
#include "buffers.h"

namespace trireme::ps::network {

/// A frame that comes piece by piece. One thread at a time.
class Assembly {
 public:
  /// Takes the next piece. `place(frame, bytes)` is asked once per frame, before the first byte is written: where all
  /// that follows its prefix goes, so many bytes; null: nowhere. Returns what is wrong, or "".
  template <class Place>
  std::string take(const grpc::ByteBuffer& piece, const Place& place) {
    Reader reader(piece);
    if (complete()) *this = {};
    if (bytes_ == 0) {
      if (std::string fault = begin(reader); !fault.empty()) return fault;
      place_ = place(std::as_const(frame_), bytes_ - kPrefix);
    } else if (std::string fault = check(reader.left()); !fault.empty()) {
      return fault;
    }
    append(reader);
    return "";
  }
  bool complete() const { return bytes_ > 0 && here_ == bytes_; }
  /// Without the views. From the first piece on.
  const Frame& frame() const { return frame_; }

 private:
  std::string begin(Reader& reader);
  std::string check(size_t piece) const;
  void append(Reader& reader);

  Frame frame_;
  uint64_t bytes_ = 0, here_ = 0;
  std::byte* place_ = nullptr;
};

}  // namespace trireme::ps::network
