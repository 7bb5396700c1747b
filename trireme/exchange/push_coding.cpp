#include <trireme/base/clock.h>
#include <trireme/exchange/push_coding.h>
#include <trireme/ps/coded.h>

namespace trireme::exchange {

PushCoding::PushCoding(const ps::Client& client, const Options& options, metrics::Registry* registry)
    : client_(client),
      seed_(options.seed),
      codec_(compress::make_codec(options.codec, true), client.job().layout.bytes(), options.on_nan == OnNan::skip),
      messages_(client.chunks().size()),
      count_(registry) {
  for (const ps::Chunk& chunk : client.chunks()) parcels_.push_back(parcel_of(client.job(), chunk, codec_));
}

std::span<const std::byte> PushCoding::encode(const ps::Chunk& chunk, int64_t step) {
  const Timed timed(count_.seconds, count_.timed);
  compress::Parcel& parcel = parcels_[chunk.index];
  std::vector<std::byte>& message = messages_[chunk.index];
  message.resize(parcel.bytes);
  compress::encode(parcel, codec_, client_.gradients(), {client_.present() + chunk.first, chunk.last - chunk.first},
                   compress::seed_of(seed_, step, client_.worker()), message);
  count_.before_bytes.add(static_cast<double>(chunk.range.size()));
  count_.after_bytes.add(static_cast<double>(message.size()));
  return message;
}

void PushCoding::add_rest(const ps::Chunk& chunk) {
  const uint8_t* const present = client_.present() + chunk.first;
  for (const compress::Parcel::Item& item : parcels_[chunk.index].items)
    present[item.slot] == 0
        ? codec_.keep(item.strip)
        : codec_.add_rest(item.strip, reinterpret_cast<float*>(client_.gradients() + item.range.begin));
}

void PushCoding::settle(bool applied) {
  codec_.settle(applied);
  count_.show(codec_.balance());
}

}  // namespace trireme::exchange
