// label: multiproc grpc
// A world of one rank that has a coordinator and a parameter server: what it knows of them, and how it hears that the
// job has failed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include <trireme/base/areas.h>
#include <trireme/base/error.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/world.h>

namespace trireme::cluster::tests {
namespace {

constexpr Seconds kLong{20};  // what a busy machine is given

class WorldWithServer : public testing::Test {
 protected:
  static CoordinatorOptions options() {
    CoordinatorOptions options;
    options.address = "127.0.0.1";
    options.token = "secret";
    options.servers = 1;
    options.heartbeat_limit = Seconds(10);
    return options;
  }

  Place place() const {
    Place place{0, 1, "job", "trireme launch"};
    place.coordinator = fmt::format("127.0.0.1:{}", coordinator_.port());
    place.token = "secret";
    return place;
  }

  std::unique_ptr<Session> serve() const {
    return std::make_unique<Session>(
        SessionOptions{
            .coordinator = place().coordinator, .token = "secret", .timeout = kLong, .heartbeat_limit = Seconds(10)},
        Member{.kind = Member::server, .host = "s"});
  }

  World join() const { return {place(), {.timeout = kLong, .heartbeat_limit = Seconds(10)}}; }

  Coordinator coordinator_{options()};
};

TEST_F(WorldWithServer, KnowsItsServersAndMeetsThem) {
  World world = join();
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.servers(), 1);  // as the coordinator says
  EXPECT_EQ(world.place().coordinator, place().coordinator);
  const auto server = serve();
  EXPECT_EQ(world.job(), server->meeting());
  ASSERT_NE(world.store(), nullptr);
  server->put("server/0", "here");
  EXPECT_EQ(world.store()->get("server/0", Deadline(kLong)), "here");
  server->leave(0);
}

TEST_F(WorldWithServer, AnotherNumberOfServersIsRefused) {
  Place other = place();
  other.servers = 2;
  EXPECT_THROW(World(other, {.timeout = kLong}), InvalidArgument);
}

TEST_F(WorldWithServer, TellsAllWhoWatchThatTheJobHasFailed) {
  World world = join();
  std::promise<std::string> first, second;
  int unregistered = 0;
  const FailureWatch one = world.on_failure([&](const std::string& reason) { first.set_value(reason); });
  FailureWatch two = world.on_failure([&](const std::string& reason) { second.set_value(reason); });
  const FailureWatch moved = std::move(two);
  FailureWatch gone = world.on_failure([&](const std::string&) { unregistered++; });
  gone = {};
  {
    const FailureWatch scoped = world.on_failure([&](const std::string&) { unregistered++; });
  }
  serve().reset();  // without a goodbye
  for (std::promise<std::string>* told : {&first, &second}) {
    auto reason = told->get_future();
    ASSERT_EQ(reason.wait_for(kLong), std::future_status::ready);
    EXPECT_EQ(reason.get().find("server 0 on host s "), 0u);
  }
  std::string late;
  const FailureWatch now =
      world.on_failure([&](const std::string& reason) { late = reason; });  // at once, by this thread
  EXPECT_EQ(late.find("server 0 on host s "), 0u);
  EXPECT_EQ(unregistered, 0);
}

TEST_F(WorldWithServer, AWatchMayOutliveItsWorld) {
  int called = 0;
  FailureWatch watch;
  {
    World world = join();
    watch = world.on_failure([&](const std::string&) { called++; });
    const auto server = serve();
    server->leave(0);
  }
  watch.reset();
  EXPECT_EQ(called, 0);
}

/// One machine, under our launcher: where its crew does not change, ranks hear from one another.
TEST(World, WhoWatchesHearsFromADeskThatChangesCrews) {
  for (const OnLoss policy : {OnLoss::change_crew, OnLoss::end_job}) {
    CoordinatorOptions options;
    options.socket = fmt::format("trireme-test-desk-{}", getpid());
    options.token = "secret";
    options.job = random_name();
    options.heartbeat_limit = Seconds(10);
    options.on_loss = policy;
    Coordinator desk(options);
    Place place{0, 1, options.job, "trireme launch"};
    place.desk = options.socket + "/secret";
    World world(place, {.timeout = kLong});
    ASSERT_EQ(world.elastic(), policy == OnLoss::change_crew);
    std::promise<std::string> told;
    const FailureWatch watch = world.on_failure([&](const std::string& reason) { told.set_value(reason); });
    auto reason = told.get_future();
    desk.fail_job("too few are left");
    if (world.elastic()) {
      ASSERT_EQ(reason.wait_for(kLong), std::future_status::ready);
      EXPECT_NE(reason.get().find("too few are left"), std::string::npos);
    } else {
      EXPECT_EQ(reason.wait_for(Seconds(0.2)), std::future_status::timeout);
    }
  }
}

TEST(World, WithoutACoordinatorNothingFires) {
  Place alone{0, 1, "", "alone"};
  alone.servers = 3;
  World world(alone, {});
  EXPECT_EQ(world.store(), nullptr);
  EXPECT_EQ(world.servers(), 3);
  EXPECT_EQ(world.job(), alone.job);
  const FailureWatch watch = world.on_failure([](const std::string&) { ADD_FAILURE(); });
}

TEST(World, TheStagesAreAsLargeAsItIsTold) {
  const Place alone{0, 1, "", "alone"};
  const auto bytes_of = [&](std::optional<size_t> stage) {
    World world(alone, {.stage_bytes = stage});
    return Areas(world.local().segment()).claim(1, "what comes next");
  };
  EXPECT_GT(bytes_of(1 << 20), bytes_of({}) + (1 << 20));
  EXPECT_THROW(bytes_of(100), InvalidArgument);
}

TEST(World, AServerIsNoRank) {
  Place server{-1, 1, "job", "trireme launch"};
  server.role = "server";
  server.server = 0;
  server.servers = 1;
  try {
    World world(server, {});
    FAIL() << "taken";
  } catch (const InvalidArgument& error) {
    for (const char* part : {"trireme launch has started", "trireme::ps::serve()", "`trireme serve`"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trireme::cluster::tests
