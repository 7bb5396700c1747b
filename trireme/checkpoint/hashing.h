#pragma once
// SHA-256 of files. Not installed: private to this folder.
#include <atomic>
#include <string>
#include <vector>

#include <trireme/checkpoint/files.h>

namespace trireme::checkpoint {

/// background: beside a training, which has the cores first.
enum class Hurry { background, foreground };

/// By up to `threads` threads; with one, by the caller, at its own priority. In the order of `paths`. Throws what
/// reading a file threw, and Error soon after `given_up` becomes true (null: it never does): it is looked at before
/// each MiB. Blocks.
std::vector<std::string> hash_files(Files& files, const std::vector<std::string>& paths, int threads, Hurry hurry,
                                    const std::atomic<bool>* given_up = nullptr);

}  // namespace trireme::checkpoint
