#pragma once
// What a peer says of an operation, as messages show it. It may be anything: it is neither believed nor trusted to be
// text.
#include <string>
#include <string_view>

#include <trireme/comm/network/opening.h>

namespace trireme::comm::network {

/// The name's beginning. What is no printable ASCII is a '?'.
std::string shown_name(const Fingerprint& what);
/// "f32", or "an unknown type".
std::string_view shown_type(const Fingerprint& what);

}  // namespace trireme::comm::network
