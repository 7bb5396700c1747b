#pragma once
// Makes the bytes of a journal file (format.h).
#include <cstdint>
#include <string>
#include <string_view>

#include <trireme/cluster/journal/journal.h>

namespace trireme::cluster::journal {

/// Of the record header's first 16 bytes, and the payload.
uint32_t checksum_of(std::string_view header, std::string_view payload);

/// Four bytes, for kStateAt.
std::string state_bytes(uint32_t state);
/// Of a file whose first `base` bytes behind the header were durable before it had its name.
std::string header_bytes(uint64_t base);
std::string record_bytes(uint64_t sequence, const Changes& changes);
/// Records that put all of it, of a few hundred kilobytes each; `sequence` becomes that of the next one.
std::string all_records(const Contents& contents, uint64_t& sequence);

}  // namespace trireme::cluster::journal
