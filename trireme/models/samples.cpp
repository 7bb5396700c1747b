#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/models/samples.h>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;

std::vector<uint32_t> all_of(size_t count) {
  std::vector<uint32_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::string plural_rows(size_t count) { return fmt::format("{} row{}", count, count == 1 ? "" : "s"); }

/// t10k-images-idx3-ubyte.gz, …
bool is_image_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  return name.find("idx3-ubyte") != std::string::npos || name.find("idx4-ubyte") != std::string::npos;
}

std::string existing(const fs::path& file) {
  for (const char* ending : {"", ".gz"})
    if (fs::exists(file.string() + ending)) return file.string() + ending;
  return "";
}

// ---- CSV ----

/// The file of a folder that holds a part, and whether it is that part as a whole.
std::string file_in(const std::string& folder, Part part) {
  const std::string train = existing(fs::path(folder) / "train.csv"), test = existing(fs::path(folder) / "test.csv");
  if (part == Part::all)
    fail<InvalidArgument>("the folder {} has parts: train or test, or give one of its files", folder);
  if (part == Part::test && test.empty()) return train;  // some rows of it, perhaps
  const std::string& file = part == Part::train || test.empty() ? train : test;
  if (file.empty()) fail<IoError>("the folder {} has neither train.csv(.gz) nor test.csv(.gz)", folder);
  return file;
}

/// The rows that are meant, with a sentence about them.
void choose_rows(const About& about, Part part, Purpose purpose, Samples& samples) {
  const data::Rows& rows = *samples.rows;
  const bool split = about.split && about.split->tests > 0;
  const bool own_file = split && rows.labelled && rows.is_of(*about.split);
  if (part == Part::automatic) part = own_file && purpose == Purpose::evaluate ? Part::test : Part::all;
  if (part != Part::all && !rows.labelled)
    fail<InvalidArgument>("{} has no labels, so it has no part that was for {}: use all rows", rows.path,
                          part == Part::test ? "testing" : "training");
  if (part != Part::all && !split)
    fail<InvalidArgument>("the model was trained with all rows of one file: there is no '{}' part to choose from {}",
                          part == Part::test ? "test" : "train", rows.path);
  if (part != Part::all) {
    samples.chosen = rows.part(*about.split, part == Part::test);
    samples.what = fmt::format("{} of {} that training {}", plural_rows(samples.chosen.size()), rows.path,
                               part == Part::test ? "kept for testing" : "used");
    return;
  }
  samples.chosen = purpose == Purpose::evaluate ? rows.with_label() : all_of(rows.count);
  samples.what = fmt::format("{} of {}", plural_rows(samples.chosen.size()), rows.path);
  if (own_file && purpose == Purpose::evaluate) samples.what += ", on most of which the model was trained";
  if (samples.chosen.size() < rows.count)
    samples.notes.push_back(
        fmt::format("{} without a label left out", plural_rows(rows.count - samples.chosen.size())));
}

Samples open_rows(const About& about, const std::string& data, Part part, Purpose purpose) {
  if (!data::is_csv(data) && !fs::is_directory(data))
    fail<InvalidArgument>("the model was trained on columns of a CSV file ({}): '{}' is none",
                          data::describe(*about.schema), data);
  Samples samples;
  std::string file = data;
  if (fs::is_directory(data)) {
    file = file_in(data, part);
    if (!existing(fs::path(data) / "test.csv").empty()) part = Part::all;  // all of the file
  }
  samples.rows = std::make_unique<data::Rows>(data::read_rows(file, *about.schema));
  samples.notes = samples.rows->notes;
  samples.set = samples.rows->view(*about.schema);
  samples.labelled = samples.rows->labelled;
  if (!samples.labelled && purpose == Purpose::evaluate)
    fail<InvalidArgument>("{} has no column '{}' to compare with. `trireme predict` needs none", file,
                          about.schema->label);
  choose_rows(about, part, purpose, samples);
  if (samples.chosen.empty()) fail<InvalidArgument>("{}: no row has a label", file);
  return samples;
}

// ---- text ----

