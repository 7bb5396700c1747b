#include <trireme/cluster/environment.h>

#include <trireme/base/error.h>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace trireme::cluster {
namespace {

int number(const Lookup& lookup, const char* name, int least) {
  const char* text = lookup(name);
  if (text == nullptr) fail<InvalidArgument>("the environment has a rank but no {}; a launcher sets both", name);
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < least)
    fail<InvalidArgument>("the environment variable {}='{}' must be a whole number of at least {}", name, text, least);
  return value;
}

Place ranked(const Lookup& lookup, const char* rank, const char* size, std::string job, std::string launcher) {
  Place place{number(lookup, rank, 0), number(lookup, size, 1), std::move(job), std::move(launcher)};
  if (place.rank >= place.size) fail<InvalidArgument>("{}={} but {}={}: ranks run from 0 to {}", rank, place.rank, size, place.size, place.size - 1);
  return place;
}

}  // namespace

Place place_from(const Lookup& lookup) {
  const auto text = [&](const char* name) { return std::string(lookup(name) == nullptr ? "" : lookup(name)); };
  if (lookup("TRIREME_RANK") != nullptr) return ranked(lookup, "TRIREME_RANK", "TRIREME_SIZE", text("TRIREME_JOB"), "trireme launch");
  if (lookup("RANK") != nullptr) return ranked(lookup, "RANK", "WORLD_SIZE", text("MASTER_ADDR") + ":" + text("MASTER_PORT"), "torchrun-style variables");
  return {0, 1, "", "alone"};
}

Place place_here() {
  return place_from([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace trireme::cluster
