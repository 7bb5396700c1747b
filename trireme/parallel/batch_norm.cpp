#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/instance_norm_native.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>

#include <trireme/base/error.h>
#include <trireme/parallel/batch_norm.h>

namespace trireme {
namespace {

using torch::Tensor;
using Optional = std::optional<Tensor>;
using TorchOptional = c10::optional<Tensor>;

thread_local BatchStatistics* current = nullptr;

std::atomic<int64_t> passes{0};

std::vector<int> machines_of(const Group& group) {
  std::vector<int> machines;
  for (int rank = 0; rank < group.size(); rank++) machines.push_back(group.machine_of(rank));
  return machines;
}

std::vector<double> numbers_of(const Tensor& tensor) {
  const Tensor wide = tensor.to(torch::kFloat64).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

Tensor tensor_of(std::span<const double> numbers, torch::ScalarType type) {
  return torch::tensor(at::ArrayRef<double>(numbers.data(), numbers.size()), torch::kFloat64).to(type);
}

bool has(const TorchOptional& tensor) { return tensor.has_value() && tensor->defined(); }

/// Count, then means, then squared distances of two sets of samples, as those of both: no sums of squares, which would
/// lose digits where the mean is large.
void merge_moments(std::span<double> into, std::span<const double> other) {
  const size_t channels = into.size() / 2;
  const double mine = into[0], theirs = other[0], both = mine + theirs;
  if (both == 0) return;
  for (size_t c = 0; c < channels; c++) {
    double &mean = into[1 + c], &distance = into[1 + channels + c];
    const double apart = other[1 + c] - mean;
    mean += apart * (theirs / both);
    distance += other[1 + channels + c] + apart * apart * (mine * theirs / both);
  }
  into[0] = both;
}

}  // namespace

/// Normalises with given moments, whose gradients are those of statistics over the samples of all ranks.
struct BatchNormFunction : torch::autograd::Function<BatchNormFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& input, const Tensor& weight,
                        const Tensor& bias, const Tensor& mean, const Tensor& variance, double count, double eps) {
    ctx->save_for_backward({input, weight, mean, variance});
    ctx->saved_data["count"] = count;
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["pass"] = current->pass_;
    ctx->saved_data["layer"] = current->layers_;
    return std::get<0>(at::native_batch_norm(input, weight, bias, mean, variance, false, 0, eps));
  }

  /// dx = γ/σ · (dy − Σdy/n − x̂ · Σ(dy·x̂)/n), with the sums over all ranks; the gradients of γ and β are this rank's
  /// own sums, as those of all other parameters are.
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               torch::autograd::tensor_list outputs) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const double count = ctx->saved_data["count"].toDouble(), eps = ctx->saved_data["eps"].toDouble();
    check(ctx->saved_data["pass"].toInt());
    auto [dx, of_weight, of_bias] = at::native_batch_norm_backward(outputs[0], input, weight, mean, variance, {}, {},
                                                                   false, eps, {true, true, true});

    std::vector<double> sums = numbers_of(of_bias);
    const size_t channels = sums.size();
    const std::vector<double> products = numbers_of(of_weight);
    sums.insert(sums.end(), products.begin(), products.end());
    current->gathering_.merge(sums, comm::add,
                              fmt::format("gradients of batch norm {}", ctx->saved_data["layer"].toInt()));

    const std::span<const double> all(sums);
    const Tensor factor = weight * torch::rsqrt(variance + eps) * (-1 / count);
    const Tensor slope = factor * tensor_of(all.subspan(channels), mean.scalar_type());
    const Tensor shift = factor * tensor_of(all.first(channels), mean.scalar_type());
    dx.add_(std::get<0>(at::native_batch_norm(input, slope, shift, mean, variance, false, 0, eps)));
    return {dx, of_weight, of_bias, {}, {}, {}, {}};
  }

  static void check(int64_t pass) {
    if (torch::GradMode::is_enabled())
      fail<InvalidArgument>(
          "a synchronised batch norm cannot be differentiated twice (create_graph): leave sync_batch_norm off");
    if (current == nullptr || current->pass_ != pass)
      fail<InvalidArgument>(
          "the backward pass of a synchronised batch norm belongs to the call of step() that ran its forward pass, in "
          "the same thread; "
          "detach() what is kept for later");
  }
};

struct BatchNormKernel {
  static Tensor batch_norm(const Tensor& input, const TorchOptional& weight, const TorchOptional& bias,
                           const TorchOptional& mean, const TorchOptional& variance, bool training, double momentum,
                           double eps, bool cudnn) {
    if (!training || current == nullptr)
      return at::native::batch_norm(input, weight, bias, mean, variance, training, momentum, eps, cudnn);
    const auto moments = current->gather(input);
    current->run(has(mean) ? Optional(*mean) : Optional(), has(variance) ? Optional(*variance) : Optional(), moments,
                 momentum);
    const auto type = has(weight) ? weight->scalar_type() : input.scalar_type();
    std::vector<double> biased = moments.distance;
    for (double& value : biased) value /= moments.count;
    const Tensor means = tensor_of(moments.mean, type), variances = tensor_of(biased, type);
    return BatchNormFunction::apply(input, has(weight) ? *weight : torch::ones_like(means),
                                    has(bias) ? *bias : torch::zeros_like(means), means, variances, moments.count, eps);
  }

