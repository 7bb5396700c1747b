#include <atomic>
#include <cerrno>
#include <system_error>

#include <trireme/base/error.h>

namespace trireme {
namespace {

std::atomic<void (*)() noexcept> note_peer_lost{nullptr};

}  // namespace

PeerLost::PeerLost(const std::string& text) : Error(text) {
  if (const auto note = note_peer_lost.load()) note();
}

void PeerLost::on_construction(void (*note)() noexcept) { note_peer_lost.store(note); }

std::string errno_text() { return errno_text(errno); }
std::string errno_text(int number) { return std::generic_category().message(number); }

}  // namespace trireme
