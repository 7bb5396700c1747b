#include <fcntl.h>
#include <sys/mman.h>

#include <trireme/base/error.h>
#include <trireme/base/inherited.h>
#include <trireme/cluster/launching/keeper.h>

namespace trireme::cluster {

Keeper::Keeper() : memory_(memfd_create("trireme", MFD_CLOEXEC)) {
  if (!memory_) fail<IoError>("cannot make shared memory for the ranks (memfd_create): {}", errno_text());
}

std::string Keeper::variable() const { return inheritance_of(memory_.get()); }

std::shared_ptr<Segment> kept_segment(const std::string& variable) {
  const auto descriptor = inherited(variable);
  if (!descriptor) return nullptr;
  fcntl(*descriptor, F_SETFD, FD_CLOEXEC);
  Descriptor copy(fcntl(*descriptor, F_DUPFD_CLOEXEC, 3));  // the first stays for whoever joins again
  return copy ? std::make_shared<Segment>(std::move(copy), Segment::kAddressesOfJob) : nullptr;
}

}  // namespace trireme::cluster
