#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/parallel/strays.h>

namespace trireme {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kRangesAtATime = 4 * state::Snapshot::kChunk;  // many small ranges in one message
constexpr size_t kAtMost = size_t{16} << 20;                    // of a message

template <class T>
void put(Bytes& to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

template <class T>
void put_all(Bytes& to, std::span<const T> values) {
  put(to, static_cast<uint64_t>(values.size()));
  const auto bytes = std::as_bytes(values);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

/// What put() and put_all() have written, in their order.
class Unpacking {
 public:
  explicit Unpacking(std::span<const std::byte> rest) : rest_(rest) {}
  bool done() const { return rest_.empty(); }
  template <class T>
  T one() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> all() {
    std::vector<T> values(one<uint64_t>());
    const auto bytes = take(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::string text() {
    const std::vector<char> letters = all<char>();
    return {letters.begin(), letters.end()};
  }

 private:
  std::span<const std::byte> take(size_t bytes) {
    if (bytes > rest_.size()) fail<Corruption>("what a rank has sent of its state is cut short");
    return std::exchange(rest_, rest_.subspan(bytes)).first(bytes);
  }
  std::span<const std::byte> rest_;
};

/// Random numbers, scalars and rows.
Bytes pack_rest(state::Snapshot& snapshot, const Bytes& random) {
  Bytes packed;
  put_all<std::byte>(packed, random);
  const auto kept = [](const auto& scalar) { return !is_of_work(scalar.first); };
  put(packed, static_cast<uint64_t>(std::count_if(snapshot.scalars().begin(), snapshot.scalars().end(), kept)));
  for (const auto& [name, value] : snapshot.scalars()) {
    if (is_of_work(name)) continue;
    put_all<char>(packed, name);
    put(packed, value);
  }
  for (const state::Table& table : snapshot.about().tables)
    snapshot.rows(table.name, [&](const state::Row& row) {
      put_all<char>(packed, table.name);
      put(packed, row.key);
      put(packed, row.steps);
      put(packed, row.age);
      put_all(packed, row.values);
      put_all(packed, row.state);
    });
  return packed;
}

void unpack_rest(int rank, const Bytes& packed, Strays& to) {
  Unpacking from(packed);
  to.random[rank] = from.all<std::byte>();
  for (auto scalars = from.one<uint64_t>(); scalars > 0; scalars--) {
    const std::string name = from.text();
    to.state.scalar(name, from.one<int64_t>());
  }
  while (!from.done()) {
    const std::string table = from.text();
    state::Row row{.key = from.one<uint64_t>()};
    row.steps = from.one<uint32_t>();
    row.age = from.one<uint32_t>();
    const auto values = from.all<float>(), of_optimizer = from.all<float>();
    row.values = values;
    row.state = of_optimizer;
    to.state.row(table, row);
  }
}

/// From `rank` to rank 0.
void pass_rest(comm::Communicator& ranks, int rank, state::Snapshot& snapshot, const Bytes& random, Strays& to) {
  const bool sends = ranks.rank() == rank;
  Bytes packed = sends ? pack_rest(snapshot, random) : Bytes();
  uint64_t size = packed.size();
  if (sends)
    ranks.send(&size, 1, DType::i64, 0, "the size of a rank's rows");
  else
    ranks.receive(&size, 1, DType::i64, rank, "the size of a rank's rows");
  packed.resize(size);
  for (size_t at = 0; at < size; at += kAtMost) {
    const size_t some = std::min<size_t>(kAtMost, size - at);
    if (sends)
      ranks.send(packed.data() + at, some, DType::u8, 0, "a rank's rows");
    else
      ranks.receive(packed.data() + at, some, DType::u8, rank, "a rank's rows");
  }
  if (!sends) unpack_rest(rank, packed, to);
}

void pass_ranges(comm::Communicator& ranks, int rank, const std::string& vector,
                 const std::vector<space::Range>& ranges, size_t bytes, state::Snapshot& snapshot, Strays& to) {
  Bytes buffer(bytes);
  const bool sends = ranks.rank() == rank;
  if (!sends) ranks.receive(buffer.data(), bytes, DType::u8, rank, vector);
  std::span<std::byte> rest(buffer);
  for (const space::Range& range : ranges) {
    const std::span<std::byte> here = rest.first(range.size());
    rest = rest.subspan(range.size());
    if (sends)
      snapshot.read(vector, range, here);
    else
      to.state.part(vector, range, here);
  }
  if (sends) ranks.send(buffer.data(), bytes, DType::u8, 0, vector);
}

void pass_vectors(comm::Communicator& ranks, int rank, const state::OwnerMap& division, state::Snapshot& snapshot,
                  Strays& to) {
  for (const std::string& vector : division.vectors()) {
    std::vector<space::Range> some;
    size_t bytes = 0;
    const auto pass = [&] {
      if (bytes > 0) pass_ranges(ranks, rank, vector, some, bytes, snapshot, to);
      some.clear();
      bytes = 0;
    };
    for (const state::Holding& holding : division.of(vector)) {
      if (holding.owner != rank) continue;
      some.push_back(holding.range);
      if ((bytes += holding.range.size()) >= kRangesAtATime) pass();
    }
    pass();
  }
}

}  // namespace

bool is_of_work(const std::string& scalar) { return scalar.starts_with("work/"); }

Strays collect_strays(comm::Communicator& ranks, const std::vector<uint8_t>& sees, const state::OwnerMap& division,
                      state::Snapshot& snapshot, const std::vector<std::byte>& random) {
  Strays strays;
  if (ranks.rank() == 0) strays.state.about(snapshot.about());
  for (int rank = 1; rank < ranks.size(); rank++) {
    if (sees[static_cast<size_t>(rank)] != 0 || (rank != ranks.rank() && ranks.rank() != 0)) continue;
    pass_vectors(ranks, rank, division, snapshot, strays);
    pass_rest(ranks, rank, snapshot, random, strays);
  }
  return strays;
}

}  // namespace trireme
