#include <array>
#include <cstring>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/base/segment.h>
#include <trireme/stages/parcel_format.h>

namespace trireme::stages {
namespace {

constexpr uint32_t kParcelMagic = 0x6c637270;  // "prcl"
constexpr size_t kImageDims = 4;               // of tensors that may have their channels last

struct ParcelHead {
  uint32_t magic;
  What what;
  uint8_t reserved;
  uint16_t tensors;
  int32_t micro, chunk;
  uint64_t bytes;  // of the whole block
};

struct TensorRecord {
  DType dtype;
  uint8_t dims;
  uint16_t name_bytes;
  uint32_t channels_last;  // 0 or 1
  uint64_t offset;         // of the data, from the beginning of the block
  std::array<int64_t, Parcels::kMostDims> sizes;
  std::array<char, Parcels::kLongestName + 1> name;
};
static_assert(sizeof(ParcelHead) == 24 && sizeof(TensorRecord) == 200);

constexpr size_t data_begin(size_t tensors) {
  return round_up(sizeof(ParcelHead) + tensors * sizeof(TensorRecord), kParcelAlign);
}

/// Of a tensor; nothing for sizes that are negative or whose product is beyond all memory.
std::optional<size_t> checked_bytes(DType dtype, std::span<const int64_t> sizes) {
  size_t bytes = size_of(dtype);
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0) empty = true;
    if (size > 0 && __builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) return std::nullopt;
  }
  constexpr size_t kBeyond = size_t{1} << 48;  // no address is
  if (bytes > kBeyond) return std::nullopt;
  return empty ? 0 : bytes;
}

[[noreturn]] void refuse_parcel(int from, const std::string& why) {
  fail<Corruption>(
      "what rank {} sent is not a parcel of a pipeline: {}. Do all ranks run the same version, and does nothing else "
      "send messages in this group?",
      from, why);
}

TensorView unpack_tensor(const TensorRecord& record, const std::byte* block, size_t bytes, size_t begin, int from) {
  if (record.dtype > DType::u8) refuse_parcel(from, fmt::format("type {}", static_cast<int>(record.dtype)));
  if (record.dims > Parcels::kMostDims || record.name_bytes > Parcels::kLongestName)
    refuse_parcel(from, fmt::format("a tensor of {} dims with a name of {} bytes", record.dims, record.name_bytes));
  if (record.channels_last > 1 || (record.channels_last == 1 && record.dims != kImageDims))
    refuse_parcel(from, fmt::format("format {} of a tensor of {} dims", record.channels_last, record.dims));
  TensorView view{.name = std::string(record.name.data(), record.name_bytes),
                  .dtype = record.dtype,
                  .sizes = {record.sizes.begin(), record.sizes.begin() + record.dims},
                  .channels_last = record.channels_last == 1};
  const auto size = checked_bytes(view.dtype, view.sizes);
  if (!size || record.offset % kParcelAlign != 0 || record.offset < begin || record.offset > bytes ||
      *size > bytes - record.offset)
    refuse_parcel(from, fmt::format("tensor '{}' is beyond its {} bytes", view.name, bytes));
  view.data = block + record.offset;
  return view;
}

}  // namespace

size_t TensorView::bytes() const { return checked_bytes(dtype, sizes).value_or(0); }

std::string describe(const Label& label) {
  return fmt::format("{} of micro-batch {} for chunk {}", label.what == What::activation ? "activation" : "gradient",
                     label.micro, label.chunk);
}

size_t packed_bytes(const Label& label, std::span<const TensorView> tensors) {
  if (tensors.size() > Parcels::kMostTensors)
    fail<InvalidArgument>("the {} has {} tensors, and a parcel {} at most", describe(label), tensors.size(),
                          Parcels::kMostTensors);
  size_t bytes = data_begin(tensors.size());
  for (const TensorView& tensor : tensors) {
    const auto size = checked_bytes(tensor.dtype, tensor.sizes);
    if (tensor.channels_last && tensor.sizes.size() != kImageDims)
      fail<InvalidArgument>("tensor '{}' of the {} has {} dims, and {} where channels are last", tensor.name,
                            describe(label), tensor.sizes.size(), kImageDims);
    if (!size || tensor.sizes.size() > Parcels::kMostDims || tensor.name.size() > Parcels::kLongestName)
      fail<InvalidArgument>(
          "tensor '{}' of the {} cannot be sent: it has {} dims, and may have {} of 0 or more elements and a name of "
          "{} bytes",
          tensor.name, describe(label), tensor.sizes.size(), Parcels::kMostDims, Parcels::kLongestName);
    bytes += round_up(*size, kParcelAlign);
  }
  return bytes;
}

void pack(const Label& label, std::span<const TensorView> tensors, std::byte* to) {
  size_t offset = data_begin(tensors.size());
  std::byte* record_at = to + sizeof(ParcelHead);
  for (const TensorView& tensor : tensors) {
    TensorRecord record{.dtype = tensor.dtype,
                        .dims = static_cast<uint8_t>(tensor.sizes.size()),
                        .name_bytes = static_cast<uint16_t>(tensor.name.size()),
                        .channels_last = tensor.channels_last ? 1U : 0U,
                        .offset = offset,
                        .sizes = {},
                        .name = {}};
    std::copy(tensor.sizes.begin(), tensor.sizes.end(), record.sizes.begin());
    std::copy(tensor.name.begin(), tensor.name.end(), record.name.begin());
    std::memcpy(record_at, &record, sizeof record);
    record_at += sizeof record;
    const size_t bytes = tensor.bytes();
    if (bytes > 0) std::memcpy(to + offset, tensor.data, bytes);
    offset += round_up(bytes, kParcelAlign);
  }
  const ParcelHead head{kParcelMagic, label.what,  0,     static_cast<uint16_t>(tensors.size()),
                        label.micro,  label.chunk, offset};
  std::memcpy(to, &head, sizeof head);
}

Unpacked unpack(const std::byte* block, size_t bytes, int from) {
  ParcelHead head;
  if (bytes < sizeof head) refuse_parcel(from, fmt::format("it has {} bytes", bytes));
  std::memcpy(&head, block, sizeof head);
  if (head.magic != kParcelMagic) refuse_parcel(from, "it does not begin like one");
  if (head.what > What::gradient || head.tensors > Parcels::kMostTensors)
    refuse_parcel(from, fmt::format("kind {} with {} tensors", static_cast<int>(head.what), head.tensors));
  const size_t begin = data_begin(head.tensors);
  if (head.bytes != bytes || begin > bytes)
    refuse_parcel(from, fmt::format("it has {} bytes and says {}", bytes, head.bytes));
  Unpacked parcel{{head.what, head.micro, head.chunk}, {}};
  parcel.tensors.reserve(head.tensors);
  for (size_t i = 0; i < head.tensors; i++) {
    TensorRecord record;
    std::memcpy(&record, block + sizeof head + i * sizeof record, sizeof record);
    parcel.tensors.push_back(unpack_tensor(record, block, bytes, begin, from));
  }
  return parcel;
}

Parcel KeptParcels::take(const Label& label) {
  const auto found = parcels_.find(label);
  Parcel first = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) parcels_.erase(found);
  return first;
}

}  // namespace trireme::stages
