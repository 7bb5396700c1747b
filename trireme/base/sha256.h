#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace trireme {

/// SHA-256 over everything that was added, in order.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(const void* data, size_t bytes);
  /// Lower-case hexadecimal. Call once.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
