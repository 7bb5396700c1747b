#include <cstring>
#include <vector>

#include <trireme/compress/codec.h>
#include <trireme/compress/kernels.h>
#include <trireme/space/arena.h>

namespace trireme::compress {

struct ErrorFeedback::Memory {
  void reserve(size_t count) {
    if (wanted.size() >= count) return;
    wanted.resize(count);
    sent.resize(count);
  }
  space::Arena residual[2];
  bool undo = false;
  int now = 0;  // which of the two counts
  Balance settled, pending;
  std::vector<float> wanted, sent;  // of one strip: as long as the longest so far
};

ErrorFeedback::ErrorFeedback(std::unique_ptr<Codec> codec, size_t flat_bytes, bool undo)
    : codec_(std::move(codec)), memory_(std::make_shared<Memory>()) {
  memory_->undo = undo;
  for (int copy = 0; copy < (undo ? 2 : 1); copy++) memory_->residual[copy] = space::Arena::of_process(flat_bytes);
}

ErrorFeedback::ErrorFeedback(std::unique_ptr<Codec> codec, const ErrorFeedback& other)
    : codec_(std::move(codec)), memory_(other.memory_) {}

ErrorFeedback::~ErrorFeedback() = default;

const ErrorFeedback::Balance& ErrorFeedback::balance() const { return memory_->settled; }
ErrorFeedback::Balance& ErrorFeedback::counted() const { return memory_->undo ? memory_->pending : memory_->settled; }

float* ErrorFeedback::at(int copy, const Strip& strip) const {
  return reinterpret_cast<float*>(memory_->residual[copy].data() + strip.place);
}

std::span<float> ErrorFeedback::residual(const Strip& strip) const { return {at(memory_->now, strip), strip.count()}; }

void ErrorFeedback::forget() {
  const space::Arena& kept = memory_->residual[memory_->now];
  std::memset(kept.data(), 0, kept.bytes());
}

void ErrorFeedback::keep(const Strip& strip) {
  const int now = memory_->now;
  if (memory_->undo) std::memcpy(at(1 - now, strip), at(now, strip), strip.count() * sizeof(float));
}

void ErrorFeedback::add_rest(const Strip& strip, float* values) {
  const float* const before = at(memory_->now, strip);
  float* const after = at(memory_->undo ? 1 - memory_->now : memory_->now, strip);
  Balance& balance = counted();
  for (size_t i = 0; i < strip.count(); i++) {
    const auto rest = static_cast<double>(before[i]);
    values[i] += before[i];
    after[i] = 0;
    balance.sent += rest;
    balance.residual -= rest;
  }
}

void ErrorFeedback::settle(bool applied) {
  Memory& m = *memory_;
  if (!m.undo) return;
  if (applied) {
    m.now = 1 - m.now;
    m.settled = m.pending;
  }
  m.pending = m.settled;
}

/// A gradient that is not finite changes nothing that is remembered.
bool ErrorFeedback::encode_body(const Strip& strip, const float* values, std::span<std::byte> body) {
  const Kernels& k = kernels();
  const size_t count = strip.count();
  memory_->reserve(count);
  float *const wanted = memory_->wanted.data(), *const sent = memory_->sent.data();
  const float* const before = at(memory_->now, strip);
  float* const after = at(memory_->undo ? 1 - memory_->now : memory_->now, strip);
  if (!is_finite(k.add(values, before, wanted, count)) || !codec_->encode_body(strip, wanted, body)) {
    keep(strip);
    return false;
  }
  std::memset(sent, 0, count * sizeof(float));
  codec_->add_body(strip, body, sent);
  for (size_t i = 0; likeness_ != nullptr && i < count; i++) {
    const double w = static_cast<double>(wanted[i]), s = static_cast<double>(sent[i]);
    likeness_->product += w * s;
    likeness_->wanted += w * w;
    likeness_->sent += s * s;
  }
  const Totals totals = k.keep(values, wanted, sent, before, after, count);
  Balance& balance = counted();
  balance.given += totals.given;
  balance.sent += totals.sent;
  balance.residual += totals.kept;
  return true;
}

}  // namespace trireme::compress
