#pragma once
// The error tree. A message says what, where, why and what to do.
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace trireme {

/// Root of everything the library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller asked for something that cannot be: a wrong flag, shape, name or file content chosen by the user.
class InvalidArgument : public Error {
  using Error::Error;
};

/// The system said no: a file, a mapping, a socket.
class IoError : public Error {
  using Error::Error;
};

/// A deadline passed.
class Timeout : public Error {
  using Error::Error;
};

/// A peer died or left while it was needed.
class PeerLost : public Error {
 public:
  explicit PeerLost(const std::string& text);
  /// Of this process: called whenever one is made, so that a launcher can tell who ended because of somebody else. Must
  /// not throw.
  static void on_construction(void (*note)() noexcept);
};

/// What a job knew has died with its last workers: it can only be resumed from a checkpoint.
class StateLost : public Error {
  using Error::Error;
};

/// Not a failure: this process is not needed any more, because it was drained or the job has ended. It should end with
/// exit code 0.
class Dismissed : public Error {
  using Error::Error;
};

/// Ranks disagree: about the order, shape or type of a collective, or about the layout of the model.
class Mismatch : public Error {
  using Error::Error;
};

/// Data that should be well formed is not: a truncated or damaged file.
class Corruption : public Error {
  using Error::Error;
};

/// A loss or a gradient is NaN or infinite.
class NotFinite : public Error {
  using Error::Error;
};

/// fmt::format, then throw: `fail<IoError>("cannot open {}", path)`.
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw E(fmt::format(text, std::forward<Args>(args)...));
}

/// "No such file or directory", for the current or a given errno.
std::string errno_text();
std::string errno_text(int number);

}  // namespace trireme
