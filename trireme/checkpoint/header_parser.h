#pragma once
// The JSON of a safetensors header. Not installed: private to this folder.
#include <string>
#include <string_view>

#include <trireme/checkpoint/safetensors.h>

namespace trireme::checkpoint {

/// Names, types, shapes, offsets as they stand there (relative to the data) and metadata; nothing is compared with the
/// file. Reads event by event: no more memory than the header's own size, and no depth beyond what a header has. Throws
/// Corruption that begins with `where`.
Header parse_header(std::string_view text, const std::string& where);

}  // namespace trireme::checkpoint
