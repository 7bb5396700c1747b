#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <deque>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/comm/network/engine.h>

namespace trireme::comm::network {
namespace {

/// A deque, because engine_named() hands out references.
std::deque<Engine>& engines() {
  static std::deque<Engine> all;
  return all;
}

Engine* find(const std::string& name) {
  const auto found =
      std::find_if(engines().begin(), engines().end(), [&](const Engine& engine) { return engine.name == name; });
  return found == engines().end() ? nullptr : &*found;
}

/// Why an engine that exists elsewhere is not here; "" for a name that means nothing.
std::string reason(const std::string& name) {
  if (name == "nccl") return "this libtorch has no NCCL";
  if (name == "gloo") return "this program does not link libtorch's Gloo";
  if (name == "stream") return "nobody has added the engine 'stream' to this program";
  if (name == "mpi") return "Trireme was built without Open MPI (packages openmpi-bin and libopenmpi-dev)";
  return "";
}

}  // namespace

uint64_t number_under(const std::string& key, const std::string& value) {
  uint64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc{} || stop != end || value.empty())
    fail<Corruption>(
        "the job's store has '{}' under '{}', where a whole number should be: does another program write there?",
        value.substr(0, 80), key);
  return number;
}

void add_engine(Engine engine) {
  if (Engine* known = find(engine.name))
    *known = std::move(engine);
  else
    engines().push_back(std::move(engine));
}

const Engine& engine_named(const std::string& name) {
  if (const Engine* engine = find(name)) return *engine;
  const std::vector<std::string> names = engine_names();
  const std::string choice = names.empty() ? "there is no other" : fmt::format("use {}", fmt::join(names, " or "));
  if (const std::string why = reason(name); !why.empty()) fail<InvalidArgument>("{}; {}", why, choice);
  fail<InvalidArgument>("there is no engine '{}'{}; {}", name, did_you_mean(name, names), choice);
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names;
  for (const Engine& engine : engines()) names.push_back(engine.name);
  return names;
}

}  // namespace trireme::comm::network
