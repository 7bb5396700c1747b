#pragma once
// How requests and answers travel: one folder per kind of lane.
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <trireme/ps/messages.h>

namespace trireme::ps {

class Service;

/// The server's end: one worker, or one of several lines to it. Owned by its lane; the service holds shared pointers.
class Connection {
 public:
  virtual ~Connection() = default;
  /// Sends an answer; `data` is copied or sent before this returns. Never blocks; a worker that does not read loses its
  /// connection.
  virtual void reply(const Reply& reply, std::span<const std::byte> data) = 0;
  /// Where the data of an answer to a sparse pull may be written before reply() is called with them: memory of the
  /// worker's, which saves a copy. Empty when there is none; then the data come from elsewhere.
  virtual std::span<std::byte> room(const Request& /*request*/, size_t /*bytes*/) { return {}; }
  /// "worker 1 (process 4242)", "worker 1 on host b"
  virtual std::string name() const = 0;

  int worker = -1;             // set when it was admitted
  Service* service = nullptr;  // of the model that it was admitted to
};

/// A request as it reached the server, with what came along.
struct Incoming {
  std::shared_ptr<Connection> from;
  Request request;
  std::span<const std::byte> data{};  // as many bytes as the request announces, or none
  const uint8_t* present =
      nullptr;  // push: one byte for each slot of the chunk, not 0: the worker has a gradient for it. Null: for all
  std::shared_ptr<const void> keep{};  // what keeps the two above alive
};

/// The worker's end of the line to one server. One thread at a time.
class Lane {
 public:
  virtual ~Lane() = default;
  /// Hands a request over; `urgency`: the lowest goes first where requests queue up. `data` (and `present`) must stay
  /// as they are until the answer has come.
  virtual void send(const Request& request, std::span<const std::byte> data, std::span<const uint8_t> present,
                    uint32_t urgency) = 0;
  /// The next answer, if there is one: its data are then where they belong. Does not block. `text` is the message of an
  /// error, or an answer in words.
  virtual bool receive(Reply& reply, std::string& text) = 0;
  /// The worker is about to wait for so many answers: it need not be woken before the last of them has come. 1: every
  /// answer wakes it, as at first.
  virtual void expect(size_t /*answers*/) {}
  /// Why nothing more will come, or "". Does not block.
  virtual std::string fault() = 0;
  /// "server 0 (process 4242)", "server 0 on host b"
  virtual std::string name() const = 0;
  /// Whether the worker sees the server's memory.
  virtual bool local() const = 0;
};

}  // namespace trireme::ps
