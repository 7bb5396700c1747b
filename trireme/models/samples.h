#pragma once
// Data for a model that is trained already: read as the model was taught to, or refused with what differs. Without
// torch.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <trireme/comm/shm/communicator.h>
#include <trireme/data/dataset.h>
#include <trireme/data/rows.h>
#include <trireme/models/about.h>

namespace trireme::models {

enum class Part : uint8_t { automatic, train, test, all };
Part part_named(const std::string& name);
std::vector<std::string> part_names();

/// What the samples are for.
enum class Purpose : uint8_t {
  evaluate,  // they need labels; of the file that the model was trained on, automatic means the rows kept for testing
  predict,   // they need none; automatic means all rows of a file
};

/// Samples of a data set, and which of them are meant. Owns their memory. Movable.
struct Samples {
  data::Dataset set;
  std::vector<uint32_t> chosen;    // positions in the set
  bool labelled = false;           // the set has labels; in a CSV file those of some rows may be missing
  std::string what;                // "30 rows of iris.csv that training kept for testing"
  std::vector<std::string> notes;  // what was left out or is unusual, as sentences

  std::unique_ptr<comm::shm::Communicator> memory;  // of sets that are not CSV
  std::unique_ptr<data::Rows> rows;                 // of CSV
};

/// `data`: a name, folder or file as data::open() takes it, or a file of images in IDX format, which have no labels. A
/// name or folder has parts; a CSV file has those of the training if it is the very file. Blocks on files alone, and
/// needs no ranks. Throws what reading throws, and InvalidArgument when the model cannot use these data or there is no
/// such part.
Samples open_samples(const About& about, const std::string& data, Part part, Purpose purpose);

}  // namespace trireme::models
