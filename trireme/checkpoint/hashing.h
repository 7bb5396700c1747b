#pragma once
// SHA-256 of files. Not installed: private to this folder.
#include <string>
#include <vector>

#include <trireme/checkpoint/files.h>

namespace trireme::checkpoint {

/// By up to `threads` threads at low priority; with one, by the caller. In the order of `paths`. Throws what reading a
/// file threw. Blocks.
std::vector<std::string> hash_files(Files& files, const std::vector<std::string>& paths, int threads);

}  // namespace trireme::checkpoint
