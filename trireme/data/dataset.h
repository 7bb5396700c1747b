#pragma once
// Samples in memory, held once per machine.
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/comm/shm/communicator.h>
#include <trireme/space/dtype.h>

namespace trireme::data {

/// What the labels are.
enum class Task : uint8_t { classify, regress };

/// A view of samples that the ranks of a machine read together: each decoded its own share of the file into memory that all map, so a machine holds
/// the set once, however many workers it has. The memory belongs to the communicator and lives as long as it does.
struct Dataset {
  std::string name;
  size_t count = 0;
  std::vector<int64_t> shape;         // of one sample
  DType dtype = DType::f32;           // of the stored inputs: u8 or f32
  double scale = 1;                   // inputs are multiplied by this when a batch is made
  const std::byte* inputs = nullptr;  // count × elements
  Task task = Task::classify;
  int classes = 0;                  // classify
  const int64_t* labels = nullptr;  // classify
  const float* targets = nullptr;   // regress: one per sample

  size_t elements() const;
  size_t sample_bytes() const { return elements() * size_of(dtype); }
};

/// Training samples, and the ones to measure with; `test.count` may be 0.
struct Splits {
  Dataset train, test;
};

/// Samples [begin, end) that `rank` of `ranks` decodes.
struct Share {
  size_t begin, end;
};
Share share_of(size_t count, int rank, int ranks);

/// One contiguous shared block of `bytes`. Collective.
std::byte* allocate_shared(comm::shm::Communicator& group, size_t bytes, const char* purpose);

struct OpenOptions {
  std::string label;  // CSV: name or number (from 0) of the column to predict; default: the last
  uint64_t seed = 1;  // synthetic
};

/// Opens a data set by name or path. Collective. Names: fashion-mnist, mnist, synthetic[:COUNT]. A folder holds IDX files (train-images-idx3-ubyte, …, plain
/// or .gz) or train.csv and test.csv; a path that ends in .csv is a training set alone. Errors name the file and say how to get it.
Splits open(comm::shm::Communicator& group, const std::string& what, const OpenOptions& options = {});
std::vector<std::string> data_names();
/// Throws what open() would throw for a name or path with nothing behind it. Reads nothing.
void check_exists(const std::string& what);

// The readers, one per format. Collective, all of them.
Dataset read_idx(comm::shm::Communicator& group, const std::string& images, const std::string& labels);
Dataset read_csv(comm::shm::Communicator& group, const std::string& path, const std::string& label_column);
/// Ten classes of noisy 28 × 28 patterns, computed from (seed, sample number) alone.
Dataset make_synthetic(comm::shm::Communicator& group, size_t count, uint64_t seed);

}  // namespace trireme::data
