// label: unit
// Checkpoints written by any number of ranks in any cut, and read back with another layout and in other cuts.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/checkpoint/reader.h>

#include "../data/files.h"
#include "memory_files.h"
#include "sample.h"

namespace trireme::tests {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Reader;

template <class Body>
std::exception_ptr error_of(const Body& body) {
  try {
    body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// A folder of the double.
std::string folder_in(MemoryFiles& files) {
  EXPECT_EQ(files.mkdir("/ckpt", 0755), 0);
  return "/ckpt";
}

/// Every byte of every vector, whole and in random cuts, in the order of `layout`.
void expect_contents(Reader& reader, const space::Layout& layout, int64_t step) {
  std::mt19937 dice(7);
  for (const std::string& vector : sample_vectors()) {
    const std::vector<std::byte> expected = vector_bytes(vector, layout, step);
    ASSERT_FALSE(reader.contents().of(vector).empty()) << vector;
    for (const state::Holding& holding : reader.contents().of(vector))
      for (int i = 0; i < 20; i++) {
        Range range = holding.range;
        if (i > 0) range.begin += dice() % range.size();
        if (i > 0) range.end = range.begin + 1 + dice() % (range.end - range.begin);
        std::vector<std::byte> got(range.size());
        reader.read(vector, range, got);
        ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + static_cast<long>(range.begin)))
            << vector << " " << range.begin << " to " << range.end;
      }
  }
}

TEST(Checkpoint, IsTheSameWhoeverWroteItAndHowever) {
  std::map<std::string, std::vector<std::byte>> first;
  const Contents contents = sample_contents();
  for (const auto& [ranks, cuts] : std::vector<std::pair<int, size_t>>{{1, 1}, {1, 13}, {2, 7}, {3, 101}, {5, 997}}) {
    MemoryFiles files;
    const std::string path = save(files, folder_in(files), 500, contents, ranks, cuts);
    const Checkpoint checkpoint(files, path);
    checkpoint.verify(1);
    Reader reader(checkpoint, contents.layout, contents.buffers);
    expect_contents(reader, contents.layout, 500);
    for (const checkpoint::FileNote& note : checkpoint.manifest().files)
      if (!note.name.starts_with("rows-") && !note.name.starts_with("extra-")) {
        const auto& bytes = files.bytes_of(path + "/" + note.name);
        EXPECT_EQ(first.emplace(note.name, bytes).first->second, bytes) << note.name << " of " << ranks;
      }
    EXPECT_EQ(checkpoint.manifest().scalars.at("step"), 500);
    EXPECT_EQ(reader.scalar("none"), std::nullopt);
  }
  EXPECT_GT(first.size(), 4u) << "small files were asked for";
}

TEST(Checkpoint, HasLogicalTensorsUnderTheirNames) {
  MemoryFiles files;
  const Contents contents = sample_contents();
  const Checkpoint checkpoint(files, save(files, folder_in(files), 3, contents));
  for (const char* name : {"conv1.weight", "half", "one", "bn.running_mean", "optimizer/momentum/half",
                           "optimizer/steps/fc.weight", "worker/1/optimizer/residual/conv1.weight"}) {
    const Checkpoint::Found found = checkpoint.find(name);
    ASSERT_TRUE(found) << name;
    const std::vector<std::byte> bytes = found.file->read(*found.tensor);
    for (size_t i = 0; i < bytes.size(); i++) ASSERT_EQ(bytes[i], logical_byte(name, i, 3)) << name << " " << i;
  }
  EXPECT_EQ(checkpoint.find("conv1.weight").tensor->describe(), "conv1.weight F32[5,3,3,2]");
  EXPECT_EQ(checkpoint.model().size(), 8u);
  EXPECT_EQ(checkpoint.ties(), (std::map<std::string, std::string>{{"tied", "fc.weight"}}));
  EXPECT_EQ(checkpoint.blobs(), (std::vector<std::string>{"worker/0/rng", "worker/1/rng"}));
  const auto blob = checkpoint.blob("worker/1/rng");
  ASSERT_TRUE(blob);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(blob->data()), blob->size()), "rng of 1 at 3");
  EXPECT_FALSE(checkpoint.blob("conv1.weight"));
}

TEST(Checkpoint, IsReadInTheOrderOfTheReader) {
  for (const bool written : {false, true}) {
    MemoryFiles files;
    const Checkpoint checkpoint(files, save(files, folder_in(files), 8, sample_contents(written)));
    for (const bool read : {false, true}) {
      Reader reader(checkpoint, sample_layout(read), sample_buffers());
      expect_contents(reader, sample_layout(read), 8);
      EXPECT_EQ(reader.about().layout, sample_layout(read).describe());
      EXPECT_EQ(reader.about().optimizer, "momentum");
    }
  }
}

