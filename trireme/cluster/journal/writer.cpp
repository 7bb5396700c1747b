#include <zlib.h>

#include <trireme/cluster/journal/format.h>
#include <trireme/cluster/journal/packing.h>
#include <trireme/cluster/journal/writer.h>

namespace trireme::cluster::journal {
namespace {

constexpr size_t kRecordOfMany = 256 << 10;

uLong crc_on(uLong crc, std::string_view bytes) {
  return crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
}

}  // namespace

void apply_changes(const Changes& changes, Contents& contents) {
  for (const auto& [key, value] : changes) {
    if (value)
      contents[key] = *value;
    else
      contents.erase(key);
  }
}

uint32_t checksum_of(std::string_view header, std::string_view payload) {
  return static_cast<uint32_t>(crc_on(crc_on(0, header), payload));
}

std::string state_bytes(uint32_t state) { return Packer().u32(state).bytes; }

std::string header_bytes(uint64_t base) {
  const std::string first = std::string(kMagic) + Packer().u32(kVersion).bytes, last = Packer().u64(base).bytes;
  const uint32_t checksum = checksum_of(first, last);
  std::string bytes = first + state_bytes(kWholeState) + last + Packer().u32(checksum).bytes;
  bytes.resize(kHeaderBytes, '\0');
  return bytes;
}

std::string record_bytes(uint64_t sequence, const Changes& changes) {
  Packer payload;
  for (const auto& [key, value] : changes) {
    payload.u8(value ? kPut : kErase).text(key);
    if (value) payload.text(*value);
  }
  Packer record;
  record.u32(kRecordMark).u32(static_cast<uint32_t>(payload.bytes.size())).u64(sequence);
  record.u32(checksum_of(record.bytes, payload.bytes));
  return record.bytes + payload.bytes;
}

std::string all_records(const Contents& contents, uint64_t& sequence) {
  std::string bytes;
  Changes some;
  size_t size = 0;
  const auto write = [&] {
    if (some.empty()) return;
    bytes += record_bytes(sequence++, some);
    some.clear();
    size = 0;
  };
  for (const auto& [key, value] : contents) {
    some.push_back({key, value});
    size += key.size() + value.size();
    if (size > kRecordOfMany) write();
  }
  write();
  return bytes;
}

}  // namespace trireme::cluster::journal
