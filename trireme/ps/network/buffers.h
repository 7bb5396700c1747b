#pragma once
// Frames as gRPC carries them, and how its connections are set up. Not installed: only lane.cpp, stream.cpp, door.cpp
// and visitor.cpp see gRPC.
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/ps/network/frames.h>

namespace trireme::ps::network {

constexpr const char* kMethod = "/trireme.ps.Lane/Talk";

/// What a frame is made of. `data` are not copied: `keep` keeps them until they are sent.
struct Parts {
  Head head{};  // the sizes are filled in
  Request request{};
  Reply reply{};
  std::span<const std::byte> data{};
  std::shared_ptr<const void> keep{};
  std::span<const uint8_t> present{};  // copied
};

/// A frame, piece by piece.
using Pieces = std::deque<grpc::ByteBuffer>;
Pieces compose(const Parts& parts);

/// Reads a received buffer from its beginning.
class Reader {
 public:
  explicit Reader(const grpc::ByteBuffer& buffer);
  size_t left() const { return left_; }
  /// Not more than are left.
  void copy(void* to, size_t bytes);

 private:
  std::vector<grpc::Slice> slices_;
  size_t slice_ = 0, offset_ = 0, left_ = 0;
};

/// Large messages, and a dead line is noticed: a ping after a second of silence, three seconds for its answer.
grpc::ChannelArguments lane_arguments();
void prepare(grpc::ServerBuilder& builder);

}  // namespace trireme::ps::network
