#pragma once
// What a worker waits for. For the files of client.h alone. Not installed.
#include <cstdint>
#include <string>

#include <trireme/ps/messages.h>

namespace trireme::ps {

/// What a caller waits for: one or several requests.
struct Operation {
  const char* what = "";
  size_t left = 0;
  size_t bytes = 0;  // that servers of this machine read or write for it
  uint64_t version = ~uint64_t{0};
  bool changed = false, flawed = false;
  Status failed = Status::ok;
  std::string error, text;
  Reply last;
};

}  // namespace trireme::ps
