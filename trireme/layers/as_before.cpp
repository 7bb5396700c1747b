#include <ATen/CPUGeneratorImpl.h>

#include <trireme/layers/as_before.h>

namespace trireme::layers {
namespace {

/// libtorch's lock of a generator, for as long as this lives.
struct Held {
  explicit Held(at::Generator& generator) : generator(generator) { generator.mutex().lock(); }
  ~Held() { generator.mutex().unlock(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  at::Generator& generator;
};

}  // namespace

torch::Tensor random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const Held held(generator);
  return generator.get_state();
}

void set_random_state(const torch::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const Held held(generator);
  generator.set_state(state);
}

SameBuffers::SameBuffers(std::vector<torch::Tensor> buffers) : buffers_(std::move(buffers)) {
  for (const torch::Tensor& buffer : buffers_) before_.push_back(buffer.clone());
}

SameBuffers::~SameBuffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); i++) buffers_[i].variable_data().copy_(before_[i]);
}

}  // namespace trireme::layers
