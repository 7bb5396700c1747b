// label: unit
// Connections that are made while ranks may die: who waits is told at once, whatever the engine does.
#include <gtest/gtest.h>

#include <future>

#include <trireme/base/error.h>
#include <trireme/cluster/connecting.h>

namespace trireme::cluster::tests {
namespace {

using Transport = comm::network::Transport;

struct Nobody final : Transport {
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<comm::network::Message> send(const void*, size_t, int, uint32_t) override { return nullptr; }
  std::unique_ptr<comm::network::Message> receive(void*, size_t, int, uint32_t) override { return nullptr; }
  void interrupt() noexcept override {}
};

const Deadline kLong(Seconds(30));

std::exception_ptr loss() { return std::make_exception_ptr(PeerLost("rank 3 is gone")); }

TEST(Connecting, GivesWhatTheEngineMakes) {
  Connecting connecting(4, [] { return std::make_unique<Nobody>(); });
  EXPECT_EQ(connecting.epoch(), 4u);
  EXPECT_EQ(connecting.wait(kLong, Seconds(0))->size(), 1);
}

TEST(Connecting, ThrowsWhatTheEngineThrows) {
  Connecting connecting(1, []() -> std::unique_ptr<Transport> { fail<IoError>("no way there"); });
  EXPECT_THROW(connecting.wait(kLong, Seconds(0.01)), IoError);
}

TEST(Connecting, ALossEndsTheWaitButNotTheEngine) {
  std::promise<void> release;
  std::atomic<bool> ended = false;
  {
    Connecting connecting(1, [&] {
      release.get_future().wait();
      ended = true;
      return std::make_unique<Nobody>();
    });
    auto waiting = std::async(std::launch::async, [&] { connecting.wait(kLong, Seconds(0)); });
    connecting.interrupt(loss());
    EXPECT_THROW(waiting.get(), PeerLost);
    EXPECT_FALSE(ended);
    release.set_value();
  }
  EXPECT_TRUE(ended);
}

TEST(Connecting, ALossBeforeTheWaitEndsItAtOnce) {
  std::promise<void> release;
  Connecting connecting(1, [&] {
    release.get_future().wait();
    return std::make_unique<Nobody>();
  });
  connecting.interrupt(loss());
  EXPECT_THROW(connecting.wait(kLong, Seconds(0)), PeerLost);
  release.set_value();
}

/// An engine may notice first that somebody is gone, and whoever knows who it was speaks a moment later.
TEST(Connecting, AnErrorWaitsForItsReason) {
  Connecting connecting(1, []() -> std::unique_ptr<Transport> { fail<IoError>("connection refused"); });
  auto waiting = std::async(std::launch::async, [&] { connecting.wait(kLong, Seconds(100)); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  connecting.interrupt(loss());
  EXPECT_THROW(waiting.get(), PeerLost);
}

TEST(Connecting, AnEngineThatNeitherConnectsNorFailsIsWaitedForUntilTheDeadline) {
  std::promise<void> release;
  Connecting connecting(7, [&] {
    release.get_future().wait();
    return std::make_unique<Nobody>();
  });
  try {
    connecting.wait(Deadline(Seconds(0.05)), Seconds(30));
    ADD_FAILURE() << "connected";
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("the crew of epoch 7 within 0.05 s"), std::string::npos) << error.what();
  }
  release.set_value();
}

TEST(Connecting, ASiteTellsThemAndEndsThem) {
  Site site(Facts{});
  std::promise<void> release;
  std::atomic<bool> ended = false;
  auto connecting = std::make_shared<Connecting>(2, [&] {
    release.get_future().wait();
    ended = true;
    return std::make_unique<Nobody>();
  });
  site.add(connecting);
  site.interrupt_before(2, loss());  // of earlier epochs
  site.interrupt_before(3, loss());
  EXPECT_THROW(connecting->wait(kLong, Seconds(0)), PeerLost);
  site.leave_behind(std::move(connecting));
  release.set_value();
  site.end_connections();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace trireme::cluster::tests
