#include <nlohmann/json.hpp>
#include <torch/autograd.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/layers/as_before.h>
#include <trireme/train/memory_format.h>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
constexpr int kWarm = 2, kLeast = 8, kMost = 40;  // passes in each format
constexpr Seconds kEnough(0.5);                   // after which the least will do
constexpr double kLong = 0.2;                     // seconds that a pass may take: more samples tell nothing new
constexpr double kWorthIt = 0.95;                 // channels-last must win by 5% to be taken

/// What is no file, a folder say, holds no choices: asking a stream to read one would throw.
nlohmann::json read_cache(const fs::path& cache) {
  std::error_code ignored;
  if (!fs::is_regular_file(cache, ignored)) return nlohmann::json::object();
  std::ifstream file(cache);
  const auto content = nlohmann::json::parse(file, nullptr, false);
  return content.is_object() ? content : nlohmann::json::object();
}

void remember(const fs::path& cache, const std::string& key, bool channels_last) {
  if (cache.empty()) return;
  std::error_code ignored;  // a cache that cannot be written costs a measurement next time, no more
  fs::create_directories(cache.parent_path(), ignored);
  nlohmann::json content = read_cache(cache);
  content[key] = channels_last ? "channels-last" : "default";
  const std::string temporary = fmt::format("{}.{}.tmp", cache.string(), getpid());
  std::ofstream(temporary) << content.dump(1) << '\n';
  fs::rename(temporary, cache, ignored);
  if (ignored) fs::remove(temporary, ignored);
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

/// A net whose convolutions' weights lie in one format or the other, until it lies as it did.
class Variants {
 public:
  explicit Variants(const models::Model& net) : net_(net), parameters_(net->module().parameters()) {
    for (const torch::Tensor& p : parameters_) {
      formats_[0].push_back(p.variable_data());
      formats_[1].push_back(p.dim() == 4 ? p.variable_data().clone(torch::MemoryFormat::ChannelsLast)  // contiguous()
                                         : p.variable_data());  // would leave one channel as it is
    }
  }
  ~Variants() { take(0); }
  Variants(const Variants&) = delete;
  Variants& operator=(const Variants&) = delete;

  double seconds_of_pass(int format, const torch::Tensor& x, const torch::Tensor& y) {
    take(format);
    const layers::SameBuffers buffers(net_->module().buffers());
    const auto start = Clock::now();
    torch::autograd::grad({net_->loss(x, y)}, parameters_);
    return seconds_since(start);
  }

 private:
  void take(int format) {
    for (size_t i = 0; i < parameters_.size(); i++) parameters_[i].set_data(formats_[format][i]);
  }
  const models::Model net_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> formats_[2];
};

bool has_convolutions(const models::Model& net) {
  const auto parameters = net->module().parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const torch::Tensor& p) { return p.dim() == 4; });
}

}  // namespace

FormatChoice choose_memory_format(World& world, const models::Model& net, const torch::Tensor& x,
                                  const torch::Tensor& y, const std::string& model, const std::string& cache) {
  if (!has_convolutions(net)) return {false, "memory format: default, as the model has no convolutions"};
  std::ostringstream shape;
  shape << x.sizes() << ' ' << x.dtype();
  const std::string key = fmt::format("{} {} | {} | libtorch {} | {} workers", model, shape.str(), processor(),
                                      TORCH_VERSION, world.size());
  int32_t known = -1;  // rank 0's cache decides for all
  if (world.first())
    if (const auto choices = read_cache(cache); choices.contains(key)) known = choices[key] == "channels-last";
  world.comm().broadcast(&known, 1, DType::i32, 0, "remembered memory format");
  if (known >= 0)
    return {known == 1,
            fmt::format("memory format: {}, as measured in an earlier run", known == 1 ? "channels-last" : "default")};

  // Alternately, and the best of each: what disturbs one pass does not decide. Many passes, as the choice is kept.
  Variants variants(net);
  const double first = variants.seconds_of_pass(0, x, y);
  const auto samples =
      std::max<int64_t>(1, first < kLong ? x.size(0) : std::lround(static_cast<double>(x.size(0)) * kLong / first));
  const torch::Tensor some_x = x.narrow(0, 0, samples), some_y = y.narrow(0, 0, samples);
  double times[2] = {1e9, 1e9};
  const auto start = Clock::now();
  for (int round = 0; round < kWarm + kLeast || (round < kWarm + kMost && seconds_since(start) < kEnough.count());
       round++)
    for (int i : {0, 1}) {
      const double seconds = variants.seconds_of_pass(i, some_x, some_y);
      if (round >= kWarm) times[i] = std::min(times[i], seconds);
    }
  world.comm().allreduce(times, 2, DType::f64, Op::mean, "memory format timings");
  const bool better = times[1] < kWorthIt * times[0];
  if (world.first()) remember(cache, key, better);
  return {better, fmt::format("memory format: {}, measured {:.2f} ms channels-last against {:.2f} ms default",
                              better ? "channels-last" : "default", times[1] * 1e3, times[0] * 1e3)};
}

}  // namespace trireme::train
