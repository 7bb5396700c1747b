#include <algorithm>
#include <optional>

#include <trireme/base/error.h>
#include <trireme/cluster/journal/format.h>
#include <trireme/cluster/journal/packing.h>
#include <trireme/cluster/journal/reader.h>
#include <trireme/cluster/journal/writer.h>

namespace trireme::cluster::journal {
namespace {

constexpr const char* kAdvice =
    "The job cannot be taken over from it: move it away, and resume from the newest checkpoint";

struct Record {
  uint64_t sequence = 0;
  std::string_view payload;
};

/// The record that begins there; nothing when none does.
std::optional<Record> record_at(std::string_view bytes, size_t at) {
  if (bytes.size() - at < kRecordHeaderBytes) return std::nullopt;
  Unpacker header(bytes.substr(at, kRecordHeaderBytes));
  if (header.u32() != kRecordMark) return std::nullopt;
  const size_t length = header.u32();
  const uint64_t sequence = header.u64();
  const uint32_t checksum = header.u32();
  if (length > kMostPayload || length > bytes.size() - at - kRecordHeaderBytes) return std::nullopt;
  const std::string_view payload = bytes.substr(at + kRecordHeaderBytes, length);
  if (checksum_of(bytes.substr(at, kRecordHeaderBytes - 4), payload) != checksum) return std::nullopt;
  return Record{sequence, payload};
}

/// Where the next good record begins, at `from` or behind; npos: there is none.
size_t find_record(std::string_view bytes, size_t from) {
  const std::string mark = Packer().u32(kRecordMark).bytes;
  for (size_t at = bytes.find(mark, from); at != bytes.npos; at = bytes.find(mark, at + 1))
    if (record_at(bytes, at)) return at;
  return bytes.npos;
}

void apply_payload(std::string_view payload, Contents& contents) {
  Unpacker from(payload);
  while (!from.done()) {
    const uint8_t kind = from.u8();
    std::string key = from.text();
    if (kind == kPut)
      contents[std::move(key)] = from.text();
    else if (kind == kErase)
      contents.erase(key);
    else
      fail<Corruption>("a change is of kind {}", kind);
  }
}

/// Bytes behind the header that were durable from the beginning.
uint64_t check_header(std::string_view bytes, const std::string& path) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic)
    fail<Corruption>("{} is no journal of a coordinator: give --journal another file, or move this one away", path);
  Unpacker header(bytes.substr(kMagic.size(), kHeaderBytes - kMagic.size()));
  const uint32_t version = header.u32(), state = header.u32();
  const uint64_t base = header.u64();
  const std::string_view first = bytes.substr(0, kStateAt), last = bytes.substr(kBaseAt, kHeaderChecksumAt - kBaseAt);
  if (header.u32() != checksum_of(first, last))
    fail<Corruption>("the journal {} has a damaged header. {}", path, kAdvice);
  if (version != kVersion)
    fail<Corruption>(
        "the journal {} has version {}, this program reads version {}: start the version of trireme that "
        "wrote it",
        path, version, kVersion);
  if (state == kGapState)
    fail<Corruption>(
        "the journal {} is not up to date: it could not be written for a while, such as on a full disk, "
        "and the coordinator died before it could be again. {}",
        path, kAdvice);
  if (state != kWholeState) fail<Corruption>("the journal {} has a damaged header. {}", path, kAdvice);
  if (base > bytes.size() - kHeaderBytes)
    fail<Corruption>("the journal {} is cut short: it has {} bytes, and began with {}. {}", path, bytes.size(),
                     base + kHeaderBytes, kAdvice);
  return base;
}

}  // namespace

Found read_journal(std::string_view bytes, const std::string& path) {
  const uint64_t base_end = kHeaderBytes + check_header(bytes, path);
  Found found;
  found.end = kHeaderBytes;
  bool first = true;
  while (found.end < bytes.size()) {
    const auto record = record_at(bytes, found.end);
    const bool in_order = record && (first || record->sequence == found.next);
    if (!in_order) break;
    try {
      apply_payload(record->payload, found.contents);
    } catch (const Corruption& error) {
      fail<Corruption>("record {} of the journal {}, at byte {}, is no record of this version: {}. {}",
                       record->sequence, path, found.end, error.what(), kAdvice);
    }
    found.next = record->sequence + 1;
    found.end += kRecordHeaderBytes + record->payload.size();
    first = false;
  }
  if (found.end == bytes.size()) return found;
  const size_t later = find_record(bytes, found.end);
  if (later != bytes.npos)
    fail<Corruption>(
        "the journal {} is damaged in the middle: behind byte {} record {} is missing, and at byte {} there "
        "is a later one. {}",
        path, found.end, found.next, later, kAdvice);
  if (found.end < base_end)
    fail<Corruption>("the journal {} is damaged: record {}, at byte {}, was durable from the beginning. {}", path,
                     found.next, found.end, kAdvice);
  found.remark = fmt::format(
      "the last {} bytes of the journal {} are no whole record, and do not count: the coordinator "
      "died while it wrote them, and had not answered for them",
      bytes.size() - found.end, path);
  return found;
}

}  // namespace trireme::cluster::journal
