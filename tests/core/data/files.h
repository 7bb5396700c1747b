#pragma once
// Files that a test writes, and what ranks made of them.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include <trireme/data/dataset.h>

#include "../comm/ranks.h"

namespace trireme::tests {

/// A folder that goes away with the test.
class Folder {
 public:
  Folder() {
    std::string text = (std::filesystem::temp_directory_path() / "trireme-test-XXXXXX").string();
    if (mkdtemp(text.data()) == nullptr) fail<IoError>("cannot make a temporary folder: {}", errno_text());
    path_ = text;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path() const { return path_.string(); }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

/// A data set copied out of shared memory, as one rank saw it after the last one had finished.
struct Content {
  size_t count = 0;
  std::vector<int64_t> shape;
  data::Task task{};
  int classes = 0;
  std::vector<double> inputs;  // not scaled
  std::vector<int64_t> labels;
  std::vector<float> targets;

  bool operator==(const Content&) const = default;
};

inline Content content_of(const data::Dataset& set) {
  Content content{set.count, set.shape, set.task, set.classes, {}, {}, {}};
  for (size_t i = 0; i < set.count * set.elements(); i++)
    content.inputs.push_back(set.dtype == DType::u8 ? static_cast<double>(set.inputs[i])
                                                    : reinterpret_cast<const float*>(set.inputs)[i]);
  if (set.labels != nullptr) content.labels.assign(set.labels, set.labels + set.count);
  if (set.targets != nullptr) content.targets.assign(set.targets, set.targets + set.count);
  return content;
}

using Read = std::function<data::Dataset(comm::shm::Communicator&)>;

/// Reads with `ranks` ranks, expects that all see the same, and returns it.
inline Content read_by(int ranks, const Read& read) {
  std::vector<Content> contents(static_cast<size_t>(ranks));
  expect_all_well(run_ranks(ranks, [&](comm::shm::Communicator& group) {
    const data::Dataset set = read(group);
    contents[static_cast<size_t>(group.rank())] = content_of(set);
    group.barrier("read");
  }));
  for (int rank = 1; rank < ranks; rank++)
    EXPECT_EQ(contents[static_cast<size_t>(rank)], contents[0]) << "rank " << rank << " of " << ranks;
  return contents[0];
}

/// Expects that the ranks fail with an E that says all of `parts`: each either finds it itself or loses those who did.
template <class E>
void expect_refused(int ranks, const Read& read, const std::vector<std::string>& parts) {
  size_t causes = 0;
  for (const std::exception_ptr& error : run_ranks(ranks, [&](comm::shm::Communicator& group) { read(group); })) {
    try {
      ASSERT_TRUE(error) << "a rank of " << ranks << " finished";
      std::rethrow_exception(error);
    } catch (const PeerLost&) {
    } catch (...) {
      causes++;
      expect_error<E>(error, parts);
    }
  }
  EXPECT_GE(causes, 1u) << ranks << " ranks";
}

}  // namespace trireme::tests
