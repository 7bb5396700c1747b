#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/comm/network/opening.h>
#include <trireme/space/layout.h>

namespace trireme::comm::network {

Fingerprint fingerprint(Kind kind, size_t count, DType type, std::string_view name) {
  Fingerprint what{.count = count, .name = space::hash_text(name), .kind = kind, .dtype = type};
  std::copy_n(name.begin(), std::min(name.size(), what.text.size() - 1), what.text.begin());
  return what;
}

bool agree(const Fingerprint& left, const Fingerprint& right) {
  const auto key = [](const Fingerprint& f) {
    return std::tie(f.sequence, f.count, f.name, f.counts, f.root, f.kind, f.dtype, f.op, f.ring);
  };
  return key(left) == key(right);
}

std::string describe(const Fingerprint& what) {
  const auto elements = fmt::format(" of {} × {}{}", what.count, trireme::name_of(what.dtype),
                                    what.counts != 0 ? " in uneven blocks" : "");
  const char* const name = what.text.data();
  switch (what.kind) {
    case Kind::none:
      return fmt::format("message '{}'{}", name, elements);
    case Kind::barrier:
      return fmt::format("barrier '{}'", name);
    case Kind::allreduce:
    case Kind::reduce_scatter:
      return fmt::format("{} ({}) '{}'{}", name_of(what.kind), trireme::name_of(what.op), name, elements);
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
                   mine.ring ? "in a ring" : "directly", peer, theirs.ring ? "in a ring" : "directly");
  fail<Mismatch>(
      "ranks disagree in collective {}: rank {} called {}, rank {} called {}{}. Every rank must make the same calls in "
      "the same order",
      mine.sequence, me, describe(mine), peer, describe(theirs), more);
}

}  // namespace trireme::comm::network
