// label: unit
// Who has no business on the connections of the engine "stream": strangers at the door, eavesdroppers, forgers.
#include <atomic>
#include <cstring>
#include <optional>

#include <trireme/comm/stream/channel.h>

#include "stream_certificates.h"
#include "stream_ranks.h"
#include "wire_tap.h"

namespace trireme::tests {
namespace {

using Bytes = std::vector<std::byte>;
using comm::network::Communicator;
using comm::network::KeyValue;
using comm::network::Meeting;
using comm::network::Secrets;

constexpr const char* kSecondSpot = "epoch 0/all/lane 0/stream/1";

/// A board on which rank 1 is said to be elsewhere.
class Misleading final : public KeyValue {
 public:
  explicit Misleading(std::function<int(int port)> elsewhere) : elsewhere_(std::move(elsewhere)) {}
  void put(const std::string& key, const std::string& value) override {
    if (key != kSecondSpot) return board_.put(key, value);
    board_.put(key, fmt::format("127.0.0.1 {}", elsewhere_(std::stoi(value.substr(value.find(' ') + 1)))));
  }
  std::string get(const std::string& key, const Deadline& deadline) override { return board_.get(key, deadline); }

 private:
  Board board_;
  std::function<int(int port)> elsewhere_;
};

/// Two ranks; each makes its own meeting of what it is given.
Outcomes run_two(KeyValue& board, const std::function<void(Meeting&)>& adjust,
                 const std::function<void(Communicator&)>& body, Seconds timeout = Seconds(20)) {
  Outcomes outcomes(2);
  std::vector<std::thread> threads;
  for (int rank : {0, 1})
    threads.emplace_back([&, rank] {
      try {
        Meeting meeting{.store = board,
                        .name = "epoch 0/all/lane 0",
                        .rank = rank,
                        .size = 2,
                        .address = "127.0.0.1",
                        .timeout = timeout,
                        .secrets = token_alone()};
        adjust(meeting);
        Communicator group(comm::stream::connect(meeting), {.timeout = timeout, .names = {4, 9}});
        body(group);
      } catch (...) {
        outcomes[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void allreduce(Communicator& group, float value) {
  std::vector<float> data(300'000, value);
  group.allreduce(data.data(), data.size(), DType::f32, Op::sum, "gradients");
  EXPECT_EQ(data[299'999], 2 * value);
}

// ---- what is on the wire ----

TEST(StreamOnTheWire, NothingIsInTheClear) {
  const CertificateFolder folder;
  for (bool certificates : {false, true}) {
    constexpr std::string_view kPattern = "these are the parameters of a model";
    std::vector<std::byte> seen;
    std::optional<WireTap> tap;
    Misleading board([&](int port) {
      tap.emplace(port, [&](std::byte* data, size_t bytes) { seen.insert(seen.end(), data, data + bytes); });
      return tap->port();
    });
    expect_all_well(run_two(
        board, [&](Meeting& meeting) { meeting.secrets = certificates ? folder.secrets() : token_alone(); },
        [&](Communicator& group) {
          std::vector<char> data(200'000);
          for (size_t i = 0; i + kPattern.size() < data.size(); i += kPattern.size())
            std::memcpy(data.data() + i, kPattern.data(), kPattern.size());
          group.broadcast(data.data(), data.size(), DType::u8, 0, "parameters");
          EXPECT_EQ(std::string_view(data.data(), kPattern.size()), kPattern);
        }));
    tap.reset();
    EXPECT_GT(seen.size(), 200'000u);
    const std::string_view wire(reinterpret_cast<const char*>(seen.data()), seen.size());
    for (const char* part : {"parameters", "model", "epoch", "a token"})
      EXPECT_EQ(wire.find(part), std::string_view::npos) << part << (certificates ? " with certificates" : "");
  }
}

TEST(StreamOnTheWire, AChangedByteIsNoticedAndNeverSummed) {
  std::atomic<bool> change{false}, changed{false};
  std::optional<WireTap> tap;
  Misleading board([&](int port) {
    tap.emplace(port, [&](std::byte* data, size_t bytes) {
      if (bytes > 1000 && change.exchange(false)) {
        data[bytes / 2] ^= std::byte{1};
        changed = true;
      }
    });
    return tap->port();
  });
  const Outcomes outcomes = run_two(
      board, [](Meeting&) {},
      [&](Communicator& group) {
        allreduce(group, 1);
        if (group.rank() == 0) change = true;
        group.barrier("now");
        for (int i = 0; i < 20; i++) allreduce(group, 2);
      });
  EXPECT_TRUE(changed);
  expect_error<PeerLost>(outcomes[1], {"rank 4 was lost", "rank 9 waited", "changed on its way"});
  ASSERT_TRUE(outcomes[0]);
}

TEST(StreamOnTheWire, APeerThatFallsSilentIsATimeoutThatNamesIt) {
  std::optional<WireTap> tap;
  Misleading board([&](int port) {
    tap.emplace(port, [](std::byte*, size_t) {});
    return tap->port();
  });
  const Outcomes outcomes = run_two(
      board, [](Meeting&) {},
      [&](Communicator& group) {
        group.barrier("both are here");
        if (group.rank() == 1) tap->hold();  // it has heard rank 0, and has not yet asked for its data
        std::vector<float> data(300'000, 1);
        group.set_limit({Seconds(0.5), "timeout"});
        group.allreduce(data.data(), data.size(), DType::f32, Op::sum, "gradients");
      });
  expect_error<Timeout>(outcomes[1], {"rank 4", "gradients", "0.5 s"});
}

// ---- who may come in ----

TEST(StreamDoor, StrangersAreHarmlessCountedAndNamedOnce) {
  metrics::Registry registry;
  std::vector<std::string> notes;
  std::vector<Descriptor> strangers;
  Misleading board([&](int port) {
    const auto say = [&](const std::string& text) {
      int target = port;
      strangers.push_back(loopback_socket(target));
      const ssize_t sent = send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
      EXPECT_EQ(sent, static_cast<ssize_t>(text.size()));
    };
    for (int i = 0; i < 20; i++) say("GET / HTTP/1.1\r\n\r\n");
    say(std::string(100'000, '\xff'));
    say("");                                          // half open
    say(std::string("\x16\x03\x01\xff\xff\x01", 6));  // the beginning of a long greeting
    for (int i = 0; i < 20; i++) {                    // a scan: comes and goes
      say("");
      strangers.pop_back();
    }
    return port;
  });
  expect_all_well(run_two(
      board,
      [&](Meeting& meeting) {
        if (meeting.rank != 1) return;
        meeting.registry = &registry;
        meeting.note = [&](const std::string& note) { notes.push_back(note); };
      },
      [](Communicator& group) { allreduce(group, 3); }));
  EXPECT_GE(registry.snapshot().total("strangers").value, 20);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("127.0.0.1"), std::string::npos) << notes[0];
}

TEST(StreamDoor, NamesWhoHasAnotherToken) {
  Board board;
  const Outcomes outcomes = run_two(
      board,
      [](Meeting& meeting) {
        if (meeting.rank == 1) meeting.secrets.token = "another";
      },
      [](Communicator&) { FAIL() << "they have met"; }, Seconds(2));
  EXPECT_TRUE(outcomes[0] && outcomes[1]);
  for (const auto& outcome : outcomes)
    EXPECT_NE(message_of(outcome).find("another token"), std::string::npos) << message_of(outcome);
}

TEST(StreamDoor, NamesWhoHasAnotherTokenBehindGoodCertificates) {
  const CertificateFolder folder;
  Board board;
  const Outcomes outcomes = run_two(
      board,
      [&](Meeting& meeting) {
        meeting.secrets = folder.secrets();
        if (meeting.rank == 1) meeting.secrets.token = "another";
      },
      [](Communicator&) { FAIL() << "they have met"; }, Seconds(2));
  for (const auto& outcome : outcomes)
    EXPECT_NE(message_of(outcome).find("another token"), std::string::npos) << message_of(outcome);
}

TEST(StreamDoor, NamesWhoIsOfAnotherJobOrComesWithoutCertificates) {
  const CertificateFolder folder;
  Board board, second;
  const auto rank_one = [](const auto& change) {
    return [=](Meeting& meeting) {
      if (meeting.rank == 1) change(meeting);
    };
  };
  const Outcomes jobs = run_two(
      board, rank_one([](Meeting& meeting) { meeting.secrets.job = "another job"; }),
      [](Communicator&) { FAIL() << "they have met"; }, Seconds(2));
  EXPECT_NE((message_of(jobs[0]) + message_of(jobs[1])).find("belongs to another job"), std::string::npos)
      << message_of(jobs[0]);
  const Outcomes none = run_two(
      second, rank_one([&](Meeting& meeting) { meeting.secrets = folder.secrets(); }),
      [](Communicator&) { FAIL() << "they have met"; }, Seconds(2));
  EXPECT_TRUE(none[0] && none[1]);
}

TEST(StreamDoor, NamesForeignExpiredAndOtherNamesCertificates) {
  const CertificateFolder ours, theirs, old({.days = -1});
  const CertificateFolder payroll({.name = "payroll", .authority = ours.path()});
  struct Case {
    const CertificateFolder &first, &second;
    const char* word;
  };
  for (const auto& [first, second, word] : {Case{ours, theirs, "foreign"}, Case{old, old, "expired"},
                                            Case{ours, payroll, "another name"}, Case{payroll, ours, "another name"}}) {
    Board board;
    const Outcomes outcomes = run_two(
        board, [&](Meeting& meeting) { meeting.secrets = (meeting.rank == 0 ? first : second).secrets(); },
        [](Communicator&) { FAIL() << "they have met"; }, Seconds(2));
    EXPECT_NE((message_of(outcomes[0]) + message_of(outcomes[1])).find(word), std::string::npos)
        << message_of(outcomes[0]) << " / " << message_of(outcomes[1]);
    EXPECT_NE((message_of(outcomes[0]) + message_of(outcomes[1])).find("at 127.0.0.1"), std::string::npos);
  }
}

TEST(StreamDoor, AJobThatFailsMeanwhileEndsTheMeeting) {
  Board board;
  board.put(kSecondSpot, "127.0.0.1 1");  // nobody is there
  std::thread failing([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    board.fail_job("host b is on fire");
  });
  Meeting meeting = stream_meeting(board, 0, 2);
  try {
    comm::stream::connect(meeting);
    ADD_FAILURE() << "they have met";
  } catch (const PeerLost& error) {
    EXPECT_STREQ(error.what(), "host b is on fire");
  }
  failing.join();
}

TEST(StreamDoor, NamesWhoDidNotCome) {
  Board board;
  board.put(kSecondSpot, "127.0.0.1 1");
  Meeting meeting = stream_meeting(board, 0, 2);
  meeting.timeout = Seconds(0.3);
  try {
    comm::stream::connect(meeting);
    ADD_FAILURE() << "they have met";
  } catch (const Timeout& error) {
    for (const char* part : {"rank 1", "127.0.0.1", "refused"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// ---- one connection ----

using comm::stream::Channel;
using comm::stream::Credentials;

struct Pair {
  explicit Pair(const Secrets& secrets, uint64_t rekey = Channel::kRekey) : credentials(secrets) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) != 0)
      fail<IoError>("no socket pair: {}", errno_text());
    left.emplace(credentials, Descriptor(sockets[0]), Channel::Side::connects, rekey);
    right.emplace(credentials, Descriptor(sockets[1]), Channel::Side::accepts, rekey);
    bool done[2] = {false, false};
    for (int i = 0; i < 100 && !(done[0] && done[1]); i++) {
      if (!done[0]) done[0] = left->shake_hands();
      if (!done[1]) done[1] = right->shake_hands();
    }
    EXPECT_TRUE(done[0] && done[1]);
  }
  Credentials credentials;
  std::optional<Channel> left, right;
};

TEST(StreamChannel, ChangesItsKeysWhileItCarries) {
  Pair pair(token_alone(), 100'000);
  EXPECT_EQ(pair.left->binding(), pair.right->binding());
  Bytes sent(3'000'000), got(sent.size());
  for (size_t i = 0; i < sent.size(); i++) sent[i] = std::byte(i * 7 >> 3);
  size_t written = 0, read = 0;
  while (read < got.size()) {
    if (pair.left->flush() && written < sent.size()) {
      const size_t bytes = std::min<size_t>(50'000, sent.size() - written);
      pair.left->write(std::span(sent).subspan(written, bytes));
      written += bytes;
    }
    read += pair.right->read(std::span(got).subspan(read)).value();
  }
  EXPECT_EQ(sent, got);
  pair.left->say_goodbye();
  pair.left->flush();
  EXPECT_FALSE(pair.right->read(std::span(got)).has_value());
}

TEST(StreamChannel, AnEndWithoutAGoodbyeIsALoss) {
  Pair pair(token_alone());
  const Bytes sent(100, std::byte{1});
  pair.left->write(sent);
  pair.left->flush();
  pair.left.reset();
  Bytes got(200);
  EXPECT_EQ(pair.right->read(got), 100u);
  EXPECT_THROW(pair.right->read(got), IoError);
}

TEST(StreamChannel, NeedsAToken) { EXPECT_THROW(Credentials(Secrets{.job = "a job"}), InvalidArgument); }

}  // namespace
}  // namespace trireme::tests
