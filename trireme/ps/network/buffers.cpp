#include "buffers.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace trireme::ps::network {
namespace {

constexpr int kPingAfter = 1'000, kPingAnswer = 3'000;  // milliseconds
constexpr int kFrame = 1 << 20;  // of HTTP/2: the default of 16 KiB costs a pass through gRPC's parser each
constexpr int kAhead = 4 << 20;  // bytes of a stream that may be under way: a few chunks

using Setting = std::pair<const char*, int>;
constexpr std::array kBoth = {
    Setting{GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, static_cast<int>(kPiece)},
    Setting{GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, static_cast<int>(kPiece)},
    Setting{GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrame},
    Setting{GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kAhead},
    Setting{GRPC_ARG_HTTP2_BDP_PROBE,
            1},  // without, a connection has a window of 64 KiB, and every message waits for leave to send the rest
    Setting{GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfter},
    Setting{GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingAnswer},
    Setting{GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
    Setting{GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
};

void release(void* keep) {
  const std::unique_ptr<std::shared_ptr<const void>> last(static_cast<std::shared_ptr<const void>*>(keep));
}

/// Without a copy.
grpc::Slice view(std::span<const std::byte> bytes, const std::shared_ptr<const void>& keep) {
  auto kept = std::make_unique<std::shared_ptr<const void>>(keep);
  // gRPC takes memory that can be written to, and does not write.
  return {const_cast<std::byte*>(bytes.data()), bytes.size(), release, kept.release()};
}

class Cutter {
 public:
  /// So many bytes more; `slice(at, bytes)` gives some of them.
  template <class Slice>
  void add(size_t size, const Slice& slice) {
    for (size_t at = 0; at < size;) {
      const size_t now = std::min(size - at, kPiece - filled_);
      slices_.push_back(slice(at, now));
      at += now;
      filled_ += now;
      if (filled_ == kPiece) cut();
    }
  }
  Pieces take() {
    if (filled_ > 0) cut();
    return std::move(pieces_);
  }

 private:
  void cut() {
    pieces_.emplace_back(slices_.data(), slices_.size());
    slices_.clear();
    filled_ = 0;
  }

  Pieces pieces_;
  std::vector<grpc::Slice> slices_;
  size_t filled_ = 0;
};

}  // namespace

Pieces compose(const Parts& parts) {
  Head head = parts.head;
  head.data = parts.data.size();
  head.present = parts.present.size();
  std::array<std::byte, kPrefix> prefix{};
  std::memcpy(prefix.data(), &head, sizeof head);
  if (head.kind == Kind::request) std::memcpy(prefix.data() + sizeof head, &parts.request, sizeof parts.request);
  if (head.kind == Kind::reply) std::memcpy(prefix.data() + sizeof head, &parts.reply, sizeof parts.reply);
  Cutter cutter;
  cutter.add(prefix.size(), [&](size_t at, size_t bytes) { return grpc::Slice(prefix.data() + at, bytes); });
  cutter.add(parts.data.size(),
             [&](size_t at, size_t bytes) { return view(parts.data.subspan(at, bytes), parts.keep); });
  cutter.add(parts.present.size(),
             [&](size_t at, size_t bytes) { return grpc::Slice(parts.present.data() + at, bytes); });
  return cutter.take();
}

Reader::Reader(const grpc::ByteBuffer& buffer) {
  if (!buffer.Dump(&slices_).ok()) slices_.clear();
  for (const grpc::Slice& slice : slices_) left_ += slice.size();
}

void Reader::copy(void* to, size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  left_ -= bytes;
  while (bytes > 0) {
    const grpc::Slice& slice = slices_[slice_];
    const size_t now = std::min(bytes, slice.size() - offset_);
    std::memcpy(out, slice.begin() + offset_, now);
    out += now;
    bytes -= now;
    offset_ += now;
    if (offset_ == slice.size()) slice_++, offset_ = 0;
  }
}

grpc::ChannelArguments lane_arguments() {
  grpc::ChannelArguments arguments;
  for (const auto& [name, value] : kBoth) arguments.SetInt(name, value);
  return arguments;
}

void prepare(grpc::ServerBuilder& builder) {
  for (const auto& [name, value] : kBoth) builder.AddChannelArgument(name, value);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kPiece));
  builder.SetMaxSendMessageSize(static_cast<int>(kPiece));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingAfter / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                             0);  // or two servers would share a port, and workers between them
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostChannels);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
}

}  // namespace trireme::ps::network
