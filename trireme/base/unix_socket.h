#pragma once
// Sockets between processes of one machine and one user, with abstract names: there is no file to leave behind.
#include <sys/types.h>

#include <initializer_list>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>

namespace trireme {

/// A socket that keeps messages apart. Throws IoError.
Descriptor open_unix_socket();

/// Gives it the abstract name and lets others connect. False, with errno, when the name is taken.
bool listen_at(int socket, const std::string& name, int waiting);
/// False, with errno, when nobody listens there.
bool connect_to(int socket, const std::string& name);

/// Who knocks at a listener; nothing when whoever did is gone again. Throws IoError when nobody can be let in: this
/// process, or the machine, has no descriptor or memory left.
Descriptor accept_from(int listener);

/// Later sends and receives give up after this.
void limit_wait(int socket, Seconds limit);

/// Who is at the other end.
bool same_user(int socket);
pid_t process_of(int socket);

/// One message, with descriptors. False when the other side is gone.
bool send_message(int socket, const void* data, size_t bytes, std::initializer_list<int> descriptors = {});
/// One message of at most `bytes`, and the descriptors that came with it. Its size; 0 or less when none came.
ssize_t receive_message(int socket, void* data, size_t bytes, std::vector<Descriptor>& descriptors);

/// "trireme/UID/WHAT": other users' names cannot collide with ours.
std::string own_name(const std::string& what);

}  // namespace trireme
