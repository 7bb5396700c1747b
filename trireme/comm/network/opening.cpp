#include <algorithm>
#include <cstring>
#include <tuple>

#include <trireme/base/error.h>
#include <trireme/comm/network/shown.h>
#include <trireme/space/layout.h>

namespace trireme::comm::network {

namespace {

/// A peer's flag may be a byte that no bool is.
bool in_ring(const Fingerprint& what) {
  uint8_t byte = 0;
  std::memcpy(&byte, &what.ring, 1);
  return byte != 0;
}

}  // namespace

Fingerprint fingerprint(Kind kind, size_t count, DType type, std::string_view name) {
  Fingerprint what{.count = count, .name = space::hash_text(name), .kind = kind, .dtype = type};
  std::copy_n(name.begin(), std::min(name.size(), what.text.size() - 1), what.text.begin());
  return what;
}

std::string shown_name(const Fingerprint& what) {
  std::string shown(what.text.begin(), std::find(what.text.begin(), what.text.end(), '\0'));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

std::string_view shown_type(const Fingerprint& what) {
  return what.dtype <= DType::u8 ? trireme::name_of(what.dtype) : "an unknown type";
}

bool agree(const Fingerprint& left, const Fingerprint& right) {
  const auto key = [](const Fingerprint& f) {
    return std::make_tuple(f.sequence, f.count, f.name, f.counts, f.root, f.kind, f.dtype, f.op, in_ring(f));
  };
  return key(left) == key(right);
}

std::string describe(const Fingerprint& what) {
  const auto elements =
      fmt::format(" of {} × {}{}", what.count, shown_type(what), what.counts != 0 ? " in uneven blocks" : "");
  const std::string name = shown_name(what);
  if (what.kind > Kind::step) return fmt::format("an unknown collective '{}'{}", name, elements);
  switch (what.kind) {
    case Kind::none:
      return fmt::format("message '{}'{}", name, elements);
    case Kind::barrier:
      return fmt::format("barrier '{}'", name);
    case Kind::allreduce:
    case Kind::reduce_scatter:
      return fmt::format("{} ({}) '{}'{}", name_of(what.kind),
                         what.op <= Op::max ? trireme::name_of(what.op) : "an unknown operation", name, elements);
    case Kind::broadcast:
      return fmt::format("broadcast from rank {} '{}'{}", what.root, name, elements);
    default:
      return fmt::format("{} '{}'{}", name_of(what.kind), name, elements);
  }
}

void disagree(const Fingerprint& mine, int me, const Fingerprint& theirs, int peer, const std::string& more) {
  Fingerprint same_way = theirs;
  same_way.ring = mine.ring;
  if (agree(mine, same_way))
    fail<Mismatch>("rank {} sends {} {}, rank {} {}: direct_bytes must be the same on every rank", me, describe(mine),
                   mine.ring ? "in a ring" : "directly", peer, in_ring(theirs) ? "in a ring" : "directly");
  fail<Mismatch>(
      "ranks disagree in collective {}: rank {} called {}, rank {} called {}{}. Every rank must make the same calls in "
      "the same order",
      mine.sequence, me, describe(mine), peer, describe(theirs), more);
}

}  // namespace trireme::comm::network
