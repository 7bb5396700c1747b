#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <list>

#include <trireme/base/error.h>
#include <trireme/comm/stream/assembly.h>
#include <trireme/comm/stream/door_metrics.h>
#include <trireme/comm/stream/sockets.h>

namespace trireme::comm::stream {
namespace {

constexpr Seconds kStrangersLimit{5};   // who has not said who it is until then is turned away
constexpr size_t kMostStrangers = 256;  // at a time, beside those who are expected
constexpr Seconds kBeforeAnotherTry{0.1};
constexpr Seconds kLook{0.25};                     // how often it is asked whether the job goes on
constexpr const char* kOfAccepting = " accepted";  // a proof is of a claim, and of one side

void send_parcel(Channel& channel, Part part, const std::string& body) {
  channel.write(encode(Head{part, 0, body.size()}));
  channel.write(std::as_bytes(std::span(body)));
  channel.flush();  // it fits into any socket's buffer
}

/// True when it is complete.
bool read_parcel(Channel& channel, Parcel& parcel, Part part) {
  while (!parcel.complete()) {
    const std::optional<size_t> bytes = channel.read(parcel.room());
    if (!bytes) fail<IoError>("closed the connection before it had said who it is");
    if (*bytes == 0) return false;
    parcel.filled(*bytes, part);
  }
  return true;
}

class Assembly {
 public:
  Assembly(const network::Meeting& meeting, const Credentials& credentials)
      : meeting_(meeting),
        credentials_(credentials),
        deadline_(meeting.timeout),
        listener_(listen_at(meeting.address)),
        own_{.from = static_cast<uint32_t>(meeting.rank),
             .size = static_cast<uint32_t>(meeting.size),
             .job = credentials.job(),
             .meeting = meeting.name},
        count_(meeting.registry) {
    channels_.outgoing.resize(own_.size);
    channels_.incoming.resize(own_.size);
  }

  Channels run() {
    find_others();
    while (!complete()) {
      if (deadline_.passed()) give_up();
      wait();
      let_in();
      for (Attempt& attempt : attempts_) advance(attempt);
      for (Candidate& candidate : candidates_) advance(candidate);
      std::erase_if(candidates_, [](const Candidate& candidate) { return candidate.over; });
      look_at_job();
    }
    return std::move(channels_);
  }

 private:
  enum class Stage { resting, connecting, shaking, greeting, done };
  struct Attempt {
    int rank = 0;
    Spot spot;
    Stage stage = Stage::resting;
    Clock::time_point next{};  // resting
    Descriptor socket{};       // connecting
    std::unique_ptr<Channel> channel{};
    Hello hello{};
    Parcel answer{};
    std::string trouble{};
  };
  struct Candidate {
    std::string address;
    std::unique_ptr<Channel> channel;
    Deadline limit{kStrangersLimit};
    Stage stage = Stage::shaking;
    Parcel hello{};
    bool over = false;
  };

  std::string key(int rank) const { return fmt::format("{}/stream/{}", meeting_.name, rank); }
  bool complete() const {
    const auto all = [&](const auto& channels) {
      return std::count(channels.begin(), channels.end(), nullptr) == 1;  // this rank's own
    };
    return all(channels_.outgoing) && all(channels_.incoming);
  }

  void find_others() {
    meeting_.store.put(key(meeting_.rank), listener_.spot.text());
    for (int rank = 0; rank < meeting_.size; rank++) {
      if (rank == meeting_.rank) continue;
      try {
        attempts_.push_back({.rank = rank, .spot = Spot::of(meeting_.store.get(key(rank), deadline_))});
      } catch (const Timeout&) {
        missing_.push_back(rank);
      }
    }
    if (!missing_.empty()) give_up();
  }

  [[noreturn]] void give_up() {
    for (const Attempt& attempt : attempts_)
      if (!channels_.outgoing[static_cast<size_t>(attempt.rank)] ||
          !channels_.incoming[static_cast<size_t>(attempt.rank)])
        missing_.push_back(attempt.rank);
    std::string more;
    for (const Attempt& attempt : attempts_)
      if (attempt.stage != Stage::done && !attempt.trouble.empty() && more.empty())
        more = fmt::format("; rank {} at {} {}", attempt.rank, attempt.spot.address, attempt.trouble);
    if (count_.strangers.value() > 0)
      more += fmt::format("; {} connections were turned away, the first because {}", count_.strangers.value(), first_);
    fail<Timeout>("{} of {} ranks did not come to the group '{}' within {:.3g} s: rank {}{}", missing_.size(),
                  meeting_.size, meeting_.name, meeting_.timeout.count(), fmt::join(missing_, ", "), more);
  }

  /// For news of any connection.
  void wait() {
    std::vector<pollfd> polls = {{listener_.socket.get(), POLLIN, 0}};
    for (const Attempt& attempt : attempts_) {
      if (attempt.stage == Stage::connecting) polls.push_back({attempt.socket.get(), POLLOUT, 0});
      if (attempt.channel) polls.push_back({attempt.channel->socket(), POLLIN, 0});
    }
    for (const Candidate& candidate : candidates_) polls.push_back({candidate.channel->socket(), POLLIN, 0});
    const Seconds most = std::min(deadline_.left(), kBeforeAnotherTry);
    poll(polls.data(), polls.size(), static_cast<int>(most.count() * 1e3) + 1);
  }

  /// The store throws when the job has failed.
  void look_at_job() {
    if (Clock::now() < next_look_) return;
    next_look_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(kLook);
    meeting_.store.get(key(meeting_.rank), deadline_);
  }