TEST(Checkpoint, KeepsRows) {
  MemoryFiles files;
  const Checkpoint checkpoint(files, save(files, folder_in(files), 40, sample_contents(), 3));
  std::set<uint64_t> keys;
  checkpoint.rows("words", [&](const state::Row& row) {
    EXPECT_TRUE(keys.insert(row.key).second);
    EXPECT_EQ(std::vector<float>(row.values.begin(), row.values.end()),
              std::vector<float>(3, static_cast<float>(row.key) + 40));
    EXPECT_EQ(row.state.size(), 6u);
    EXPECT_EQ(row.steps, row.key);
    EXPECT_EQ(row.age, 2u);
  });
  EXPECT_EQ(keys.size(), 20u);
  checkpoint.rows("others", [](const state::Row&) { FAIL(); });
}

TEST(Checkpoint, RanksWriteWhatFallsToThemOfWhatTheyShow) {
  const Folder folder;
  const Contents contents = sample_contents();
  const Plan plan(contents);
  constexpr int kRanks = 3;
  const state::OwnerMap all = plan.all();
  state::OwnerMap owners;  // all have everything
  for (int rank = 0; rank < kRanks; rank++)
    for (const std::string& vector : contents.vectors)
      for (const state::Holding& holding : all.of(vector)) owners.add(vector, holding.range, rank);
  const state::OwnerMap mine = divide(owners, plan);
  Files& files = checkpoint::system_files();
  const Attempt attempt = Attempt::parse(checkpoint::Folder(files, folder.path()).attempt(9).text());
  std::vector<uint64_t> written(kRanks);
  const auto write = [&](int rank) {
    Writer writer(files, attempt, plan, {.rank = rank, .mine = &mine});
    for (const std::string& vector : contents.vectors) {
      const std::vector<std::byte> bytes = vector_bytes(vector, contents.layout, 9);
      writer.part(vector, {0, bytes.size()}, bytes);
    }
    writer.finish();
    written[static_cast<size_t>(rank)] = writer.written();
  };
  std::vector<std::jthread> others;
  for (int rank = 1; rank < kRanks; rank++) others.emplace_back([&, rank] { write(rank); });
  write(0);
  commit(files, attempt, plan, sample_manifest(contents, 9), {.writers = kRanks, .limit = Seconds(60)});
  others.clear();
  const Checkpoint checkpoint(files, attempt.path);
  checkpoint.verify(2);
  Reader reader(checkpoint, contents.layout, contents.buffers);
  expect_contents(reader, contents.layout, 9);
  uint64_t headers = 0;
  for (const checkpoint::PlannedFile& file : plan.files()) headers += file.header.size();
  written[0] -= headers;
  EXPECT_EQ(written[0] + written[1] + written[2] + headers, plan.bytes());
  for (uint64_t bytes : written) EXPECT_LT(bytes, (plan.bytes() - headers) / 2) << "the work is divided";
}

TEST(Checkpoint, AnyFlippedBitIsFound) {
  MemoryFiles files;
  const std::string path = save(files, folder_in(files), 1, sample_contents());
  const Manifest manifest = Checkpoint(files, path).manifest();
  std::mt19937 dice(3);
  for (const checkpoint::FileNote& note : manifest.files)
    for (int i = 0; i < 30; i++) {
      std::byte& byte = files.bytes_of(path + "/" + note.name)[dice() % note.bytes];
      const std::byte flipped{static_cast<uint8_t>(1u << dice() % 8)};
      byte ^= flipped;
      expect_error<Corruption>(error_of([&] { Checkpoint(files, path).verify(1); }), {note.name});
      byte ^= flipped;
    }
  for (std::byte& byte : files.bytes_of(path + "/manifest.json"))
    for (int bit = 0; bit < 8; bit++) {
      byte ^= std::byte{static_cast<uint8_t>(1u << bit)};
      expect_error<Corruption>(error_of([&] { Checkpoint(files, path).verify(1); }), {"manifest.json"});
      byte ^= std::byte{static_cast<uint8_t>(1u << bit)};
    }
  Checkpoint(files, path).verify(1);
}

