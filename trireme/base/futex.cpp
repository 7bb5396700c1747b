#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include <trireme/base/futex.h>

namespace trireme {

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Seconds limit) {
  const double whole = static_cast<double>(static_cast<long>(limit.count()));
  timespec left{static_cast<time_t>(whole), static_cast<long>((limit.count() - whole) * 1e9)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &left, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace trireme
