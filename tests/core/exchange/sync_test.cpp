// label: unit
#include <gtest/gtest.h>

#include <trireme/base/error.h>
#include <trireme/exchange/sync.h>

namespace trireme::exchange::tests {
namespace {

TEST(SyncNamed, RoundTrips) {
  for (const char* name : {"shared", "allreduce", "central", "server", "async", "stale:3", "trylock:0.8", "round-robin",
                           "hogwild", "local:10", "elastic:10,0.3", "diloco:50"})
    EXPECT_EQ(name_of(sync_named(name)), name);
  EXPECT_EQ(sync_named("stale:3"), Sync::stale_by(3));
  EXPECT_EQ(sync_named("elastic:5,0.25"), Sync::elastic_with(5, 0.25));
  EXPECT_EQ(sync_named("diloco:50"), Sync::diloco_for(50));
  EXPECT_EQ(sync_names().size(), 12u);
}

TEST(Rate, HasAMeaningWhereGradientsAreAppliedOneByOne) {
  for (const char* name : {"async", "stale:3", "trylock:0.8", "round-robin", "hogwild"}) {
    EXPECT_NO_THROW(check_rate(sync_named(name), Rate::full)) << name;
    EXPECT_TRUE(in_shares(sync_named(name), Rate::share, 2)) << name;
    EXPECT_FALSE(in_shares(sync_named(name), Rate::full, 2)) << name;
    EXPECT_FALSE(in_shares(sync_named(name), Rate::share, 1)) << name;
  }
  for (const char* name :
       {"shared", "allreduce", "central", "server", "stale:0", "local:10", "elastic:10,0.3", "diloco:50"}) {
    EXPECT_NO_THROW(check_rate(sync_named(name), Rate::share)) << name;
    EXPECT_THROW(check_rate(sync_named(name), Rate::full), InvalidArgument) << name;
    EXPECT_FALSE(in_shares(sync_named(name), Rate::share, 2)) << name;
  }
  for (const std::string& name : rate_names()) EXPECT_EQ(name_of(rate_named(name)), name);
  EXPECT_THROW(rate_named("ful"), InvalidArgument);
}

TEST(SyncNamed, SaysWhatIsWrong) {
  const auto message = [](const char* text) -> std::string {
    try {
      sync_named(text);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("asinc").find("did you mean 'async'"), std::string::npos);
  EXPECT_NE(message("stale").find("stale:S"), std::string::npos);
  for (const char* bad : {"stale:-1", "stale:x", "stale:1.5", "trylock:1.1", "trylock:", "local:0", "elastic:10",
                          "elastic:10,2", "diloco", "diloco:0", "diloco:50,4", "async:3", "shared:"})
    EXPECT_NE(message(bad), "") << bad;
}

}  // namespace
}  // namespace trireme::exchange::tests
