#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>

namespace trireme {
namespace {

constexpr size_t kMostDescriptors = 4;

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;

  explicit Address(const std::string& text) {
    name.sun_family = AF_UNIX;
    const size_t size = std::min(text.size(), sizeof name.sun_path - 1);
    std::memcpy(name.sun_path + 1, text.data(), size);  // a leading zero: abstract
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

ucred credentials(int socket) {
  ucred peer{};
  peer.uid = static_cast<uid_t>(-1);
  socklen_t size = sizeof peer;
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer;
}

}  // namespace

Descriptor open_unix_socket() {
  Descriptor socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket_) fail<IoError>("cannot open a unix socket: {}", errno_text());
  return socket_;
}

bool listen_at(int socket, const std::string& name, int waiting) {
  const Address address(name);
  return bind(socket, address.get(), address.length) == 0 && listen(socket, waiting) == 0;
}

bool connect_to(int socket, const std::string& name) {
  const Address address(name);
  return connect(socket, address.get(), address.length) == 0;
}

Descriptor accept_from(int listener) {
  Descriptor visitor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  const int error = visitor ? 0 : errno;
  if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
    fail<IoError>(
        "process {} cannot let anybody in at its unix socket: {}. Raise the limit (ulimit -n), or close files",
        getpid(), errno_text(error));
  return visitor;
}

void limit_wait(int socket, Seconds limit) {
  timeval time{static_cast<time_t>(limit.count()), 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

bool same_user(int socket) { return credentials(socket).uid == getuid(); }
pid_t process_of(int socket) { return credentials(socket).pid; }

bool send_message(int socket, const void* data, size_t bytes, std::initializer_list<int> descriptors) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptors.size() > 0) {
    const size_t size = std::min(descriptors.size(), kMostDescriptors) * sizeof(int);
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(size);
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(item), descriptors.begin(), size);
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

ssize_t receive_message(int socket, void* data, size_t bytes, std::vector<Descriptor>& descriptors) {
  iovec part{data, bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(item) + i * sizeof(int), sizeof descriptor);
      descriptors.emplace_back(descriptor);
    }
  }
  return got;
}

std::string own_name(const std::string& what) { return fmt::format("trireme/{}/{}", getuid(), what); }

}  // namespace trireme
