#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/base/sha256.h>
#include <trireme/checkpoint/hashing.h>

namespace trireme::checkpoint {
namespace {

std::string hash_file(Files& files, const std::string& path, const std::atomic<bool>* given_up) {
  const File file(files, path, O_RDONLY);
  file.expect_reading();
  Sha256 hash;
  std::vector<std::byte> block(size_t{1} << 20);
  const uint64_t size = file.size();
  for (uint64_t at = 0; at < size; at += block.size()) {
    if (given_up != nullptr && given_up->load()) fail<Error>("it was given up before {} was hashed", path);
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), size - at));
    file.read_at(at, part);
    hash.add(part.data(), part.size());
  }
  return hash.finish();
}

/// Of the calling thread, which does nothing else.
void lower_priority() {
  constexpr int kNice = 19;  // hardly anything of a core that others want
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

}  // namespace

std::vector<std::string> hash_files(Files& files, const std::vector<std::string>& paths, int threads, Hurry hurry,
                                    const std::atomic<bool>* given_up) {
  std::vector<std::string> hashes(paths.size());
  std::vector<std::exception_ptr> errors(paths.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < paths.size(); i = next++) try {
        hashes[i] = hash_file(files, paths[i], given_up);
      } catch (...) {
        errors[i] = std::current_exception();
      }
  };
  if (threads <= 1) {
    work();
  } else {
    std::vector<std::jthread> crew;
    for (size_t i = 0; i < std::min(paths.size(), static_cast<size_t>(threads)); i++)
      crew.emplace_back([&] {
        name_thread("ckpt-hash");
        if (hurry == Hurry::background) lower_priority();
        work();
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return hashes;
}

}  // namespace trireme::checkpoint
