#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include <trireme/base/bell.h>
#include <trireme/base/error.h>
#include <trireme/comm/mpi/mpi.h>
#include <trireme/comm/network/engine.h>
#include <trireme/space/layout.h>

namespace trireme::comm::mpi {
namespace {

using network::Message;

constexpr size_t kLargest = size_t{1} << 30;  // bytes per MPI message, whose count is an int
constexpr Seconds kFarewell{60};              // how long a process that has ended well waits for the others

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

void check(int code, const char* what) {
  if (code != MPI_SUCCESS) fail<IoError>("Open MPI: {}: {}", what, text_of(code));
}

/// MPI knows neither deadlines nor interrupts, so waiting is looking. A short wait burns the core, a longer one leaves
/// it to others.
template <class Ready>
bool poll(const Ready& ready, const Deadline& deadline) {
  constexpr int kSpins = 200, kYields = 2000;
  for (int i = 0; !ready(); i++) {
    if (i < kSpins) continue;
    if (i < kSpins + kYields) {
      if (i % kYieldsAtATime == 0 && deadline.passed()) return false;
      std::this_thread::yield();
      continue;
    }
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + (i - kSpins - kYields) / 10, 200)));
  }
  return true;
}

/// The MPI library as long as this process uses it: MPI can be initialised once only, and has to be finalised at the
/// very end.
class Library {
 public:
  static Library& get() {
    static Library library;
    return library;
  }
  /// A rank is lost or this process has failed: the others may never come to the farewell.
  void abandon() noexcept { abandoned_ = true; }
  bool abandoned() const noexcept { return abandoned_; }

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

 private:
  Library() {
    int initialised = 0, level = 0;
    MPI_Initialized(&initialised);
    if (initialised == 0) {
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
      ours_ = true;
    } else {
      MPI_Query_thread(&level);
    }
    if (level < MPI_THREAD_MULTIPLE)
      fail<InvalidArgument>("this MPI library allows only one thread; Trireme needs MPI_THREAD_MULTIPLE");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  ~Library() {
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (ours_ && finalised == 0 && !abandoned_ && everybody_came()) MPI_Finalize();
  }

  /// MPI_Finalize waits without a deadline, so ask first.
  static bool everybody_came() {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
    int done = 0;
    const auto ready = [&] { return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0; };
    return poll(ready, Deadline(kFarewell)) && done != 0;
  }

  bool ours_ = false;
  std::atomic<bool> abandoned_{false};
};

/// A message in pieces of at most kLargest.
class Pieces final : public Message {
 public:
  Pieces(const std::atomic<bool>& interrupted, bool receiving) : interrupted_(interrupted), receiving_(receiving) {}
  ~Pieces() override {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      if (receiving_) MPI_Cancel(&request);  // nothing must be written to this memory any more
      MPI_Request_free(&request);
    }
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  template <class Post>  // post(offset, length, request)
  void post(size_t bytes, const Post& post_piece) {
    size_t begin = 0;
    do {
      const size_t length = std::min(kLargest, bytes - begin);
      requests_.push_back(MPI_REQUEST_NULL);
      check(post_piece(begin, static_cast<int>(length), &requests_.back()), receiving_ ? "MPI_Irecv" : "MPI_Isend");
      begin += length;
    } while (begin < bytes);
  }

  void wait(const Deadline& deadline) override {
    for (MPI_Request& request : requests_) {
      int done = 0, code = MPI_SUCCESS;
      const auto ready = [&] {
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        return done != 0 || code != MPI_SUCCESS || interrupted_;
      };
      const bool came = poll(ready, deadline);
      if (done != 0 && code == MPI_SUCCESS) continue;
      Library::get().abandon();
      if (interrupted_) fail<PeerLost>("the wait was interrupted");
      if (code != MPI_SUCCESS) fail<PeerLost>("Open MPI: {}", text_of(code));
      if (!came) fail<Timeout>("no answer within {:.3g} s", deadline.limit().count());
    }
  }

