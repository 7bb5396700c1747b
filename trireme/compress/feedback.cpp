#include <cstring>
#include <vector>

#include <trireme/compress/codec.h>
#include <trireme/compress/kernels.h>
#include <trireme/space/arena.h>

namespace trireme::compress {

struct ErrorFeedback::Memory {
  space::Arena residual[2];
  std::vector<float> wanted, sent;  // of one strip: as long as the longest so far
};

ErrorFeedback::ErrorFeedback(std::unique_ptr<Codec> codec, size_t flat_bytes, bool undo)
    : codec_(std::move(codec)), memory_(std::make_unique<Memory>()), undo_(undo) {
  for (int copy = 0; copy < (undo ? 2 : 1); copy++) memory_->residual[copy] = space::Arena::of_process(flat_bytes);
}

ErrorFeedback::~ErrorFeedback() = default;

float* ErrorFeedback::at(int copy, const Strip& strip) const {
  return reinterpret_cast<float*>(memory_->residual[copy].data() + strip.place);
}

std::span<float> ErrorFeedback::residual(const Strip& strip) const { return {at(now_, strip), strip.count()}; }

void ErrorFeedback::forget() { std::memset(memory_->residual[now_].data(), 0, memory_->residual[now_].bytes()); }

void ErrorFeedback::keep(const Strip& strip) {
  if (undo_) std::memcpy(at(1 - now_, strip), at(now_, strip), strip.count() * sizeof(float));
}

void ErrorFeedback::add_rest(const Strip& strip, float* values) {
  const float* const before = at(now_, strip);
  float* const after = at(undo_ ? 1 - now_ : now_, strip);
  Balance& balance = undo_ ? pending_ : settled_;
  for (size_t i = 0; i < strip.count(); i++) {
    const auto rest = static_cast<double>(before[i]);
    values[i] += before[i];
    after[i] = 0;
    balance.sent += rest;
    balance.residual -= rest;
  }
}

void ErrorFeedback::settle(bool applied) {
  if (!undo_) return;
  if (applied) {
    now_ = 1 - now_;
    settled_ = pending_;
  }
  pending_ = settled_;
}

/// A gradient that is not finite changes nothing that is remembered.
bool ErrorFeedback::encode_body(const Strip& strip, const float* values, std::span<std::byte> body) {
  const Kernels& k = kernels();
  const size_t count = strip.count();
  if (memory_->wanted.size() < count) {
    memory_->wanted.resize(count);
    memory_->sent.resize(count);
  }
  float *const wanted = memory_->wanted.data(), *const sent = memory_->sent.data();
  const float* const before = at(now_, strip);
  float* const after = at(undo_ ? 1 - now_ : now_, strip);
  if (!is_finite(k.add(values, before, wanted, count)) || !codec_->encode_body(strip, wanted, body)) {
    keep(strip);
    return false;
  }
  std::memset(sent, 0, count * sizeof(float));
  codec_->add_body(strip, body, sent);
  const Totals totals = k.keep(values, wanted, sent, before, after, count);
  Balance& balance = undo_ ? pending_ : settled_;
  balance.given += totals.given;
  balance.sent += totals.sent;
  balance.residual += totals.kept;
  return true;
}

}  // namespace trireme::compress
