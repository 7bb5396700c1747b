#pragma once
// SHA-256 of files. Not installed: private to this folder.
#include <string>
#include <vector>

#include <trireme/checkpoint/files.h>

namespace trireme::checkpoint {

/// background: beside a training, which has the cores first.
enum class Hurry { background, foreground };

/// By up to `threads` threads; with one, by the caller, at its own priority. In the order of `paths`. Throws what
/// reading a file threw. Blocks.
std::vector<std::string> hash_files(Files& files, const std::vector<std::string>& paths, int threads, Hurry hurry);

}  // namespace trireme::checkpoint