 private:
  const std::atomic<bool>& interrupted_;
  bool receiving_;
  std::vector<MPI_Request> requests_;
};

class Transport final : public network::Transport {
 public:
  /// Owns `group`.
  explicit Transport(MPI_Comm group) : group_(group), errors_before_(std::uncaught_exceptions()) {
    MPI_Comm_set_errhandler(group_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(group_, &rank_);
    MPI_Comm_size(group_, &size_);
  }
  ~Transport() override {
    if (std::uncaught_exceptions() > errors_before_) Library::get().abandon();
    if (!Library::get().abandoned()) MPI_Comm_free(&group_);  // collective: not without the others
  }
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Message> send(const void* data, size_t bytes, int to, uint32_t tag) override {
    auto message = std::make_unique<Pieces>(interrupted_, false);
    message->post(bytes, [&](size_t begin, int length, MPI_Request* request) {
      return MPI_Isend(static_cast<const std::byte*>(data) + begin, length, MPI_BYTE, to, static_cast<int>(tag), group_,
                       request);
    });
    return message;
  }

  std::unique_ptr<Message> receive(void* data, size_t bytes, int from, uint32_t tag) override {
    auto message = std::make_unique<Pieces>(interrupted_, true);
    message->post(bytes, [&](size_t begin, int length, MPI_Request* request) {
      return MPI_Irecv(static_cast<std::byte*>(data) + begin, length, MPI_BYTE, from, static_cast<int>(tag), group_,
                       request);
    });
    return message;
  }

  void interrupt() noexcept override { interrupted_ = true; }

 private:
  MPI_Comm group_;
  int errors_before_;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> interrupted_{false};
};

void need_launcher() {
  if (!available()) fail<InvalidArgument>("engine 'mpi' needs processes that mpirun has started; this one was not");
}

/// MPI ranks of the meeting's members, by their ranks in the group.
std::vector<int> world_ranks(const network::Meeting& meeting) {
  const auto key = [&](int rank) { return fmt::format("{}/mpi/{}", meeting.name, rank); };
  int mine = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  meeting.store.put(key(meeting.rank), std::to_string(mine));
  const Deadline deadline(meeting.timeout);
  std::vector<int> ranks, missing;
  for (int rank = 0; rank < meeting.size; rank++) {
    try {
      ranks.push_back(static_cast<int>(network::number_under(key(rank), meeting.store.get(key(rank), deadline))));
    } catch (const Timeout&) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty())
    fail<Timeout>("{} of {} ranks did not come to the group '{}' within {:.3g} s; the first is rank {}", missing.size(),
                  meeting.size, meeting.name, meeting.timeout.count(), missing[0]);
  return ranks;
}

std::unique_ptr<network::Transport> connect(const network::Meeting& meeting) {
  need_launcher();
  Library::get();
  const std::vector<int> ranks = world_ranks(meeting);
  MPI_Group everybody = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm group = MPI_COMM_NULL;
  check(MPI_Comm_group(MPI_COMM_WORLD, &everybody), "MPI_Comm_group");
  check(MPI_Group_incl(everybody, meeting.size, ranks.data(), &members), "MPI_Group_incl");
  // The tag keeps groups apart that are made at the same time by different threads.
  check(
      MPI_Comm_create_group(MPI_COMM_WORLD, members, static_cast<int>(space::hash_text(meeting.name) % 32768), &group),
      "MPI_Comm_create_group");
  MPI_Group_free(&members);
  MPI_Group_free(&everybody);
  return std::make_unique<Transport>(group);
}

std::string description() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string whole(text);
  return whole.substr(0, whole.find(','));  // "Open MPI v4.1.4"
}

}  // namespace

// Which variables a launcher sets is part of what MPI is, hence not in cluster/environment: Open MPI's own, and PMIx's
// for batch systems.
bool available() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr; }

void add() { network::add_engine({.name = "mpi", .description = description(), .connect = connect}); }

std::unique_ptr<network::Transport> world() {
  need_launcher();
  Library::get();
  MPI_Comm group = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &group), "MPI_Comm_dup");
  return std::make_unique<Transport>(group);
}

}  // namespace trireme::comm::mpi
