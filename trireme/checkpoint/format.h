#pragma once
// Names and limits of a checkpoint's files. docs/checkpoint-format.md is the specification; writer.h writes, reader.h
// reads.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <trireme/space/dtype.h>

namespace trireme::checkpoint {

inline constexpr const char* kFormat = "trireme-checkpoint";
inline constexpr int kFormatVersion = 2;

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kLockName = "trireme.lock";
inline constexpr const char* kSuffix = ".safetensors";
inline constexpr const char* kStepPrefix = "step-";  // and at least nine digits, then ".2", ".3", … for later ones
inline constexpr const char* kNoticePrefix = "notice-";
inline constexpr const char *kModelPrefix = "model", *kRowsPrefix = "rows-", *kExtraPrefix = "extra-";  // of files
inline constexpr const char* kTiesEntry = "ties";  // of the model's metadata: other name -> name, as JSON

inline constexpr size_t kFileBytes = size_t{256} << 20;         // tensors are cut into files of about so many
inline constexpr size_t kRowBytes = size_t{64} << 20;           // rows in one file of a writer
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;       // of a safetensors file, as its specification has it
inline constexpr size_t kMostManifestBytes = size_t{64} << 20;  // more is no manifest

/// As safetensors calls it: "F32".
std::string_view format_name(DType type);
/// Bytes of an element by the format's name of its type; 0 when there is no such type.
size_t element_bytes(std::string_view format_name);

/// "worker/2/optimizer/momentum" is "optimizer/momentum" of worker 2; worker -1 when it is of no worker.
struct VectorName {
  int worker = -1;
  std::string_view name;
};
VectorName split_worker(std::string_view vector);

/// What a part of a vector is called in the files: slot or buffer `name` of it. "parameters" and "buffers/NAME" have
/// the plain name, others "VECTOR/NAME"; each with "worker/2/" before it if the vector has.
std::string tensor_name(const std::string& vector, const std::string& name);

}  // namespace trireme::checkpoint
