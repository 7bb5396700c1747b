#pragma once
// A journal file as bytes: its constants. writer.h makes them, reader.h understands them, docs/journal-format.md says
// the same in words. Integers are little-endian.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::cluster::journal {

// ---- the header ----
constexpr std::string_view kMagic = "TRIREMEJ";
constexpr uint32_t kVersion = 2;
constexpr size_t kHeaderBytes = 32;  // magic, version, state, base (u64), checksum of magic, version and base, zeros
constexpr size_t kStateAt = 12, kBaseAt = 16, kHeaderChecksumAt = 24;
constexpr uint32_t kWholeState = 0x4c4f4857;  // "WHOL": every answer that was given is in the file
constexpr uint32_t kGapState = 0x53504147;    // "GAPS": the file could not be written for a while

// ---- a record: mark, bytes of its payload, sequence number (u64), checksum, payload ----
constexpr uint32_t kRecordMark = 0x4452434a;  // "JCRD"
constexpr size_t kRecordHeaderBytes = 20;
constexpr size_t kMostPayload = size_t{1} << 28;

// ---- a payload: changes, one after another: kind (u8), key and, of a put, value; texts begin with their bytes (u32)
// ----
constexpr uint8_t kPut = 1, kErase = 2;

}  // namespace trireme::cluster::journal
