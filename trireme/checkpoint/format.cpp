#include <charconv>
#include <utility>

#include <trireme/checkpoint/format.h>

namespace trireme::checkpoint {
namespace {

constexpr std::pair<std::string_view, size_t> kTypes[] = {
    {"F64", 8},  {"I64", 8}, {"U64", 8}, {"C64", 8},  {"F32", 4}, {"I32", 4},     {"U32", 4},     {"F16", 2},
    {"BF16", 2}, {"I16", 2}, {"U16", 2}, {"BOOL", 1}, {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"U8", 1}};

}  // namespace

std::string_view format_name(DType type) {
  constexpr std::string_view names[] = {"F32", "F64", "F16", "BF16", "I32", "I64", "U8"};
  return names[static_cast<size_t>(type)];
}

size_t element_bytes(std::string_view format_name) {
  for (const auto& [name, bytes] : kTypes)
    if (name == format_name) return bytes;
  return 0;
}

VectorName split_worker(std::string_view vector) {
  constexpr std::string_view kWorker = "worker/";
  if (!vector.starts_with(kWorker)) return {-1, vector};
  const std::string_view rest = vector.substr(kWorker.size());
  int worker = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), worker);
  const size_t digits = static_cast<size_t>(end - rest.data());
  if (error != std::errc() || worker < 0 || digits >= rest.size() || rest[digits] != '/') return {-1, vector};
  return {worker, rest.substr(digits + 1)};
}

std::string tensor_name(const std::string& vector, const std::string& name) {
  const auto [worker, shared] = split_worker(vector);
  const std::string prefix = vector.substr(0, vector.size() - shared.size());
  const bool plain = shared == "parameters" || shared.starts_with("buffers/");
  return plain ? prefix + name : vector + "/" + name;
}

}  // namespace trireme::checkpoint
