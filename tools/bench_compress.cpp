// `trireme bench compress`: what codecs cost and leave out, and with --hosts what they gain on the links there.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
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
#include "plot.h"

namespace trireme::tools {
namespace {

struct Settings {
  std::string self, worker;
  int rounds = 5, steps = 30;
  std::vector<std::string> codecs = compress::spec_examples();
  std::vector<std::string> cases = {"mlp2048-32"};
  std::vector<std::string> gradients = {kGradientModels.begin(), kGradientModels.end()};
  std::string lines, picture;
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
  explicit Course(const compress::Spec& spec) : by_matrix_(spec.by_matrix()) {
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

/// What each codec leaves out of the gradients of models that have learnt for some steps.
void bench_gradients(const Settings& s, const std::string& model) {
  const std::string codecs = fmt::format("{}", fmt::join(s.codecs, ","));
  for (const std::string& text :
       run_and_read("gradients", 1, {s.worker, "bench", "--out={out}", "--gradients=" + model, "--codecs=" + codecs})) {
    const auto found = nlohmann::json::parse(text);
    const nlohmann::ordered_json line = {{"bench", "compress"},
                                         {"case", model + "+" + found["codec"].get<std::string>()},
                                         {"metric", "part"},
                                         {"data", found["data"]},
                                         {"elements", found["elements"]},
                                         {"fewer_bytes", rounded(found["fewer_bytes"])},
                                         {"left_out", rounded(found["left_out"])},
                                         {"cosine", rounded(found["cosine"])},
                                         {"left_out_of_20", rounded(found["left_out_of_20"])}};
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
}

/// Milliseconds of a step on the hosts' links with each codec, without, and of PyTorch's hooks: all take turns.
void bench_links(const Settings& s, const std::string& name) {
  Measurement all{"compress", name, "ms", {}};
  const auto run = [&](const std::string& who, std::vector<std::string> command) {
    command.push_back(fmt::format("--steps={}", s.steps));
    const auto lines = run_on_hosts(who, s.hosts.options(s.self), command);
    add_sample(all, who, number_in(lines, "ms_per_step"));
    if (who.starts_with("auto") && !lines.empty())
      fmt::print(stderr, "{}: {}\n", who, nlohmann::json::parse(lines.back())["reason"].get<std::string>());
  };
  std::vector<std::string> codecs = s.codecs;
  codecs.emplace_back("none");
  std::vector<std::function<void()>> who;
  for (const std::string& codec : codecs)
    who.push_back([&, codec] { run(codec, {s.worker, "bench", "--out={out}", "--case=" + name, "--codec=" + codec}); });
  if (has_python_torch())
    for (const char* hook : {"ddp", "ddp_fp16", "ddp_powersgd"})
      who.push_back([&, hook] {
        run(hook, {kPython, peer_program("ddp_train.py"), "{out}", name, fmt::format("--hook={}", hook)});
      });
  alternate(s.rounds, who);
  for (const std::string& codec : s.codecs) {
    Measurement m{"compress", fmt::format("{}@{}+{}", name, s.hosts.hosts, codec), "ms", {}};
    for (const char* other : {"none", "ddp", "ddp_fp16", "ddp_powersgd"})
      if (all.samples.contains(other)) m.samples[other] = all.samples[other];
    m.samples["ours"] = all.samples[codec];
    print_measurement(m);
  }
}

/// How many times faster than plain DDP steps are, by the link's speed: from lines that were printed before, to which
/// somebody has added the speed of the link in Mbit/s.
void draw(const std::string& lines, const std::string& picture) {
  std::ifstream in(lines);
  if (!in) fail<IoError>("cannot read {}: {}", lines, errno_text());
  std::map<std::string, std::map<double, double>> ratios;  // by codec, by link
  for (std::string text; std::getline(in, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (line.is_discarded() || !line.contains("mbit") || !line.contains("ratio") || !line["ratio"].contains("ddp"))
      continue;
    const std::string name = line["case"];
    const double link = std::log10(line["mbit"].get<double>()), ddp = line["peers"]["ddp"];
    ratios[name.substr(name.rfind('+') + 1)][link] = ddp / line["ours"].get<double>();
    for (const char* other : {"none", "ddp_fp16", "ddp_powersgd"})
      if (line["peers"].contains(other)) ratios[other][link] = ddp / line["peers"][other].get<double>();
  }
  if (ratios.empty())
    fail<InvalidArgument>("{} has no line of a step's time beside DDP's, with the link's speed as \"mbit\"", lines);
  Plot plot{"Steps beside PyTorch DDP's",
            "higher is better",
            "link: power of ten of Mbit/s",
            "times faster than DDP",
            {},
            1.0};
  for (const auto& [name, points] : ratios) plot.lines.push_back({name, {points.begin(), points.end()}, ""});
  std::ofstream out(picture);
  out << to_svg(plot);
  if (!out.flush()) fail<IoError>("cannot write {}: {}", picture, errno_text());
}

}  // namespace

Run add_bench_compress(CLI::App& bench, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->self = invocation.program;
  s->worker = invocation.worker;
  CLI::App* command = bench.add_subcommand(
      "compress",
      "Codecs of gradients: GB of gradients a second against memcpy, and what messages leave out of real ones; with "
      "--hosts the "
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
  command
      ->add_option("--gradients", s->gradients,
                   "Without --hosts: models whose gradients are taken, after some steps of learning; separated by "
                   "commas, none for no model")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>{"lenet", "mlp512", "gpt", "none"}));
  command->add_option("--plot", s->picture, "SVG file: how many times faster than DDP, by link; measures nothing");
  command->add_option("--lines", s->lines, "--plot: what was printed with --hosts, and \"mbit\" added to each line");
  add_hosts_flags(*command, s->hosts);
  return [s, command] {
    if (s->picture.empty() != s->lines.empty()) fail<InvalidArgument>("--plot FILE and --lines FILE go together");
    if (!s->picture.empty()) return draw(s->lines, s->picture), 0;
    refuse_without_hosts(*command, s->hosts);
    for (const char* flag : {"--case", "--steps"})
      if (command->count(flag) > 0 && !s->hosts.given())
        fail<InvalidArgument>("{} has no effect without --hosts or --hostfile: codecs alone are measured then", flag);
    for (const std::string& codec : s->codecs) {
      const bool chooses = !compress::candidates_named(codec).empty();
      if (chooses && !s->hosts.given()) fail<InvalidArgument>("auto chooses by links: name --hosts, or leave it out");
      if (!chooses && !compress::spec_named(codec))
        fail<InvalidArgument>("'none' is what codecs are compared with: leave it out");
    }
    for (size_t i = 0; i < s->cases.size() && s->hosts.given(); i++) bench_links(*s, s->cases[i]);
    if (s->hosts.given()) return 0;
    for (const std::string& codec : s->codecs) bench_codec(*s, codec);
    for (const std::string& model : s->gradients)
      if (model != "none") bench_gradients(*s, model);
    return 0;
  };
}

}  // namespace trireme::tools
