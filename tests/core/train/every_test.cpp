// label: unit
#include <gtest/gtest.h>

#include <trireme/base/duration.h>
#include <trireme/base/error.h>
#include <trireme/train/every.h>

namespace trireme {
namespace {

std::string refusal(const std::string& text) {
  try {
    return "read as " + name_of(every_named(text));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Every, StepsAndEpochs) {
  EXPECT_EQ(every_named("500steps"), Every{.steps = 500});
  EXPECT_EQ(every_named("1step"), Every{.steps = 1});
  EXPECT_EQ(every_named("1epoch"), Every{.epochs = 1});
  EXPECT_EQ(every_named("20epochs"), Every{.epochs = 20});
}

TEST(Every, TimesAreThoseOfAllFlags) {
  const std::pair<const char*, double> cases[] = {{"10min", 600}, {"10m", 600},   {"90s", 90},
                                                  {"2h", 7200},   {"1.5h", 5400}, {"250ms", 0.25}};
  for (const auto& [text, seconds] : cases) {
    EXPECT_EQ(every_named(text), Every{.seconds = seconds}) << text;
    EXPECT_EQ(every_named(text).seconds, duration_named(text, "x").count()) << text;
  }
}

TEST(Every, RefusesEverythingElse) {
  for (const char* text :
       {"", "500", "0.5", "steps", "1.5steps", "0steps", "-1epochs", "0s", "-10min", "10 min", "10sec", "1e3steps",
        "1day", "99999999999999steps", "99999999999999999999steps", "nan", "infs"})
    EXPECT_NE(refusal(text).find(fmt::format("'{}' does not say how often: a whole number and steps or epochs, or a "
                                             "time with ms, s, m (or min) or h",
                                             text)),
              std::string::npos)
        << text << ": " << refusal(text);
}

TEST(Every, ItsTextIsReadBack) {
  for (const char* text : {"500steps", "1epoch", "3epochs", "90s"}) EXPECT_EQ(name_of(every_named(text)), text);
}

}  // namespace
}  // namespace trireme
