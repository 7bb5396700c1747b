// label: unit
// Requests of random and damaged bytes, through the parser and the handlers that the network's go through. The seed is
// fixed: a failure can be repeated.
#include <gtest/gtest.h>

#include <random>

#include <trireme/cluster/coordination/coordinator.h>

#include "requests.h"

namespace trireme::cluster::tests {
namespace {

constexpr Request kRequests[] = {Request::attend, Request::put, Request::get};

class Fuzz : public testing::Test {
 protected:
  static DeskOptions options() {
    return {.job = "job",
            .token = "secret",
            .host = "a",
            .version = library_version(),
            .membership = {64, Seconds(1000), {}, 100, 8},
            .limits = {.keys = 1000, .members = 100},
            .spec = {}};
  }

  int below(size_t n) { return static_cast<int>(random_() % n); }

  std::string noise() {
    std::string bytes(static_cast<size_t>(below(64)), '\0');
    for (char& c : bytes) c = static_cast<char>(random_());
    return bytes;
  }

  /// A valid request with a few bytes changed, added, doubled or cut.
  std::string damaged(std::string bytes) {
    for (int edits = below(4); edits >= 0; edits--) {
      const size_t place = bytes.empty() ? 0 : static_cast<size_t>(below(bytes.size()));
      switch (below(5)) {
        case 0:
          bytes.insert(place, noise());
          break;
        case 1:
          bytes.resize(place);
          break;
        case 2:
          bytes += bytes.substr(place);
          break;
        default:
          if (!bytes.empty()) bytes[place] = static_cast<char>(random_());
      }
      bytes.resize(std::min<size_t>(bytes.size(), 4096));
    }
    return bytes;
  }

  std::string input(Request request, uint64_t member) {
    const int kind = below(4);
    if (kind == 0) return noise();
    const std::vector<std::string> samples = sample_requests(request, "job", library_version(), member);
    const std::string& sample = samples[static_cast<size_t>(below(samples.size()))];
    return kind == 1 ? sample : damaged(sample);
  }

  std::mt19937 random_{20240607};
};

TEST_F(Fuzz, NothingChangesWithoutTheToken) {
  Desk desk(options());
  uint64_t honest = 0;
  for (const std::string& sample : sample_requests(Request::attend, "job", library_version(), 0))
    if (honest == 0) serve_bytes(desk, Request::attend, "secret", sample, honest);
  ASSERT_NE(honest, 0u);
  const Snapshot before = desk.snapshot();
  for (int i = 0; i < 100'000; i++) {
    const Request request = kRequests[below(3)];
    uint64_t member = below(2) == 0 ? 0 : honest;
    const Outcome outcome = serve_bytes(desk, request, below(2) == 0 ? "" : noise(), input(request, honest), member);
    ASSERT_FALSE(outcome.accepted);
  }
  const Snapshot after = desk.snapshot();
  EXPECT_EQ(after.epoch, before.epoch);
  EXPECT_EQ(after.keys, before.keys);
  EXPECT_EQ(after.members.size(), before.members.size());
  EXPECT_TRUE(after.failures.empty());
}

TEST_F(Fuzz, NothingBreaksWithTheToken) {
  size_t accepted = 0, parsed = 0;
  for (int round = 0; round < 1'000; round++) {
    Desk desk(options());
    uint64_t stream = 0;
    for (int i = 0; i < 100; i++) {
      const Request request = kRequests[below(3)];
      if (request == Request::attend && below(4) == 0) stream = 0;  // another stream
      const Outcome outcome = serve_bytes(desk, request, "secret", input(request, stream), stream);
      parsed += outcome.parsed;
      accepted += outcome.accepted;
      if (below(50) == 0) desk.tick(Seconds(0));
    }
    const Snapshot snapshot = desk.snapshot();
    EXPECT_LE(snapshot.members.size(), 100u);
    EXPECT_LE(snapshot.keys, 1000u);
  }
  EXPECT_GT(parsed, 10'000u);  // or the inputs test nothing
  EXPECT_GT(accepted, 1'000u);
}

}  // namespace
}  // namespace trireme::cluster::tests
