#pragma once
// Element types and the operations that reduce them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

enum class DType : uint8_t { f32, f64, f16, bf16, i32, i64, u8 };
enum class Op : uint8_t { sum, mean, min, max };

constexpr size_t size_of(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType type) {
  constexpr std::string_view names[] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8"};
  return names[static_cast<size_t>(type)];
}

constexpr std::string_view name_of(Op op) {
  constexpr std::string_view names[] = {"sum", "mean", "min", "max"};
  return names[static_cast<size_t>(op)];
}

}  // namespace trireme