TEST(Checkpoint, MissingAndShortFilesAreNamed) {
  MemoryFiles files;
  const std::string path = save(files, folder_in(files), 1, sample_contents());
  auto& bytes = files.bytes_of(path + "/optimizer-00001-of-00003.safetensors");
  bytes.push_back(std::byte{0});
  expect_error<Corruption>(error_of([&] { Checkpoint(files, path); }),
                           {"optimizer-00001-of-00003", "damaged", "bytes"});
  bytes.resize(bytes.size() - 2);
  expect_error<Corruption>(error_of([&] { Checkpoint(files, path); }), {"optimizer-00001-of-00003", "damaged"});
  files.unlink(path + "/optimizer-00001-of-00003.safetensors");
  expect_error<Corruption>(error_of([&] { Checkpoint(files, path); }), {"optimizer-00001-of-00003", "missing"});
  files.unlink(path + "/manifest.json");
  expect_error<Corruption>(error_of([&] { Checkpoint(files, path); }), {"half-written"});
  expect_error<InvalidArgument>(error_of([&] { Checkpoint(files, "/ckpt"); }), {"no checkpoint"});
  expect_error<InvalidArgument>(error_of([&] { Checkpoint(files, "/nowhere"); }), {"/nowhere"});
}

TEST(Reader, SaysWhichTensorsDiffer) {
  MemoryFiles files;
  const Checkpoint checkpoint(files, save(files, folder_in(files), 1, sample_contents()));
  const space::Layout layout = sample_layout();
  std::vector<space::Slot> slots(layout.slots().begin(), layout.slots().end());
  slots[0].shape = {5, 3, 3, 3};
  slots[1].name = "conv1.other";
  slots[2].dtype = DType::bf16;
  expect_error<InvalidArgument>(
      error_of([&] {
        Reader(checkpoint, space::Layout(slots), {sample_buffers()[0], {"new", "F32", {1}}});
      }),
      {"another model", "'conv1.weight' is F32[5,3,3,2] in the checkpoint and F32[5,3,3,3] here",
       "'conv1.other F32[5]' is not in the checkpoint", "'half' is F16[7,2,1,3]", "BF16", "'new' is not",
       "and 1 more"});
}

TEST(Commit, RefusesWhatIsNotWholeOrTwice) {
  MemoryFiles files;
  const std::string folder = folder_in(files);
  const Contents contents = sample_contents();
  const Plan plan(contents);
  const auto write = [&](const std::function<void(Writer&)>& extra, const std::string& leave_out) {
    const Attempt attempt = checkpoint::Folder(files, folder).attempt(2);
    Writer writer(files, attempt, plan, {});
    for (const std::string& vector : contents.vectors) {
      std::vector<std::byte> bytes = vector_bytes(vector, contents.layout, 2);
      if (vector == leave_out) bytes.resize(bytes.size() - 1);
      writer.part(vector, {0, bytes.size()}, bytes);
    }
    extra(writer);
    writer.finish();
    commit(files, attempt, plan, sample_manifest(contents, 2), {.limit = Seconds(0.1), .threads = 1});
  };
  const auto nothing = [](Writer&) {};
  expect_error<Corruption>(error_of([&] { write(nothing, "buffers/bn.batches"); }),
                           {"no rank", "'bn.batches', byte 7"});
  expect_error<Corruption>(error_of([&] {
                             const std::vector<std::byte> more(4);
                             write([&](Writer& w) { w.part("parameters", {384, 388}, more); }, "");
                           }),
                           {"twice", "model.safetensors"});
  EXPECT_NO_THROW(write(nothing, ""));
}

TEST(Commit, WaitsForAllAndSaysWhoIsMissing) {
  MemoryFiles files;
  const std::string folder = folder_in(files);
  const Plan plan(sample_contents());
  const Attempt attempt = checkpoint::Folder(files, folder).attempt(2), before{attempt.path, "before", 2};
  for (const Attempt& one : {attempt, before}) {  // rank 1's notice of an earlier try does not count
    Writer writer(files, one, plan, {.rank = one.id == "before" ? 1 : 0});
    writer.finish();
  }
  const checkpoint::CommitOptions options{.writers = 3, .limit = Seconds(0.05), .threads = 1};
  expect_error<Timeout>(error_of([&] { commit(files, attempt, plan, {}, options); }),
                        {"rank 1, 2", attempt.path, "step 2"});
  give_up(files, attempt, 2, "its disk is full");
  expect_error<Error>(error_of([&] { commit(files, attempt, plan, {}, options); }), {"rank 2", "its disk is full"});
  abandon(files, attempt);
  EXPECT_FALSE(files.exists(attempt.path));
}

TEST(Writer, RefusesToWriteOverACompleteOne) {
  MemoryFiles files;
  const std::string path = save(files, folder_in(files), 2, sample_contents());
  const Plan plan(sample_contents());
  expect_error<InvalidArgument>(error_of([&] { Writer(files, {path, "x", 2}, plan, {}); }), {path, "complete"});
  EXPECT_EQ(checkpoint::name_in(save(files, "/ckpt", 2, sample_contents())), "step-000000002.2");
  abandon(files, {path, "x", 2});
  EXPECT_TRUE(files.exists(path)) << "what was committed stays";
}

}  // namespace
}  // namespace trireme::tests
