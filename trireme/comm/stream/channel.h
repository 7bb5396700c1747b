#pragma once
// One encrypted connection: TLS 1.3 over a socket that does not block.
//
// With certificates both sides show theirs, which one authority must have made. Without, the job's token is the
// pre-shared key: only who has it can complete the handshake, and the keys that encrypt and authenticate each record
// are new ones for each connection.
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/descriptor.h>
#include <trireme/comm/network/engine.h>
#include <trireme/comm/stream/frames.h>

struct ssl_ctx_st;
struct ssl_st;

namespace trireme::comm::stream {

/// What all connections of a group are made with. Outlives none of them: they share what is inside.
class Credentials {
 public:
  /// Throws InvalidArgument for certificates that do not hold, and where there is neither a certificate nor a token.
  explicit Credentials(const network::Secrets& secrets);
  bool by_certificate() const { return by_certificate_; }
  /// That its maker has the token: of a text, for one connection. `binding` is the connection's.
  Proof proof(const Proof& binding, const std::string& text) const;
  /// Of the job, for everybody to see.
  const std::string& job() const { return job_; }
  ssl_ctx_st* context() const { return context_.get(); }
  const std::string& key() const { return key_; }

 private:
  std::shared_ptr<ssl_ctx_st> context_;
  bool by_certificate_;
  std::string key_;  // made of the token
  std::string job_;
};

/// Takes the same time whatever they are.
bool same(const Proof& left, const Proof& right);

/// One thread at a time. Nothing here waits. What goes wrong is an IoError, or in the handshake an InvalidArgument when
/// the other side has no right to come in or we have none with it: the rest of a sentence about the other side.
class Channel {
 public:
  enum class Side { connects, accepts };
  static constexpr uint64_t kRekey = uint64_t{64} << 30;  // bytes under one key; AES-GCM stands three times as many

  /// `credentials` outlive it. `rekey`: for tests.
  Channel(const Credentials& credentials, Descriptor socket, Side side, uint64_t rekey = kRekey);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// True when it is complete.
  bool shake_hands();
  /// What only the two ends of this connection know.
  Proof binding() const;
  /// Bytes that were read; 0: there are none now. nullopt: the other side has said goodbye, and all was read.
  std::optional<size_t> read(std::span<std::byte> room);
  /// Encrypts it into this object's memory.
  void write(std::span<const std::byte> data);
  /// Hands what was written to the socket. True when all has gone.
  bool flush();
  /// Nothing will be written any more; flush() still has to send that.
  void say_goodbye();
  /// After flush(): the other side reads an end. This side can go on to read.
  void shut_down();
  int socket() const;

 private:
  struct Pipe;
  [[noreturn]] void broken(int result);
  [[noreturn]] void refused(int result);

  const Credentials& credentials_;
  std::unique_ptr<Pipe> pipe_;  // before what reads and writes it
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  const uint64_t rekey_;
  uint64_t under_this_key_ = 0;
};

}  // namespace trireme::comm::stream
