// label: multiproc
// The contract of comm::Communicator on Open MPI. Started plainly, this program starts itself eight times under mpirun;
// there each process is a rank, all run the same tests in the same order, and a test for fewer ranks leaves the others
// out.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <trireme/comm/mpi/mpi.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/network/engine.h>

#include "contract.h"
#include "network_ranks.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;
constexpr int kProcesses = 8, kNoMpirun = 127;
fs::path folder;  // that all processes see
int world_rank = 0;

/// A value is a file. Renaming makes it appear at once and whole.
class Files final : public comm::network::KeyValue {
 public:
  void put(const std::string& key, const std::string& value) override {
    const fs::path part = path_of(key) += fmt::format(".{}", getpid());
    std::ofstream(part) << value;
    fs::rename(part, path_of(key));
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    while (!fs::exists(path_of(key))) {
      if (deadline.passed()) fail<Timeout>("no {}", key);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::string value;
    std::ifstream(path_of(key)) >> value;
    return value;
  }

 private:
  static fs::path path_of(std::string key) {
    std::replace(key.begin(), key.end(), '/', '-');
    return folder / key;
  }
};

std::unique_ptr<comm::network::Transport> meet(int ranks, Seconds timeout = Seconds(60)) {
  static int groups = 0;
  Files store;
  return comm::network::engine_named("mpi").connect(
      {store, fmt::format("group {}", groups++), world_rank, ranks, "", timeout});
}

/// The first `ranks` processes, in an order that MPI does not have by itself.
void run_processes(int ranks, const std::function<void(Communicator&)>& body) {
  static int groups = 0;
  groups++;
  if (world_rank >= ranks) return;
  Files store;
  const int rank = ranks - 1 - world_rank;
  auto transport = comm::network::engine_named("mpi").connect(
      {store, fmt::format("turned {}", groups), rank, ranks, "", Seconds(60)});
  EXPECT_EQ(transport->rank(), rank);
  EXPECT_EQ(transport->size(), ranks);
  comm::network::Communicator group(std::move(transport), {.timeout = Seconds(60)});
  try {
    body(group);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

Engine mpi_engine() {
  const auto memory = std::make_shared<Memory>();
  return {"mpi",
          [=](int ranks, const auto& body) {
            run_processes(ranks, body);
            memory->clear();
          },
          [=](Communicator&, size_t bytes) { return memory->take(bytes); }, false};
}

INSTANTIATE_TEST_SUITE_P(Engines, Contract,
                         testing::Combine(testing::Values(mpi_engine()), testing::Values(1, 2, 3, 5, 8)), case_name);

TEST(Mpi, WorldNeedsNoStore) {
  comm::network::Communicator group(comm::mpi::world());
  EXPECT_EQ(group.size(), kProcesses);
  EXPECT_EQ(group.rank(), world_rank);
  int32_t sum = group.rank();
  group.allreduce(&sum, 1, DType::i32, Op::sum, "ranks");
  EXPECT_EQ(sum, kProcesses * (kProcesses - 1) / 2);
}

TEST(Mpi, RanksThatDoNotComeAreATimeoutThatNamesThem) {
  if (world_rank != 0) return;
  try {
    Files store;
    comm::network::engine_named("mpi").connect({store, "lonely", 0, 3, "", Seconds(0.2)});
    ADD_FAILURE() << "no error";
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what())
                  .find("2 of 3 ranks did not come to the group 'lonely' within 0.2 s; the first is rank 1"),
              std::string::npos)
        << error.what();
  }
}

// In a run of its own: after it the processes part without MPI_Finalize, as after any failure, and must not hang.
TEST(MpiFailure, DisagreementAbsenceAndInterruptAreErrors) {
  comm::network::Communicator world(comm::mpi::world());
  std::vector<float> data(100000);
  if (world_rank < 2) {
    comm::network::Communicator group(meet(2), {.timeout = Seconds(20)});
    const auto call = [&] {
      group.allreduce(data.data(), data.size() - static_cast<size_t>(world_rank), DType::f32, Op::sum, "w");
    };
    std::exception_ptr error;
    try {
      call();
    } catch (...) {
      error = std::current_exception();
    }
    expect_error<Mismatch>(error, {"rank 0", "rank 1", "100000 × f32", "99999 × f32"});
  }
  if (world_rank < 2) {
    comm::network::Communicator group(meet(2), {.timeout = Seconds(0.5)});
    std::exception_ptr error;
    try {
      if (world_rank == 0) group.barrier("gate");
    } catch (...) {
      error = std::current_exception();
    }
    if (world_rank == 0) expect_error<Timeout>(error, {"rank 1", "barrier 'gate'", "0.5 s"});
  }
  world.barrier("before the last");
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.interrupt(std::make_exception_ptr(PeerLost("host b is on fire")));
  });
  std::byte word{};
  try {
    world.receive(&word, 1, DType::u8, (world_rank + 1) % kProcesses, "never sent");
    ADD_FAILURE() << "no error";
  } catch (const PeerLost& error) {
    EXPECT_STREQ(error.what(), "host b is on fire");
  }
  other.join();
}

