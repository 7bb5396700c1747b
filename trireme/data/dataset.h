#pragma once
// Samples in memory, held once per machine.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <trireme/comm/shm/communicator.h>
#include <trireme/data/schema.h>
#include <trireme/data/tokenizer.h>
#include <trireme/space/dtype.h>

namespace trireme::data {

/// A view of samples that the ranks of a machine read together: each decoded its own share of the file into memory that
/// all map, so a machine holds the set once, however many workers it has. The memory belongs to the communicator and
/// lives as long as it does.
struct Dataset {
  std::string name;
  size_t count = 0;
  std::vector<int64_t> shape;         // of one sample
  DType dtype = DType::f32;           // of the stored inputs: u8 or f32
  double scale = 1;                   // inputs are multiplied by this when a batch is made
  const std::byte* inputs = nullptr;  // count × elements
  Task task = Task::classify;
  int classes = 0;                  // classify; of a text, the tokens that there are
  const int64_t* labels = nullptr;  // classify
  const float* targets = nullptr;   // regress: one per sample
  // Text: sample i is the tokens [i · context, (i + 1) · context] of `inputs`, one more than `shape`, so that no token
  // is stored twice.
  int token_bytes = 0;  // of a stored token: 1, 2 or 4; 0: no text

  size_t elements() const;
  size_t sample_bytes() const { return elements() * size_of(dtype); }
};

/// Training samples, and the ones to measure with; `test.count` may be 0.
struct Splits {
  Dataset train, test;
  std::optional<Schema> schema;    // CSV: what the columns are; whoever uses the trained model needs it
  std::vector<std::string> notes;  // CSV, text: what was skipped, left out or filled in, and last what was understood
  std::optional<Tokenizer> tokenizer{};  // text
  size_t tokens = 0, test_tokens = 0;    // text: of all of it, and of its last part
};

/// Samples [begin, end) that `rank` of `ranks` decodes.
struct Share {
  size_t begin, end;
};
Share share_of(size_t count, int rank, int ranks);

/// One contiguous shared block of `bytes` for the data set's "inputs", "labels", …: the area "GROUP/data/WHAT/NUMBER"
/// of the segment. Collective.
std::byte* allocate_shared(comm::shm::Communicator& group, size_t bytes, const std::string& what);

struct OpenOptions {
  uint64_t seed = 1;  // synthetic data, and which rows of a CSV file become test rows
  // For CSV only: given for other data they are refused.
  std::string label;              // name or number (from 0) of the column to predict; "": the last
  std::optional<bool> normalize;  // numbers have mean 0 and deviation 1 over the training rows; default: yes
  std::optional<double> test;     // part of the rows to test with, where there is no test file; default: 0.2
  std::optional<Task> task{};  // whole numbers as classes or as numbers; default: by how many there are (docs/data.md)
  // For text only, as `test` is too: its last part, 0.1 unless said otherwise.
  std::string tokenizer{};  // file of a sentencepiece model; "": tokens are bytes
  int64_t context = 0;      // tokens of a sample
  bool masked = false;      // targets are masked tokens, not the next ones
};

/// Opens a data set by name or path. Collective. Names: fashion-mnist, mnist, synthetic[:COUNT]. A folder holds IDX
/// files (train-images-idx3-ubyte, …) or train.csv and perhaps test.csv, plain or .gz; a file that ends in .csv, .tsv,
/// .data or .txt (or these with .gz) is CSV; text:FILE is a text, plain or .gz. Errors name the file and say how to get
/// it.
Splits open(comm::shm::Communicator& group, const std::string& what, const OpenOptions& options = {});
std::vector<std::string> data_names();
/// Throws what open() would throw for a name or path with nothing behind it. Reads nothing.
void check_exists(const std::string& what);
/// Whether the name or path means CSV.
bool is_csv(const std::string& what);
/// FILE of text:FILE; nothing for other data.
std::optional<std::string> text_file(const std::string& what);
/// Throws InvalidArgument for a test part that is none, and for options that the data have no use for. Reads nothing.
void check_options(const std::string& what, const OpenOptions& options);

// The readers, one per format. Collective, all of them.
Dataset read_idx(comm::shm::Communicator& group, const std::string& images, const std::string& labels);
/// Images that nobody has labelled: `labels` is null and there are no classes.
Dataset read_idx_images(comm::shm::Communicator& group, const std::string& images);
/// `test` may be "": then some rows of `train` are for testing.
Splits read_csv(comm::shm::Communicator& group, const std::string& train, const std::string& test,
                const OpenOptions& options);
struct TextOptions {
  int64_t context = 128;          // tokens of a sample
  bool masked = false;            // see OpenOptions
  double test = 0.1;              // the last part of the tokens is for testing; training never sees it
  std::optional<size_t> tests{};  // or so many tokens of it
};
/// The tokens of a text, and samples of them one after another. Each rank reads and encodes its share of the file.
Splits read_text(comm::shm::Communicator& group, const std::string& path, const Tokenizer& tokenizer,
                 const TextOptions& options);
/// Ten classes of noisy 28 × 28 patterns, computed from (seed, sample number) alone.
Dataset make_synthetic(comm::shm::Communicator& group, size_t count, uint64_t seed);

}  // namespace trireme::data