/// Of the file that the model was trained on, the part that training held out or the one that it used; of any other,
/// all of it.
Samples open_text(const About& about, const std::string& data, Part part, Purpose purpose) {
  if (purpose == Purpose::predict)
    fail<InvalidArgument>("{} predicts tokens of a text, one after another: `trireme generate` writes them",
                          about.model);
  const auto file = data::text_file(data);
  if (!file) fail<InvalidArgument>("the model was trained on text: --data text:FILE, not '{}'", data);
  Samples samples;
  samples.memory = std::make_unique<comm::shm::Communicator>(Segment::create(), 0, 1);
  data::TextOptions options{.context = about.shape[0], .masked = about.task == data::Task::masked_token, .test = 0};
  if (about.split && fs::path(*file).filename() == about.split->file) options.tests = about.split->tests;
  data::Splits splits = data::read_text(*samples.memory, *file, *about.tokenizer, options);
  const bool own = options.tests && splits.tokens == about.split->rows;
  if (!own && (part == Part::train || part == Part::test))
    fail<InvalidArgument>("{} is not the text that the model was trained on: it has no part for testing", *file);
  if (part == Part::automatic && own && splits.test.count > 0) part = Part::test;
  if ((!own && options.tests) || part == Part::automatic) part = Part::all;
  if (part == Part::all && options.tests.value_or(0) > 0) {  // without a cut in the middle
    options.tests = 0;
    splits = data::read_text(*samples.memory, *file, *about.tokenizer, options);
  }
  samples.set = part == Part::test ? splits.test : splits.train;
  samples.labelled = true;
  samples.what = fmt::format("{} samples of {} tokens of {}{}", samples.set.count, about.shape[0], *file,
                             part == Part::test    ? " that training held out"
                             : part == Part::train ? " that training used"
                             : own                 ? ", on most of which the model was trained"
                                                   : "");
  samples.chosen = all_of(samples.set.count);
  return samples;
}

// ---- everything else ----

void check_fit(const About& about, const data::Dataset& set) {
  const bool flat = about.shape.size() == 1 && static_cast<size_t>(about.shape[0]) == set.elements();
  if (set.shape != about.shape && !flat)
    fail<InvalidArgument>("the model takes samples of {}, but those of {} are {}", fmt::join(about.shape, "×"),
                          set.name, fmt::join(set.shape, "×"));
  if (about.task == data::Task::classify && set.classes > about.outputs)
    fail<InvalidArgument>("the model knows {} classes, but {} has labels up to {}", about.outputs, set.name,
                          set.classes - 1);
}

Samples open_images(const About& about, const std::string& data, Part part, Purpose purpose) {
  Samples samples;
  samples.memory = std::make_unique<comm::shm::Communicator>(Segment::create(), 0, 1);
  if (is_image_file(data)) {
    if (purpose == Purpose::evaluate)
      fail<InvalidArgument>("{} has images without labels to compare with: give its folder", data);
    if (part != Part::automatic && part != Part::all) fail<InvalidArgument>("{} is one file without parts", data);
    samples.set = data::read_idx_images(*samples.memory, data);
    samples.what = fmt::format("{} images of {}", samples.set.count, data);
  } else {
    if (part == Part::all) fail<InvalidArgument>("{} has parts: train or test", data);
    data::Splits splits = data::open(*samples.memory, data, {.seed = about.seed});
    const bool train = part == Part::train || (part == Part::automatic && splits.test.count == 0);
    samples.set = train ? splits.train : splits.test;
    samples.labelled = true;
    samples.what = fmt::format("{} {} samples of {}", samples.set.count, train ? "training" : "test", data);
  }
  check_fit(about, samples.set);
  samples.chosen = all_of(samples.set.count);
  return samples;
}

}  // namespace

std::vector<std::string> part_names() { return {"auto", "train", "test", "all"}; }

Part part_named(const std::string& name) {
  const std::vector<std::string> names = part_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    fail<InvalidArgument>("unknown part '{}'{}. There are {}", name, did_you_mean(name, names), fmt::join(names, ", "));
  return static_cast<Part>(found - names.begin());
}

Samples open_samples(const About& about, const std::string& data, Part part, Purpose purpose) {
  if (data::is_text(about.task)) {
    if (data::text_file(data)) data::check_exists(data);
    return open_text(about, data, part, purpose);
  }
  if (data::text_file(data))
    fail<InvalidArgument>("the model was trained on samples of {}, not on text such as '{}'",
                          fmt::join(about.shape, "×"), data);
  if (!is_image_file(data)) data::check_exists(data);
  if (!fs::exists(data) && is_image_file(data)) fail<IoError>("there is no file '{}'", data);
  if (about.schema) return open_rows(about, data, part, purpose);
  if (data::is_csv(data))
    fail<InvalidArgument>("the model was trained on samples of {}, not on the columns of a CSV file such as '{}'",
                          fmt::join(about.shape, "×"), data);
  return open_images(about, data, part, purpose);
}

}  // namespace trireme::models
