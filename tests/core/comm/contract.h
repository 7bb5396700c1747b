#pragma once
// What every Communicator must do. An engine's test instantiates the suite with one line:
//   INSTANTIATE_TEST_SUITE_P(Shm, Contract, testing::Combine(testing::Values(shm_engine()), testing::Values(1, 2, 4)),
//   case_name);
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/comm/communicator.h>

namespace trireme::tests {

using comm::Communicator;
using Bytes = std::vector<std::byte>;

struct Engine {
  std::string name;
  /// Runs the body once per rank and lets errors of any rank fail the test.
  std::function<void(int ranks, const std::function<void(Communicator&)>&)> run;
  /// Collective: memory that the engine knows best, the kind that start_allreduce takes.
  std::function<std::byte*(Communicator&, size_t bytes)> allocate;
  bool threads = true;  // ranks are threads of this process and see each other's variables; else each runs the test in
                        // its own process
};

using Case = std::tuple<Engine, int>;
/// Likewise, for those of contract_started.cpp.
void bring_started_tests();
std::string case_name(
    const testing::TestParamInfo<Case>& info);  // brings the tests, which are compiled once, out of their library
inline void PrintTo(const Engine& engine, std::ostream* out) { *out << engine.name; }

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64};
constexpr Op kOps[] = {Op::sum, Op::mean, Op::min, Op::max};
constexpr size_t kSmall[] = {0, 1, 3, 1000};
constexpr size_t kLarge[] = {65537, 150001};  // 16-bit types cross 256 KiB only in the second

// ---- values: whole numbers so small that sums over 8 ranks are exact in every type ----

inline double value(int rank, size_t i) {
  return static_cast<double>((i * 5 + static_cast<size_t>(rank) * 7 + i / 64) % 23) - 11;
}

inline uint16_t bf16_of(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  const auto widen = [](uint32_t upper) {
    const uint32_t whole = upper << 16;
    float y = 0;
    std::memcpy(&y, &whole, sizeof y);
    return static_cast<double>(y);
  };
  const uint32_t down = bits >> 16, up = down + 1;
  const double below = std::abs(x - widen(down)), above = std::abs(widen(up) - x);
  return static_cast<uint16_t>(below < above || (below == above && down % 2 == 0) ? down : up);
}

inline void encode_one(DType type, std::byte* at, double x) {
  const auto put = [&](auto y) { std::memcpy(at, &y, sizeof y); };
  switch (type) {
    case DType::f32:
      return put(static_cast<float>(x));
    case DType::f64:
      return put(x);
    case DType::f16:
      return put(static_cast<_Float16>(static_cast<float>(x)));
    case DType::bf16:
      return put(bf16_of(static_cast<float>(x)));
    case DType::i32:
      return put(static_cast<int32_t>(x));
    case DType::i64:
      return put(static_cast<int64_t>(x));
    case DType::u8:
      return put(static_cast<uint8_t>(x));
  }
}

template <class F>
Bytes encode(DType type, size_t count, const F& of) {
  Bytes bytes(count * size_of(type));
  for (size_t i = 0; i < count; i++) encode_one(type, bytes.data() + i * size_of(type), of(i));
  return bytes;
}

/// What a reduction over all ranks must give at position i; integers are cut towards zero by encode().
inline double reduced(Op op, int ranks, size_t i) {
  double total = value(0, i);
  for (int r = 1; r < ranks; r++) {
    const double next = value(r, i);
    total = op == Op::min ? std::min(total, next) : op == Op::max ? std::max(total, next) : total + next;
  }
  return op == Op::mean ? total / ranks : total;
}

inline void copy(std::byte* to, const Bytes& from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

inline testing::AssertionResult same(DType type, const std::byte* got, const Bytes& wanted) {
  if (wanted.empty() || std::memcmp(got, wanted.data(), wanted.size()) == 0) return testing::AssertionSuccess();
  for (size_t i = 0; i < wanted.size(); i++)
    if (got[i] != wanted[i])
      return testing::AssertionFailure() << name_of(type) << ": element " << i / size_of(type) << " of "
                                         << wanted.size() / size_of(type) << " is wrong";
  return testing::AssertionSuccess();
}

class Contract : public testing::TestWithParam<Case> {
 protected:
  static int ranks() { return std::get<1>(GetParam()); }
  static void run(const std::function<void(Communicator&)>& body) { std::get<0>(GetParam()).run(ranks(), body); }
  static std::byte* allocate(Communicator& group, size_t bytes) {
    return std::get<0>(GetParam()).allocate(group, bytes);
  }

  /// `own` says which ranks bring memory from allocate().
  static void check_allreduce(Communicator& group, std::byte* memory, const std::function<bool(int)>& own, DType type,
                              Op op, size_t count) {
    Bytes mine = encode(type, count, [&](size_t i) { return value(group.rank(), i); });
    const Bytes wanted = encode(type, count, [&](size_t i) { return reduced(op, group.size(), i); });
    std::byte* data = mine.data();
    if (own(group.rank())) copy(data = memory, mine);
    group.allreduce(data, count, type, op, fmt::format("gradient {}", count));
    EXPECT_TRUE(same(type, data, wanted)) << name_of(op) << " on rank " << group.rank();
  }

  static void check_allreduces(const std::function<bool(int)>& own) {
    run([&](Communicator& group) {
      std::byte* memory = allocate(group, kLarge[1] * 8);
      for (DType type : kTypes) {
        for (size_t count : kSmall)
          for (Op op : kOps) check_allreduce(group, memory, own, type, op, count);
        for (size_t count : kLarge) check_allreduce(group, memory, own, type, Op::sum, count);
      }
    });
  }

  template <class F>
  static void for_types_and_sizes(const F& check) {
    for (DType type : kTypes) {
      for (size_t count : kSmall) check(type, count);
      check(type, kLarge[0]);
    }
    check(DType::f16, kLarge[1]);
  }
};

}  // namespace trireme::tests
