#pragma once
// How something that other threads do has ended.
#include <atomic>
#include <exception>
#include <memory>

#include <trireme/comm/communicator.h>

namespace trireme::comm::network {

/// For whoever waits. Outlives the group. Thread-safe.
struct Ticket {
  std::atomic<bool> done{false};
  std::exception_ptr error;  // valid once done

  void settle(std::exception_ptr how) {
    error = std::move(how);
    done.store(true);
    done.notify_all();
  }
  void wait() {
    done.wait(false);
    if (error) std::rethrow_exception(error);
  }
};

class TicketWork final : public Work {
 public:
  explicit TicketWork(std::shared_ptr<Ticket> ticket) : ticket_(std::move(ticket)) {}
  bool test() override {
    if (!ticket_->done.load()) return false;
    ticket_->wait();  // throws what went wrong
    return true;
  }
  void wait() override { ticket_->wait(); }

 private:
  std::shared_ptr<Ticket> ticket_;
};

/// What is complete from the beginning.
inline std::shared_ptr<Ticket> settled_ticket() {
  auto ticket = std::make_shared<Ticket>();
  ticket->settle(nullptr);
  return ticket;
}

}  // namespace trireme::comm::network
