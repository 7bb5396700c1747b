#include <trireme/base/error.h>

#include <cerrno>
#include <system_error>

namespace trireme {

std::string errno_text() { return errno_text(errno); }
std::string errno_text(int number) { return std::generic_category().message(number); }

}  // namespace trireme
