#pragma once
// Parameters that come and go: ZeRO 3. A machine holds parts of them only, and others are gathered when an operator
// needs them, and given back after it (window.h). So whoever reads parameters says so with use(), in every pass that
// begin_pass() announced, and all ranks in the same order: who does not is a Mismatch.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <trireme/space/layout.h>

namespace trireme::exchange {

/// A forward pass, with or without its backward pass: those of one kind use the same parameters in the same order.
enum class Pass : uint8_t {
  micro,  // a micro-batch that adds to the gradients
  last,   // the one whose gradients become ready
  look    // nothing is trained
};

/// One thread, that which trains.
class Paging {
 public:
  /// A pass begins, on all ranks alike.
  virtual void begin_pass(Pass pass) = 0;
  /// Blocks until these parts of the flat vector may be read; they stay until release(). Uses may contain others, as
  /// operators call operators.
  virtual void use(std::span<const space::Range> parts) = 0;
  /// Ends the use that began last.
  virtual void release() = 0;
  /// For a rank without samples: uses what the last pass of this kind has used, as the other ranks do now, and calls
  /// `open` and `ready` where that called the exchange's. Throws InvalidArgument when there was none yet.
  virtual void replay(const std::function<void()>& open, const std::function<void()>& ready) = 0;
  /// Collective, before State::publish(): rank 0 has all parameters of this bucket. They are brought to their owners,
  /// and the others' memory is given back: so no machine ever has all buckets.
  virtual void publish_bucket(size_t bucket) = 0;

 protected:
  ~Paging() = default;
};

}  // namespace trireme::exchange
