// A codec of your own for gradients between machines: it sends values that are at least half of the largest, and error
// feedback keeps the others for later.
//
//   trireme launch --hosts a:1,b:1 -- ./09_own_codec
//   trireme launch -n 2 -- ./09_own_codec        on one machine nothing travels, and nothing is encoded
//
// Output: loss 0.0000 with gradients that travel as they are
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include <trireme/trireme.h>

class Half final : public trireme::compress::Codec {
  using Strip = trireme::compress::Strip;
  uint8_t kind() const override { return 128; }  // the library's are below
  size_t body_bytes(const Strip& strip) const override { return strip.count() * sizeof(float); }

  bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) override {
    float most = 0;
    for (size_t i = 0; i < strip.count(); i++) {
      if (!std::isfinite(values[i])) return false;  // the message says so, and all ranks see a NaN
      most = std::fmax(most, std::fabs(values[i]));
    }
    for (size_t i = 0; i < strip.count(); i++) {
      const float sent = 2 * std::fabs(values[i]) < most ? 0 : values[i];
      std::memcpy(body.data() + i * sizeof sent, &sent, sizeof sent);
    }
    return true;
  }

  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    for (size_t i = 0; i < strip.count(); i++) {  // a codec that can be sent nonsense checks it first: fail<Corruption>
      float value = 0;
      std::memcpy(&value, body.data() + i * sizeof value, sizeof value);
      into[i] += value;
    }
  }
};

int main() {
  auto world = trireme::join();
  torch::manual_seed(0);
  auto net = torch::nn::Linear(4, 3);
  trireme::ParallelOptions options;
  if (world.machines() > 1) options.exchange.own_codec = [] { return std::make_unique<Half>(); };
  options.exchange.own_codec_name = "half";  // ranks whose codecs have other names are told
  auto train = trireme::parallel(world, *net, trireme::sgd({.lr = 0.1}), options);

  const auto truth = torch::randn({3, 4});
  torch::manual_seed(100 + world.rank());
  trireme::Step last;
  for (int step = 0; step < 500; step++) {
    const auto x = torch::randn({16, 4});
    last = train.step([&] { return torch::mse_loss(net->forward(x), x.matmul(truth.t())); });
  }
  if (world.first())
    std::printf("loss %.4f with gradients that %s\n", last.loss,
                world.machines() > 1 ? "wait until they are large" : "travel as they are");
  return last.loss < 1e-3 ? 0 : 1;
}
