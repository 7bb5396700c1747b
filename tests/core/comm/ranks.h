#pragma once
// Ranks as threads of this process that share one segment, and what became of each.
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/comm/shm/communicator.h>

namespace trireme::tests {

/// The error of each rank; null for a rank that came to its end.
using Outcomes = std::vector<std::exception_ptr>;

/// Runs `body` once per rank, each in a thread of its own, and joins them all.
inline Outcomes run_ranks(int ranks, const std::function<void(comm::shm::Communicator&)>& body,
                          comm::shm::Options options = {}) {
  const auto segment = Segment::create();
  Outcomes outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      try {
        comm::shm::Communicator group(segment, rank, ranks, options);
        body(group);
      } catch (...) {
        outcomes[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline std::string message_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  }
  return "";
}

/// Fails unless `error` is an E whose message holds all of `parts`.
template <class E>
void expect_error(const std::exception_ptr& error, const std::vector<std::string>& parts) {
  ASSERT_TRUE(error) << "no error at all";
  const std::string message = message_of(error);
  try {
    std::rethrow_exception(error);
  } catch (const E&) {
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  } catch (...) {
    ADD_FAILURE() << "an error of another type: " << message;
  }
}

inline void expect_all_well(const Outcomes& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); rank++) EXPECT_EQ(message_of(outcomes[rank]), "") << "rank " << rank;
}

}  // namespace trireme::tests
