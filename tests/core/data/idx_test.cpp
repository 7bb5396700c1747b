// label: unit
#include <zlib.h>

#include "files.h"

namespace trireme::tests {
namespace {

using data::read_idx;

std::string header(unsigned char type, const std::vector<uint32_t>& extents) {
  std::string text{'\0', '\0', static_cast<char>(type), static_cast<char>(extents.size())};
  for (uint32_t extent : extents)
    for (int shift : {24, 16, 8, 0}) text += static_cast<char>(extent >> shift);
  return text;
}

/// Bytes that differ from sample to sample and do not repeat soon.
std::string noise(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; i++) text += static_cast<char>((i * 2654435761u) >> 13);
  return text;
}

std::string labels_file(size_t count) {
  std::string text = header(8, {static_cast<uint32_t>(count)});
  for (size_t i = 0; i < count; i++) text += static_cast<char>(i % 7);
  return text;
}

constexpr uint32_t kCount = 50, kRows = 5, kColumns = 6;
const std::string kImages = header(8, {kCount, kRows, kColumns}) + noise(size_t{kCount} * kRows * kColumns);

std::string zipped(const std::string& content) {
  const Folder folder;
  gzFile file = gzopen(folder.path("zipped").c_str(), "wb");
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
  std::ifstream in(folder.path("zipped"), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Idx : public testing::Test {
 protected:
  /// Reads `images` (with good labels) and expects an E that names the file, whatever the number of ranks.
  template <class E = Corruption>
  void expect_bad_images(const std::string& name, const std::string& content, std::vector<std::string> parts) {
    const std::string images = folder.write(name, content), labels = folder.write("labels", labels_file(kCount));
    parts.push_back(images);
    for (int ranks : {1, 2, 3})
      expect_refused<E>(
          ranks, [&](auto& group) { return read_idx(group, images, labels); }, parts);
  }

  Folder folder;
};

TEST_F(Idx, PlainAndZippedAreTheSameForAnyNumberOfRanks) {
  const std::string plain = folder.write("images", kImages), gz = folder.write("images.gz", zipped(kImages));
  const std::string labels = folder.write("labels", labels_file(kCount)),
                    labels_gz = folder.write("labels.gz", zipped(labels_file(kCount)));
  for (int ranks : {1, 2, 3}) {
    const Content content = read_by(ranks, [&](auto& group) { return read_idx(group, plain, labels); });
    EXPECT_EQ(content.count, kCount);
    EXPECT_EQ(content.shape, (std::vector<int64_t>{1, kRows, kColumns}));
    EXPECT_EQ(content.classes, 7);
    EXPECT_EQ(content.task, data::Task::classify);
    ASSERT_EQ(content.inputs.size(), kImages.size() - 16);
    for (size_t i = 0; i < content.inputs.size(); i++)
      ASSERT_EQ(content.inputs[i], static_cast<unsigned char>(kImages[16 + i])) << i;
    for (size_t i = 0; i < kCount; i++) ASSERT_EQ(content.labels[i], static_cast<int64_t>(i % 7)) << i;
    EXPECT_EQ(read_by(ranks, [&](auto& group) { return read_idx(group, gz, labels_gz); }), content);
  }
}

TEST_F(Idx, PixelsAreScaledToOne) {
  const std::string images = folder.write("images", kImages), labels = folder.write("labels", labels_file(kCount));
  read_by(1, [&](auto& group) {
    const data::Dataset set = read_idx(group, images, labels);
    EXPECT_DOUBLE_EQ(set.scale * 255, 1);
    EXPECT_EQ(set.dtype, DType::u8);
    return set;
  });
}

TEST_F(Idx, MoreRanksThanSamples) {
  const std::string images = folder.write("images", header(8, {2, 3, 3}) + noise(18)),
                    labels = folder.write("labels", labels_file(2));
  const Content content = read_by(5, [&](auto& group) { return read_idx(group, images, labels); });
  EXPECT_EQ(content.labels, (std::vector<int64_t>{0, 1}));
}

TEST_F(Idx, OtherNumbersOfDimensions) {
  const std::string flat = folder.write("flat", header(8, {4, 6}) + noise(24)),
                    colour = folder.write("colour", header(8, {4, 3, 2, 1}) + noise(24));
  const std::string labels = folder.write("labels", labels_file(4));
  EXPECT_EQ(read_by(2, [&](auto& group) { return read_idx(group, flat, labels); }).shape, (std::vector<int64_t>{6}));
  EXPECT_EQ(read_by(2, [&](auto& group) { return read_idx(group, colour, labels); }).shape,
            (std::vector<int64_t>{3, 2, 1}));
}

TEST_F(Idx, MissingFileIsNamed) {
  const std::string images = folder.path("images"), labels = folder.write("labels", labels_file(kCount));
  expect_refused<IoError>(2, [&](auto& group) { return read_idx(group, images, labels); }, {images, "No such file"});
}

TEST_F(Idx, EmptyFile) { expect_bad_images("images", "", {"truncated"}); }

TEST_F(Idx, TruncatedHeader) {
  for (size_t bytes : {3u, 4u, 7u, 15u}) expect_bad_images("images", kImages.substr(0, bytes), {"truncated"});
}

TEST_F(Idx, TruncatedData) {
  for (size_t bytes : {size_t{16}, size_t{17}, kImages.size() / 2, kImages.size() - 1})
    expect_bad_images("images", kImages.substr(0, bytes), {"truncated"});
}

TEST_F(Idx, ZippedFileCutAnywhere) {
  const std::string whole = zipped(kImages);
  for (size_t bytes :
       {size_t{12}, whole.size() / 3, whole.size() - 30, whole.size() - 8, whole.size() - 4, whole.size() - 1})
    expect_bad_images("images.gz", whole.substr(0, bytes), {"truncated"});
}

TEST_F(Idx, FlippedBitInZippedFile) {
  const std::string whole = zipped(kImages);
  for (size_t at : {whole.size() / 2, whole.size() - 7, whole.size() - 2}) {  // the data, its checksum, its length
    std::string content = whole;
    content[at] = static_cast<char>(content[at] ^ 4);
    expect_bad_images("images.gz", content, {"damaged"});
  }
}

TEST_F(Idx, ExtraData) {
  expect_bad_images("images", kImages + "x", {"more data", "50 records"});
  expect_bad_images("images.gz", zipped(kImages + "x"), {"more data"});
}

TEST_F(Idx, WrongMagic) {
  expect_bad_images("images", "PK" + kImages.substr(2), {"not an IDX file"});
  expect_bad_images("images", header(13, {kCount, 1, 1}) + noise(200), {"element type 0xd"});
  expect_bad_images("images", header(8, {}) + noise(200), {"0 dimensions"});
  expect_bad_images("images", header(8, {kCount, 1, 1, 1, 1}) + noise(200), {"5 dimensions"});
}

TEST_F(Idx, InsaneExtentsAreNoAllocation) {
  expect_bad_images("images", header(8, {kCount, 0xffffffff, 0xffffffff}) + noise(200), {"header promises"});
  expect_bad_images("images", header(8, {kCount, 40000, 40000}) + noise(200), {"header promises"});
  expect_bad_images("images.gz", zipped(header(8, {kCount, 40000, 40000}) + noise(200)), {"header promises"});
  expect_bad_images("images", header(8, {kCount, 0, 28}) + noise(200), {"extent of 0"});
}

TEST_F(Idx, NoImages) {
  const std::string images = folder.write("images", header(8, {0, 5, 6})),
                    labels = folder.write("labels", labels_file(0));
  expect_refused<Corruption>(2, [&](auto& group) { return read_idx(group, images, labels); }, {images, "no images"});
}

TEST_F(Idx, CountsThatDiffer) {
  const std::string images = folder.write("images", kImages), labels = folder.write("labels", labels_file(kCount - 1));
  expect_refused<Corruption>(2, [&](auto& group) { return read_idx(group, images, labels); },
                             {images, "50 images", labels, "49 labels"});
}

TEST_F(Idx, DamagedLabels) {
  const std::string images = folder.write("images", kImages),
                    labels = folder.write("labels", labels_file(kCount).substr(0, 30));
  for (int ranks : {1, 2, 3})
    expect_refused<Corruption>(ranks, [&](auto& group) { return read_idx(group, images, labels); },
                               {labels, "truncated"});
  expect_refused<Corruption>(2, [&](auto& group) { return read_idx(group, images, images); },
                             {images, "one dimension"});
}

// ---- a folder of four files, through open() ----

class IdxFolder : public testing::Test {
 protected:
  IdxFolder() { write("train", 20, 4, 4), write("t10k", 6, 4, 4); }
  void write(const std::string& part, uint32_t count, uint32_t rows, uint32_t columns) const {
    folder.write(part + "-images-idx3-ubyte",
                 header(8, {count, rows, columns}) + noise(size_t{count} * rows * columns));
    folder.write(part + "-labels-idx1-ubyte", labels_file(count));
  }
  data::Dataset train(comm::shm::Communicator& group) const { return data::open(group, folder.path()).train; }

  Folder folder;
};

TEST_F(IdxFolder, HasBothParts) {
  expect_all_well(run_ranks(2, [&](comm::shm::Communicator& group) {
    const data::Splits splits = data::open(group, folder.path());
    EXPECT_EQ(splits.train.count, 20u);
    EXPECT_EQ(splits.test.count, 6u);
    EXPECT_EQ(splits.train.classes, 7);
    EXPECT_EQ(splits.test.classes, 7);
  }));
}

TEST_F(IdxFolder, AMissingPartIsNamed) {
  std::filesystem::remove(folder.path("t10k-labels-idx1-ubyte"));
  expect_refused<IoError>(2, [&](auto& group) { return train(group); },
                          {folder.path("t10k-labels-idx1-ubyte"), "missing"});
}

TEST_F(IdxFolder, ImagesOfTwoSizesAreRefused) {
  write("t10k", 6, 5, 4);
  expect_refused<InvalidArgument>(2, [&](auto& group) { return train(group); }, {folder.path(), "1×4×4", "1×5×4"});
}

TEST_F(IdxFolder, ClassesCountOverBothParts) {
  write("train", 3, 4, 4);
  EXPECT_EQ(read_by(2, [&](auto& group) { return train(group); }).classes, 6);
}

}  // namespace
}  // namespace trireme::tests
