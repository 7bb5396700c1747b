// `trireme bench compress`: what codecs cost and leave out, and with --hosts what they gain on the links there.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/compress/codec.h>

#include "bench.h"
#include "commands.h"
#include "hosts.h"
#include "join_names.h"
#include "peers.h"

namespace trireme::tools {
namespace {

struct Settings {
  std::string self, worker;
  int rounds = 5, steps = 30;
  std::vector<std::string> codecs = {"fp16",      "bf16",        "int8",       "sign",
                                     "topk:0.01", "randomk:0.1", "powersgd:2", "sketch:0.1"};
  std::vector<std::string> cases = {"mlp2048-32"};
  HostsFlags hosts;
};

constexpr size_t kElements = size_t{4} << 20;  // beyond the caches
constexpr size_t kStrip = size_t{64} << 10;    // as the exchange cuts tensors
constexpr size_t kColumns = 256;

/// Many small ones and a few large ones, as gradients are: the cube of a normal deviate, in rows of different size.
std::vector<float> made_up(size_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  float row = 1;
  for (size_t i = 0; i < count; i++) {
    if (i % kColumns == 0) row = std::exp(normal(random));
    const float one = normal(random);
    values[i] = 1e-3f * row * one * one * one;
  }
  return values;
}

/// One codec over made up gradients, strip by strip.
class Course {
 public:
  explicit Course(const compress::Spec& spec) : by_matrix_(spec.kind == compress::Spec::powersgd) {
    plain_ = compress::make_codec(spec, true);
    feedback_ = std::make_unique<compress::ErrorFeedback>(compress::make_codec(spec, true), kElements * sizeof(float));
    for (size_t begin = 0; begin < kElements; begin += kStrip)
      messages_.emplace_back(plain_->bytes(strip(begin / kStrip)));
  }
  /// GB of gradients a second.
  double encode(const std::vector<float>& from, bool feedback) {
    compress::Codec& codec = feedback ? *feedback_ : *plain_;
    return speed([&](size_t i) { codec.encode(strip(i), from.data() + i * kStrip, messages_[i]); });
  }
  double decode(std::vector<float>& into) {
    return speed([&](size_t i) { plain_->add(strip(i), messages_[i], into.data() + i * kStrip); });
  }
  double ratio() const { return kStrip * sizeof(float) / static_cast<double>(messages_[0].size()); }

 private:
  compress::Strip strip(size_t i) const {
    const size_t rows = by_matrix_ ? kStrip / kColumns : 1;
    return {i * kStrip * sizeof(float), rows, kStrip / rows, i + 1};
  }
  template <class Each>
  double speed(const Each& each) {
    const auto begin = Clock::now();
    for (size_t i = 0; i < messages_.size(); i++) each(i);
    return kElements * sizeof(float) / seconds_since(begin) / 1e9;
  }
  const bool by_matrix_;
  std::unique_ptr<compress::Codec> plain_;
  std::unique_ptr<compress::ErrorFeedback> feedback_;
  std::vector<std::vector<std::byte>> messages_;
};

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

/// Speeds are medians over the rounds, in each of which memory is copied too.
void bench_codec(const Settings& s, const std::string& name) {
  const std::vector<float> from = made_up(kElements);
  std::vector<float> into(kElements, 0);
  Course course(compress::spec_named(name));
  std::vector<double> copied, encoded, kept, decoded;
  double left = 0;
  for (int round = 0; round < s.rounds + 1; round++) {  // the first brings the memory
    const auto begin = Clock::now();
    std::memcpy(into.data(), from.data(), kElements * sizeof(float));
    const double copy = kElements * sizeof(float) / seconds_since(begin) / 1e9;
    const double with = course.encode(from, true), without = course.encode(from, false);
    std::fill(into.begin(), into.end(), 0.0f);
    const double decode = course.decode(into);
    if (round == 0) continue;
    copied.push_back(copy), kept.push_back(with), encoded.push_back(without), decoded.push_back(decode);
  }
  for (size_t i = 0; i < kElements; i++) into[i] = from[i] - into[i];
  left = norm(into) / norm(from);
  const nlohmann::ordered_json line = {{"bench", "compress"},
                                       {"case", name},
                                       {"metric", "GB/s"},
                                       {"encode", rounded(median(encoded))},
                                       {"encode_with_feedback", rounded(median(kept))},
                                       {"decode", rounded(median(decoded))},
                                       {"memcpy", rounded(median(copied))},
                                       {"fewer_bytes", rounded(course.ratio())},
                                       {"left_out", rounded(left)}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

/// Milliseconds of a step on the hosts' links with one codec, without, and of PyTorch's hooks.
void bench_links(const Settings& s, const std::string& name, const std::string& codec) {
  Measurement m{"compress", fmt::format("{}@{}+{}", name, s.hosts.hosts, codec), "ms", {}};
  const auto run = [&](const std::string& who, std::vector<std::string> command) {
    command.push_back(fmt::format("--steps={}", s.steps));
    add_sample(m, who, number_in(run_on_hosts(who, s.hosts.options(s.self), command), "ms_per_step"));
  };
  const auto ours = [&](const std::string& who, const std::string& with) {
    return [&, who, with] { run(who, {s.worker, "bench", "--out={out}", "--case=" + name, "--codec=" + with}); };
  };
  std::vector<std::function<void()>> who = {ours("ours", codec), ours("none", "none")};
  if (has_python_torch())
    for (const char* hook : {"ddp", "ddp_fp16", "ddp_powersgd"})
      who.push_back([&, hook] {
        run(hook,
            {kPython, peer_program("ddp_train.py"), "{out}", name, fmt::format("--hook={}", hook)});
      });
  alternate(s.rounds, who);
  print_measurement(m);
}

}  // namespace

Run add_bench_compress(CLI::App& bench, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->self = invocation.program;
  s->worker = invocation.worker;
  CLI::App* command = bench.add_subcommand(
      "compress",
      "Codecs of gradients: GB of gradients a second against memcpy, and what one message leaves out; with --hosts the "
      "time of a training step there, against none and against PyTorch DDP with its fp16 and PowerSGD hooks");
  command->add_option("--rounds", s->rounds, "Rounds; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--codecs", s->codecs, "Separated by commas, of: " + join_names(compress::spec_names()))
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--case", s->cases, "--hosts: models and samples, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember(kTrainCases));
  command->add_option("--steps", s->steps, "--hosts: timed steps of a round")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_hosts_flags(*command, s->hosts);
  return [s, command] {
    refuse_without_hosts(*command, s->hosts);
    for (const char* flag : {"--case", "--steps"})
      if (command->count(flag) > 0 && !s->hosts.given())
        fail<InvalidArgument>("{} has no effect without --hosts or --hostfile: codecs alone are measured then", flag);
    for (const std::string& codec : s->codecs)
      if (!compress::spec_named(codec)) fail<InvalidArgument>("'none' is what codecs are compared with: leave it out");
    for (const std::string& codec : s->codecs) {
      if (!s->hosts.given()) bench_codec(*s, codec);
      for (size_t i = 0; i < s->cases.size() && s->hosts.given(); i++) bench_links(*s, s->cases[i], codec);
    }
    return 0;
  };
}

}  // namespace trireme::tools
