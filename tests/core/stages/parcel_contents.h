#pragma once
// Parcels whose contents follow from who sends what to whom.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include <trireme/stages/parcels.h>

namespace trireme::tests {

using namespace stages;  // NOLINT

/// Bytes that no other parcel has.
inline std::vector<uint8_t> content(uint64_t seed, size_t bytes) {
  std::vector<uint8_t> data(bytes);
  uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i < bytes; i++) {
    if (i % 8 == 0) x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    data[i] = static_cast<uint8_t>(x >> i % 8 * 8);
  }
  return data;
}

inline uint64_t seed_of(int from, int to, const Label& label, int step = 0) {
  return static_cast<uint64_t>(
      ((((from * 16 + to) * 2 + static_cast<int>(label.what)) * 1000 + label.micro) * 10 + label.chunk) * 100000LL +
      step);
}

inline void send_bytes(Parcels& parcels, int from, int to, const Label& label, size_t bytes, int step = 0) {
  const auto data = content(seed_of(from, to, label, step), bytes);
  const std::vector<TensorView> tensors = {{"", DType::u8, {static_cast<int64_t>(bytes)}, data.data()}};
  parcels.send(to, label, tensors);
}

/// Fails unless the parcel is what send_bytes() sent.
inline void expect_bytes(const Parcel& parcel, int from, int to, const Label& label, size_t bytes, int step = 0) {
  ASSERT_EQ(parcel.tensors.size(), 1U);
  ASSERT_EQ(parcel.tensors[0].bytes(), bytes);
  const auto wanted = content(seed_of(from, to, label, step), bytes);
  ASSERT_EQ(std::memcmp(parcel.tensors[0].data, wanted.data(), bytes), 0)
      << describe(label) << " from " << from << " to " << to << " has other contents";
}

/// Fails unless the text holds all of `parts`.
inline void expect_within(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

/// Bytes that the memory of this rank's machine has.
inline size_t machine_bytes(const Group& group) {
  struct stat now {};
  fstat(group.local().segment().descriptor(), &now);
  return static_cast<size_t>(now.st_blocks) * 512;
}

}  // namespace trireme::tests
