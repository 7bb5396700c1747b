// label: unit
// A parcel as bytes: what is packed is what is unpacked, and damage is found before anybody reads beyond the block.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include <trireme/base/error.h>
#include <trireme/stages/parcel_format.h>

namespace trireme::tests {
namespace {

using namespace stages;  // NOLINT

std::vector<std::byte> packed(const Label& label, const std::vector<TensorView>& tensors) {
  std::vector<std::byte> block(packed_bytes(label, tensors));
  pack(label, tensors, block.data());
  return block;
}

TEST(ParcelFormat, BringsBackWhatWasPacked) {
  const std::vector<float> main = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> skip = {-7};
  const std::vector<TensorView> tensors = {{"", DType::f32, {2, 3}, main.data()},
                                           {"block1.shortcut", DType::i64, {}, skip.data()},
                                           {"nothing", DType::bf16, {4, 0, 9}, nullptr},
                                           {"image", DType::f32, {1, 3, 2, 1}, main.data(), true}};
  const auto block = packed({What::gradient, 12, 3}, tensors);
  const Unpacked back = unpack(block.data(), block.size(), 5);
  EXPECT_EQ(back.label, (Label{What::gradient, 12, 3}));
  ASSERT_EQ(back.tensors.size(), 4U);
  for (size_t i = 0; i < tensors.size(); i++) {
    EXPECT_EQ(back.tensors[i].name, tensors[i].name);
    EXPECT_EQ(back.tensors[i].dtype, tensors[i].dtype);
    EXPECT_EQ(back.tensors[i].sizes, tensors[i].sizes);
    EXPECT_EQ(back.tensors[i].channels_last, tensors[i].channels_last);
    EXPECT_EQ((static_cast<const std::byte*>(back.tensors[i].data) - block.data()) % 64, 0);
  }
  EXPECT_EQ(std::memcmp(back.tensors[0].data, main.data(), 24), 0);
  EXPECT_EQ(std::memcmp(back.tensors[1].data, skip.data(), 8), 0);
  EXPECT_EQ(std::memcmp(back.tensors[3].data, main.data(), 24), 0);
}

TEST(ParcelFormat, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::vector<TensorView>& tensors) {
    EXPECT_THROW(packed_bytes({}, tensors), InvalidArgument);
  };
  refused({{"", DType::f32, {-1}, nullptr}});
  refused({{"", DType::f32, {int64_t{1} << 40, int64_t{1} << 40}, nullptr}});
  refused({{"", DType::f32, std::vector<int64_t>(Parcels::kMostDims + 1, 1), nullptr}});
  refused({{"", DType::f32, {2, 3, 4}, nullptr, true}});
  refused({{std::string(Parcels::kLongestName + 1, 'x'), DType::f32, {1}, nullptr}});
  refused(std::vector<TensorView>(Parcels::kMostTensors + 1, TensorView{"", DType::u8, {0}, nullptr}));
}

TEST(ParcelFormat, TruncatedBlocksNameTheSender) {
  const std::vector<float> data(100, 1);
  const auto block = packed({}, {{"", DType::f32, {100}, data.data()}, {"b", DType::f32, {10}, data.data()}});
  for (size_t bytes = 0; bytes < block.size(); bytes++) try {
      unpack(block.data(), bytes, 17);
      ADD_FAILURE() << bytes << " bytes were taken for a parcel";
    } catch (const Corruption& error) {
      EXPECT_NE(std::string(error.what()).find("rank 17"), std::string::npos) << error.what();
    }
}

/// The format of the first tensor is 4 bytes into its record, behind a head of 24 bytes.
TEST(ParcelFormat, UnknownFormatsAreRefused) {
  const std::vector<float> data(24, 1);
  const auto with_format = [&](const std::vector<int64_t>& sizes, uint8_t format) {
    auto block = packed({}, {{"", DType::f32, sizes, data.data()}});
    block[24 + 4] = std::byte{format};
    return unpack(block.data(), block.size(), 3).tensors.front();
  };
  EXPECT_FALSE(with_format({1, 2, 3, 4}, 0).channels_last);
  EXPECT_TRUE(with_format({1, 2, 3, 4}, 1).channels_last);
  EXPECT_THROW(with_format({1, 2, 3, 4}, 2), Corruption);
  EXPECT_THROW(with_format({2, 3, 4}, 1), Corruption);
}

/// Whatever the damage: an error, or tensors that lie within the block.
TEST(ParcelFormat, DamagedBlocksAreRefusedOrStayWithinTheirMemory) {
  std::mt19937 random(1);
  const std::vector<float> data(100, 1);
  const auto whole = packed({}, {{"", DType::f32, {10, 10}, data.data()}, {"b", DType::f64, {5}, data.data()}});
  constexpr size_t kHeads = 24 + 2 * 200;
  int refused = 0;
  for (int i = 0; i < 100'000; i++) {
    auto block = whole;
    for (uint32_t flips = 1 + random() % 3; flips > 0; flips--)
      block[random() % kHeads] ^= static_cast<std::byte>(1U << random() % 8);
    try {
      for (const TensorView& tensor : unpack(block.data(), block.size(), 0).tensors) {
        const auto* begin = static_cast<const std::byte*>(tensor.data);
        ASSERT_GE(begin, block.data());
        ASSERT_LE(begin + tensor.bytes(), block.data() + block.size());
      }
    } catch (const Corruption&) {
      refused++;
    }
  }
  EXPECT_GT(refused, 15'000);
}

}  // namespace
}  // namespace trireme::tests
