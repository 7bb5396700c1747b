#pragma once
// Descriptors that a process leaves to those that it starts, and how it tells them which.
#include <optional>
#include <string>

namespace trireme {

/// "DESCRIPTOR:FILE", for an environment variable; "" for a descriptor that is none. With the file's number, so that
/// another file under the same descriptor is not taken for it.
std::string inheritance_of(int descriptor);

/// The descriptor that this stands for; nothing when it was closed or replaced on the way, or when the text means
/// nothing.
std::optional<int> inherited(const std::string& text);

}  // namespace trireme
