#pragma once
// Parameters that are still on their way when a step returns.
//
// A forward pass uses the first layers first, and those arrive first. So the next pass may begin before the last layers
// are there, if whoever uses a parameter waits for it. libtorch has no hooks before a C++ module's forward(), but it
// announces every operator with its inputs (at::RecordFunction): while an Arrivals lives, an operator that gets a
// parameter, or a view of one, first waits for it: for as much as the view shows.
#include <torch/types.h>

#include <cstddef>
#include <exception>
#include <functional>

#include <trireme/space/range.h>

namespace trireme {

class Arrivals {
 public:
  /// `await(part)` blocks until a part of the flat `parameters` may be used; it is called more than once. None of its
  /// exceptions reaches the operator, which cannot pass one on: dismiss() throws the first, and nobody waits any more.
  /// For one thread: that of expect().
  Arrivals(const std::byte* parameters, size_t bytes, std::function<void(space::Range part)> await);
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

  const std::byte* parameters_;
  size_t bytes_;
  std::function<void(space::Range)> await_;
  std::exception_ptr failure_;
  uint64_t callback_ = 0;
  bool expecting_ = false;
};

}  // namespace trireme
