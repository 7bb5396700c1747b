// label: unit
#include <gtest/gtest.h>

#include <trireme/base/duration.h>
#include <trireme/base/error.h>

namespace trireme {
namespace {

std::string refusal(const std::string& text) {
  try {
    const Seconds read = duration_named(text, "--limit");
    return fmt::format("read as {} s", read.count());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Duration, ReadsWhatPeopleWrite) {
  const std::pair<const char*, double> cases[] = {{"30s", 30},     {"10m", 600}, {"10min", 600},
                                                  {"1h", 3600},    {"90", 90},   {"1.5h", 5400},
                                                  {"250ms", 0.25}, {"0.5", 0.5}, {"00030s", 30}};
  for (const auto& [text, seconds] : cases) EXPECT_DOUBLE_EQ(duration_named(text, "x").count(), seconds) << text;
}

TEST(Duration, RefusesEverythingElse) {
  for (const char* text : {"", "s", "10 m", " 10", "10m ", "10M", "10sec", "1h30m", "1e3", "0x10", "+5", "abc", "10,5s",
                           "inf", "nan", "10d", "m10"})
    EXPECT_NE(
        refusal(text).find(fmt::format("--limit: '{}' is not a duration: a number and ms, s, m (or min) or h", text)),
        std::string::npos)
        << text << ": " << refusal(text);
  for (const char* text : {"0", "0s", "-1s", "-10m", "99999999h"})
    EXPECT_NE(refusal(text).find("--limit must be more than 0 and at most ten years"), std::string::npos)
        << refusal(text);
}

TEST(Duration, ItsTextIsReadBack) {
  for (const char* text : {"30s", "10m", "1h", "1.5h", "250ms", "90s", "1.5m", "2.25s"})
    EXPECT_EQ(duration_named(duration_text(duration_named(text, "x")), "x"), duration_named(text, "x")) << text;
  EXPECT_EQ(duration_text(Seconds(600)), "10m");
  EXPECT_EQ(duration_text(Seconds(5400)), "1.5h");
  EXPECT_EQ(duration_text(Seconds(0.25)), "250ms");
  EXPECT_EQ(duration_text(Seconds(30)), "30s");
}

}  // namespace
}  // namespace trireme