  // ---- this rank connects ----

  void advance(Attempt& attempt) {
    if (attempt.stage == Stage::done) return;
    try {
      step(attempt);
    } catch (const IoError& error) {  // it may have been busy with strangers
      attempt.trouble = error.what();
      attempt.socket.reset();
      attempt.channel.reset();
      attempt.answer = {};
      attempt.stage = Stage::resting;
      attempt.next = Clock::now() + std::chrono::duration_cast<Clock::duration>(kBeforeAnotherTry);
    } catch (const Error& error) {
      fail<InvalidArgument>("rank {} of group '{}', at {}, {}", attempt.rank, meeting_.name, attempt.spot.address,
                            error.what());
    }
  }

  void step(Attempt& attempt) {
    if (attempt.stage == Stage::resting) {
      if (Clock::now() < attempt.next) return;
      attempt.socket = start_connecting(attempt.spot);
      attempt.stage = Stage::connecting;
    }
    if (attempt.stage == Stage::connecting) {
      pollfd ready{attempt.socket.get(), POLLOUT, 0};
      if (poll(&ready, 1, 0) == 0) return;
      if (const int error = connecting_fault(attempt.socket); error != 0)
        fail<IoError>("cannot be reached: {}", errno_text(error));
      attempt.channel = std::make_unique<Channel>(credentials_, std::move(attempt.socket), Channel::Side::connects);
      attempt.stage = Stage::shaking;
    }
    if (attempt.stage == Stage::shaking) {
      if (!attempt.channel->shake_hands()) return;
      greet(attempt);
      attempt.stage = Stage::greeting;
    }
    if (!read_parcel(*attempt.channel, attempt.answer, Part::verdict)) return;
    judge(attempt, decode_verdict(attempt.answer.body()));
    channels_.outgoing[static_cast<size_t>(attempt.rank)] = std::move(attempt.channel);
    attempt.stage = Stage::done;
  }

  void greet(Attempt& attempt) {
    attempt.hello = own_;
    attempt.hello.to = static_cast<uint32_t>(attempt.rank);
    attempt.hello.proof = credentials_.proof(attempt.channel->binding(), attempt.hello.claim());
    send_parcel(*attempt.channel, Part::hello, encode(attempt.hello));
  }

  void judge(const Attempt& attempt, const Verdict& verdict) const {
    if (!verdict.refusal.empty()) fail<InvalidArgument>("turned this rank away, which {}", verdict.refusal);
    if (!same(verdict.proof, credentials_.proof(attempt.channel->binding(), attempt.hello.claim() + kOfAccepting)))
      fail<InvalidArgument>("has another token than ours: give all ranks of a job the same TRIREME_TOKEN");
  }

  // ---- others connect ----

  void let_in() {
    while (auto visitor = accept_one(listener_.socket)) {
      if (candidates_.size() >= kMostStrangers + own_.size) {  // the one that has taken the longest
        turn_away(candidates_.front(), "it had not said who it is when too many others came");
        candidates_.pop_front();
      }
      candidates_.push_back(
          {.address = visitor->address,
           .channel = std::make_unique<Channel>(credentials_, std::move(visitor->socket), Channel::Side::accepts)});
    }
  }

  void advance(Candidate& candidate) {
    try {
      step(candidate);
      if (candidate.over || !candidate.limit.passed()) return;
      turn_away(candidate, fmt::format("it had not said who it is after {:g} s", kStrangersLimit.count()));
    } catch (const Error& error) {
      turn_away(candidate, fmt::format("it {}", error.what()));
    }
    candidate.over = true;
  }

  void step(Candidate& candidate) {
    if (candidate.stage == Stage::shaking) {
      if (!candidate.channel->shake_hands()) return;
      candidate.stage = Stage::greeting;
    }
    if (!read_parcel(*candidate.channel, candidate.hello, Part::hello)) return;
    const Hello hello = decode_hello(candidate.hello.body());
    const Proof binding = candidate.channel->binding();
    std::string why = refusal(hello, own_);
    if (!same(hello.proof, credentials_.proof(binding, hello.claim()))) why = "has another token";
    send_parcel(*candidate.channel, Part::verdict,
                encode(Verdict{credentials_.proof(binding, hello.claim() + kOfAccepting), why}));
    if (!why.empty()) fail<InvalidArgument>("{}", why);
    // One that comes again had not heard that it was welcome.
    channels_.incoming[hello.from] = std::move(candidate.channel);
    candidate.over = true;
  }

  void turn_away(const Candidate& candidate, const std::string& why) {
    count_.strangers.add();
    if (!first_.empty()) return;
    first_ = fmt::format("{} (from {})", why, candidate.address);
    if (meeting_.note)
      meeting_.note(
          fmt::format("rank {} has turned away a connection from {} that is none of group '{}': {}. Others "
                      "are counted (`trireme ctl status`: strangers)",
                      meeting_.rank, candidate.address, meeting_.name, why));
  }

  const network::Meeting& meeting_;
  const Credentials& credentials_;
  const Deadline deadline_;
  const Listener listener_;
  const Hello own_;
  Channels channels_;
  std::vector<Attempt> attempts_;
  std::list<Candidate> candidates_;
  std::vector<int> missing_;
  DoorMetrics count_;
  std::string first_;
  Clock::time_point next_look_ = Clock::now();
};

}  // namespace

Channels assemble(const network::Meeting& meeting, const Credentials& credentials) {
  return Assembly(meeting, credentials).run();
}

}  // namespace trireme::comm::stream
