#pragma once
// Parameters that are still on their way when a step returns.
//
// A forward pass uses the first layers first, and those arrive first. So the next pass may begin before the last layers are there, if whoever uses a parameter
// waits for it. libtorch has no hooks before a C++ module's forward(), but it announces every operator with its inputs (at::RecordFunction): while an Arrivals
// lives, an operator that gets a parameter, or a view of one, first waits for it.
#include <torch/types.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <unordered_map>
#include <vector>

namespace trireme {

class Arrivals {
 public:
  /// `await(slot)` blocks until a slot's parameter may be used; it is called more than once. `parameters` are by slot. None of its exceptions reaches the
  /// operator, which cannot pass one on: dismiss() throws the first, and nobody waits any more. For one thread: that of expect().
  Arrivals(const std::vector<torch::Tensor>& parameters, std::function<void(size_t slot)> await);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  /// From now on operators wait.
  void expect();
  /// They do no more. Throws what went wrong in a wait.
  void dismiss();

 private:
  friend struct ArrivalsObserver;
  void use(const torch::Tensor& tensor) noexcept;

  std::unordered_map<const void*, size_t> slots_;  // by the beginning of a parameter's memory
  std::function<void(size_t)> await_;
  std::exception_ptr failure_;
  uint64_t callback_ = 0;
  bool expecting_ = false;
};

}  // namespace trireme
