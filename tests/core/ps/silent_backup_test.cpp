// label: unit
// A primary whose backup takes the log and carries nothing out, as one that is stopped does.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/ps/shm/door.h>
#include <trireme/ps/shm/replicas.h>

#include "servers.h"

namespace trireme::ps::tests {
namespace {

/// The door of server 1, behind which nobody is. It says to primaries that it will be their backup.
class EmptyHouse {
 public:
  explicit EmptyHouse(const std::string& job) : listener_(open_unix_socket()), bell_(Segment::create(kPage)) {
    if (!listen_at(listener_.get(), shm::door_name(job, 1), 8)) fail<IoError>("no door: {}", errno_text());
    thread_ = std::thread([this] { run(); });
  }
  ~EmptyHouse() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  int promises() const { return promises_; }

 private:
  void run() {
    while (true) {
      Descriptor visitor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!visitor) return;
      limit_wait(visitor.get(), Seconds(1));
      shm::Hello hello;
      std::vector<Descriptor> descriptors;
      if (receive_message(visitor.get(), &hello, sizeof hello, descriptors) != sizeof hello) continue;
      const shm::Welcome yes{.welcome = 1};
      if (hello.kind == shm::Visitor::primary) promises_++;
      send_message(visitor.get(), &yes, sizeof yes, {bell_->descriptor()});
      visitors_.push_back(std::move(visitor));
    }
  }

  Descriptor listener_;
  std::shared_ptr<Segment> bell_;
  std::vector<Descriptor> visitors_;
  std::atomic<int> promises_{0};
  std::thread thread_;
};

class SilentBackup : public testing::Test {
 protected:
  SilentBackup() {
    job_.replicas = 1;
    const std::string text = job_.encode();
    const shm::Plot plot = shm::Plot::plan(2, text.size(), job_.layout.bytes(), job_.layout.size(), 0);
    memory_.emplace(Segment::create(plot.total), plot);
    std::memcpy(memory_->job(), text.data(), text.size());
    std::fill_n(memory_->present(), plot.slots, uint8_t{1});
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail<IoError>("no sockets");
    worker_end_ = Descriptor(ends[0]);
    port_ = std::make_shared<shm::Port>(*memory_, 0, Descriptor(ends[1]), 4242, "worker 0 (process 4242)", helpers_);
    port_->worker = 0;
    port_->replica = &replica_;
  }

  /// The worker comes and pushes its gradient of one chunk.
  void begin() {
    const Deadline deadline(Seconds(5));
    replica_.find_backup(&deadline);
    ASSERT_EQ(house_.promises(), 1);
    auto [service, refusal] = replica_.open(port_, 0, 0);
    ASSERT_EQ(refusal, "");
    port_->service = service;
    push(1);
  }
  void push(uint64_t id) {
    const auto& chunks = port_->service->chunks();
    const auto chunk = std::find_if(chunks.begin(), chunks.end(), [](const Chunk& one) { return one.server == 0; });
    ASSERT_NE(chunk, chunks.end());
    ask({.id = id,
         .verb = Verb::push,
         .chunk = static_cast<uint32_t>(chunk - chunks.begin()),
         .lr = 1,
         .begin = chunk->range.begin,
         .bytes = chunk->range.size()});
  }
  void ask(const Request& request) { replica_.handle(port_, request, Clock::now()); }
  /// What the worker hears next, by its number; 0: nothing.
  uint64_t answer() {
    Reply reply;
    if (!memory_->line(0).replies.pop(reply)) return 0;
    text_.assign(memory_->line(0).texts[reply.text % shm::Line::kTexts].data(),
                 answers_in_words(reply.verb) ? reply.bytes : 0);
    return reply.id;
  }

  const std::string name_ = job_name();
  EmptyHouse house_{name_};
  Job job_ = small_job(1, 2, Order::on_arrival);
  Helpers helpers_{0};
  shm::OwnMemory parameters_;
  metrics::Registry registry_;
  Models models_{0, parameters_, helpers_, registry_};
  std::shared_ptr<Segment> bell_ = Segment::create(kPage);
  const shm::Surroundings around_{.server = 0,
                                  .servers = 2,
                                  .job = name_,
                                  .silence = Seconds(5),
                                  .bell = bell_.get(),
                                  .post = [](const std::function<void()>&) {}};
  shm::Replica replica_{models_, Charge{.shard = 0, .primary = 0, .backup = 1}, around_};
  std::optional<shm::Memory> memory_;
  Descriptor worker_end_;
  std::shared_ptr<shm::Port> port_;
  std::string text_;
};

TEST_F(SilentBackup, IsNamedToWhoAsksWhyNothingComes) {
  begin();
  EXPECT_EQ(answer(), 0u) << "it was acknowledged before the backup had it";
  ask({.id = 2, .verb = Verb::explain, .version = 1});
  EXPECT_EQ(answer(), 2u);
  EXPECT_NE(text_.find("server 0 waits for its backup, server 1, which is 2 events behind"), std::string::npos)
      << text_;
  ask({.id = 3, .verb = Verb::explain, .version = 77});  // of something else
  EXPECT_EQ(answer(), 3u);
  EXPECT_EQ(text_.find("waits for its backup"), std::string::npos) << text_;
}

TEST_F(SilentBackup, IsGivenUpInTimeAndNotAskedAgain) {
  begin();
  const auto due = replica_.due();
  ASSERT_TRUE(due);
  EXPECT_LE(Seconds(*due - Clock::now()), Seconds(5));
  replica_.tick(*due - std::chrono::milliseconds(1));
  EXPECT_EQ(answer(), 0u) << "too early";
  replica_.tick(*due);
  EXPECT_EQ(answer(), 1u);
  EXPECT_FALSE(replica_.due());
  EXPECT_EQ(house_.promises(), 1) << "the same server was asked once more";
  EXPECT_NE(replica_.describe().find("without a backup: server 1 has carried out nothing for 5 s"), std::string::npos)
      << replica_.describe();
  push(2);
  EXPECT_EQ(answer(), 2u) << "nobody is waited for";
}

TEST_F(SilentBackup, IsFilledWhenItSaysThatItGoesOn) {
  begin();
  replica_.tick(*replica_.due());
  EXPECT_EQ(answer(), 1u);
  replica_.newcomer(1);
  EXPECT_EQ(house_.promises(), 2);
  EXPECT_NE(replica_.describe().find("backup on server 1"), std::string::npos) << replica_.describe();
}

}  // namespace
}  // namespace trireme::ps::tests
