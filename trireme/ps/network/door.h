#pragma once
// The server's end of lanes to other machines.
#include <memory>
#include <string>

#include <trireme/ps/inbox.h>

namespace trireme::ps::network {

struct DoorOptions {
  int server = 0;
  std::string token, tls;           // that workers must show; tls: folder of certificates, or ""
  std::string address = "0.0.0.0";  // to listen on
  int port = 0;                     // 0: any that is free
};

/// Listens until it is destroyed. What arrives is posted to the inbox. Thread-safe.
class Door {
 public:
  virtual ~Door() = default;
  virtual int port() const = 0;
  /// Whether a worker has come this way: then gRPC's threads need cores, too.
  virtual bool used() const = 0;
};

/// Throws IoError when it cannot listen, InvalidArgument when certificates are wrong.
std::unique_ptr<Door> open_door(const DoorOptions& options, Inbox& inbox);

}  // namespace trireme::ps::network