/// Says nothing but what went wrong, and where.
class Quiet final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      std::fprintf(stderr, "process %d, %s: %s:%d: %s\n", world_rank,
                   testing::UnitTest::GetInstance()->current_test_info()->name(), result.file_name(),
                   result.line_number(), result.message());
  }
};

/// Runs this program under mpirun. Returns mpirun's exit code.
int launch(const std::string& program, std::vector<std::string> arguments) {
  std::vector<std::string> words = {
      "mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", std::to_string(kProcesses),
      program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    setenv("TRIREME_MPI_TEST", folder.c_str(), 1);
    execvp(pointers[0], pointers.data());
    _exit(kNoMpirun);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/// mpirun takes processes that part without MPI_Finalize for failed, whatever they return. So those of the second run
/// leave a note, and wait for the others'.
void leave_note(int code) {
  Files notes;
  notes.put(fmt::format("note {}", world_rank), code == 0 ? "passed" : "failed");
  for (int rank = 0; rank < kProcesses; rank++) notes.get(fmt::format("note {}", rank), Deadline(Seconds(20)));
}

bool all_passed() {
  Files notes;
  for (int rank = 0; rank < kProcesses; rank++)
    if (notes.get(fmt::format("note {}", rank), Deadline(Seconds(0))) != "passed") return false;
  return true;
}

int launch_both(const std::string& program) {
  std::string name = (fs::temp_directory_path() / "trireme-mpi-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return 1;
  folder = name;
  int code = launch(program, {"--gtest_filter=-MpiFailure.*"});
  if (code == 0) {
    launch(program, {"--gtest_filter=MpiFailure.*"});
    code = all_passed() ? 0 : 1;
  }
  fs::remove_all(folder);
  if (code == kNoMpirun) std::puts("SKIPPED: there is no mpirun (package openmpi-bin)");
  return code == kNoMpirun ? 0 : code;
}

}  // namespace
}  // namespace trireme::tests

int main(int argc, char** argv) {
  using namespace trireme;
  comm::mpi::add();
  if (comm::network::engine_names().empty()) {
    std::puts("SKIPPED: Trireme was built without Open MPI (packages openmpi-bin and libopenmpi-dev)");
    return 0;
  }
  if (!comm::mpi::available()) return tests::launch_both(argv[0]);
  tests::folder = std::getenv("TRIREME_MPI_TEST");
  tests::world_rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (tests::world_rank > 0) delete listeners.Release(listeners.default_result_printer());
  if (tests::world_rank > 0) listeners.Append(new tests::Quiet);
  const int code = RUN_ALL_TESTS();
  if (testing::GTEST_FLAG(filter) == "MpiFailure.*") tests::leave_note(code);
  return code;
}
