#pragma once
// A collective under way, in two halves: post() sends what can be sent before anybody has answered, complete() does the
// rest.
#include <deque>
#include <span>
#include <vector>

#include <trireme/comm/network/ticket.h>
#include <trireme/comm/network/wire.h>

namespace trireme::comm::network {

/// What travels with an allreduce or a reduce-scatter, in its opening, and so costs no message of its own. The caller's
/// memory, until the collective is complete.
struct Along {
  std::span<uint8_t> flags{};  // become their maximum over all ranks
  std::span<double> sums{};    // become their sum, formed in the order of ranks
  bool empty() const { return flags.empty() && sums.empty(); }
  /// As an opening carries it: the sums, then the flags.
  std::vector<std::byte> packed() const;
  /// All ranks' packed ones, in the order of ranks, so that all get the same bits.
  void merge(std::span<const std::byte* const> all);
};

class Operation {
 public:
  Operation(Wire& wire, const Fingerprint& what) : wire_(wire), what_(what), me_(wire.rank()), size_(wire.size()) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Does not wait. An error is kept for complete(): whoever disagrees may have left, and its opening says more than
  /// its absence.
  void post() noexcept;
  /// Blocks until this rank's part is done and the memory is the caller's again. Throws Mismatch, Timeout, PeerLost, or
  /// the group's cause.
  void complete();

  /// Of the caller's data.
  virtual size_t bytes() const { return what_.bytes(); }
  const std::shared_ptr<Ticket>& ticket() const { return ticket_; }

 protected:
  struct Piece {
    const std::byte* data = nullptr;
    size_t bytes = 0;
  };

  /// What the opening to `peer` carries; at most Packet::kRoom.
  virtual Piece enclosed(int /*peer*/) const { return {}; }
  /// True when enclosed() depends on the peer.
  virtual bool individual() const { return false; }
  /// What is wrong with what the peer's opening carries; "": nothing. `theirs` has a different list of counts, or
  /// everything else agrees.
  virtual std::string conflict(int /*peer*/) const { return ""; }
  /// Sends that need no answer. Receives wait for run(): until the openings were compared, nobody knows the sizes.
  virtual void send_first() {}
  /// All ranks agree.
  virtual void run() = 0;

  int peer(int step) const { return (me_ + step % size_ + size_) % size_; }
  int left() const { return peer(-1); }
  int right() const { return peer(1); }
  const std::byte* enclosed_by(int peer) const { return arrived_[static_cast<size_t>(peer)].data.data(); }
  /// Of what came along with the openings; `packed` is this rank's.
  void merge(Along& along, const std::vector<std::byte>& packed) const;

  /// Nothing is sent, and nothing awaited, where there are no bytes.
  void send(const std::byte* data, size_t bytes, int to);
  std::unique_ptr<Message> receive(std::byte* data, size_t bytes, int from);
  void await(const std::unique_ptr<Message>& message, int from);
  /// Until at most `left` of the sends are under way, oldest first.
  void drain(size_t left = 0);
  size_t sends_under_way() const { return sent_.size(); }

 private:
  struct Sent {
    std::unique_ptr<Message> message;
    int to;
  };

  void post_openings();
  void compare_openings();
  void flush_openings() noexcept;
  uint32_t tag() const { return kDataTag + static_cast<uint32_t>(what_.sequence % kDataTags); }

 protected:
  Wire& wire_;
  const Fingerprint what_;
  const int me_, size_;

 private:
  std::shared_ptr<Ticket> ticket_ = std::make_shared<Ticket>();
  std::unique_ptr<Packet[]> leaving_, arrived_;  // before the messages, which end first
  std::vector<std::unique_ptr<Message>> openings_;
  std::deque<Sent> openings_sent_, sent_;
  std::exception_ptr trouble_;  // of post()
};

}  // namespace trireme::comm::network
