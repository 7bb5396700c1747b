#pragma once
// Parameters that are still on their way when a step returns, or that are here only while they are used.
//
// A forward pass uses the first layers first, and those arrive first. So the next pass may begin before the last layers
// are there, if whoever uses a parameter waits for it. libtorch has no hooks before a C++ module's forward(), but it
// announces every operator with its inputs (at::RecordFunction): while an Arrivals lives, an operator that gets a
// parameter, or a view of one, first waits for it: for as much as the view shows. The same in a backward pass, whose
// operators run in the thread that called it. When the operator ends it says so: with ZeRO 3 what it used may go then.
#include <torch/types.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include <trireme/space/range.h>

namespace trireme {

class Arrivals {
 public:
  using Use = std::function<void(std::span<const space::Range> parts)>;
  /// `use(parts)` blocks until what an operator gets of the flat `parameters` may be used; `release()` is called for
  /// each use when its operator ends. None of their exceptions reaches the operator, which cannot pass one on: check()
  /// and dismiss() throw the first, and nobody waits any more. For one thread: that of expect().
  Arrivals(const std::byte* parameters, size_t bytes, Use use, std::function<void()> release = {});
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  /// From now on operators wait.
  void expect();
  /// They do no more. Throws what went wrong in a wait.
  void dismiss();
  /// Throws what went wrong so far.
  void check();
  /// As dismiss(), for who throws something else.
  void forsake() noexcept;

 private:
  friend struct ArrivalsObserver;
  void add(const torch::Tensor& tensor);
  bool use_all() noexcept;
  void end_use() noexcept;

  const std::byte* parameters_;
  size_t bytes_;
  Use use_;
  std::function<void()> release_;
  std::vector<space::Range> parts_;  // of the operator that begins
  std::exception_ptr failure_;
  bool expecting_ = false;
};

}  // namespace trireme