  /// libtorch computes it as the batch norm of one sample with more channels; those are this rank's alone.
  static Tensor instance_norm(const Tensor& input, const TorchOptional& weight, const TorchOptional& bias,
                              const TorchOptional& mean, const TorchOptional& variance, bool own, double momentum,
                              double eps, bool cudnn) {
    const BatchStatistics::Use none(nullptr);
    return at::native::instance_norm(input, weight, bias, mean, variance, own, momentum, eps, cudnn);
  }

  /// Once per process, when it is first needed.
  static void put_in_front() {
    static const torch::Library kernels = [] {
      torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
      library.impl("batch_norm", &batch_norm);
      library.impl("instance_norm", &instance_norm);
      return library;
    }();
  }
};

BatchStatistics::BatchStatistics(const Group& group, Buffers buffers)
    : group_(group), buffers_(std::move(buffers)), gathering_(group.comm(), machines_of(group)) {
  BatchNormKernel::put_in_front();
}

void BatchStatistics::begin(bool present) {
  pass_ = ++passes;
  layers_ = 0;
  running_.clear();
  gathering_.call(present);
}

BatchStatistics::Use::Use(BatchStatistics* statistics) : before_(std::exchange(current, statistics)) {}
BatchStatistics::Use::~Use() { current = before_; }

BatchStatistics::Moments BatchStatistics::gather(const Tensor& input) {
  const torch::NoGradGuard no_grad;
  const auto channels = static_cast<size_t>(input.size(1));
  std::vector<double> numbers(1 + 2 * channels);
  if (input.numel() > 0) {
    const double count = static_cast<double>(input.numel()) / static_cast<double>(channels);
    const auto [mean, variance] = at::batch_norm_update_stats(input.detach(), {}, {}, 0);
    numbers = {count};
    for (const Tensor& part : {mean.to(torch::kFloat64), variance.to(torch::kFloat64) * count})
      for (const double number : numbers_of(part)) numbers.push_back(number);
  }
  gathering_.merge(numbers, merge_moments, fmt::format("statistics of batch norm {}", ++layers_));
  const auto means = numbers.begin() + 1, distances = means + static_cast<std::ptrdiff_t>(channels);
  return {numbers[0], {means, distances}, {distances, numbers.end()}};
}

void BatchStatistics::run(const Optional& mean, const Optional& variance, const Moments& moments, double momentum) {
  const torch::NoGradGuard no_grad;
  const auto move = [&](Tensor running, const std::vector<double>& values, double scale) {
    running.mul_(1 - momentum).add_(tensor_of(values, running.scalar_type()), momentum * scale);
    running_.push_back(running);
  };
  if (mean) move(*mean, moments.mean, 1);
  if (variance) move(*variance, moments.distance, 1 / (moments.count - 1));
}

namespace {

constexpr const char* kWhich = "which running statistics have changed";
constexpr std::string_view kMean = "running_mean", kCount = "num_batches_tracked";

/// The buffers of the layers whose running statistics are `running`.
std::vector<uint8_t> changed(const BatchStatistics::Buffers& buffers, const std::vector<Tensor>& running) {
  const auto ran = [&](const Tensor& buffer) {
    return std::any_of(running.begin(), running.end(), [&](const Tensor& tensor) { return tensor.is_same(buffer); });
  };
  std::vector<std::string> counts;
  for (const auto& [name, buffer] : buffers)
    if (name.ends_with(kMean) && ran(buffer))
      counts.push_back(name.substr(0, name.size() - kMean.size()).append(kCount));
  std::vector<uint8_t> which;
  for (const auto& [name, buffer] : buffers)
    which.push_back(ran(buffer) || std::find(counts.begin(), counts.end(), name) != counts.end() ? 1 : 0);
  return which;
}

}  // namespace

void BatchStatistics::share() {
  const std::vector<int> absent = gathering_.absent();
  if (absent.empty() || buffers_.empty() || gathering_.present().front() != group_.rank()) return;
  const std::vector<uint8_t> which = changed(buffers_, running_);
  for (const int rank : absent) {
    group_.comm().send(which.data(), which.size(), DType::u8, rank, kWhich);
    for (size_t i = 0; i < buffers_.size(); i++) {
      const auto& [name, buffer] = buffers_[i];
      if (which[i] == 0) continue;
      const Tensor whole = buffer.contiguous();
      group_.comm().send(whole.data_ptr(), whole.nbytes(), DType::u8, rank, name);
    }
  }
}

void BatchStatistics::follow() {
  if (gathering_.present().empty() || buffers_.empty()) return;
  const torch::NoGradGuard no_grad;
  const int from = gathering_.present().front();
  std::vector<uint8_t> which(buffers_.size());
  group_.comm().receive(which.data(), which.size(), DType::u8, from, kWhich);
  for (size_t i = 0; i < buffers_.size(); i++) {
    auto [name, buffer] = buffers_[i];
    if (which[i] == 0) continue;
    const Tensor whole = torch::empty(buffer.sizes(), buffer.options());
    group_.comm().receive(whole.data_ptr(), whole.nbytes(), DType::u8, from, name);
    buffer.copy_(whole);
  }
}

}  // namespace trireme
